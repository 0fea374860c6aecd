//! Probabilities that a sample reports, on the CPU.

use super::likeliest::{largest, likeliest};
use crate::cpu::simd::exp_of_negatives;

/// A token and the logarithm of its probability: `logit - ln(sum of e^logit)` over all tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm; at most 0 but for rounding.
    pub logprob: f32,
}

/// The largest logit, and `ln Σ e^(logit - largest)` in f64. NaN makes the sum NaN.
pub(crate) fn normalizer(logits: &[f32]) -> (f32, f64) {
    let largest = largest(logits);
    let mut sum = 0.0;
    for part in logits.chunks(512) {
        let mut weights = [0.0; 512];
        let weights = &mut weights[..part.len()];
        weights.iter_mut().zip(part).for_each(|(weight, x)| *weight = f64::from(x - largest));
        exp_of_negatives(weights);
        sum += weights.iter().sum::<f64>();
    }
    (largest, sum.ln())
}

/// Adds the sampled token's, then those of the `n` most likely tokens (all, if there are fewer), from the most likely down; of
/// equals, the lowest id first. Without a token it adds nothing.
pub(crate) fn logprobs(logits: &[f32], token: Option<u32>, n: u32, to: &mut Vec<Logprob>) {
    let Some(token) = token else { return };
    let (largest, log_sum) = normalizer(logits);
    let of = |token: u32| {
        let logprob = (f64::from(logits[token as usize] - largest) - log_sum) as f32;
        Logprob { token, logprob }
    };
    to.push(of(token));
    let mut places = Vec::new();
    likeliest(logits, n as usize, &mut places);
    to.extend(places.into_iter().map(|place| of(place as u32)));
}
