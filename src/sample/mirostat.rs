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
    let weighed = c.weigh();
    let most = mu.unwrap_or(mirostat.first());
    c.look_at_exactly(weighed.logit(weighed.sum) - most * std::f64::consts::LN_2);
    if c.places.is_empty() {
        c.places.extend(c.best());
    }
    c.keep();
    c.ranked = true;
}

/// The bound for the next token, once `token` of the kept ones was sampled.
pub(super) fn learn(c: &Candidates, mirostat: &Mirostat, mu: Option<f64>, token: u32) -> f64 {
    let weighed = c.weigh();
    let below = |at: usize| weighed.logit(weighed.sum) - f64::from(c.logits[at]);
    let surprise = c.ids.binary_search(&token).map_or(0.0, below) / std::f64::consts::LN_2;
    mu.unwrap_or(mirostat.first()) - f64::from(mirostat.eta) * (surprise - f64::from(mirostat.tau))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound, and what is kept, are the paper's to the last digits that f64 has.
    #[test]
    fn the_bound_follows_the_formula() {
        // Surprises of 1, 2, 3 and 3 bits.
        let logits = [0.5f64, 0.25, 0.125, 0.125].map(|p| p.ln() as f32);
        let mirostat = Mirostat { tau: 1.25, eta: 0.2 };
        let candidates = |mu| {
            let mut c = Candidates::default();
            c.fill(&logits);
            truncate(&mut c, &mirostat, mu);
            c
        };
        // The first bound is twice tau, 2.5 bits; then it is what was learnt; at least one token stays.
        for (mu, kept) in [(None, 2), (Some(2.49), 2), (Some(1.99), 1), (Some(0.0), 1), (Some(3.01), 4)] {
            assert_eq!(candidates(mu).ids.len(), kept, "{mu:?}");
        }
        // Of the two that are kept the second has a third, so log2 3 bits.
        let learnt = learn(&candidates(None), &mirostat, None, 1);
        assert!((learnt - (2.5 - 0.2f32 as f64 * (3f64.log2() - 1.25))).abs() < 1e-6, "{learnt}");
        let again = learn(&candidates(Some(2.1)), &mirostat, Some(2.1), 0);
        assert!((again - (2.1 - 0.2f32 as f64 * (1.5f64.log2() - 1.25))).abs() < 1e-6, "{again}");
    }
}
