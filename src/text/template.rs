//! Chat templates: messages to a prompt whose segments remember who wrote them.
//!
//! # How the origin of a text is known
//!
//! A template is a program: it trims, cuts, joins and searches what users wrote, so that the origin of a character in
//! the output cannot be read off the template, and no string type of our own survives the language's filters. Only one
//! thing must be prevented, though: that a *control string* (the text of a control token) in the output touches
//! anything a user wrote. Control strings begin and end with a few characters (`<`, `>`, `[`, `｜`). So
//! in all strings of the input these characters are replaced by *twins*: private-use characters that occur
//! nowhere else and behave alike (one character, no letter, no space). In the output, twins are turned back, and each
//! is a segment of its own with [`Origin::User`]: whatever control string touches it is not the template's.
//!
//! A control string might also be assembled around a user's text by `'<|' + name + '|>'`. Where a template holds such
//! open ends, a string of the input that would fit gets a twin for its first character too. The usual roles
//! (`user`, `assistant`, …) are trusted: templates do build control strings from them.
//!
//! A template can notice the twins when it searches for such a character: `'</think>' in content`. Therefore the
//! input is also rendered as it is. If both texts are equal, the marks are exact. If not, strings that the template
//! itself names are left alone (unless they could be a part of a control string) and the text is rendered again. If
//! the texts still differ, a user has written a control string that the template looks for. Then the rendering with
//! twins is used: in it the template sees that string as plain text. COMPATIBILITY.md says so.

use std::collections::HashSet;

use minijinja::machinery::{Token, tokenize};
use serde_json::{Map, Value};

use super::jinja::{self, Size};
use super::tokenizer::{Origin, Segment, Tokenizer};
use crate::{Error, Result};

/// The largest template in use has about 20 kB.
const MAX_SOURCE: usize = 1 << 20;
/// Levels of lists and objects in the input.
const MAX_DEPTH: usize = 64;
/// Roles that templates may build control strings from.
const ROLES: [&str; 10] =
    ["system", "user", "assistant", "tool", "developer", "function", "model", "ipython", "human", "observation"];

/// A compiled chat template and the control strings of its model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    tokens: Map<String, Value>, // bos_token and the like: trusted
    controls: Vec<String>,
    marked: Vec<char>,     // first and last characters of control strings
    literals: Vec<String>, // strings of the template that a user may write without becoming a control string
    open_ends: bool,       // control strings can be assembled around a text
}

/// Which character stands for which.
#[derive(Clone, Debug, Default)]
pub(crate) struct Twins {
    originals: Vec<char>,
    base: u32,
}

impl Twins {
    fn twin(&self, c: char) -> Option<char> {
        let at = self.originals.iter().position(|&original| original == c)?;
        char::from_u32(self.base + at as u32)
    }

    /// The character that a twin stands for.
    pub(crate) fn original(&self, c: char) -> Option<char> {
        let at = u32::from(c).checked_sub(self.base)?;
        self.originals.get(at as usize).copied()
    }
}

