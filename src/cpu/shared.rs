//! A buffer that all threads of a thread pool read and write.
//!
//! The rule that every user keeps, as a GPU kernel would: within a region an element is written by at most one share, and
//! read by others only if nobody writes it. What is whose follows from [`Share`](super::Share) and from the program's order (in
//! `exec/cpu.rs` every node is a region). All accesses are checked against the buffer's bounds, so a mistake in a shape is a
//! panic, never a stray write.
#![allow(unsafe_code, reason = "disjoint parts of one buffer are written by several threads")]

use std::cell::UnsafeCell;
use std::ops::Range;

use bytemuck::Zeroable;

use super::memory::{answering, too_large};
use crate::Result;

/// A buffer of numbers, shared by a thread pool.
pub(crate) struct Shared<T> {
    data: Box<[UnsafeCell<T>]>,
}

// SAFETY: threads share it under the rule above; T is plain data.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T: Copy + Zeroable> Shared<T> {
    /// Zeros. The system hands large ones out page by page, when they are touched. `what` they are for stands in the error.
    pub(crate) fn zeroed(what: &str, len: usize) -> Result<Self> {
        let data = answering(|| bytemuck::allocation::try_zeroed_slice_box::<T>(len));
        let data = data.map_err(|()| too_large::<T>(what, len))?;
        // SAFETY: UnsafeCell<T> has the layout of T, and the box is given back under the same layout.
        Ok(Self { data: unsafe { Box::from_raw(Box::into_raw(data) as *mut [UnsafeCell<T>]) } })
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    /// One element.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> T {
        // SAFETY: nobody writes it now (module rule).
        unsafe { *self.data[at].get() }
    }

    /// Writes one element.
    #[inline]
    pub(crate) fn set(&self, at: usize, value: T) {
        // SAFETY: only this share uses it now (module rule).
        unsafe { *self.data[at].get() = value }
    }

    /// Elements that nobody writes in this region.
    #[inline]
    pub(crate) fn slice(&self, range: Range<usize>) -> &[T] {
        let part = &self.data[range];
        // SAFETY: in bounds, of one allocation, initialised, and not written now (module rule).
        unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), part.len()) }
    }

    /// Elements that only this share uses in this region.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the module's rule")]
    pub(crate) fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        let part = &self.data[range];
        // SAFETY: in bounds, of one allocation, initialised, and used by nobody else now (module rule).
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(part.as_ptr()), part.len()) }
    }

    /// All of it, while no thread pool runs.
    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        self.slice_mut(0..self.len())
    }
}
