//! Sampling tokens: what a request asks for, what of it a device does by itself, and a chain on the CPU for the rest.
//!
//! Penalties and bias → allowed tokens → DRY → temperature → top-k → typical → top-p → min-p → XTC → sample; mirostat
//! replaces all that lies between the temperature and the sample. Each step is a function over the `Candidates`, in a file
//! of its own. What devices sample by themselves ([`Sampling::on_device`]) does not come here.

mod dry;
mod gumbel;
mod inverse_cdf;
mod min_p;
mod mirostat;
mod temperature;
mod top_k;
mod top_p;
mod typical;
mod xtc;

use std::cmp::Ordering;
use std::ops::Range;

pub use dry::Dry;
pub use mirostat::Mirostat;
pub use xtc::Xtc;

use crate::cpu::simd;
use crate::ops::sample::{adjust, all_finite, gather};
use crate::ops::{Penalties, RING, SEEN, SampleEntry, SampleLists, SampleSpec};
use crate::{Error, Result};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the most likely token, whatever the filters say. 0 to 100.
    pub temperature: f32,
    /// Only the k most likely tokens remain; 0 keeps all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities reach this sum remain; 1 keeps all. More than 0, at most 1.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the most likely, remain; 0 keeps all. 0 to 1.
    pub min_p: f32,
    /// Penalties on tokens already seen: repeat more than 0, at most 10; presence and frequency -10 to 10.
    pub penalties: Penalties,
    /// How many of the last tokens, of prompt and answer, penalties look at; at most 4096.
    pub last_n: u32,
    /// Only the most typical tokens whose probabilities reach this sum remain; 1 keeps all. More than 0, at most 1.
    pub typical: f32,
    /// Removes the most likely tokens now and then.
    pub xtc: Xtc,
    /// Lowers the logits of tokens that would continue a repetition.
    pub dry: Dry,
    /// Holds the surprise of the text at a level, in place of all filters.
    pub mirostat: Mirostat,
    /// Keys the noise: the same seed gives the same text.
    pub seed: u64,
    /// How one of those that remain is sampled.
    pub sample: SampleMethod,
}

/// How one of the remaining tokens is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleMethod {
    /// The largest of logit + Gumbel noise: what devices do.
    #[default]
    Gumbel,
    /// The token at which the cumulative probability passes a uniform number.
    InverseCdf,
}

/// llama.cpp's: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05. The seed is 0: the same text each time.
impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::GREEDY }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        penalties: Penalties::NONE,
        last_n: 64,
        typical: 1.0,
        xtc: Xtc::NONE,
        dry: Dry::NONE,
        mirostat: Mirostat::NONE,
        seed: 0,
        sample: SampleMethod::Gumbel,
    };

    /// Names the field that is out of its range, and the range.
    pub fn check(&self) -> Result<()> {
        let Penalties { repeat, presence, frequency } = self.penalties;
        let positive = |x: f32, most: f32| x > 0.0 && x <= most;
        let ranges = [
            ("temperature", self.temperature, (0.0..=100.0).contains(&self.temperature), "0 to 100"),
            ("top-p", self.top_p, positive(self.top_p, 1.0), "more than 0, at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
            ("repeat penalty", repeat, (0.01..=10.0).contains(&repeat), "0.01 to 10"),
            ("presence penalty", presence, (-10.0..=10.0).contains(&presence), "-10 to 10"),
            ("frequency penalty", frequency, (-10.0..=10.0).contains(&frequency), "-10 to 10"),
            ("repeat last n", self.last_n as f32, self.last_n <= SEEN, "0 to 4096"),
            ("typical", self.typical, positive(self.typical, 1.0), "more than 0, at most 1"),
            ("xtc probability", self.xtc.probability, (0.0..=1.0).contains(&self.xtc.probability), "0 to 1"),
            ("xtc threshold", self.xtc.threshold, (0.0..=1.0).contains(&self.xtc.threshold), "0 to 1"),
            ("dry multiplier", self.dry.multiplier, (0.0..=100.0).contains(&self.dry.multiplier), "0 to 100"),
            ("dry base", self.dry.base, (1.0..=100.0).contains(&self.dry.base), "1 to 100"),
            ("mirostat tau", self.mirostat.tau, (0.0..=100.0).contains(&self.mirostat.tau), "0 to 100"),
            ("mirostat eta", self.mirostat.eta, (0.0..=1.0).contains(&self.mirostat.eta), "0 to 1"),
        ];
        match ranges.into_iter().find(|(_, _, fits, _)| !fits) {
            Some((name, value, _, range)) => Err(Error::argument(name, format!("{value}; {range} works"))),
            None => Ok(()),
        }
    }

    /// What the device receives, if it can sample by itself.
    pub fn on_device(&self) -> Option<SampleSpec> {
        let greedy = self.temperature == 0.0;
        let filters = self.typical < 1.0
            || self.xtc != Xtc::NONE
            || self.mirostat.tau > 0.0
            || self.sample != SampleMethod::Gumbel;
        let host = self.dry.multiplier > 0.0 || (filters && !greedy);
        (!host).then_some(self.spec())
    }

    fn spec(&self) -> SampleSpec {
        let Self { temperature, top_k, top_p, min_p, penalties, seed, .. } = *self;
        SampleSpec { temperature, seed, top_k, top_p, min_p, penalties }
    }

    /// The positions whose tokens penalties see when the token at `pos` is sampled.
    pub(crate) fn seen(&self, pos: u32) -> Range<u32> {
        pos.saturating_sub(self.last_n.min(SEEN))..pos
    }
}

