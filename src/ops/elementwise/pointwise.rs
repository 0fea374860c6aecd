//! `add`, `mul`, `act`, `scale`, `clamp`: element by element.

use crate::Result;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim, Kernel};
use crate::ops::ValueId;
use crate::ops::check::{Shapes, same_values};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;

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
    /// `out = max(low, min(x, high))`
    Clamp { x: ValueId, low: f32, high: f32, n: u32, out: ValueId },
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
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `tanh(x)`
    Tanh,
}

impl Pointwise {
    pub(in crate::ops) fn out(&self) -> ValueId {
        match *self {
            Self::Add { out, .. }
            | Self::Mul { out, .. }
            | Self::Act { out, .. }
            | Self::Scale { out, .. }
            | Self::Clamp { out, .. } => out,
        }
    }
}

operands!(Pointwise, f, op => {
    match op {
        Pointwise::Add { a, b, out, .. } | Pointwise::Mul { a, b, out, .. } => {
            f(Access::Read, a.into());
            f(Access::Read, b.into());
            f(Access::Write, out.into());
        }
        Pointwise::Act { x, out, .. } | Pointwise::Scale { x, out, .. } | Pointwise::Clamp { x, out, .. } => {
            f(Access::Read, x.into());
            f(Access::Write, out.into());
        }
    }
});

impl Operation for Pointwise {
    fn name(&self) -> &'static str {
        match self {
            Self::Add { .. } => "add",
            Self::Mul { .. } => "mul",
            Self::Act { .. } => "act",
            Self::Scale { .. } => "scale",
            Self::Clamp { .. } => "clamp",
        }
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (Self::Add { n, .. }
        | Self::Mul { n, .. }
        | Self::Act { n, .. }
        | Self::Scale { n, .. }
        | Self::Clamp { n, .. }) = *self;
        same_values(self.name(), self, n, s)
    }
}

// CPU

impl CpuForm for Pointwise {
    /// Splits elements.
    fn cpu(&self, run: &CpuRun<'_>) {
        match *self {
            Self::Add { a, b, n, out } => binary(run, [a, b, out], n, |a, b| a + b),
            Self::Mul { a, b, n, out } => binary(run, [a, b, out], n, |a, b| a * b),
            Self::Act { x, act, n, out } => binary(run, [x, x, out], n, |x, _| act.f32(x)),
            Self::Scale { x, by, n, out } => binary(run, [x, x, out], n, |x, _| by * x),
            Self::Clamp { x, low, high, n, out } => binary(run, [x, x, out], n, |x, _| clamp(x, low, high)),
        }
    }
}

fn binary(run: &CpuRun<'_>, [a, b, out]: [ValueId; 3], n: u32, f: impl Fn(f32, f32) -> f32) {
    let own = run.thread.share(run.rows(out) * n as usize, 16);
    let (a, b) = (run.value(a).slice(own.clone()), run.value(b).slice(own.clone()));
    for ((out, a), b) in run.value(out).slice_mut(own).iter_mut().zip(a).zip(b) {
        *out = f(*a, *b);
    }
}

/// By comparisons, so that NaN stays NaN.
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

impl Act {
    pub(in crate::ops) fn f32(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::GeluErf => gelu_erf(x),
            // (1 + tanh u) / 2 = 1 / (1 + e^-2u): no cancellation where x is negative.
            Self::GeluTanh => {
                let u =
                    std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x);
                x / (1.0 + (-2.0 * u).exp())
            }
            Self::Relu => x.max(0.0),
            Self::Relu2 => x.max(0.0) * x.max(0.0),
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
        }
    }
}

/// `x erfc(-x / √2) / 2`, with the Chebyshev fit of erfc in Numerical Recipes (2nd edition, 6.2), whose relative error
/// stays below 1.2e-7 everywhere.
fn gelu_erf(x: f32) -> f32 {
    const FIT: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let z = f64::from(x).abs() * std::f64::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let erfc = t * (FIT.iter().fold(0.0, |sum, c| sum * t + c) - z * z).exp(); // of |x| / √2
    let twice_phi = if x > 0.0 { 2.0 - erfc } else { erfc };
    (f64::from(x) * 0.5 * twice_phi) as f32
}

// Oracle

impl OracleForm for Pointwise {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let (a, b, f): (_, _, Box<dyn Fn(f64, f64) -> f64>) = match *self {
            Self::Add { a, b, .. } => (a, b, Box::new(|a, b| a + b)),
            Self::Mul { a, b, .. } => (a, b, Box::new(|a, b| a * b)),
            Self::Act { x, act, .. } => (x, x, Box::new(move |x, _| act.f64(x))),
            Self::Scale { x, by, .. } => (x, x, Box::new(move |x, _| f64::from(by) * x)),
            Self::Clamp { x, low, high, .. } => (x, x, Box::new(move |x, _| x.min(high.into()).max(low.into()))),
        };
        let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
        let out = run.value(a).iter().zip(run.value(b)).map(row).collect();
        run.set(self.out(), out);
    }
}

impl Act {
    pub(in crate::ops) fn f64(self, x: f64) -> f64 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::GeluErf => x * 0.5 * erfc(-x / 2f64.sqrt()),
            Self::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                x / (1.0 + (-2.0 * u).exp()) // (1 + tanh u) / 2 in full precision where tanh u nears -1
            }
            Self::Relu => x.max(0.0),
            Self::Relu2 => x.max(0.0).powi(2),
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
        }
    }
}

/// `1 - erf(x)`: the Taylor series of erf where it converges fast, beyond it the continued fraction of erfc
/// (Abramowitz & Stegun 7.1.6, 7.1.14).
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return 1.0 - std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    let fraction = (1..200).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    (-x * x).exp() / (std::f64::consts::PI.sqrt() * fraction)
}

// GPU

params! {
    pub(crate) struct Params {
        rows_at: u32,
        vec4s: u32,
        by: f32,
        low: f32,
        high: f32,
    }
}

impl Act {
    /// Sets the overrides of a kernel that uses lib/act.
    pub(in crate::ops) fn lower(self, kernel: &mut Kernel) {
        let number = match self {
            Self::Silu => 0u32,
            Self::GeluErf => 1,
            Self::GeluTanh => 2,
            Self::Relu => 3,
            Self::Relu2 => 4,
            Self::Sigmoid => 6,
            Self::Tanh => 5,
        };
        kernel.set("ACT", number);
    }
}

impl GpuForm for Pointwise {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let mut kernel = l.kernel(kernels::POINTWISE);
        let (mut low, mut high) = (0.0, 0.0);
        let (op, a, b, by) = match *self {
            Self::Add { a, b, .. } => (0u32, a, b, 1.0),
            Self::Mul { a, b, .. } => (1, a, b, 1.0),
            Self::Act { x, act, .. } => {
                act.lower(&mut kernel);
                (2, x, x, 1.0)
            }
            Self::Scale { x, by, .. } => (3, x, x, by),
            Self::Clamp { x, low: least, high: most, .. } => {
                (low, high) = (least, most);
                (4, x, x, 1.0)
            }
        };
        kernel.set("OP", op);
        let (a, b, out) = (l.value(a), l.value(b), l.value(self.out()));
        let params = Params { rows_at: out.rows_at(), vec4s: out.stride() / 4, by, low, high };
        let args = [Arg::read(l.step), Arg::read(&a.buffer), Arg::read(&b.buffer), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(out.stride() / 4), out.rows(1), Dim::Fixed(1)])
    }
}
