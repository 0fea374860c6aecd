//! A conversation: messages, and the ids that they have become so far.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Transcript, prompt};
use crate::text::{ChatTemplate, Origin, Segment, Tokenizer};
use crate::{Error, Result};

/// What somebody said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// The context that a conversation has to fit.
#[derive(Clone, Copy, Debug)]
pub struct ContextPolicy {
    /// Positions in all.
    pub context: u32,
    /// Forgets the oldest turns where the conversation would not leave a quarter of the context for the answer.
    pub shift: bool,
}

/// What the engine is to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The whole conversation, and the answer as far as it has begun.
    pub ids: Vec<u32>,
    /// Turns that were forgotten to make space.
    pub forgotten: usize,
}

/// A system message and turns, each a user's message and its answer.
///
/// The ids of earlier turns stay what the model read and wrote ([`Transcript`]), so that a kept sequence has all but the new
/// tokens in its cache.
#[derive(Clone, Debug)]
pub struct Conversation<T = Arc<Tokenizer>> {
    tokenizer: T,
    /// None: texts are continued as they are, one after another.
    template: Option<ChatTemplate>,
    messages: Vec<Message>,
    transcript: Transcript,
}

impl<T: Deref<Target = Tokenizer>> Conversation<T> {
    /// An empty conversation, with a tokenizer that is borrowed or shared.
    pub fn new(tokenizer: T, template: Option<ChatTemplate>) -> Self {
        Self { tokenizer, template, messages: Vec::new(), transcript: Transcript::default() }
    }

    /// Everything that was said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Goes on from these messages, which may begin with a system's and end with an answer.
    pub fn restore(&mut self, messages: Vec<Message>) -> Result<()> {
        for (i, message) in messages.iter().enumerate() {
            match message.role.as_str() {
                "system" if i == 0 => self.needs_template()?,
                "user" | "assistant" => {}
                role => {
                    return Err(Error::argument(
                        format!("messages[{i}].role"),
                        format!("{role:?}; user and assistant work, and system in the first message"),
                    ));
                }
            }
        }
        self.messages = messages;
        Ok(())
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|m| m.role == "system").map(|m| m.content.as_str())
    }

    /// Sets the system message; none removes it. The turns stay.
    pub fn set_system(&mut self, text: Option<String>) -> Result<()> {
        self.needs_template()?;
        let turns = usize::from(self.system().is_some());
        let system = text.map(|content| Message { role: "system".to_owned(), content });
        self.messages.splice(..turns, system);
        Ok(())
    }

    fn needs_template(&self) -> Result<()> {
        let missing =
            || Error::unsupported("a system message without a chat template", "a prompt works: it is continued");
        self.template.as_ref().map(drop).ok_or_else(missing)
    }

    /// Forgets all turns; the system message stays.
    pub fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    /// Adds a user's message.
    pub fn say(&mut self, content: impl Into<String>) {
        self.messages.push(Message { role: "user".to_owned(), content: content.into() });
    }

    /// Takes the last message back if it is a user's, whose answer failed.
    pub fn unsay(&mut self) {
        self.messages.pop_if(|m| m.role == "user");
    }

    /// Forgets the last answer; false if the last message is not one.
    pub fn unhear(&mut self) -> bool {
        self.messages.pop_if(|m| m.role == "assistant").is_some()
    }

    /// Adds the answer to the last [`prompt`](Conversation::prompt): its ids, without the token that ended it, and its text.
    pub fn hear(&mut self, ids: &[u32], text: &str) {
        self.transcript.hear(ids, text);
        self.hear_text(text);
    }

    /// Adds an answer that a stop string ended: its ids hold more text than the answer, so they are not kept.
    pub fn hear_text(&mut self, text: &str) {
        self.messages.push(Message { role: "assistant".to_owned(), content: text.to_owned() });
    }

    /// Whether there is a turn that could be forgotten: not the last.
    pub fn can_forget(&self) -> bool {
        self.messages.iter().filter(|m| m.role == "user").count() > 1
    }

    /// What the engine is to continue: the conversation, and `answer` where one has begun. Fails if it does not fit.
    pub fn prompt(&mut self, answer: &[u32], policy: ContextPolicy, now: Option<i64>) -> Result<Prompt> {
        let mut forgotten = 0;
        loop {
            let segments = self.segments(now)?;
            let mut ids = self.transcript.encode(&self.tokenizer, &segments, self.template.is_none())?;
            let needed = ids.len() + answer.len();
            let wanted = if policy.shift { needed + policy.context as usize / 4 } else { needed };
            if wanted >= policy.context as usize && policy.shift && self.can_forget() {
                self.forget_oldest();
                forgotten += 1;
                continue;
            }
            if needed >= policy.context as usize {
                return Err(Error::Limit {
                    what: "the conversation".to_owned(),
                    needed: format!("{needed} positions and one for the answer"),
                    available: format!("{} of context", policy.context),
                    instead: "a larger context or fewer turns work".to_owned(),
                });
            }
            self.transcript.ask(&segments, &ids);
            ids.extend_from_slice(answer);
            return Ok(Prompt { ids, forgotten });
        }
    }

    /// Drops the messages from the first turn's beginning to that of the second.
    fn forget_oldest(&mut self) {
        let first = usize::from(self.system().is_some());
        let next = self.messages.iter().skip(first + 1).position(|m| m.role == "user");
        if let Some(next) = next {
            self.messages.drain(first..first + 1 + next);
        }
    }

    /// The conversation as the template writes it.
    fn segments(&self, now: Option<i64>) -> Result<Vec<Segment>> {
        match &self.template {
            Some(template) => {
                let messages: Vec<Value> = self.messages.iter().map(to_json).collect();
                prompt::render(template, &messages, &Map::new(), now)
            }
            None => Ok(vec![Segment { text: self.joined(), origin: Origin::User }]),
        }
    }

    /// All texts, those of different people on different lines.
    fn joined(&self) -> String {
        let mut text = String::new();
        for message in &self.messages {
            if message.role == "user" && !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&message.content);
        }
        text
    }
}

