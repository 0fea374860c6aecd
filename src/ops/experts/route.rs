//! `route`: chooses the experts of each row, and their weights.

use crate::cpu::simd;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{Access, CpuForm, GpuForm, Operation, OracleForm, operands};
use crate::ops::oracle::OracleRun;
use crate::ops::{ValueId, VectorId};
use crate::{Error, Result};

/// The `used` experts of the highest scores in each row, in the order of their scores, and the weights of their results. Of
/// equals, the one of the lower number comes first.
///
/// x (rows, experts) f32: the router's logits | out (rows, 2 * used) f32: the numbers of the chosen (integers below 2²⁴,
/// so exact), then their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// (rows, experts)
    pub x: ValueId,
    /// (experts): added to the scores where experts are chosen, but not to their weights.
    pub bias: Option<VectorId>,
    /// How.
    pub spec: RouteSpec,
    /// (rows, 2 * used)
    pub out: ValueId,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteSpec {
    /// All experts.
    pub experts: u32,
    /// How many are chosen.
    pub used: u32,
    /// What is made of a logit.
    pub score: Score,
    /// Experts are chosen from the best groups only.
    pub groups: Option<Groups>,
    /// What the weights are divided by.
    pub divide: Divide,
    /// Factor on the weights.
    pub scale: f32,
}

/// What is made of a row's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// `softmax(x)`
    Softmax,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// x itself to choose by; the weights are the softmax of the chosen.
    SoftmaxOfChosen,
}

/// Groups of as many consecutive experts each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// All groups; divides the experts.
    pub count: u32,
    /// Groups that experts may be chosen from: those of the highest scores.
    pub kept: u32,
    /// Score of a group.
    pub score: GroupScore,
}

/// The score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Its best expert's.
    Best,
    /// The sum of its two best experts'.
    TwoBest,
}

/// What the weights of the chosen are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divide {
    /// 1
    No,
    /// Their sum and this.
    SumPlus(f32),
    /// Their sum, or this where it is larger.
    SumAtLeast(f32),
}

operands!(Route, f, Route { x, bias, out, .. } => {
    f(Access::Read, x.into());
    if let Some(bias) = bias {
        f(Access::Read, bias.into());
    }
    f(Access::Write, out.into());
});

impl Operation for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let (name, spec) = (self.name(), &self.spec);
        same(name, "x", (s.width)(self.x), spec.experts)?;
        same(name, "out", (s.width)(self.out), 2 * spec.used)?;
        if let Some(bias) = self.bias {
            same(name, "the bias", (s.vector)(bias), spec.experts)?;
        }
        // Their numbers must be exact as f32.
        let open = match spec.groups {
            None => spec.experts,
            Some(groups) => {
                let fits = groups.count > 0 && spec.experts.is_multiple_of(groups.count) && groups.kept <= groups.count;
                holds(name, fits, || {
                    format!("{} of {} groups of {} experts", groups.kept, groups.count, spec.experts)
                })?;
                spec.experts / groups.count * groups.kept
            }
        };
        holds(name, (1..=open).contains(&spec.used) && spec.experts < 1 << 24, || {
            format!("chooses {} of {open} experts", spec.used)
        })
    }
}

// CPU

impl CpuForm for Route {
    /// Splits rows.
    fn cpu(&self, run: &CpuRun<'_>) {
        let spec = &self.spec;
        let [experts, used] = [spec.experts, spec.used].map(|n| n as usize);
        let (x, out) = (run.value(self.x), run.value(self.out));
        let bias = self.bias.map(|bias| run.vector(bias));
        let (scores, rest) = run.scratch().split_at_mut(experts);
        let (keys, rest) = rest.split_at_mut(experts);
        let (closed, rest) = rest.split_at_mut(experts);
        for r in run.share.of(run.rows(self.x), 1) {
            let logits = x.slice(r * experts..(r + 1) * experts);
            spec.score.f32(logits, scores);
            keys.copy_from_slice(scores);
            if let Some(bias) = bias {
                keys.iter_mut().zip(bias).for_each(|(key, b)| *key += b);
            }
            closed.fill(0.0);
            if let Some(groups) = spec.groups {
                groups.close(keys, closed, rest);
            }
            let (chosen, weights) = out.slice_mut(2 * r * used..2 * (r + 1) * used).split_at_mut(used);
            for (number, weight) in chosen.iter_mut().zip(weights.iter_mut()) {
                let expert = take_best(keys, closed);
                (*number, *weight) = (expert as f32, scores[expert]);
            }
            if spec.score == Score::SoftmaxOfChosen {
                softmax(weights);
            }
            let sum: f32 = weights.iter().sum();
            let divisor = match spec.divide {
                Divide::No => 1.0,
                Divide::SumPlus(more) => sum + more,
                Divide::SumAtLeast(least) => sum.max(least),
            };
            weights.iter_mut().for_each(|weight| *weight = *weight / divisor * spec.scale);
        }
    }

    fn cpu_scratch(&self, _rows: usize) -> usize {
        3 * self.spec.experts as usize + self.spec.groups.map_or(0, |groups| 2 * groups.count as usize)
    }
}

impl Score {
    fn f32(self, logits: &[f32], scores: &mut [f32]) {
        scores.copy_from_slice(logits);
        match self {
            Self::Softmax => softmax(scores),
            Self::Sigmoid => simd::sigmoid(scores),
            Self::SoftmaxOfChosen => {}
        }
    }
}

