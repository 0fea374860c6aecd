//! `marker`: the completion marker that a submission leaves.

use super::kernels;
use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Buffer, Dim, PlanBuilder};

params! {
    pub(crate) struct Params {
        salt: u32,
    }
}

/// Keeps zeros, or a copy of the number itself, from passing for a completion marker.
const SALT: u32 = 0x57a3_9e1d;

/// The completion marker of a submission, from its number.
pub(crate) fn mark(number: u32) -> u32 {
    number ^ SALT
}

/// `mark[0] = number[0] ^ SALT`; number (1) u32, mark (1) u32.
pub(crate) fn dispatch(plan: &mut PlanBuilder<'_>, number: &Buffer, mark: &Buffer) -> Result<()> {
    let kernel = kernels::MARKER.kernel();
    plan.dispatch(&kernel, &Params { salt: SALT }, &[Arg::read(number), Arg::Write(mark)], [Dim::Fixed(1); 3])
}