/// How often each of some tokens is there.
pub(crate) fn counts(tokens: &[u32]) -> Vec<[u32; 2]> {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).map(|same| [same[0], same.len() as u32]).collect()
}

/// What else a chain knows of a request, besides its [`Sampling`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Of prompt and answer: the token that follows them is sampled.
    pub tokens: &'a [u32],
    /// Added to the logits of these tokens.
    pub bias: &'a [(u32, f32)],
    /// The tokens that may follow: bit `t % 32` of word `t / 32`; none allows all.
    pub allowed: Option<&'a [u32]>,
}

/// What a sampler remembers of a request from one token to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct SamplerState {
    /// Mirostat's bound of the surprise, once there is one.
    mu: Option<f64>,
}

/// The tokens that can still be sampled, by id, and memory for the steps that work on them. Vocabularies are large: all
/// candidates are passed over with vector instructions, and one by one only those that a step looks at.
#[derive(Debug, Default)]
struct Candidates {
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// Whether the inverse CDF runs from the most likely down; else it runs by id.
    ranked: bool,
    /// The places of those that a step looks at.
    places: Vec<u32>,
    /// Their weights, `e^(logit - max)`.
    weights: Vec<f64>,
    /// Sums of weights by distance.
    bins: Vec<f64>,
    /// Distances, places and weights of a bin's candidates.
    bin: Vec<(f64, u32, f64)>,
    /// What is sorted to find the most likely.
    likeliest: Vec<u64>,
}

/// What the weights of all candidates, `e^(logit - max)`, come to.
#[derive(Clone, Copy, Debug)]
struct Weighed {
    max: f64,
    sum: f64,
    /// How far the logits lie below the largest, on average by weight.
    below: f64,
}

impl Weighed {
    /// The logit of a weight.
    fn logit(&self, weight: f64) -> f64 {
        self.max + weight.ln()
    }
}

/// Where an order of candidates, by a distance and then from the most likely down, is cut: the last before it.
#[derive(Clone, Copy, Debug)]
struct Cut {
    distance: f64,
    last: u32,
}

/// Bins of distances, and how many a natural unit has: at 64 units a weight is beyond what matters.
const BINS: usize = 4096;
const BINS_A_UNIT: f64 = 64.0;
/// The distances up to which candidates are looked at first, and then where a cut is not among them.
const FIRST: [f64; 3] = [8.0, 24.0, f64::INFINITY];

