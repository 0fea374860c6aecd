//! What the model read and wrote last, as text and as ids.

use super::prompt;
use crate::Result;
use crate::text::{Segment, Tokenizer};

/// The last prompt with its answer.
///
/// Encoding an answer's text again may give other ids than those that were sampled; a kept sequence would then be computed
/// again from there. So where a prompt only adds to this one and its answer, the new text alone is encoded, from a control
/// token on.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// The last prompt.
    asked: (String, Vec<u32>),
    /// The last prompt that was answered, and its answer.
    answered: (String, Vec<u32>),
}

impl Transcript {
    /// The ids of a prompt. `continued`: it is a text without control tokens, and may go on anywhere.
    pub fn encode(&self, tokenizer: &Tokenizer, segments: &[Segment], continued: bool) -> Result<Vec<u32>> {
        let (answered, answered_ids) = &self.answered;
        if !answered_ids.is_empty() && text(segments).starts_with(answered.as_str()) {
            let new = tokenizer.encode_segments(&after(segments, answered.len()))?;
            // Elsewhere than at a control token, an id could span the border.
            if continued || new.first().is_some_and(|&id| tokenizer.is_control(id)) {
                return Ok([answered_ids.as_slice(), &new].concat());
            }
        }
        prompt::begun(tokenizer, tokenizer.encode_segments(segments)?)
    }

    /// This is asked, as it was [encoded](Transcript::encode).
    pub fn ask(&mut self, segments: &[Segment], ids: &[u32]) {
        self.ask_text(text(segments), ids.to_vec());
    }

    /// This is asked, as text and as ids.
    pub(super) fn ask_text(&mut self, text: String, ids: Vec<u32>) {
        self.asked = (text, ids);
    }

    /// The last prompt that was answered, with its answer.
    pub(super) fn answered_text(&self) -> &str {
        &self.answered.0
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.answered.0.len() + size_of_val(&*self.answered.1)
    }

    /// This was answered: its ids, without the token that ended it, and its text.
    pub fn hear(&mut self, ids: &[u32], text: &str) {
        self.answered = std::mem::take(&mut self.asked);
        self.answered.0.push_str(text);
        self.answered.1.extend_from_slice(ids);
    }
}

/// Their text.
pub(super) fn text(segments: &[Segment]) -> String {
    segments.iter().map(|s| s.text.as_str()).collect()
}

/// What of `segments` lies after the first `bytes`, which end at a character's border.
fn after(segments: &[Segment], mut bytes: usize) -> Vec<Segment> {
    let mut rest = Vec::new();
    for segment in segments {
        if bytes >= segment.text.len() {
            bytes -= segment.text.len();
            continue;
        }
        let text = segment.text.get(bytes..).unwrap_or_default().to_owned();
        rest.push(Segment { text, origin: segment.origin });
        bytes = 0;
    }
    rest
}