impl Groups {
    /// Closes the experts of all groups but the best; `scratch` holds two numbers a group.
    fn close(self, keys: &[f32], closed: &mut [f32], scratch: &mut [f32]) {
        let count = self.count as usize;
        let size = keys.len() / count;
        let (scores, rest) = scratch.split_at_mut(count);
        let taken = &mut rest[..count];
        for (score, keys) in scores.iter_mut().zip(keys.chunks_exact(size)) {
            let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &key in keys {
                (best, second) = if key > best { (key, best) } else { (best, second.max(key)) };
            }
            *score = match self.score {
                GroupScore::TwoBest if size > 1 => best + second,
                _ => best,
            };
        }
        taken.fill(0.0);
        (0..self.kept).for_each(|_| _ = take_best(scores, taken));
        for (closed, taken) in closed.chunks_exact_mut(size).zip(taken) {
            closed.fill(1.0 - *taken);
        }
    }
}

/// The highest key that is not closed, the first of equals; closes it. A NaN that comes first is taken, so that it shows in
/// the result.
fn take_best(keys: &[f32], closed: &mut [f32]) -> usize {
    let open = (0..keys.len()).filter(|&i| closed[i] == 0.0);
    let best = open.reduce(|best, i| if keys[i] > keys[best] { i } else { best }).unwrap_or(0);
    closed[best] = 1.0;
    best
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    simd::exp_below(x, max);
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

// Oracle

impl OracleForm for Route {
    fn oracle(&self, run: &mut OracleRun<'_>) {
        let spec = &self.spec;
        let bias = self.bias.map_or(vec![0.0; spec.experts as usize], |bias| run.vector(bias));
        let row = |logits: &Vec<f64>| -> Vec<f64> {
            let scores: Vec<f64> = match spec.score {
                Score::Softmax => softmax64(logits),
                Score::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
                Score::SoftmaxOfChosen => logits.clone(),
            };
            let keys: Vec<f64> = scores.iter().zip(&bias).map(|(score, b)| score + b).collect();
            let mut open: Vec<usize> = (0..keys.len()).collect();
            if let Some(groups) = spec.groups {
                let size = keys.len() / groups.count as usize;
                let score = |group: usize| -> f64 {
                    let best = ranked(&keys, (group * size..(group + 1) * size).collect());
                    let counted = if groups.score == GroupScore::Best { 1 } else { 2 };
                    best.iter().take(counted).map(|&i| keys[i]).sum()
                };
                let scores: Vec<f64> = (0..groups.count as usize).map(score).collect();
                let kept = ranked(&scores, (0..scores.len()).collect());
                let kept = &kept[..groups.kept as usize];
                open.retain(|expert| kept.contains(&(expert / size)));
            }
            let chosen = &ranked(&keys, open)[..spec.used as usize];
            let mut weights: Vec<f64> = chosen.iter().map(|&i| scores[i]).collect();
            if spec.score == Score::SoftmaxOfChosen {
                weights = softmax64(&weights);
            }
            let sum: f64 = weights.iter().sum();
            let divisor = match spec.divide {
                Divide::No => 1.0,
                Divide::SumPlus(more) => sum + f64::from(more),
                Divide::SumAtLeast(least) => sum.max(f64::from(least)),
            };
            let weights = weights.iter().map(|weight| weight * f64::from(spec.scale) / divisor);
            chosen.iter().map(|&i| i as f64).chain(weights).collect()
        };
        let out = run.value(self.x).iter().map(row).collect();
        run.set(self.out, out);
    }
}

/// Some indices, by falling keys; of equals, the lower first.
fn ranked(keys: &[f64], mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(a.cmp(&b)));
    indices
}

fn softmax64(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

// GPU

params! {
    pub(crate) struct Params {
        rows_at: u32,
        x_stride: u32,
        out_stride: u32,
        bias: u32,
        kept: u32,
        plus: f32,
        least: f32,
        scale: f32,
    }
}

/// Experts that a workgroup's memory holds scores and keys of, beside what else it needs.
const MOST_EXPERTS: u32 = 1536;

impl GpuForm for Route {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (x, out, spec) = (l.value(self.x), l.value(self.out), &self.spec);
        let mut kernel = l.kernel(kernels::ROUTE);
        l.reduce(&mut kernel, l.tuning.table.reduce);
        let score = match spec.score {
            Score::Softmax => 0u32,
            Score::Sigmoid => 1,
            Score::SoftmaxOfChosen => 2,
        };
        let (count, kept, two) =
            spec.groups.map_or((1, 1, false), |g| (g.count, g.kept, g.score == GroupScore::TwoBest));
        let (divide, plus, least) = match spec.divide {
            Divide::No => (false, 0.0, 0.0),
            Divide::SumPlus(more) => (true, more, f32::MIN),
            Divide::SumAtLeast(least) => (true, 0.0, least),
        };
        kernel.set("EXPERTS", spec.experts);
        kernel.set("USED", spec.used);
        kernel.set("GROUPS", count);
        kernel.set("TWO_BEST", two);
        kernel.set("SCORE", score);
        kernel.set("DIVIDE", divide);
        kernel.set("HAS_BIAS", self.bias.is_some());
        let params = Params {
            rows_at: out.rows_at(),
            x_stride: x.stride(),
            out_stride: out.stride(),
            bias: self.bias.map_or(0, |bias| l.vector(bias)),
            kept,
            plus,
            least,
            scale: spec.scale,
        };
        let args = [Arg::read(l.step), Arg::read(&x.buffer), Arg::read(l.vectors), Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [out.rows(1), Dim::Fixed(1), Dim::Fixed(1)])
    }

    fn on_gpu(&self) -> Result<()> {
        if self.spec.experts <= MOST_EXPERTS && self.spec.used <= 64 {
            return Ok(());
        }
        let choice = format!("choosing {} of {} experts on the GPU", self.spec.used, self.spec.experts);
        Err(Error::unsupported(choice, "--device cpu runs it"))
    }
}
