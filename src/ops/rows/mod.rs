//! Ops on the rows and columns of a value: look-up, selection, concatenation, pooling.

pub(in crate::ops) mod concat;
pub(in crate::ops) mod embed;
pub(in crate::ops) mod gather;
pub(in crate::ops) mod pool;
pub(in crate::ops) mod slice;
