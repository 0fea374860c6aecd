//! `sample`: draws the next token from a row of logits, on the device.

/// How a token is drawn: greedily, or by Gumbel-max at a temperature.
///
/// `argmax_t(logit[t] / temperature + g(seed, position, t))` with g Gumbel noise is a draw from the softmax (Gumbel 1954);
/// the maximum is associative, so the result does not depend on the grid, nor on the batch. Ties go to the lowest id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSpec {
    /// 0 draws greedily.
    pub temperature: f32,
    /// Keys the noise, with the position of the drawn token and the token's id.
    pub seed: u64,
}

impl SampleSpec {
    /// The most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, seed: 0 };
}
