//! An answer's text in the making, taken apart: what the model thinks, what it says, which tools it calls.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::calls::{self, CHANNEL, CLOSE, CallFormat, MISTRAL, OPEN, PYTHON, ToolCall};
use crate::text::Tokenizer;

/// What a message of gpt-oss's begins with, its header ends with, and it ends with: `<|channel|>final<|message|>Yes.<|end|>`.
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", CHANNEL];

/// How the answers of a model are written, as its chat template shows it: thoughts, words, calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFormat {
    /// What thoughts stand between.
    marks: (&'static str, &'static str),
    thinks: bool,
    calls: Option<CallFormat>,
}

impl AnswerFormat {
    /// That of a chat template's source.
    pub fn of_template(source: &str) -> Self {
        const MARKS: [(&str, &str); 5] = [
            (CHANNEL, MESSAGE),
            ("[THINK]", "[/THINK]"),
            ("<seed:think>", "</seed:think>"),
            ("<|START_THINKING|>", "<|END_THINKING|>"),
            ("<reasoning>", "</reasoning>"),
        ];
        let own = MARKS.into_iter().find(|(_, close)| source.contains(close));
        let marks = own.unwrap_or(("<think>", "</think>"));
        Self { marks, thinks: source.contains(marks.1), calls: CallFormat::of_template(source) }
    }

    /// Whether the template says something about thoughts.
    pub fn thinks(&self) -> bool {
        self.thinks
    }

    /// Whether the template says how tools are called.
    pub fn calls(&self) -> bool {
        self.calls.is_some()
    }

    /// Takes an answer apart. `prompt` is the text that it follows, with which a thought may begin; of it only the end matters.
    /// `tools` may be called, each as OpenAI's API has it: some formats leave the types of arguments to their schemas. Without
    /// tools there are no calls.
    pub fn splitter(&self, prompt: &str, tools: Arc<[Value]>) -> Splitter {
        let calls = self.calls.filter(|_| !tools.is_empty());
        Splitter { tools, ..Splitter::new(prompt, self.marks, calls) }
    }
}

/// Control tokens that are no text, and say where something begins: their texts take part here.
fn is_mark(text: &str) -> bool {
    const THOUGHTS: [&str; 8] = [
        "<think>",
        "</think>",
        "<seed:think>",
        "</seed:think>",
        "[THINK]",
        "[/THINK]",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
    ];
    THOUGHTS.contains(&text) || calls::MARKS.contains(&text)
}

/// What became certain of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Of what the model thinks.
    pub thought: String,
    /// Of what it says.
    pub text: String,
    /// Calls that are complete.
    pub calls: Vec<ToolCall>,
}

impl Parts {
    /// Whether nothing became certain.
    pub fn is_empty(&self) -> bool {
        self.thought.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// Adds what became certain later.
    pub fn extend(&mut self, later: Self) {
        self.thought += &later.thought;
        self.text += &later.text;
        self.calls.extend(later.calls);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space was said.
    Start,
    Thought,
    /// After a thought: the white space that follows it belongs to neither.
    AfterThought,
    Text,
    /// Inside of a call, which ends by its mark or with the answer.
    Call,
    /// Before a message on a channel.
    Header,
}

/// Takes an answer apart. The parts are the same however the text is split into pieces.
#[derive(Clone, Debug)]
pub struct Splitter {
    marks: (&'static str, &'static str),
    calls: Option<CallFormat>,
    /// The tools that may be called.
    tools: Arc<[Value]>,
    state: State,
    /// What is not certain.
    held: String,
    /// Something was thought: white space before it was none of it.
    thought: bool,
    called: bool,
    /// The tool that a message on a channel goes to.
    to: Option<String>,
}

impl Splitter {
    /// For an answer to a prompt that ends with `asked`, by a model whose thoughts stand between `marks`.
    fn new(asked: &str, marks: (&'static str, &'static str), calls: Option<CallFormat>) -> Self {
        let state = match asked.trim_end() {
            _ if marks.0 == CHANNEL => State::Header,
            asked if asked.ends_with(marks.0) => State::Thought,
            _ => State::Start,
        };
        let tools = Arc::from([]);
        Self { marks, calls, tools, state, held: String::new(), thought: false, called: false, to: None }
    }

    /// Passes everything on as text.
    pub fn plain() -> Self {
        Self { state: State::Text, ..Self::new("", ("", ""), None) }
    }

    /// Adds what a token's text leaves out: the mark that a control token is, where it says what the text around it is. False for
    /// all other control tokens, of which no text is known.
    pub fn spell(&self, tokenizer: &Tokenizer, id: u32, text: &mut String) -> bool {
        if !tokenizer.is_control(id) {
            return true;
        }
        let mark = self.mark(tokenizer, id);
        text.push_str(mark.unwrap_or_default());
        mark.is_some()
    }

    fn mark<'a>(&self, tokenizer: &'a Tokenizer, id: u32) -> Option<&'a str> {
        let mark = tokenizer.piece(id).and_then(|piece| std::str::from_utf8(piece).ok())?;
        let channels = self.channels() && (mark == MESSAGE || mark == "<|constrain|>" || ENDS.contains(&mark));
        (is_mark(mark) || channels).then_some(mark)
    }

