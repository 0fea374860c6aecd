//! Drawing a token from logits on the CPU: what the device does not do yet.
//!
//! A chain is temperature → top-k → top-p → min-p → draw; a step is a function over the [`Candidates`], in a file of its own.
//! What needs no filter is drawn on the device ([`Sampling::on_device`]), from the same noise.

mod gumbel;
mod inverse_cdf;
mod min_p;
mod temperature;
mod top_k;
mod top_p;

use std::cmp::Ordering;

use crate::ops::SampleSpec;
use crate::{Error, Result};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the most likely token, whatever the other fields say. 0 to 100.
    pub temperature: f32,
    /// Only the k most likely tokens remain; 0 keeps all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities reach this sum remain; 1 keeps all. More than 0, at most 1.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the most likely, remain; 0 keeps all. 0 to 1.
    pub min_p: f32,
    /// Keys the noise: the same seed gives the same text.
    pub seed: u64,
    /// How one of those that remain is drawn.
    pub draw: Draw,
}

/// How one of the remaining tokens is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draw {
    /// The largest of logit + Gumbel noise: what devices do.
    #[default]
    Gumbel,
    /// The token at which the cumulative probability passes a uniform number.
    InverseCdf,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, draw: Draw::Gumbel };

    /// Names the field that is out of its range, and the range.
    pub fn check(&self) -> Result<()> {
        let ranges = [
            ("temperature", self.temperature, (0.0..=100.0).contains(&self.temperature), "0 to 100"),
            ("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "more than 0, at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
        ];
        match ranges.into_iter().find(|(_, _, fits, _)| !fits) {
            Some((name, value, _, range)) => Err(Error::argument(name, format!("{value}; {range} works"))),
            None => Ok(()),
        }
    }

    /// What the device is told, if it can draw by itself.
    pub fn on_device(&self) -> Option<SampleSpec> {
        if self.temperature == 0.0 {
            return Some(SampleSpec::GREEDY);
        }
        let plain = self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0 && self.draw == Draw::Gumbel;
        plain.then_some(SampleSpec { temperature: self.temperature, seed: self.seed })
    }
}

/// A token that can still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
}

/// The tokens that can still be drawn, and memory for the steps that work on them.
#[derive(Debug, Default)]
struct Candidates {
    list: Vec<Candidate>,
    /// Whether the list runs from the most likely down; else it runs by id.
    sorted: bool,
    weights: Vec<f64>,
}

impl Candidates {
    fn fill(&mut self, logits: &[f32]) {
        self.list.clear();
        self.list.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }));
        self.sorted = false;
    }

    fn max(&self) -> f32 {
        self.list.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// From the most likely down; of equals, the lowest id first.
    fn sort(&mut self) {
        if !std::mem::replace(&mut self.sorted, true) {
            self.list.sort_unstable_by(by_likelihood);
        }
    }

    /// `weights[i] = e^(logit[i] - max)` in f64, and their sum.
    fn weigh(&mut self) -> f64 {
        let max = f64::from(self.max());
        self.weights.clear();
        self.weights.extend(self.list.iter().map(|c| (f64::from(c.logit) - max).exp()));
        self.weights.iter().sum()
    }
}

/// Logits are finite here; zeros of either sign are equal, as they are on devices.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// The steps of a chain, with their memory.
#[derive(Debug, Default)]
pub struct Chain {
    candidates: Candidates,
}

impl Chain {
    /// Draws the token at position `pos` from its logits; none if one of them is NaN or infinite.
    pub fn draw(&mut self, sampling: &Sampling, logits: &[f32], pos: u32) -> Option<u32> {
        if logits.is_empty() || !logits.iter().all(|l| is_finite(*l)) {
            return None;
        }
        let c = &mut self.candidates;
        c.fill(logits);
        if sampling.temperature == 0.0 {
            top_k::top_k(c, 1);
            return c.list.first().map(|c| c.id);
        }
        temperature::temperature(c, sampling.temperature);
        top_k::top_k(c, sampling.top_k);
        top_p::top_p(c, sampling.top_p);
        min_p::min_p(c, sampling.min_p);
        match sampling.draw {
            Draw::Gumbel => gumbel::gumbel(c, sampling.seed, pos),
            Draw::InverseCdf => inverse_cdf::inverse_cdf(c, sampling.seed, pos),
        }
    }
}

