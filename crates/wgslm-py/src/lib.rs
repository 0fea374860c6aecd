//! wgslm for Python: what `python/wgslm` is made of.
//!
//! Here is what touches the library: models that are open, generations, and arrays. What is idiomatic in Python, names, defaults and
//! streams, is written in Python.

mod arrays;
mod error;
mod generation;
mod model;

use pyo3::prelude::*;

/// The part of the package that is Rust.
#[pymodule]
fn _wgslm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<model::Model>()?;
    module.add_class::<generation::Generation>()?;
    module.add_class::<arrays::Embedder>()?;
    module.add_class::<arrays::Scorer>()?;
    module.add("WgslmError", module.py().get_type::<error::WgslmError>())?;
    Ok(())
}
