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

/// Makes sure that so many bytes can be had, in pieces. They are given back; a page's memory, which never shrinks, has them then.
#[cfg(target_arch = "wasm32")]
pub(crate) fn reserve(what: &str, bytes: u64) -> Result<()> {
    const PIECE: u64 = 64 << 20;
    let too_large = |_| Error::Limit {
        what: what.to_owned(),
        needed: format!("{} MiB of memory", bytes.div_ceil(1 << 20)),
        available: "fewer".to_owned(),
        instead: "a smaller model or one of fewer bits a weight fits, or a GPU".to_owned(),
    };
    let mut pieces = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let mut piece = Vec::<u8>::new();
        answering(|| piece.try_reserve_exact(left.min(PIECE) as usize)).map_err(too_large)?;
        left -= left.min(PIECE);
        pieces.push(piece);
    }
    Ok(())
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