impl ChatTemplate {
    /// Compiles `source`, for a model whose control tokens have the texts `controls`.
    pub fn new(source: &str, controls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::Template(format!("{} bytes is too large; the limit is {MAX_SOURCE}", source.len())));
        }
        // As Jinja2 reads a template, whoever wrote its ends of lines.
        let source = without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
        jinja::compile(&source).map_err(error)?;
        let controls: Vec<String> = controls.into_iter().map(Into::into).filter(|c: &String| !c.is_empty()).collect();
        let mut marked: Vec<char> =
            controls.iter().flat_map(|c| [c.chars().next(), c.chars().next_back()]).flatten().collect();
        marked.retain(|c| !c.is_alphanumeric() && !c.is_whitespace() && !c.is_control() && !"\"'\\".contains(*c));
        marked.sort_unstable();
        marked.dedup();
        let (literals, open_ends) = scan(&source, &controls, &marked)?;
        Ok(Self { source, tokens: Map::new(), controls, marked, literals, open_ends })
    }

    /// Compiles `source` for the model of `tokenizer`: its control tokens, its BOS and EOS.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let mut this = Self::new(source, tokenizer.control_texts())?;
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
            let text = id.and_then(|id| tokenizer.piece(id)).map(String::from_utf8_lossy);
            this = this.with_token(name, &text.unwrap_or_default());
        }
        Ok(this)
    }

    /// Gives the template a token by name: `bos_token`, `eos_token`.
    pub fn with_token(mut self, name: &str, text: &str) -> Self {
        self.tokens.insert(name.to_owned(), Value::from(text));
        self
    }

    /// Renders `context`, an object with `messages`, and as the template wants `tools`, `add_generation_prompt`,
    /// `enable_thinking` and so on. `now` (seconds since 1970) is what `strftime_now` returns.
    pub fn render(&self, context: &Value, now: Option<i64>) -> Result<Vec<Segment>> {
        let Value::Object(context) = context else {
            return Err(Error::argument("context", "not an object"));
        };
        let mut size = Size::default();
        for value in context.values() {
            measure(value, 0, &mut size)?;
        }
        let twins = self.twins(context)?;
        let render = |context: Map<String, Value>, twins: Option<&Twins>| {
            let context = self.tokens.iter().fold(context, |mut context, (name, token)| {
                context.insert(name.clone(), token.clone());
                context
            });
            jinja::render(&self.source, &Value::Object(context), size, now, twins).map_err(error)
        };
        let plain = render(context.clone(), None)?;
        let marked = self.mark(context, &twins, false);
        if marked == *context {
            return Ok(segments(&plain, &twins));
        }
        if let Ok(text) = render(marked, Some(&twins))
            && restored(&text, &twins) == plain
        {
            return Ok(segments(&text, &twins));
        }
        render(self.mark(context, &twins, true), Some(&twins)).map(|text| segments(&text, &twins))
    }

    /// Twins that occur neither in the template nor in the input.
    fn twins(&self, context: &Map<String, Value>) -> Result<Twins> {
        let mut originals = self.marked.clone();
        originals.extend(self.controls.iter().filter_map(|c| c.chars().next()).filter(|c| c.is_alphanumeric()));
        if self.open_ends {
            originals.extend(('a'..='z').chain('A'..='Z').chain('0'..='9').chain(['_']));
        }
        originals.sort_unstable();
        originals.dedup();
        originals.truncate(4096);
        let n = originals.len() as u32;
        let mut used = HashSet::new();
        let private = |c: &char| matches!(*c, '\u{F0000}'..='\u{10FFFD}');
        used.extend(self.source.chars().filter(private).map(u32::from));
        let mut pending: Vec<&Value> = context.values().collect();
        while let Some(value) = pending.pop() {
            match value {
                Value::String(text) => used.extend(text.chars().filter(private).map(u32::from)),
                Value::Array(items) => pending.extend(items),
                Value::Object(entries) => {
                    used.extend(entries.keys().flat_map(|key| key.chars().filter(private)).map(u32::from));
                    pending.extend(entries.values());
                }
                _ => {}
            }
        }
        let base = (0xF0000..0xFF000u32).step_by(4096).find(|base| !(*base..base + n).any(|c| used.contains(&c)));
        let base = base.ok_or_else(|| Error::Template("the messages use too many private-use characters".into()))?;
        Ok(Twins { originals, base })
    }

    /// The input with twins in all strings but the roles. `spare`: leave alone what the template names itself.
    fn mark(&self, context: &Map<String, Value>, twins: &Twins, spare: bool) -> Map<String, Value> {
        let mark = |text: &str| self.mark_text(text, twins, spare);
        context
            .iter()
            .map(|(name, value)| {
                let value = match (name.as_str(), value) {
                    ("messages", Value::Array(messages)) => {
                        Value::Array(messages.iter().map(|message| mark_message(message, &mark)).collect())
                    }
                    _ => mark_value(value, &mark),
                };
                (name.clone(), value)
            })
            .collect()
    }

    fn mark_text(&self, text: &str, twins: &Twins, spare: bool) -> String {
        let fits = !spare && self.open_ends && self.fits_inside(text.trim());
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let spared =
                spare.then(|| self.literals.iter().find(|literal| rest.starts_with(literal.as_str()))).flatten();
            if let Some(literal) = spared {
                out.push_str(literal);
                rest = rest.get(literal.len()..).unwrap_or_default();
                continue;
            }
            let first = fits && out.trim().is_empty() && !c.is_whitespace();
            // Control strings without a marked character at an end: their first character is marked where they stand.
            let bare = c.is_alphanumeric() && self.controls.iter().any(|control| rest.starts_with(control.as_str()));
            let marked = self.marked.contains(&c) || first || bare;
            out.push(twins.twin(c).filter(|_| marked).unwrap_or(c));
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
        }
        out
    }

    /// Whether `text` could be the inner part of a control string.
    fn fits_inside(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        !text.is_empty()
            && text.len() <= 64
            && self.controls.iter().any(|control| {
                let control = control.to_lowercase();
                control.len() > text.len() && control.contains(&text)
            })
    }
}

fn mark_message(message: &Value, mark: &impl Fn(&str) -> String) -> Value {
    let Value::Object(fields) = message else { return mark_value(message, mark) };
    let fields = fields.iter().map(|(name, value)| {
        let trusted = name == "role" && value.as_str().is_some_and(|role| ROLES.contains(&role));
        (mark(name), if trusted { value.clone() } else { mark_value(value, mark) })
    });
    Value::Object(fields.collect())
}