/// From the most likely down, of equals by their ids. Logits are finite here; zeros of either sign compare equal, as they do on
/// devices.
fn by_likelihood(logits: &[f32], a: u32, b: u32) -> Ordering {
    let [x, y] = [a, b].map(|at| logits[at as usize]);
    y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// How far from `centre` it is that a logit lies below the largest.
fn distance(logit: f32, max: f64, centre: f64) -> f64 {
    (max - f64::from(logit) - centre).abs()
}

impl Candidates {
    /// All tokens of a row.
    fn fill(&mut self, logits: &[f32]) {
        self.ids.clear();
        self.ids.extend(0..logits.len() as u32);
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.ranked = false;
    }

    /// Keeps the tokens that a map allows.
    fn allow(&mut self, map: &[u32]) {
        let Self { ids, places, .. } = self;
        places.clear();
        places.extend(
            (0..).zip(&*ids).filter(|(_, id)| map[**id as usize / 32] >> (**id % 32) & 1 != 0).map(|(at, _)| at),
        );
        self.keep();
    }

    /// The largest logit.
    fn max(&self) -> f32 {
        simd::maximum(&self.logits, f32::NEG_INFINITY)
    }

    /// The most likely.
    fn best(&self) -> Option<u32> {
        let max = self.max();
        self.logits.iter().position(|logit| *logit == max).map(|at| at as u32)
    }

    fn weigh(&self) -> Weighed {
        let max = self.max();
        let [sum, below] = simd::weigh(&self.logits, max);
        Weighed { max: max.into(), sum, below: below / sum }
    }

    /// Looks at the candidates whose logits are no less.
    fn look_at(&mut self, least: f32) {
        self.places.clear();
        gather(&self.logits, 0, |logit| logit >= least, |at, _| at, &mut self.places);
    }

    /// The same of a logit that no f32 may be.
    fn look_at_exactly(&mut self, least: f64) {
        self.look_at((least as f32).next_down());
        self.places.retain(|at| f64::from(self.logits[*at as usize]) >= least);
    }

    /// Keeps those that are looked at.
    fn keep(&mut self) {
        for (to, from) in self.places.iter().enumerate() {
            self.ids[to] = self.ids[*from as usize];
            self.logits[to] = self.logits[*from as usize];
        }
        self.ids.truncate(self.places.len());
        self.logits.truncate(self.places.len());
    }

    /// Removes those that are looked at.
    fn remove(&mut self) {
        let mut to = self.places.first().map_or(self.ids.len(), |at| *at as usize);
        for (i, at) in self.places.iter().enumerate() {
            let next = self.places.get(i + 1).map_or(self.ids.len(), |at| *at as usize);
            let stays = *at as usize + 1..next;
            self.ids.copy_within(stays.clone(), to);
            self.logits.copy_within(stays.clone(), to);
            to += stays.len();
        }
        self.ids.truncate(to);
        self.logits.truncate(to);
    }

    /// Where the weights, from the least [`distance`] on, reach a sum; none if they do not. Those that come before the cut are among
    /// those that are looked at.
    fn reach(&mut self, max: f64, centre: f64, goal: f64) -> Option<Cut> {
        let bin_of = |distance: f64| ((distance * BINS_A_UNIT) as usize).min(BINS - 1);
        for far in FIRST {
            self.look_at(((max - centre - far) as f32).next_down());
            let Self { logits, places, weights, bins, bin, .. } = self;
            let distance = |at: u32| distance(logits[at as usize], max, centre);
            weights.clear();
            weights.extend(places.iter().map(|at| f64::from(logits[*at as usize]) - max));
            simd::exp_of_negatives(weights);
            bins.clear();
            bins.resize(BINS, 0.0);
            places.iter().zip(&*weights).for_each(|(at, weight)| bins[bin_of(distance(*at))] += weight);
            // The last of these bins have all that is as far.
            let whole = if far.is_finite() { bin_of(far) } else { BINS };
            let mut before = 0.0;
            let crossed = bins[..whole].iter().position(|bin| {
                let reached = before + bin >= goal;
                before += if reached { 0.0 } else { *bin };
                reached
            });
            let Some(crossed) = crossed else { continue };
            bin.clear();
            let all = places.iter().zip(&*weights).map(|(at, weight)| (distance(*at), *at, *weight));
            bin.extend(all.filter(|(distance, ..)| bin_of(*distance) == crossed));
            bin.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then_with(|| by_likelihood(logits, a.1, b.1)));
            let reached = bin.iter().find(|(.., weight)| {
                before += weight;
                before >= goal
            });
            // The bin's sum in another order may have been a little larger.
            return reached.or(bin.last()).map(|(distance, last, _)| Cut { distance: *distance, last: *last });
        }
        None
    }

    /// Keeps what comes before the cut at which weights reach a sum; without one, everything.
    fn cut(&mut self, max: f64, centre: f64, goal: f64) {
        if let Some(cut) = self.reach(max, centre, goal) {
            let Self { logits, places, .. } = &mut *self;
            places.retain(|at| {
                let distance = distance(logits[*at as usize], max, centre);
                distance.total_cmp(&cut.distance).then_with(|| by_likelihood(logits, *at, cut.last)).is_le()
            });
            self.keep();
        }
        self.ranked = true;
    }
}