fn to_json(message: &Message) -> Value {
    serde_json::json!({ "role": message.role, "content": message.content })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::GgufVocab;

    const POLICY: ContextPolicy = ContextPolicy { context: 64, shift: false };
    const EOS: u32 = 2;

    /// Letters a and b, and the pair; control tokens `<s>` and `</s>`.
    fn tokenizer() -> Tokenizer {
        let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "a", "b", "ab"];
        Tokenizer::from_gguf(GgufVocab {
            model: "llama",
            tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
            scores: Some(vec![0.0, 0.0, 0.0, -3.0, -2.0, -2.0, -1.0]),
            types: Some(vec![2, 3, 3, 1, 1, 1, 1]),
            bos: Some(1),
            eos: Some(EOS.into()),
            unk: Some(0),
            ..GgufVocab::default()
        })
        .unwrap()
    }

    fn conversation(tokenizer: &Tokenizer) -> Conversation<&Tokenizer> {
        let source = "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}";
        Conversation::new(tokenizer, Some(ChatTemplate::for_tokenizer(source, tokenizer).unwrap()))
    }

    #[test]
    fn what_was_sampled_stays_as_it_was_sampled() {
        let tokenizer = tokenizer();
        let mut chat = conversation(&tokenizer);
        chat.say("ab");
        let first = chat.prompt(&[], POLICY, None).unwrap().ids;
        assert_eq!(first.last(), Some(&EOS));
        // As one token it would be 6.
        chat.hear(&[4, 5], "ab");
        chat.say("b");
        let second = chat.prompt(&[], POLICY, None).unwrap().ids;
        let expected = [&first[..], &[4, 5, EOS]].concat();
        assert_eq!(second[..expected.len()], expected);
        // Asked again, it is the same, also where the answer has begun.
        assert_eq!(chat.prompt(&[4], POLICY, None).unwrap().ids, [&second[..], &[4]].concat());
        // Another beginning: everything is encoded anew.
        chat.set_system(Some("a".into())).unwrap();
        let anew = chat.prompt(&[], POLICY, None).unwrap().ids;
        assert!(!anew.windows(2).any(|pair| pair == [4, 5]), "{anew:?}");
    }

    #[test]
    fn texts_without_a_template_go_on() {
        let tokenizer = tokenizer();
        let mut chat = Conversation::new(&tokenizer, None);
        assert!(chat.set_system(Some("a".into())).is_err());
        chat.say("ab");
        let first = chat.prompt(&[], POLICY, None).unwrap().ids;
        chat.hear(&[4, 5], "ab");
        chat.say("a");
        let second = chat.prompt(&[], POLICY, None).unwrap().ids;
        assert_eq!(second[..first.len() + 2], [&first[..], &[4, 5]].concat());
    }

    #[test]
    fn only_whole_turns_are_forgotten() {
        let tokenizer = tokenizer();
        let mut chat = conversation(&tokenizer);
        chat.set_system(Some("a".into())).unwrap();
        for _ in 0..6 {
            chat.say("b");
            chat.hear(&[4], "a");
        }
        chat.say("ab");
        let all = chat.prompt(&[], POLICY, None).unwrap();
        assert_eq!(all.forgotten, 0);
        let context = all.ids.len() as u32;
        assert!(matches!(chat.prompt(&[], ContextPolicy { context, shift: false }, None), Err(Error::Limit { .. })));
        let fitted = chat.prompt(&[], ContextPolicy { context, shift: true }, None).unwrap();
        assert!(fitted.forgotten > 0 && fitted.ids.len() < context as usize * 3 / 4);
        let roles: String = chat.messages().iter().map(|m| &m.role[..1]).collect();
        assert_eq!(roles, format!("s{}u", "ua".repeat(6 - fitted.forgotten)));
        // The last message stays, fit or not; where it fails it can be taken back.
        assert!(matches!(chat.prompt(&[], ContextPolicy { context: 3, shift: true }, None), Err(Error::Limit { .. })));
        assert_eq!((chat.messages().len(), chat.can_forget()), (2, false));
        chat.unsay();
        chat.unsay();
        assert_eq!(chat.system(), Some("a"));
    }

    #[test]
    fn roles_are_checked() {
        let tokenizer = tokenizer();
        let mut chat = conversation(&tokenizer);
        let message = |role: &str| Message { role: role.to_owned(), content: String::new() };
        assert!(chat.restore(vec![message("system"), message("user")]).is_ok());
        assert!(chat.restore(vec![message("user"), message("system")]).is_err());
        assert!(chat.restore(vec![message("robot")]).is_err());
        assert_eq!(chat.messages().len(), 2, "a refused conversation changes nothing");
    }
}
