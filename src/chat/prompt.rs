//! Prompts: a text to be continued, or messages to be answered, as ids.

use serde_json::{Map, Value};

use crate::model::Model;
use crate::text::{ChatTemplate, Segment, Special, Tokenizer};
use crate::{Error, Result};

/// The ids of a text to be continued as it is, BOS included where the model expects it.
pub fn continuation(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    begun(tokenizer, tokenizer.encode(text, Special::Plain)?)
}

/// The ids of messages as the template writes them, ready for the answer. `extra` holds more variables of the template,
/// `now` is in seconds since 1970.
pub fn messages(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Value],
    extra: &Map<String, Value>,
    now: Option<i64>,
) -> Result<Vec<u32>> {
    begun(tokenizer, tokenizer.encode_segments(&render(template, messages, extra, now)?)?)
}

/// Messages as the template writes them, in pieces that remember who wrote them: `extra` and `now` as for [`messages`].
pub fn render(
    template: &ChatTemplate,
    messages: &[Value],
    extra: &Map<String, Value>,
    now: Option<i64>,
) -> Result<Vec<Segment>> {
    let mut context = extra.clone();
    context.insert("messages".to_owned(), messages.into());
    context.insert("add_generation_prompt".to_owned(), true.into());
    template.render(&Value::Object(context), now)
}

/// Gives a message of OpenAI's API the names that a template's source knows. Contents are texts.
///
/// A developer becomes a system where the template has no developer. What was thought is `reasoning_content`; gpt-oss's template
/// calls it `thinking`, and takes either that or the words before a call.
pub fn adapt(message: &mut Map<String, Value>, template: &str) {
    if message.get("role").is_some_and(|role| role == "developer") && !template.contains("developer") {
        message.insert("role".to_owned(), "system".into());
    }
    let silent = message.get("content").is_none_or(|content| content.is_null() || content == "");
    if let Some(thought) = message.get("reasoning_content").filter(|_| template.contains(".thinking")).cloned()
        && (silent || message.get("tool_calls").is_none())
    {
        message.insert("thinking".to_owned(), thought);
    }
}

/// Puts BOS first where the model expects it, and begins an empty text.
pub(super) fn begun(tokenizer: &Tokenizer, mut ids: Vec<u32>) -> Result<Vec<u32>> {
    if let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.add_bos() && ids.first() != Some(bos)) {
        ids.insert(0, bos);
    }
    if ids.is_empty() {
        // Where a model has no token for the beginning of a text, the end of another one is where a text begins.
        ids.extend(tokenizer.bos().or(tokenizer.eos()));
    }
    if ids.is_empty() {
        return Err(Error::argument("prompt", "it is empty, and this model has no token that begins a text"));
    }
    Ok(ids)
}

/// The tokens that end an answer of a model: of text, of turn, of message.
pub fn stops(model: &Model, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut stops = tokenizer.eog().to_vec();
    stops.extend(&model.specials.eos);
    stops.sort_unstable();
    stops.dedup();
    stops
}