fn mark_value(value: &Value, mark: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(mark(text)),
        Value::Array(items) => Value::Array(items.iter().map(|item| mark_value(item, mark)).collect()),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (mark(name), mark_value(value, mark))).collect())
        }
        other => other.clone(),
    }
}

fn measure(value: &Value, depth: usize, size: &mut Size) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::argument("context", format!("nested deeper than {MAX_DEPTH} levels")));
    }
    size.values += 1;
    match value {
        Value::String(text) => size.bytes += text.len() as u64,
        Value::Array(items) => items.iter().try_for_each(|item| measure(item, depth + 1, size))?,
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            size.bytes += name.len() as u64;
            measure(value, depth + 1, size)
        })?,
        _ => {}
    }
    Ok(())
}

fn restored(text: &str, twins: &Twins) -> String {
    text.chars().map(|c| twins.original(c).unwrap_or(c)).collect()
}

/// Cuts `text` where twins are: they are the user's.
fn segments(text: &str, twins: &Twins) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for c in text.chars() {
        let (origin, c) = match twins.original(c) {
            Some(original) => (Origin::User, original),
            None => (Origin::Template, c),
        };
        match segments.last_mut() {
            Some(last) if last.origin == origin => last.text.push(c),
            _ => segments.push(Segment { text: c.to_string(), origin }),
        }
    }
    segments
}

/// `{% generation %}` only marks what an assistant said, for training: it becomes `{% with %}`,
/// outside of which nothing knows what is set in it.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tail)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        rest = tail;
        // Looks no further than the tag's own word: a search for the end of each tag would take the square of the time.
        let filler = |c: char| c == '-' || c == '+' || c.is_whitespace();
        let word = tail.trim_start_matches(filler);
        let (replacement, word_end) = match (word.strip_prefix("generation"), word.strip_prefix("endgeneration")) {
            (Some(end), _) => ("with", end),
            (_, Some(end)) => ("endwith", end),
            _ => continue,
        };
        let Some(after) = word_end.trim_start_matches(filler).strip_prefix("%}") else { continue };
        let tag = tail.strip_suffix(after).and_then(|tag| tag.strip_suffix("%}")).unwrap_or_default();
        let sign = |sign: Option<&str>| sign.filter(|sign| matches!(*sign, "-" | "+")).unwrap_or_default().to_owned();
        let (left, right) = (sign(tag.get(..1)), sign(tag.get(tag.len().saturating_sub(1)..)));
        out.push_str(&format!("{left} {replacement} {right}%}}"));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The strings of the template that users may write, and whether a control string could be assembled around a text.
fn scan(source: &str, controls: &[String], marked: &[char]) -> Result<(Vec<String>, bool)> {
    let mut beginnings = HashSet::new();
    let mut ends = HashSet::new();
    for control in controls {
        for (at, _) in control.char_indices().skip(1) {
            let (head, tail) = control.split_at(at);
            beginnings.insert(head);
            ends.insert(tail);
        }
    }
    let ends_open =
        |text: &str| text.char_indices().any(|(at, _)| text.get(at..).is_some_and(|t| beginnings.contains(t)));
    let begins_open = |text: &str| (1..=text.len()).any(|at| text.get(..at).is_some_and(|head| ends.contains(head)));
    let mut literals = Vec::new();
    let mut open = false;
    for token in tokenize(source, false, jinja::syntax().map_err(error)?) {
        let (token, _) = token.map_err(error)?;
        let text: &str = match &token {
            Token::Str(text) | Token::TemplateData(text) => text,
            Token::String(text) => text,
            _ => continue,
        };
        open |= ends_open(tail(text));
        let literal = !matches!(token, Token::TemplateData(_)) && (3..=256).contains(&text.len());
        let harmless = || {
            !controls.iter().any(|c| c.contains(text) || text.contains(c.as_str()))
                && !ends_open(text)
                && !begins_open(text)
        };
        if literal && text.contains(marked) && harmless() {
            literals.push(text.to_owned());
        }
    }
    // Longest first: of two that begin alike the longer one is meant.
    literals.sort_unstable_by_key(|literal| std::cmp::Reverse(literal.len()));
    literals.dedup();
    Ok((literals, open))
}

/// The last bytes of `text`, as many as a control string can have.
fn tail(text: &str) -> &str {
    let mut at = text.len().saturating_sub(256);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    text.get(at..).unwrap_or_default()
}

/// minijinja's error with its causes, without the template's source.
fn error(error: minijinja::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    Error::Template(text)
}
