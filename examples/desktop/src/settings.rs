//! How answers are made, as people set it.

use serde::{Deserialize, Serialize};
use wgslm::Sampling;

/// Kept on disk; what a file lacks has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// The system prompt; empty: none.
    pub(crate) system: String,
    /// Samples as the model's files recommend, not by the two numbers below.
    pub(crate) recommended: bool,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) max_tokens: u32,
    /// Shows the graph of frame times.
    pub(crate) frames: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { system: String::new(), recommended: true, temperature: 0.7, top_p: 0.95, max_tokens: 512, frames: false }
    }
}

impl Settings {
    /// How tokens are chosen with a model whose files recommend `model`.
    pub(crate) fn sampling(&self, model: Sampling) -> Sampling {
        // Another seed each time, so that an answer that is asked for again is another one.
        let seed = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        let seed = seed.map_or(0, |time| time.as_nanos() as u64);
        match self.recommended {
            true => Sampling { seed, ..model },
            false => Sampling { temperature: self.temperature, top_p: self.top_p, seed, ..model },
        }
    }

    /// What a file may not ask for: people can have edited it.
    pub(crate) fn clamped(self) -> Self {
        let within = |value: f32, low: f32, high: f32, default: f32| match value.is_finite() {
            true => value.clamp(low, high),
            false => default,
        };
        Self {
            temperature: within(self.temperature, 0.0, 2.0, 0.7),
            top_p: within(self.top_p, 0.05, 1.0, 0.95),
            max_tokens: self.max_tokens.clamp(1, 1 << 20),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_versions_and_extreme_numbers_work() {
        let read = |text: &str| serde_json::from_str::<Settings>(text).unwrap().clamped();
        assert_eq!(read("{}"), Settings::default());
        assert_eq!(read(r#"{"later": 1, "system": "Be kind."}"#).system, "Be kind.");
        let extreme = read(r#"{"temperature": -3.0, "top_p": 7.0, "max_tokens": 0}"#);
        assert_eq!((extreme.temperature, extreme.top_p, extreme.max_tokens), (0.0, 1.0, 1));
        assert!(Settings { recommended: false, ..extreme }.sampling(Sampling::default()).check().is_ok());
    }
}
