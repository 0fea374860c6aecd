//! `add`, `mul`, `act`, `scale`: element by element.

use super::ValueId;
use super::lower::{self, Lower, Lowered};
use crate::gpu::{Arg, Dim, Kernel};

/// Element-wise ops; all operands and the result have one shape.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "operands of a formula: the variant's line gives it")]
pub enum Pointwise {
    /// `out = a + b`
    Add { a: ValueId, b: ValueId, n: u32, out: ValueId },
    /// `out = a * b`
    Mul { a: ValueId, b: ValueId, n: u32, out: ValueId },
    /// `out = act(x)`
    Act { x: ValueId, act: Act, n: u32, out: ValueId },
    /// `out = by * x`
    Scale { x: ValueId, by: f32, n: u32, out: ValueId },
}

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x Φ(x)`, with the error function.
    GeluErf,
    /// `x Φ(x)`, in the tanh approximation.
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    Relu2,
}

impl Pointwise {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Add { .. } => "add",
            Self::Mul { .. } => "mul",
            Self::Act { .. } => "act",
            Self::Scale { .. } => "scale",
        }
    }

    pub(super) fn reads(&self, f: &mut dyn FnMut(ValueId)) {
        match *self {
            Self::Add { a, b, .. } | Self::Mul { a, b, .. } => {
                f(a);
                f(b);
            }
            Self::Act { x, .. } | Self::Scale { x, .. } => f(x),
        }
    }

    pub(super) fn out(&self) -> ValueId {
        match *self {
            Self::Add { out, .. } | Self::Mul { out, .. } | Self::Act { out, .. } | Self::Scale { out, .. } => out,
        }
    }
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows_at: u32,
    fours: u32,
    by: f32,
}

impl Act {
    /// Sets the overrides of a kernel that uses lib/act.
    pub(super) fn lower(self, kernel: &mut Kernel) {
        let number = match self {
            Self::Silu => 0.0,
            Self::GeluErf => 1.0,
            Self::GeluTanh => 2.0,
            Self::Relu => 3.0,
            Self::Relu2 => 4.0,
        };
        kernel.overrides.push(("ACT", number));
    }
}

impl Pointwise {
    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let mut kernel = l.kernel("pointwise");
        let (op, a, b, by) = match *self {
            Self::Add { a, b, .. } => (0.0, a, b, 1.0),
            Self::Mul { a, b, .. } => (1.0, a, b, 1.0),
            Self::Act { x, act, .. } => {
                act.lower(&mut kernel);
                (2.0, x, x, 1.0)
            }
            Self::Scale { x, by, .. } => (3.0, x, x, by),
        };
        kernel.overrides.push(("OP", op));
        let (a, b, out) = (l.value(a), l.value(b), l.value(self.out()));
        let params = Params { rows_at: out.rows_at(), fours: out.stride() / 4, by };
        let args = [Arg::read(l.step), Arg::read(&a.buffer), Arg::read(&b.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(out.stride() / 4), out.rows(1), Dim::Fixed(1)])
    }
}
