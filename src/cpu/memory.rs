//! Memory that may be too large to be had.

use std::cell::Cell;

use bytemuck::Zeroable;

use crate::{Error, Result};

thread_local! {
    static ANSWERED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is about to answer for an allocation that fails: what [`answering`] is for.
#[cfg(feature = "cli")]
pub(crate) fn is_answered() -> bool {
    ANSWERED.try_with(Cell::get).unwrap_or(false)
}

/// Runs `allocate`, whose failure becomes an error. An allocator that ends the program when there is no memory lets it be.
pub(super) fn answering<T>(allocate: impl FnOnce() -> T) -> T {
    let set = |on| _ = ANSWERED.try_with(|answered| answered.set(on));
    set(true);
    let done = allocate();
    set(false);
    done
}

/// Zeros, `len` of them. Large ones cost nothing until they are touched. `what` they are for stands in the error.
pub(crate) fn zeros<T: Zeroable>(what: &str, len: usize) -> Result<Vec<T>> {
    answering(|| bytemuck::allocation::try_zeroed_vec(len)).map_err(|()| too_large::<T>(what, len))
}

/// What is said when the system has no memory for `len` elements.
pub(super) fn too_large<T>(what: &str, len: usize) -> Error {
    let mib = (len as f64 * size_of::<T>() as f64 / f64::from(1 << 20)).ceil();
    Error::Limit {
        what: what.to_owned(),
        needed: format!("{mib} MiB of memory"),
        available: "fewer".to_owned(),
        instead: "a shorter context (--context), fewer sequences or a smaller model fits".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_does_not_have_is_an_error() {
        for len in [1 << 60, usize::MAX / 4, usize::MAX] {
            let error = zeros::<f32>("the KV cache of a layer", len).expect_err("nothing has so much").to_string();
            assert!(error.starts_with("the KV cache of a layer: needs ") && error.contains("--context"), "{error}");
        }
        assert_eq!(zeros::<u16>("little", 3).expect("six bytes"), [0; 3]);
    }
}