/// The steps of a chain, with their memory.
#[derive(Debug, Default)]
pub struct Chain {
    candidates: Candidates,
}

impl Chain {
    /// Samples the token that follows the known ones; none if a logit is NaN or infinite, or no token is allowed.
    pub fn sample(
        &mut self,
        sampling: &Sampling,
        known: &Known<'_>,
        state: &mut SamplerState,
        logits: &[f32],
    ) -> Option<u32> {
        if logits.is_empty() || !all_finite(logits) {
            return None;
        }
        let pos = known.tokens.len() as u32;
        let c = &mut self.candidates;
        c.fill(logits);
        let seen = sampling.seen(pos);
        let counts = match sampling.penalties == Penalties::NONE {
            true => Vec::new(),
            false => counts(&known.tokens[seen.start as usize..]),
        };
        let lists = SampleLists { counts: &counts, bias: known.bias, ..SampleLists::default() };
        let mut words = Vec::new();
        let entry = SampleEntry::new(&sampling.spec(), &lists, [0, 0, pos], logits.len() as u32, &mut words).ok()?;
        adjust(&entry, &words, &[0; RING as usize], &mut c.logits);
        if entry.is_adjusted() {
            // Past the largest f32, perhaps.
            c.logits.iter_mut().for_each(|logit| *logit = logit.clamp(f32::MIN, f32::MAX));
        }
        if let Some(map) = known.allowed {
            c.allow(map);
        }
        dry::dry(c, &sampling.dry, known.tokens);
        if sampling.temperature == 0.0 {
            return c.best().map(|at| c.ids[at as usize]);
        }
        temperature::temperature(c, sampling.temperature);
        if sampling.mirostat.tau > 0.0 {
            mirostat::truncate(c, &sampling.mirostat, state.mu);
        } else {
            top_k::top_k(c, sampling.top_k);
            typical::typical(c, sampling.typical);
            top_p::top_p(c, sampling.top_p);
            min_p::min_p(c, sampling.min_p);
            xtc::xtc(c, &sampling.xtc, sampling.seed, pos);
        }
        let sampled = match sampling.sample {
            SampleMethod::Gumbel => gumbel::gumbel(c, sampling.seed, pos),
            SampleMethod::InverseCdf => inverse_cdf::inverse_cdf(c, sampling.seed, pos),
        };
        if let (true, Some(token)) = (sampling.mirostat.tau > 0.0, sampled) {
            state.mu = Some(mirostat::learn(c, &sampling.mirostat, state.mu, token));
        }
        sampled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -8.0];

    /// A temperature whose reciprocal is infinite, with a logit of zero; logits that a penalty takes past the largest f32.
    #[test]
    fn steps_are_given_numbers() {
        let penalties = Penalties { repeat: 10.0, presence: 10.0, frequency: 10.0 };
        for temperature in [1e-39, f32::MIN_POSITIVE, 100.0] {
            let extreme = Sampling { temperature, penalties, last_n: 64, typical: 0.9, top_p: 0.9, ..Sampling::GREEDY };
            for extreme in [extreme, Sampling { mirostat: Mirostat { tau: 5.0, eta: 0.1 }, ..extreme }] {
                let logits = [0.0, f32::MAX, f32::MIN, -0.0, 1.0, f32::MIN];
                for pos in 0..20 {
                    assert_eq!(sample(&mut Chain::default(), &extreme, &logits, pos), Some(1), "{extreme:?} at {pos}");
                }
            }
        }
    }

    fn sampling(f: impl FnOnce(&mut Sampling)) -> Sampling {
        let mut s = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        f(&mut s);
        s
    }

    /// Samples the token at a position.
    fn sample(chain: &mut Chain, s: &Sampling, logits: &[f32], pos: u32) -> Option<u32> {
        let known = Known { tokens: &[0; 20_000][..pos as usize], ..Known::default() };
        chain.sample(s, &known, &mut SamplerState::default(), logits)
    }

