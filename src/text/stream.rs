//! From token bytes to text that can be shown: whole characters only, and nothing of a stop string.

/// Turns bytes that arrive in arbitrary pieces into valid UTF-8.
///
/// A character is held back until it is complete. Bytes that cannot become one turn into U+FFFD, one for each maximal
/// invalid sequence, as `String::from_utf8_lossy` does for the whole.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    held: Vec<u8>, // at most 3 bytes between calls
}

impl Utf8Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes`, returns the text that is now certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    rest = tail;
                    let Some(bad) = error.error_len() else { break }; // a character that more bytes may complete
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = rest.get(bad..).unwrap_or_default();
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// The end: what is still held can no longer be completed.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Passes text on up to the first stop string, and never shows a part of one.
///
/// Of several stops the one that *ends* first counts, then the one that begins first: the answer is the same however
/// the text is split into pieces.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String, // could be the beginning of a stop
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Waits for any of `stops`; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty()).collect();
        Self { stops, ..Self::default() }
    }

    /// Adds `text`, returns what may be shown. After a stop that is nothing.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        if let Some((_, start, stop)) = found.min() {
            self.stopped = Some(stop);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, held)
    }

    /// The end: what was held back was not the beginning of a stop.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The number of the stop that was found.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

/// How many bytes at the end of `text` are a beginning of `stop`, at most all but one of it.
fn overlap(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(at, _)| at).rev();
    ends.into_iter().find(|&at| text.ends_with(stop.get(..at).unwrap_or_default())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator of repeatable numbers (xorshift64).
    struct Rng(u64);
    impl Rng {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % n as u64) as usize
        }
    }

    #[test]
    fn any_cut_gives_what_the_whole_gives() {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
        let alphabet: [&[u8]; 12] = [
            b"a",
            "é".as_bytes(),
            "中".as_bytes(),
            "🦀".as_bytes(),
            b"\xFF",
            b"\xC3",
            b"\xE4\xB8",
            b"\xF0\x9F\xA6",
            b"\x80",
            b"\xED\xA0\x80",
            b"\xC0\xAF",
            b"<",
        ];
        for _ in 0..20_000 {
            let bytes: Vec<u8> =
                (0..rng.below(12)).flat_map(|_| alphabet[rng.below(alphabet.len())].to_vec()).collect();
            let mut stream = Utf8Stream::new();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(1 + rng.below(rest.len()));
                let shown = stream.push(head);
                assert!(stream.held.len() <= 3);
                text.push_str(&shown);
                rest = tail;
            }
            text.push_str(&stream.finish());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:?}");
        }
    }

    #[test]
    fn no_cut_shows_a_stop() {
        let mut rng = Rng(0x2545_F491_4F6C_DD1D);
        let stops = ["aab", "ba中a", "<|end|>", "bb"];
        let letters = ["a", "b", "中", "<|", "end", "|>", "é"];
        for round in 0..20_000 {
            let text: String = (0..rng.below(20)).map(|_| letters[rng.below(letters.len())]).collect();
            let found = stops.iter().enumerate();
            let found = found.filter_map(|(i, s)| text.find(s).map(|at| (at + s.len(), at, i))).min();
            let expected = found.map_or(text.as_str(), |(_, at, _)| &text[..at]);
            let mut matcher = StopMatcher::new(stops);
            let mut shown = String::new();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let mut cut = 1 + rng.below(rest.len());
                while !rest.is_char_boundary(cut) {
                    cut += 1;
                }
                shown.push_str(&matcher.push(&rest[..cut]));
                assert!(expected.starts_with(&shown), "round {round}: {text:?} showed {shown:?}");
                rest = &rest[cut..];
            }
            shown.push_str(&matcher.finish());
            assert_eq!(shown, expected, "round {round}: {text:?}");
            assert_eq!(matcher.stopped(), found.map(|(_, _, i)| i));
        }
    }
}
