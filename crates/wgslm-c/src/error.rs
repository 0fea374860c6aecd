//! Errors as C gets them: a code for programs and a text for people.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What went wrong.
pub struct Error {
    code: CString,
    message: CString,
}

impl Error {
    fn new(code: &str, message: &str) -> Self {
        // A NUL in a message would end it.
        let text = |text: &str| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
        Self { code: text(code), message: text(message) }
    }
}

impl From<wgslm::Error> for Error {
    fn from(error: wgslm::Error) -> Self {
        Self::new(error.code(), &error.to_string())
    }
}

/// Runs what a function does. If it fails, the error goes to its place, if there is one, and `failed` is returned.
///
/// # Safety
///
/// `place` is null or valid for writing.
pub(crate) unsafe fn guard<T>(place: *mut *mut Error, failed: T, run: impl FnOnce() -> wgslm::Result<T>) -> T {
    let error = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error.into(),
        Err(panic) => Error::new("internal", &format!("a fault of wgslm: {}", text(&*panic))),
    };
    if !place.is_null() {
        // SAFETY: as the caller promised.
        unsafe { place.write(Box::into_raw(Box::new(error))) };
    }
    failed
}

/// The same for functions that cannot fail but by a fault.
pub(crate) fn infallible<T>(failed: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(failed)
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// The word for an error that programs know: "argument", "io", "not_found", "limit", "unsupported", "device" and so on;
/// "internal" is a fault of wgslm. It lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_error_code(error: *const Error) -> *const c_char {
    // SAFETY: as the caller promised.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.code.as_ptr())
}

/// What is wrong, where, and what would work. It lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_error_message(error: *const Error) -> *const c_char {
    // SAFETY: as the caller promised.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Frees an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgslm_error_free(error: *mut Error) {
    if !error.is_null() {
        // SAFETY: it was made by `guard`, and the caller gives it up.
        infallible((), || drop(unsafe { Box::from_raw(error) }));
    }
}