    /// Pearson's χ² of 100,000 samples, each with a seed of its own, against the weights that tokens should have.
    fn fits(s: &Sampling, known: &Known<'_>, state: SamplerState, logits: &[f32], weights: &[f64]) {
        const SAMPLES: u64 = 100_000;
        let (mut chain, mut counts) = (Chain::default(), vec![0u32; logits.len()]);
        for i in 0..SAMPLES {
            let s = Sampling { seed: s.seed + i, ..*s };
            counts[chain.sample(&s, known, &mut { state }, logits).unwrap() as usize] += 1;
        }
        let sum: f64 = weights.iter().sum();
        let (mut chi2, mut freedom) = (0.0, -1.0);
        for (token, (&count, weight)) in counts.iter().zip(weights).enumerate() {
            assert!(*weight > 0.0 || count == 0, "token {token} of {s:?}");
            if *weight > 0.0 {
                let expected = SAMPLES as f64 * weight / sum;
                chi2 += (f64::from(count) - expected).powi(2) / expected;
                freedom += 1.0;
            }
        }
        // Wilson and Hilferty's approximation of the 0.9999 quantile. The samples are fixed, so this cannot flicker.
        let part = 2.0 / (9.0 * f64::max(freedom, 1.0));
        let most = f64::max(freedom, 1.0) * (1.0 - part + 3.72 * part.sqrt()).powi(3);
        assert!(chi2 <= most, "χ² {chi2} of {most} {counts:?} of {s:?}");
    }

    /// `e^(logit / temperature)` of the tokens that remain, 0 for the others.
    fn softmax(logits: &[f32], temperature: f32, remaining: &[usize]) -> Vec<f64> {
        let weight = |i: usize| (f64::from(logits[i]) / f64::from(temperature)).exp();
        (0..logits.len()).map(|i| if remaining.contains(&i) { weight(i) } else { 0.0 }).collect()
    }

    #[test]
    fn samples_follow_the_softmax_over_what_remains() {
        let fits = |s: &Sampling, remaining: &[usize]| {
            let weights = softmax(&LOGITS, s.temperature, remaining);
            fits(s, &Known::default(), SamplerState::default(), &LOGITS, &weights);
        };
        for sample in [SampleMethod::Gumbel, SampleMethod::InverseCdf] {
            for temperature in [0.5, 1.0, 2.0] {
                let base = Sampling { temperature, sample, seed: 11, ..Sampling::GREEDY };
                fits(&base, &[0, 1, 2, 3, 4, 5]);
                fits(&Sampling { top_k: 3, ..base }, &[1, 3, 4]);
                fits(&Sampling { top_k: 1, ..base }, &[1]);
            }
            let base = Sampling { temperature: 1.0, sample, seed: 5, ..Sampling::GREEDY };
            // Probabilities: 0.083 0.37 0.019 0.37 0.137 0.00002.
            fits(&Sampling { top_p: 0.7, ..base }, &[1, 3]);
            fits(&Sampling { top_p: 0.9, ..base }, &[0, 1, 3, 4]);
            fits(&Sampling { min_p: 0.3, ..base }, &[1, 3, 4]);
            fits(&Sampling { min_p: 1.0, ..base }, &[1, 3]);
            fits(&Sampling { top_k: 4, top_p: 0.8, min_p: 0.5, ..base }, &[1, 3]);
        }
    }

    /// Probabilities 0.4 0.3 0.2 0.1, entropy 1.28 nats: surprises 0.92 1.20 1.61 2.30 nats, 1.32 1.74 2.32 3.32 bits.
    fn tenths() -> [f32; 4] {
        [0.4f32, 0.3, 0.2, 0.1].map(f32::ln)
    }

