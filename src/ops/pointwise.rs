//! `add`, `mul`, `act`, `scale`: element by element.

use super::ValueId;

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
