//! What an op checks its operands with, before anything is lowered or run.

use crate::ops::operation::{Look, Operands};
use crate::ops::{Operand, ValueId, WeightId};
use crate::{Error, Result};

/// What an op is checked against: widths of values, shapes of weights.
pub(crate) struct Shapes<'a> {
    pub(crate) width: &'a dyn Fn(ValueId) -> u32,
    pub(crate) matrix: &'a dyn Fn(WeightId) -> (u32, u32),
    pub(crate) vector: &'a dyn Fn(crate::ops::VectorId) -> u32,
    pub(crate) pairs: &'a dyn Fn(crate::ops::RopeId) -> usize,
    /// Elements of a state.
    pub(crate) state: &'a dyn Fn(crate::ops::CacheId) -> u32,
}

/// Fails unless the two agree; says which op, what of it, and both numbers.
pub(in crate::ops) fn same(op: &str, what: &str, is: u32, wanted: u32) -> Result<()> {
    if is == wanted {
        return Ok(());
    }
    Err(Error::argument(op, format!("{what} is {is} wide, but {wanted} are needed")))
}

/// Fails with a problem unless a condition holds.
pub(in crate::ops) fn holds(op: &str, condition: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::argument(op, problem())) }
}

/// All values that an op names are `n` wide.
pub(in crate::ops) fn same_values<'a, O>(op: &str, operands: &'a O, n: u32, s: &Shapes<'_>) -> Result<()>
where
    &'a O: for<'f> Operands<Look<'f>>,
{
    let mut checked = Ok(());
    operands.operands(&mut |_, operand| {
        if let (Operand::Value(value), Ok(())) = (operand, &checked) {
            checked = same(op, "an operand", (s.width)(value), n);
        }
    });
    checked
}

/// All matrices have one shape.
pub(in crate::ops) fn same_matrices(op: &str, all: &[WeightId], shape: (u32, u32), s: &Shapes<'_>) -> Result<()> {
    let other = all.iter().map(|&id| (s.matrix)(id)).find(|found| *found != shape);
    holds(op, other.is_none(), || format!("a matrix is {other:?}, but {shape:?} is needed"))
}