    #[test]
    fn the_hosts_samplers_follow_their_exact_distributions() {
        let (logits, none) = (tenths(), Known::default());
        let kept = |remaining: &[usize]| softmax(&logits, 1.0, remaining);
        for (p, remaining) in [(0.45, &[1, 2][..]), (0.7, &[0, 1, 2]), (0.95, &[0, 1, 2, 3])] {
            fits(&sampling(|s| s.typical = p), &none, SamplerState::default(), &logits, &kept(remaining));
        }
        for probability in [0.25, 0.5, 1.0] {
            let s = sampling(|s| s.xtc = Xtc { probability, threshold: 0.15 });
            // Either all, or all but the likely ones before the last of them; each summing to 1.
            let (all, few) = (kept(&[0, 1, 2, 3]), kept(&[2, 3]));
            let share = f64::from(probability);
            let mixed: Vec<f64> = all.iter().zip(&few).map(|(a, f)| (1.0 - share) * a + share * f / 0.3).collect();
            fits(&s, &none, SamplerState::default(), &logits, &mixed);
        }
        // 1 2 was followed by 3 before, and 2 by 3 and 0: `multiplier * 1.75^(n - allowed)` for the longest of each.
        let tokens = [1, 2, 3, 0, 2, 0, 1, 2];
        let known = Known { tokens: &tokens, ..none };
        for allowed in [1, 2] {
            let s = sampling(|s| s.dry = Dry { multiplier: 0.5, allowed, ..Dry::NONE });
            let mut weights = kept(&[0, 1, 2, 3]);
            weights[3] *= (-0.5 * 1.75f64.powi(2 - allowed as i32)).exp();
            weights[0] *= if allowed == 1 { (-0.5f64).exp() } else { 1.0 };
            fits(&s, &known, SamplerState::default(), &logits, &weights);
        }
        for (mu, remaining) in [(1.0, &[0][..]), (1.5, &[0]), (2.0, &[0, 1]), (3.0, &[0, 1, 2]), (4.0, &[0, 1, 2, 3])] {
            let s = sampling(|s| s.mirostat = Mirostat { tau: 2.0, eta: 0.1 });
            fits(&s, &none, SamplerState { mu: Some(mu) }, &logits, &kept(remaining));
        }
    }

    /// The tokens that 2,000 samples give, and how often.
    fn sampled(s: &Sampling, logits: &[f32], tokens: &[u32]) -> Vec<u32> {
        let mut counts = vec![0; logits.len()];
        for seed in 0..2000 {
            let s = Sampling { seed, ..*s };
            let known = Known { tokens, ..Known::default() };
            let token = Chain::default().sample(&s, &known, &mut SamplerState::default(), logits).unwrap();
            counts[token as usize] += 1;
        }
        counts
    }

