//! Which rows and columns a value has: looked up, taken, put together, pooled.

pub(in crate::ops) mod concat;
pub(in crate::ops) mod embed;
pub(in crate::ops) mod gather;
pub(in crate::ops) mod pool;
pub(in crate::ops) mod slice;
