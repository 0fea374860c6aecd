//! `add`, `mul`, `act`, `scale`, `clamp`: element by element.

use crate::Result;
use crate::cpu::simd;
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
            Self::Act { x, act, n, out } => {
                let own = run.share.of(run.rows(out) * n as usize, 16);
                if x != out {
                    run.value(out).slice_mut(own.clone()).copy_from_slice(run.value(x).slice(own.clone()));
                }
                act.f32(run.value(out).slice_mut(own));
            }
            Self::Scale { x, by, n, out } => binary(run, [x, x, out], n, |x, _| by * x),
            Self::Clamp { x, low, high, n, out } => binary(run, [x, x, out], n, |x, _| clamp(x, low, high)),
        }
    }
}

fn binary(run: &CpuRun<'_>, [a, b, out]: [ValueId; 3], n: u32, f: impl Fn(f32, f32) -> f32) {
    let own = run.share.of(run.rows(out) * n as usize, 16);
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
    /// `x[i] = act(x[i])`, the same bits at any place.
    pub(in crate::ops) fn f32(self, x: &mut [f32]) {
        match self {
            Self::Silu => simd::silu(x),
            Self::GeluErf => simd::gelu_erf(x),
            Self::GeluTanh => simd::gelu_tanh(x),
            Self::Relu => x.iter_mut().for_each(|x| *x = x.max(0.0)),
            Self::Relu2 => x.iter_mut().for_each(|x| *x = x.max(0.0) * x.max(0.0)),
            Self::Sigmoid => simd::sigmoid(x),
            Self::Tanh => simd::tanh(x),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activation_functions_are_close_to_exact_and_the_same_at_any_place() {
        use Act::{GeluErf, GeluTanh, Relu, Relu2, Sigmoid, Silu, Tanh};
        let x: Vec<f32> = (-40_000..=40_000).map(|i| i as f32 * 0.000_213).collect();
        for act in [Silu, GeluErf, GeluTanh, Relu, Relu2, Sigmoid, Tanh] {
            let mut y = x.clone();
            act.f32(&mut y);
            for (i, (x, y)) in x.iter().zip(&y).enumerate() {
                let exact = act.f64(f64::from(*x));
                // The power of e is rounded, too: the larger it is, the less exact is what vanishes with it.
                let power = exact.abs().max(1e-30).ln().abs();
                let most = (4e-7 + 2e-7 * power) * exact.abs() + 1e-30;
                assert!((f64::from(*y) - exact).abs() <= most, "{act:?} of {x} is {y}, not {exact}");
                if i % 97 == 0 {
                    let mut alone = [*x];
                    act.f32(&mut alone);
                    assert_eq!(alone[0].to_bits(), y.to_bits(), "{act:?} of {x}");
                }
            }
            let mut special = [f32::INFINITY, 0.0, -0.0, 88.0, -88.0, 1e20, -1e20];
            let exact = special.map(|x| act.f64(f64::from(x)) as f32);
            act.f32(&mut special);
            for (y, exact) in special.into_iter().zip(exact) {
                assert!(y == exact || (y - exact).abs() < 1e-30, "{act:?}: {y} for {exact}");
            }
            let mut nan = [f32::NAN];
            act.f32(&mut nan);
            assert!(nan[0].is_nan() || matches!(act, Relu | Relu2), "{act:?}");
        }
    }
}
