//! Ops on elements, or on rows and heads by themselves: `norm`, `add` and its kin, `magnitude` and its kin.

pub(in crate::ops) mod norm;
pub(in crate::ops) mod pointwise;
pub(in crate::ops) mod row_wise;
