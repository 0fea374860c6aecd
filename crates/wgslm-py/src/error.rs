//! Errors as Python gets them: `WgslmError(code, message, retry_after)`, which the package makes its own classes of.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    _wgslm,
    WgslmError,
    PyException,
    "What went wrong: a code, a text, and seconds after which to ask again."
);

pub(crate) fn to_py(error: wgslm::Error) -> PyErr {
    let retry_after = match &error {
        wgslm::Error::Refused { retry_after, .. } => retry_after.map(|time| time.as_secs_f64()),
        _ => None,
    };
    WgslmError::new_err((error.code(), error.to_string(), retry_after))
}