    fn kept(counts: &[u32]) -> Vec<usize> {
        counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, _)| i).collect()
    }

    #[test]
    fn typical_keeps_what_is_near_the_entropy() {
        let logits = tenths();
        let typical = |p| kept(&sampled(&sampling(|s| s.typical = p), &logits, &[]));
        assert_eq!(typical(0.2), [1]);
        assert_eq!(typical(0.45), [1, 2]);
        assert_eq!(typical(0.7), [0, 1, 2]);
        assert_eq!(typical(0.95), [0, 1, 2, 3]);
    }

    #[test]
    fn xtc_takes_the_most_likely_away_but_one() {
        let logits = tenths();
        let xtc = |probability, threshold| sampled(&sampling(|s| s.xtc = Xtc { probability, threshold }), &logits, &[]);
        assert_eq!(kept(&xtc(1.0, 0.15)), [2, 3]);
        assert_eq!(kept(&xtc(1.0, 0.35)), [0, 1, 2, 3]);
        // Every second time: the most likely token is sampled half as often.
        let halved = xtc(0.5, 0.15)[0];
        assert!((320..480).contains(&halved), "{halved}");
    }

    #[test]
    fn dry_takes_from_what_would_go_on_with_a_repetition() {
        let tokens = [1, 2, 3, 0, 1, 2];
        let dry = |multiplier, allowed| {
            let s = sampling(|s| s.dry = Dry { multiplier, allowed, ..Dry::NONE });
            sampled(&s, &[0.0, 0.0, 0.0, 0.0], &tokens)
        };
        assert_eq!(kept(&dry(50.0, 2)), [0, 1, 2], "3 followed 1 2 before");
        assert_eq!(kept(&dry(50.0, 3)), [0, 1, 2, 3]);
        // e^(-0.5 * 1.75^1) of the weight of the others.
        let share = f64::from(dry(0.5, 1)[3]) / 2000.0;
        let expected = (-0.875f64).exp();
        assert!((share - expected / (3.0 + expected)).abs() < 0.03, "{share}");
    }

    #[test]
    fn mirostat_holds_the_surprise() {
        let logits: Vec<f32> = (0..200).map(|i| -1.1 * ((i + 1) as f32).ln()).collect();
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        for tau in [2.0, 3.5] {
            let s = sampling(|s| s.mirostat = Mirostat { tau, eta: 0.1 });
            let (mut state, mut chain, mut bits) = (SamplerState::default(), Chain::default(), 0.0);
            for pos in 0..3000 {
                let known = Known { tokens: &[0; 3000][..pos], ..Known::default() };
                let token = chain.sample(&s, &known, &mut state, &logits).unwrap();
                bits -= (f64::from(logits[token as usize]).exp() / sum).log2();
            }
            // The surprise is that within what is kept, less than that within all.
            let mean = bits / 3000.0;
            assert!(mean >= f64::from(tau) - 0.1 && mean < f64::from(tau) + 1.5, "{mean} bits for {tau}");
        }
    }

    /// The device's samples and those of the f64 chain are the same, except where a sum lies on an edge.
    #[test]
    fn the_devices_filters_are_the_chains() {
        let mut chain = Chain::default();
        let mut same = 0;
        for seed in 0..2000u64 {
            let logits: Vec<f32> = (0..60).map(|i| 4.0 * ((seed * 131 + i * 7) as f32 * 0.37).sin()).collect();
            let s = sampling(|s| {
                s.seed = seed;
                s.penalties = Penalties { repeat: 1.2, presence: 0.1, frequency: 0.1 };
                (s.top_k, s.top_p, s.min_p) =
                    [(0, 0.9, 0.0), (9, 0.8, 0.0), (30, 1.0, 0.1), (0, 1.0, 0.02)][seed as usize % 4];
            });
            let tokens = [5, 6, 5, 9];
            let bias = [(2, 1.5), (5, 0.5)];
            let allowed = [0xffff_fff0, 0xffff_ffff];
            let known = Known { tokens: &tokens, bias: &bias, allowed: Some(&allowed) };
            let counts = super::counts(&tokens);
            let lists = SampleLists { counts: &counts, bias: &bias, allowed: Some(&allowed), ..SampleLists::default() };
            let mut words = Vec::new();
            let entry = SampleEntry::new(&s.on_device().unwrap(), &lists, [0, 0, 4], 60, &mut words).unwrap();
            let device = crate::ops::sample::Picker::default().pick(&entry, &words, &[0; RING as usize], &logits);
            same += u32::from(device == chain.sample(&s, &known, &mut SamplerState::default(), &logits));
            assert!(device.is_some_and(|token| token > 3));
        }
        assert!(same >= 1995, "{same} of 2000");
    }

    /// What each step keeps of large and small rows, flat and peaked, with and without ties, is what its definition keeps in the plainest
    /// way; where a sum meets an edge but for rounding, either side of it.
    #[test]
    fn each_step_keeps_what_sorting_keeps() {
        let mut c = Candidates::default();
        let (mut cases, mut edges) = (0, 0);
        for case in 0..1500u32 {
            let number = |i: u32| (((case * 7919 + i).wrapping_mul(2_654_435_761) ^ case) >> 8) as f32 / 16_777_216.0;
            let len = [1, 5, 16, 33, 700, 6000][case as usize % 6];
            let spread = [0.0f32, 0.5, 8.0, 30.0, 300.0][case as usize / 6 % 5];
            let levels = [4.0f32, 1e6][case as usize / 30 % 2];
            let logits: Vec<f32> = (0..len).map(|i| (number(i) * levels).floor() / levels * spread - spread).collect();
            let p = [0.05f32, 0.5, 0.9, 0.999][case as usize / 60 % 4];
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            let below = |id: u32| f64::from(max) - f64::from(logits[id as usize]);
            let weight = |id: u32| (-below(id)).exp();
            let ids = 0..len;
            let sum: f64 = ids.clone().map(weight).sum();
            let mean = ids.clone().map(|id| weight(id) * below(id)).sum::<f64>() / sum;
            let sorted = |by: &dyn Fn(u32) -> f64| {
                let mut sorted: Vec<u32> = ids.clone().collect();
                sorted.sort_by(|a, b| by(*a).total_cmp(&by(*b)).then(below(*a).total_cmp(&below(*b))).then(a.cmp(b)));
                sorted
            };
            // Those up to the first at which the sum is reached: at the least and at the most, with rounding.
            let reached = |order: &[u32]| {
                [1.0 - 1e-6, 1.0 + 1e-6].map(|by| {
                    let mut before = 0.0;
                    let last = order.iter().position(|id| {
                        before += weight(*id);
                        before >= f64::from(p) * sum * by
                    });
                    order[..last.map_or(order.len(), |last| last + 1)].to_vec()
                })
            };
            let likely = sorted(&below);
            let above = |least: f64| likely.iter().copied().filter(|id| weight(*id) >= least).collect::<Vec<_>>();
            let twice = |kept: Vec<u32>| [kept.clone(), kept];
            let excluded = |by: f64| {
                let first = above(f64::from(p) * 0.1 * sum * by).len().saturating_sub(1);
                likely[first..].to_vec()
            };
            let mirostat = Mirostat { tau: 1.0, eta: 0.1 };
            let mu = f64::from(p) * 12.0;
            let bounded = |by: f64| likely[..above(sum * (-mu).exp2() * by).len().max(1)].to_vec();
            let chance = Xtc { probability: 1.0, threshold: p * 0.1 };
            type Step<'a> = (&'a str, &'a dyn Fn(&mut Candidates), [Vec<u32>; 2]);
            let steps: [Step<'_>; 6] = [
                ("top-k", &|c| top_k::top_k(c, 40), twice(likely[..likely.len().min(40)].to_vec())),
                ("top-p", &|c| top_p::top_p(c, p), reached(&likely)),
                ("min-p", &|c| min_p::min_p(c, p), [1.0 + 1e-5, 1.0 - 1e-5].map(|by| above(f64::from(p) * by))),
                ("typical", &|c| typical::typical(c, p), reached(&sorted(&|id| (below(id) - mean).abs()))),
                ("XTC", &|c| xtc::xtc(c, &chance, 1, 1), [1.0 - 1e-6, 1.0 + 1e-6].map(excluded)),
                ("mirostat", &|c| mirostat::truncate(c, &mirostat, Some(mu)), [1.0 + 1e-6, 1.0 - 1e-6].map(bounded)),
            ];
            for (name, step, expected) in steps {
                c.fill(&logits);
                step(&mut c);
                let [mut least, mut most] = expected;
                least.sort_unstable();
                most.sort_unstable();
                let what = format!("{name} {p} of {len} up to {spread}, {levels} levels, case {case}");
                cases += 1;
                edges += u32::from(least != most);
                assert!(c.logits.iter().zip(&c.ids).all(|(logit, id)| *logit == logits[*id as usize]), "{what}");
                assert!(c.ids.is_sorted(), "{what}");
                // Which of equally distant candidates is the last may differ with the mean's last digits.
                if least == most && name != "typical" {
                    assert_eq!(c.ids, least, "{what}");
                } else {
                    assert!(
                        (least.len()..=most.len()).contains(&c.ids.len()),
                        "{what}: {} of {}",
                        c.ids.len(),
                        least.len()
                    );
                }
            }
        }
        assert!(edges < cases / 20, "{edges} of {cases} lie on edges");
    }

    #[test]
    fn zeros_of_either_sign_are_equal() {
        assert_eq!(sample(&mut Chain::default(), &Sampling::GREEDY, &[-1.0, -0.0, 0.0], 0), Some(1));
    }

    #[test]
    fn temperature_zero_is_the_first_of_the_most_likely() {
        let s = sampling(|s| {
            s.temperature = 0.0;
            s.top_k = 4;
        });
        assert_eq!(sample(&mut Chain::default(), &s, &LOGITS, 9), Some(1));
        assert!(s.on_device().is_some_and(|spec| spec.temperature == 0.0));
    }

    #[test]
    fn a_filter_that_keeps_all_changes_no_sample() {
        let mut chain = Chain::default();
        for pos in 0..500 {
            let plain = sampling(|s| s.seed = 3);
            let filtered = Sampling { top_k: 6, ..plain };
            assert_eq!(sample(&mut chain, &plain, &LOGITS, pos), sample(&mut chain, &filtered, &LOGITS, pos));
        }
    }

    #[test]
    fn logits_that_are_not_finite_sample_nothing() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let s = sampling(|s| s.top_k = 2);
            assert_eq!(sample(&mut Chain::default(), &s, &[0.0, bad, 1.0], 0), None);
        }
        assert_eq!(sample(&mut Chain::default(), &Sampling::GREEDY, &[], 0), None);
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
