//! Which regular expressions of a tokenizer.json can take very long.
//!
//! The engine (fancy-regex) gives what it can to `regex`, whose time is linear. What has look-around or back-references it
//! searches itself, and tries all ways in which the parts of such an alternative can share a text: that many steps for each
//! character. Published tokenizers have one repetition there (`\s+(?!\S)`), and a few optional characters.

use fancy_regex::Expr;

/// In how many ways a repetition without a bound, or with a higher one, can match.
const UNBOUNDED: u64 = 1000;
/// Ways in which an alternative may match: one such repetition, and a few choices.
const MAX_WAYS: u64 = 8 * UNBOUNDED;

/// Says what of a pattern takes too long; none of one that is no regular expression.
pub(super) fn too_slow(pattern: &str) -> Option<String> {
    let tree = Expr::parse_tree(pattern).ok()?;
    searched(&tree.expr, &mut |alternative| ways(alternative) > MAX_WAYS).then(|| {
        "it searches a text in very many ways: one repetition (+, *) in an alternative with look-around works"
            .to_owned()
    })
}

/// Whether `f` holds for an alternative that the engine searches itself.
fn searched(expr: &Expr, f: &mut impl FnMut(&Expr) -> bool) -> bool {
    match expr {
        Expr::Alt(alternatives) => alternatives.iter().any(|alternative| searched(alternative, f)),
        Expr::Group(inner) => searched(inner, f),
        _ => is_searched(expr) && f(expr),
    }
}

fn is_searched(expr: &Expr) -> bool {
    match expr {
        Expr::Empty | Expr::Any { .. } | Expr::Assertion(_) | Expr::Literal { .. } | Expr::Delegate { .. } => false,
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().any(is_searched),
        Expr::Group(inner) | Expr::Repeat { child: inner, .. } => is_searched(inner),
        _ => true,
    }
}

/// In how many ways an expression can match at one place of a text.
fn ways(expr: &Expr) -> u64 {
    match expr {
        Expr::Concat(parts) => parts.iter().map(ways).fold(1, u64::saturating_mul),
        Expr::Alt(parts) => parts.iter().map(ways).fold(0, u64::saturating_add),
        Expr::Group(inner) | Expr::AtomicGroup(inner) | Expr::LookAround(inner, _) => ways(inner),
        Expr::Repeat { child, lo, hi, .. } => match ways(child) {
            0..=1 => (hi.saturating_sub(*lo) as u64).saturating_add(1).min(UNBOUNDED),
            // Each time in any of its ways.
            each => each.saturating_pow(u32::try_from(*hi).unwrap_or(u32::MAX)),
        },
        Expr::Conditional { condition, true_branch, false_branch } => {
            ways(condition).saturating_mul(ways(true_branch).saturating_add(ways(false_branch)))
        }
        // These call other parts, themselves among them.
        Expr::SubroutineCall(_) | Expr::UnresolvedNamedSubroutineCall { .. } => u64::MAX,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What published tokenizers have: GPT-2, Llama 3, GPT-4o, DeepSeek, and numbers cut from the right.
    const KNOWN: &[&str] = &[
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[!#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?=(\d{3})+(?!\d))",
        r"(?:^|(?<=[^ ])) ?[a-z]+",
        "(a+)+$", // linear: `regex` takes it
    ];

    #[test]
    fn published_patterns_are_fast() {
        for pattern in KNOWN {
            assert!(fancy_regex::Regex::new(pattern).is_ok(), "{pattern}");
            assert_eq!(too_slow(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn patterns_that_search_in_many_ways_are_slow() {
        let slow = [
            r"(a+)+(?!a|$)b",
            r"(a|aa)+(?!a)b",
            r"(a*)*\1b",
            r"(?=(a+)+b)",
            r"x|(?:(a|a){30}(?=b))",
            r"a*a*a*a*(?=b)",
            r"(?<n>a|b\g<n>)+",
        ];
        for pattern in slow {
            assert!(too_slow(pattern).is_some(), "{pattern}");
        }
        // The first ones reach the engine's limit of a million steps here, which the crate takes for the end of the text.
        let text = "a".repeat(3000);
        for pattern in &slow[..3] {
            let all = fancy_regex::Regex::new(pattern).unwrap();
            assert!(all.find_iter(&text).any(|found| found.is_err()), "{pattern}");
        }
    }
}