    /// Whether messages come on channels.
    fn channels(&self) -> bool {
        self.marks.0 == CHANNEL
    }

    /// Whether the model is thinking.
    pub fn is_thinking(&self) -> bool {
        self.state == State::Thought
    }

    /// Whether a tool was called.
    pub fn called(&self) -> bool {
        self.called
    }

    /// Adds a token with its text, as a generation gives them, and gives what became certain.
    pub fn push_token(&mut self, tokenizer: &Tokenizer, id: u32, mut text: String) -> Parts {
        self.spell(tokenizer, id, &mut text);
        self.push(&text)
    }

    /// Adds text, gives what became certain.
    pub fn push(&mut self, text: &str) -> Parts {
        self.held.push_str(text);
        let mut parts = Parts::default();
        while self.advance(&mut parts) {}
        parts
    }

    /// The end: what was held is what it is.
    pub fn finish(&mut self) -> Parts {
        let mut parts = Parts::default();
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Thought if self.channels() => parts.thought = rest,
            State::Call if self.channels() => self.call(&rest, true, &mut parts),
            // A header that never ended; a model that knows no channels has said it.
            State::Header if ENDS.iter().any(|mark| rest.contains(mark)) => {}
            State::Header => parts.text = rest,
            State::Thought => parts.thought = rest.trim_end().to_owned(),
            State::AfterThought => parts.text = rest.trim_start().to_owned(),
            State::Start | State::Text => parts.text = rest,
            State::Call => self.call(&rest, false, &mut parts),
        }
        parts
    }

    /// One move from a state; false if more text is needed.
    fn advance(&mut self, parts: &mut Parts) -> bool {
        match self.state {
            State::Header => self.header(),
            State::Thought | State::Text | State::Call if self.channels() => self.message(parts),
            State::Start => self.start(),
            State::Thought => self.thought(parts),
            State::AfterThought => {
                self.trim_start();
                if self.held.is_empty() || self.may_begin_bare() {
                    return false;
                }
                self.state = if self.begins_bare() { State::Call } else { State::Text };
                true
            }
            State::Text => self.text(parts),
            State::Call => self.within_call(parts),
        }
    }

    /// The header of a message on a channel: whom it goes to.
    fn header(&mut self) -> bool {
        let Some(at) = self.held.find(MESSAGE) else { return false };
        let header: String = self.held.drain(..at + MESSAGE.len()).collect();
        let channel = header.rsplit_once(CHANNEL).map_or("", |(_, channel)| channel);
        let word = |text: &str| {
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            text.get(..end).unwrap_or_default().to_owned()
        };
        let to = header.split_once("to=functions.").map(|(_, to)| word(to));
        self.state = match (word(channel).as_str(), to) {
            (_, Some(to)) if self.calls.is_some() => {
                self.to = Some(to);
                State::Call
            }
            ("analysis", None) => State::Thought,
            _ => State::Text,
        };
        true
    }

    /// A message on a channel, up to the mark that ends it.
    fn message(&mut self, parts: &mut Parts) -> bool {
        let ends = ENDS.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark)));
        let end = ends.min();
        let sure = match end {
            Some((at, _)) => at,
            None if self.state == State::Call => return false,
            None => self.held.len() - ENDS.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0),
        };
        let said: String = self.held.drain(..sure).collect();
        match self.state {
            State::Thought => parts.thought.push_str(&said),
            State::Call => self.call(&said, true, parts),
            _ => parts.text.push_str(&said),
        }
        if end.is_some() {
            self.state = State::Header;
        }
        end.is_some()
    }

    fn start(&mut self) -> bool {
        let said = self.held.trim_start();
        if said.is_empty() {
            return false;
        }
        if let Some(rest) = said.strip_prefix(self.marks.0) {
            self.held = rest.to_owned();
            self.state = State::Thought;
            return true;
        }
        if self.marks.0.starts_with(said) {
            return false;
        }
        if self.may_begin_bare() {
            return false;
        }
        self.state = if self.begins_bare() { State::Call } else { State::Text };
        true
    }

    fn trim_start(&mut self) {
        let said = self.held.trim_start().len();
        self.held.drain(..self.held.len() - said);
    }

    /// Whether it may become the mark before a call.
    fn may_begin_bare(&self) -> bool {
        let said = self.held.trim_start();
        self.calls == Some(CallFormat::Bare) && said.len() < PYTHON.len() && PYTHON.starts_with(said)
    }

    /// Whether it is a call without marks.
    fn begins_bare(&self) -> bool {
        let said = self.held.trim_start();
        self.calls == Some(CallFormat::Bare) && (said.starts_with('{') || said.starts_with(PYTHON))
    }

    fn thought(&mut self, parts: &mut Parts) -> bool {
        if !self.thought {
            self.trim_start();
            self.thought = !self.held.is_empty();
        }
        if let Some(at) = self.held.find(self.marks.1) {
            parts.thought.push_str(self.held.get(..at).unwrap_or_default().trim_end());
            self.held.drain(..at + self.marks.1.len());
            self.state = State::AfterThought;
            return true;
        }
        let sure = self.held.len() - overlap(&self.held, self.marks.1);
        let sure = self.held.get(..sure).unwrap_or_default().trim_end().len();
        let thought: String = self.held.drain(..sure).collect();
        parts.thought.push_str(&thought);
        false
    }

    fn text(&mut self, parts: &mut Parts) -> bool {
        let mark = match self.calls {
            Some(CallFormat::Tagged | CallFormat::Functions | CallFormat::Keys) => OPEN,
            Some(CallFormat::Mistral) => MISTRAL,
            Some(CallFormat::Bare | CallFormat::Channels) | None => {
                parts.text.push_str(&std::mem::take(&mut self.held));
                return false;
            }
        };
        if let Some(at) = self.held.find(mark) {
            parts.text.push_str(self.held.get(..at).unwrap_or_default().trim_end());
            self.held.drain(..at + mark.len());
            self.state = State::Call;
            return true;
        }
        // White space before a call is none of the text.
        let sure = self.held.len() - overlap(&self.held, mark);
        let sure = self.held.get(..sure).unwrap_or_default().trim_end().len();
        let text: String = self.held.drain(..sure).collect();
        parts.text.push_str(&text);
        false
    }

    fn within_call(&mut self, parts: &mut Parts) -> bool {
        if !self.calls.is_some_and(CallFormat::is_tagged) {
            return false;
        }
        let Some(at) = self.held.find(CLOSE) else { return false };
        let call: String = self.held.drain(..at + CLOSE.len()).collect();
        self.call(call.get(..at).unwrap_or_default(), true, parts);
        self.state = State::AfterThought;
        true
    }

    /// The calls in a text. One that is none is text, as the model wrote it.
    fn call(&mut self, text: &str, closed: bool, parts: &mut Parts) {
        let calls = match self.calls {
            Some(CallFormat::Channels) => {
                let name = self.to.take().unwrap_or_default();
                let arguments = if text.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(text.trim()) };
                arguments.ok().map(|arguments| vec![ToolCall { name, arguments }])
            }
            format => calls::parse(format.unwrap_or(CallFormat::Tagged), text, &self.tools),
        };
        match (calls, self.calls) {
            (Some(calls), _) => {
                self.called |= !calls.is_empty();
                parts.calls.extend(calls);
            }
            (None, Some(CallFormat::Mistral)) => {
                parts.text.push_str(MISTRAL);
                parts.text.push_str(text);
            }
            (None, Some(format)) if format.is_tagged() => {
                parts.text.push_str(OPEN);
                parts.text.push_str(text);
                if closed {
                    parts.text.push_str(CLOSE);
                }
            }
            (None, _) => parts.text.push_str(text),
        }
    }
}

