//! The forms of an op: the trait that each implements, and what each form is given.

pub(crate) mod check;
pub(crate) mod cost;
pub(crate) mod cpu;
pub(crate) mod lower;
pub(crate) mod operation;
pub(crate) mod oracle;
pub(crate) mod weights;
