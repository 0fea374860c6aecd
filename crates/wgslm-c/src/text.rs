//! Texts, arrays and handles that come from C.

use std::ffi::{CStr, c_char};

use wgslm::{Error, Result};

/// As the length of a text: up to its NUL.
/// cbindgen:ignore
pub const WGSLM_TO_NUL: usize = usize::MAX;

/// The version of the library: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn wgslm_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// What a pointer points to; null is an error.
///
/// # Safety
///
/// `pointer` is null, or alive for `'a`.
pub(crate) unsafe fn given<'a, T>(name: &str, pointer: *const T) -> Result<&'a T> {
    // SAFETY: as the caller promised.
    unsafe { pointer.as_ref() }.ok_or_else(|| Error::argument(name, "it is NULL"))
}

/// An array; null is one of no elements.
///
/// # Safety
///
/// `pointer` is null, or `len` elements are alive for `'a`.
pub(crate) unsafe fn array<'a, T>(name: &str, pointer: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Error::argument(name, format!("{len} elements at {pointer:?}")));
    }
    // SAFETY: as the caller promised.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// A text of a length, or up to its NUL.
///
/// # Safety
///
/// `pointer` is null, or so many bytes are alive for `'a`.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char, len: usize) -> Result<&'a str> {
    let bytes = if len == WGSLM_TO_NUL {
        // SAFETY: as the caller promised: it ends with a NUL.
        let text = unsafe { pointer.as_ref() }.map(|_| unsafe { CStr::from_ptr(pointer) });
        text.ok_or_else(|| Error::argument(name, "it is NULL"))?.to_bytes()
    } else {
        // SAFETY: as the caller promised.
        unsafe { array(name, pointer.cast::<u8>(), len)? }
    };
    let wrong = |e: std::str::Utf8Error| Error::argument(name, format!("byte {} is not UTF-8", e.valid_up_to()));
    std::str::from_utf8(bytes).map_err(wrong)
}

/// A text that ends with a NUL, if there is one.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn optional<'a>(name: &str, pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promised.
    unsafe { text(name, pointer, WGSLM_TO_NUL) }.map(Some)
}

/// Fills a struct of C that begins with its size, as much of it as there is.
///
/// # Safety
///
/// `pointer` is null, or as many bytes as its first field says are valid for writing. A `T` begins with a `usize`, its size.
pub(crate) unsafe fn fill<T: Copy>(name: &str, pointer: *mut T, value: &T) -> Result<()> {
    // SAFETY: as the caller promised.
    let Some(size) = (unsafe { size_of_given(name, pointer)? }) else { return Ok(()) };
    let head = size_of::<usize>();
    // SAFETY: both hold as many bytes; the caller's size stays.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>().add(head), pointer.cast::<u8>().add(head));
        std::ptr::copy_nonoverlapping(from, to, size.min(size_of::<T>()) - head);
    }
    Ok(())
}

/// What a struct of C says of its size; none for null.
///
/// # Safety
///
/// `pointer` is null, or begins with a `usize`.
pub(crate) unsafe fn size_of_given<T>(name: &str, pointer: *const T) -> Result<Option<usize>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promised: the first field is there.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() || size > 1 << 12 {
        return Err(Error::argument(name, format!("its size is {size}; sizeof of the struct works")));
    }
    Ok(Some(size))
}

/// A struct of C that begins with its size: as much of it as there is, the rest being zeros.
///
/// # Safety
///
/// `pointer` is null, or as many bytes as its first field says are alive. A `T` of zeros is valid, and begins with a `usize`.
pub(crate) unsafe fn sized<T: Copy>(name: &str, pointer: *const T) -> Result<Option<T>> {
    // SAFETY: as the caller promised.
    let Some(size) = (unsafe { size_of_given(name, pointer)? }) else { return Ok(None) };
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: both hold as many bytes; what a later version has beyond is not read.
    unsafe {
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        Ok(Some(value.assume_init()))
    }
}
