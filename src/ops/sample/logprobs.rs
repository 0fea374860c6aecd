//! Probabilities that a sample reports, on the CPU.

use std::cmp::Ordering;

/// A token and the logarithm of its probability: `logit - ln(sum of e^logit)` over all tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm; at most 0 but for rounding.
    pub logprob: f32,
}

/// Adds the sampled token's, then those of the `n` most likely tokens (all, if there are fewer), from the most likely down; of
/// equals, the lowest id first. Without a token it adds nothing.
pub(crate) fn logprobs(logits: &[f32], token: Option<u32>, n: u32, to: &mut Vec<Logprob>) {
    let Some(token) = token else { return };
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    let of = |token: u32| {
        let logprob = (f64::from(logits[token as usize] - largest) - sum.ln()) as f32;
        Logprob { token, logprob }
    };
    to.push(of(token));
    // Logits are finite where there is a token.
    let larger = |a: u32, b: u32| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap_or(Ordering::Equal);
    let likely = |a: &u32, b: &u32| larger(*a, *b).then(a.cmp(b));
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let n = (n as usize).min(tokens.len());
    if n < tokens.len() {
        tokens.select_nth_unstable_by(n, likely);
        tokens.truncate(n);
    }
    tokens.sort_unstable_by(likely);
    to.extend(tokens.into_iter().map(of));
}
