//! Mirostat 2 (Basu et al. 2021): tokens that would surprise more than a bound are left out, and the bound follows what was sampled.

use super::Candidates;

/// Holds the surprise of a text, -log2 p of its tokens, at a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// The level, in bits; 0 lets the text be. 0 to 100.
    pub tau: f32,
    /// How fast the bound follows. 0 to 1.
    pub eta: f32,
}

impl Mirostat {
    /// Lets the text be.
    pub const NONE: Self = Self { tau: 0.0, eta: 0.1 };

    /// Where the bound begins.
    fn first(&self) -> f64 {
        2.0 * f64::from(self.tau)
    }
}

/// Keeps the tokens whose surprise is at most `mu`; at least the most likely.
pub(super) fn truncate(c: &mut Candidates, mirostat: &Mirostat, mu: Option<f64>) {
    c.sort();
    let sum = c.weigh();
    let mu = mu.unwrap_or(mirostat.first());
    let kept = c.weights.iter().take_while(|w| -(*w / sum).log2() <= mu).count();
    c.list.truncate(kept.max(1));
}

/// The bound for the next token, once `token` of the kept ones was sampled.
pub(super) fn learn(c: &mut Candidates, mirostat: &Mirostat, mu: Option<f64>, token: u32) -> f64 {
    let sum = c.weigh();
    let at = c.list.iter().position(|c| c.id == token);
    let surprise = at.map_or(0.0, |at| -(c.weights[at] / sum).log2());
    mu.unwrap_or(mirostat.first()) - f64::from(mirostat.eta) * (surprise - f64::from(mirostat.tau))
}