/// On the bits: a compiler may assume that comparisons see no NaN.
fn is_finite(x: f32) -> bool {
    x.to_bits() & 0x7f80_0000 != 0x7f80_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -8.0];

    fn sampling(f: impl FnOnce(&mut Sampling)) -> Sampling {
        let mut s = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        f(&mut s);
        s
    }

    /// How often each token is drawn at 20,000 positions.
    fn counts(s: &Sampling) -> [u32; 6] {
        let mut chain = Chain::default();
        let mut counts = [0; 6];
        for pos in 0..20_000 {
            counts[chain.draw(s, &LOGITS, pos).unwrap() as usize] += 1;
        }
        counts
    }

    /// Pearson's χ² of 20,000 draws against the softmax over the tokens that should remain.
    fn fits(s: &Sampling, remaining: &[usize]) {
        let counts = counts(s);
        let weight = |i: usize| (f64::from(LOGITS[i]) / f64::from(s.temperature)).exp();
        let sum: f64 = remaining.iter().map(|&i| weight(i)).sum();
        let mut chi2 = 0.0;
        for (i, &count) in counts.iter().enumerate() {
            if remaining.contains(&i) {
                let expected = 20_000.0 * weight(i) / sum;
                chi2 += (f64::from(count) - expected).powi(2) / expected;
            } else {
                assert_eq!(count, 0, "token {i} of {s:?}");
            }
        }
        // 5 degrees of freedom at most: above 25.7 once in 10,000.
        assert!(chi2 < 25.7, "χ² {chi2} {counts:?} of {s:?}");
    }

    #[test]
    fn draws_follow_the_softmax_over_what_remains() {
        for draw in [Draw::Gumbel, Draw::InverseCdf] {
            for temperature in [0.5, 1.0, 2.0] {
                let base = Sampling { temperature, draw, seed: 11, ..Sampling::GREEDY };
                fits(&base, &[0, 1, 2, 3, 4, 5]);
                fits(&Sampling { top_k: 3, ..base }, &[1, 3, 4]);
                fits(&Sampling { top_k: 1, ..base }, &[1]);
            }
            let base = Sampling { temperature: 1.0, draw, seed: 5, ..Sampling::GREEDY };
            // Probabilities: 0.083 0.37 0.019 0.37 0.137 0.00002.
            fits(&Sampling { top_p: 0.7, ..base }, &[1, 3]);
            fits(&Sampling { top_p: 0.9, ..base }, &[0, 1, 3, 4]);
            fits(&Sampling { min_p: 0.3, ..base }, &[1, 3, 4]);
            fits(&Sampling { min_p: 1.0, ..base }, &[1, 3]);
            fits(&Sampling { top_k: 4, top_p: 0.8, min_p: 0.5, ..base }, &[1, 3]);
        }
    }

    #[test]
    fn zeros_of_either_sign_are_equal() {
        assert_eq!(Chain::default().draw(&Sampling::GREEDY, &[-1.0, -0.0, 0.0], 0), Some(1));
    }

    #[test]
    fn temperature_zero_is_the_first_of_the_most_likely() {
        let s = sampling(|s| {
            s.temperature = 0.0;
            s.top_k = 4;
        });
        assert_eq!(Chain::default().draw(&s, &LOGITS, 9), Some(1));
        assert_eq!(s.on_device(), Some(SampleSpec::GREEDY));
    }

    #[test]
    fn a_filter_that_keeps_all_changes_no_draw() {
        let mut chain = Chain::default();
        for pos in 0..500 {
            let plain = sampling(|s| s.seed = 3);
            let filtered = Sampling { top_k: 6, ..plain };
            assert!(plain.on_device().is_some() && filtered.on_device().is_none());
            assert_eq!(chain.draw(&plain, &LOGITS, pos), chain.draw(&filtered, &LOGITS, pos));
        }
    }

    #[test]
    fn logits_that_are_not_finite_draw_nothing() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let s = sampling(|s| s.top_k = 2);
            assert_eq!(Chain::default().draw(&s, &[0.0, bad, 1.0], 0), None);
        }
        assert_eq!(Chain::default().draw(&Sampling::GREEDY, &[], 0), None);
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        type Case = (&'static str, fn(&mut Sampling));
        let cases: [Case; 9] = [
            ("temperature", |s| s.temperature = -0.1),
            ("temperature", |s| s.temperature = f32::NAN),
            ("temperature", |s| s.temperature = f32::INFINITY),
            ("top-p", |s| s.top_p = 0.0),
            ("top-p", |s| s.top_p = 1.5),
            ("top-p", |s| s.top_p = f32::NAN),
            ("min-p", |s| s.min_p = -1.0),
            ("min-p", |s| s.min_p = 1.1),
            ("min-p", |s| s.min_p = f32::NAN),
        ];
        for (name, change) in cases {
            let error = sampling(change).check().unwrap_err().to_string();
            assert!(error.starts_with(name) && error.ends_with("works"), "{error}");
        }
        sampling(|_| {}).check().unwrap();
    }
}
