//! DRY, don't repeat yourself (p-e-w, oobabooga/text-generation-webui#5677).

use super::Candidates;

/// Subtracts `multiplier * base^(n - allowed)` from the logit of a token that would extend a repetition of n tokens, n at
/// least `allowed`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dry {
    /// 0 takes nothing. 0 to 100.
    pub multiplier: f32,
    /// 1 to 100.
    pub base: f32,
    /// Repetitions of fewer tokens are left alone.
    pub allowed: u32,
    /// The last so many tokens are searched; 0 searches all.
    pub last_n: u32,
}

impl Dry {
    /// Takes nothing.
    pub const NONE: Self = Self { multiplier: 0.0, base: 1.75, allowed: 2, last_n: 0 };
}

/// Repetitions that exceed those allowed by more than this count as this long.
const LONGEST: usize = 64;

pub(super) fn dry(c: &mut Candidates, dry: &Dry, tokens: &[u32]) {
    if dry.multiplier <= 0.0 {
        return;
    }
    let from = if dry.last_n == 0 { 0 } else { tokens.len().saturating_sub(dry.last_n as usize) };
    let tokens = &tokens[from..];
    let most = LONGEST.saturating_add(dry.allowed as usize);
    // For each token, the longest suffix of the text that has occurred before, followed by this token.
    let mut repeated = std::collections::BTreeMap::<u32, usize>::new();
    for (end, &next) in tokens.iter().enumerate().skip(1) {
        let back = tokens[..end].iter().rev().zip(tokens.iter().rev()).take(most);
        let n = back.take_while(|(a, b)| a == b).count();
        let longest = repeated.entry(next).or_default();
        *longest = n.max(*longest);
    }
    for (id, n) in repeated {
        if n == 0 || n < dry.allowed as usize {
            continue;
        }
        // Candidates are in the order of their ids.
        if let Ok(at) = c.ids.binary_search(&id) {
            let penalty = dry.multiplier * dry.base.powi((n - dry.allowed as usize) as i32).min(1e30);
            c.logits[at] = (c.logits[at] - penalty).max(f32::MIN);
        }
    }
}