/// How many bytes at the end of `text` are a beginning of `mark`, at most all but one of it.
fn overlap(text: &str, mark: &str) -> usize {
    let ends = mark.char_indices().map(|(at, _)| at).rev();
    ends.into_iter().find(|&at| text.ends_with(mark.get(..at).unwrap_or_default())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: (&str, &str) = ("<think>", "</think>");

    /// The parts of a text, however it is split in two; and character by character.
    fn parts(asked: &str, calls: Option<CallFormat>, text: &str) -> Parts {
        parts_of(|| Splitter::new(asked, THINK, calls), text)
    }

    fn parts_of(splitter: impl Fn() -> Splitter, text: &str) -> Parts {
        let of = |pieces: &[&str]| {
            let mut splitter = splitter();
            let mut all = Parts::default();
            pieces.iter().for_each(|piece| all.extend(splitter.push(piece)));
            all.extend(splitter.finish());
            assert_eq!(splitter.called(), !all.calls.is_empty());
            all
        };
        let whole = of(&[text]);
        for (at, _) in text.char_indices() {
            let (first, second) = text.split_at(at);
            assert_eq!(of(&[first, second]), whole, "{first:?} | {second:?}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(of(&letters.iter().map(String::as_str).collect::<Vec<_>>()), whole);
        whole
    }

    fn said(thought: &str, text: &str) -> Parts {
        Parts { thought: thought.to_owned(), text: text.to_owned(), calls: Vec::new() }
    }

    fn call(name: &str, arguments: Value) -> ToolCall {
        let Value::Object(arguments) = arguments else { panic!() };
        ToolCall { name: name.to_owned(), arguments }
    }

    #[test]
    fn thoughts_are_apart() {
        assert_eq!(parts("", None, "<think>\nHm, é.\n\n So.\n</think>\n\nYes."), said("Hm, é.\n\n So.", "Yes."));
        assert_eq!(parts("a<think>\n", None, "Hm.</think>Yes. "), said("Hm.", "Yes. "));
        assert_eq!(
            parts("<think>\n\n</think>\n\n", None, " Yes <think>no</think>"),
            said("", " Yes <think>no</think>")
        );
        assert_eq!(parts("", None, "<thin air"), said("", "<thin air"));
        assert_eq!(parts("", None, "  \n"), said("", "  \n"));
        assert_eq!(parts("", None, "<think>It goes on\n"), said("It goes on", ""));
        assert_eq!(parts("", None, "<think></think>"), said("", ""));
    }

    #[test]
    fn calls_are_found() {
        let tagged = Some(CallFormat::Tagged);
        let text = "<think>a</think>\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
            <tool_call>{\"name\": \"g\"}</tool_call>";
        let found = parts("", tagged, text);
        assert_eq!((&*found.thought, &*found.text), ("a", "I look."));
        assert_eq!(found.calls, [call("f", serde_json::json!({"x": 1})), call("g", serde_json::json!({}))]);
        // The last mark may be missing; what is no call is text.
        assert_eq!(parts("", tagged, "<tool_call>{\"name\": \"f\"}").calls.len(), 1);
        assert_eq!(parts("", tagged, "<tool_call>{\"name\": "), said("", "<tool_call>{\"name\": "));

        let bare = Some(CallFormat::Bare);
        let found =
            parts("", bare, "{\"name\": \"f\", \"parameters\": {\"x\": \"}\"}}; {\"name\": \"g\", \"parameters\": {}}");
        assert_eq!(found.calls, [call("f", serde_json::json!({"x": "}"})), call("g", serde_json::json!({}))]);
        assert_eq!(parts("", bare, "<|python_tag|>{\"name\": \"f\"}").calls.len(), 1);
        assert_eq!(parts("", bare, "{\"a\": 1}"), said("", "{\"a\": 1}"));
        assert_eq!(parts("", bare, "Well {"), said("", "Well {"));

        let mistral = Some(CallFormat::Mistral);
        let found = parts("", mistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}]");
        assert_eq!(found.calls, [call("f", serde_json::json!({"x": 1}))]);
        let found = parts("", mistral, "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g{}");
        assert_eq!(found.calls, [call("f", serde_json::json!({"x": 1})), call("g", serde_json::json!({}))]);
        assert_eq!(parts("", mistral, "a[TOOL_CALLS]b"), said("", "a[TOOL_CALLS]b"));
    }

    #[test]
    fn messages_on_channels_are_apart() {
        let calls = Some(CallFormat::Channels);
        let of = |text: &str, calls: Option<CallFormat>| {
            let of = |pieces: &mut dyn Iterator<Item = &str>| {
                let mut splitter = Splitter::new("<|start|>assistant", (CHANNEL, MESSAGE), calls);
                let mut all = Parts::default();
                pieces.for_each(|piece| all.extend(splitter.push(piece)));
                all.extend(splitter.finish());
                assert_eq!(splitter.called(), !all.calls.is_empty());
                all
            };
            let whole = of(&mut [text].into_iter());
            for (at, _) in text.char_indices() {
                let (first, second) = text.split_at(at);
                assert_eq!(of(&mut [first, second].into_iter()), whole, "{first:?} | {second:?}");
            }
            let letters: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(of(&mut letters.iter().map(String::as_str)), whole);
            whole
        };
        let thought = "<|channel|>analysis<|message|>Hm <b>, é.<|end|><|start|>assistant";
        assert_eq!(
            of(&format!("{thought}<|channel|>final<|message|>Yes. <|return|>"), None),
            said("Hm <b>, é.", "Yes. ")
        );
        assert_eq!(of("<|channel|>final<|message|>Yes <|e", None), said("", "Yes <|e"));
        assert_eq!(of("<|channel|>analysis<|message|>It goes on", None), said("It goes on", ""));
        assert_eq!(of("<|channel|>anal", None), said("", ""));
        assert_eq!(of("Plain words", None), said("", "Plain words"));
        // Words to the user before a call, and the call, in both orders of its header.
        let preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
        for header in [
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
            " to=functions.f<|channel|>commentary json<|message|>",
        ] {
            let found = of(&format!("{thought}{preamble}{header}{{\"x\": 1}}<|call|>"), calls);
            assert_eq!((&*found.thought, &*found.text), ("Hm <b>, é.", "I look."));
            assert_eq!(found.calls, [call("f", serde_json::json!({"x": 1}))], "{header}");
            // The mark that ends it may be the end of the answer, too; nobody asked for tools: it is text.
            assert_eq!(of(&format!("{header}{{}}"), calls).calls, [call("f", serde_json::json!({}))]);
            assert_eq!(of(&format!("{header}{{}}<|call|>"), None), said("", "{}"));
            assert_eq!(of(&format!("{header}{{no"), calls), said("", "{no"));
        }
    }

    /// The other two ways to write a call between the same marks.
    #[test]
    fn calls_with_arguments_apart_are_found() {
        let tools = serde_json::json!([{ "type": "function", "function": { "name": "f", "parameters": {
            "type": "object", "properties": { "path": { "type": "string" }, "n": { "type": "integer" } },
        } } }]);
        let arguments = serde_json::json!({ "path": "12", "n": 12 });
        let functions = "<tool_call>\n<function=f>\n<parameter=path>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n\
            </function>\n</tool_call>";
        let keys = "<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key>\n\
            <arg_value>12</arg_value>\n</tool_call>";
        for (format, text) in [(CallFormat::Functions, functions), (CallFormat::Keys, keys)] {
            let tools: Arc<[Value]> = tools.as_array().unwrap().clone().into();
            let splitter = || Splitter { tools: Arc::clone(&tools), ..Splitter::new("", THINK, Some(format)) };
            let parts = |text: &str| parts_of(splitter, text);
            let found = parts(&format!("<think>a</think>\nI look.\n{text}\n{text}"));
            assert_eq!((&*found.thought, &*found.text), ("a", "I look."));
            assert_eq!(found.calls, [call("f", arguments.clone()), call("f", arguments.clone())], "{format:?}");
            // The last mark may be missing; what is no call is text, as it was written.
            let unclosed = text.strip_suffix(CLOSE).unwrap();
            assert_eq!(parts(unclosed).calls, [call("f", arguments.clone())], "{format:?}");
            for no_call in ["<tool_call>a word</tool_call>", "<tool_call>", "<tool_call>\n<function=\n</tool_call>"] {
                assert_eq!(parts(no_call), said("", no_call), "{format:?}");
            }
        }
    }

    #[test]
    fn templates_name_their_family() {
        assert_eq!(CallFormat::of_template("{% if tools %}<tool_call>"), Some(CallFormat::Tagged));
        let functions = "{% if tools %}<tool_call>\n<function=example_function_name>";
        assert_eq!(CallFormat::of_template(functions), Some(CallFormat::Functions));
        assert_eq!(CallFormat::of_template("{% if tools %}<tool_call>{name}<arg_key>"), Some(CallFormat::Keys));
        assert_eq!(CallFormat::of_template("{% if tools %}<|eot_id|>"), Some(CallFormat::Bare));
        assert_eq!(CallFormat::of_template("[TOOL_CALLS]"), Some(CallFormat::Mistral));
        assert_eq!(CallFormat::of_template("<|im_start|>"), None);
        assert_eq!(
            CallFormat::of_template("<|start|>assistant<|channel|>final<|message|>"),
            Some(CallFormat::Channels)
        );
        let of = AnswerFormat::of_template;
        assert!(of("<|channel|>analysis<|message|>").thinks() && !of("<|im_start|>").thinks());
        assert_eq!((of("[THINK][/THINK]").marks.0, of("").marks.0), ("[THINK]", "<think>"));
        // Without tools there are no calls.
        let tagged = of("{% if tools %}<tool_call>");
        assert!(tagged.calls() && tagged.splitter("", Arc::from([])).calls.is_none());
    }
}
