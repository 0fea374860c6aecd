//! Where the time of steps goes.

use std::time::Duration;

/// How long a part of the last step took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The node of the phase's program that it belongs to; none for sampling tokens.
    pub node: Option<usize>,
    /// The kernel, on a GPU; on the CPU the op.
    pub kernel: &'static str,
    /// How long it took.
    pub time: Duration,
}
