//! Breaks lines of an answer between words, while it comes.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Text on its way to a terminal of so many columns.
///
/// A word is shown while it comes, as long as it cannot reach the edge; near the edge it waits until it is complete. Lines of code,
/// which somebody may want to copy, are left as they are.
pub(super) struct Wrap {
    columns: usize,
    /// Columns of the line that are filled, with what is held.
    at: usize,
    /// Spaces, and the beginning of a word, that have not been shown.
    spaces: String,
    word: String,
    /// Whether a part of the word was shown: it stays on this line.
    begun: bool,
    /// The first characters of the line.
    start: String,
    /// Inside a block of code.
    code: bool,
}

/// Words that begin farther from the edge are shown at once.
const LONG_WORD: usize = 24;

impl Wrap {
    pub(super) fn new(columns: usize) -> Self {
        Self {
            columns,
            at: 0,
            spaces: String::new(),
            word: String::new(),
            begun: false,
            start: String::new(),
            code: false,
        }
    }

    /// For stdout, if it is a terminal whose width is known.
    pub(super) fn of_stdout() -> Option<Self> {
        let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
        // Narrower ones break better by themselves.
        (width.0 >= 20).then(|| Self::new(width.0.into()))
    }

    /// What is shown now.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => {
                    self.show_word(&mut out);
                    out.push_str(&std::mem::take(&mut self.spaces));
                    out.push('\n');
                    if self.start.starts_with("```") {
                        self.code = !self.code;
                    }
                    (self.at, self.begun) = (0, false);
                    self.start.clear();
                }
                c if self.is_code(c) => {
                    self.show_word(&mut out);
                    out.push_str(&std::mem::take(&mut self.spaces));
                    out.push(c);
                    self.at += c.width().unwrap_or(0);
                }
                ' ' | '\t' => {
                    self.show_word(&mut out);
                    self.begun = false;
                    self.spaces.push(c);
                }
                c => {
                    // Between ideographs a line may break anywhere.
                    if c.width() == Some(2) {
                        self.show_word(&mut out);
                        self.begun = false;
                    }
                    self.word.push(c);
                    if self.begun || self.at + self.spaces.width() + LONG_WORD <= self.columns {
                        self.show_word(&mut out);
                        self.begun = true;
                    }
                }
            }
        }
        out
    }

    /// What was held back.
    pub(super) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.show_word(&mut out);
        self.begun = false;
        out + &std::mem::take(&mut self.spaces)
    }

    /// Whether the line is one of code; notes its beginning.
    fn is_code(&mut self, c: char) -> bool {
        if self.start.chars().count() < 4 {
            self.start.push(c);
        }
        self.code || self.start.starts_with("```") || self.start.starts_with("    ") || self.start.starts_with('\t')
    }

    /// Shows what there is of the word, on this line or the next.
    fn show_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let (spaces, word) = (self.spaces.width(), self.word.width());
        if !self.begun && self.at > 0 && self.at + spaces + word > self.columns {
            out.push('\n');
            self.at = 0;
        } else {
            out.push_str(&self.spaces);
            self.at += spaces;
        }
        self.spaces.clear();
        out.push_str(&self.word);
        self.at += word;
        // A word that is longer than a line: the terminal broke it.
        if self.at > self.columns {
            self.at %= self.columns;
        }
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith, \
        his chin nuzzled into his breast in an effort to escape the vile wind, slipped quickly through the glass doors.";

    /// The text in pieces of so many characters, on so many columns.
    fn wrapped(text: &str, columns: usize, piece: usize) -> String {
        let mut wrap = Wrap::new(columns);
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars.chunks(piece).map(String::from_iter);
        let shown: String = pieces.map(|piece| wrap.push(&piece)).collect();
        shown + &wrap.finish()
    }

    #[test]
    fn words_stay_whole_however_they_come() {
        for columns in [30, 40, 80] {
            let whole = wrapped(TEXT, columns, 1000);
            assert_eq!(whole.replace('\n', " "), TEXT);
            assert!(whole.lines().all(|line| line.len() <= columns), "{whole}");
            assert!(whole.lines().count() > TEXT.len() / columns);
            for piece in 1..9 {
                assert_eq!(wrapped(TEXT, columns, piece), whole);
            }
        }
    }

    #[test]
    fn a_word_that_cannot_reach_the_edge_is_shown_at_once() {
        let mut wrap = Wrap::new(80);
        assert_eq!(wrap.push("It"), "It");
        assert_eq!(wrap.push(" was"), " was");
        assert_eq!(wrap.push("n't "), "n't");
        let mut wrap = Wrap::new(30);
        assert_eq!(wrap.push("A bright cold"), "A bright");
        assert_eq!(wrap.push(" day"), " cold");
        assert_eq!(wrap.finish(), " day");
    }

    #[test]
    fn lines_and_code_are_left_alone() {
        let code = "Like so:\n```sh\ncargo run --release -- run \"Once upon a time\" --temp 0 --seed 7\n```\nand on it goes, word by word\n";
        let shown = wrapped(code, 24, 3);
        assert!(shown.contains("--temp 0 --seed 7\n```\nand on it goes, word by\nword"), "{shown}");
        let indented = "    let answer = model.generate(prompt, options).await?;\n";
        assert_eq!(wrapped(indented, 24, 5), indented);
        for text in ["\n\n  a\n", "", " ", "a  b ", "\n"] {
            assert_eq!(wrapped(text, 24, 1), text);
        }
    }

    #[test]
    fn wide_characters_have_two_columns() {
        let shown = wrapped(&"\u{732b}".repeat(30), 24, 1);
        assert_eq!(shown.lines().map(|line| line.chars().count()).collect::<Vec<_>>(), [12, 12, 6]);
        let long = "x".repeat(70);
        assert_eq!(wrapped(&long, 24, 7), long);
    }
}
