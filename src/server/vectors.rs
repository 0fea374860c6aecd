//! Endpoints without an answer: vectors, scores, tokens.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::app::{App, Texts};
use super::ask::token_ids;
use super::failure::{Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer, on_a_thread};
use super::policy::Caller;
use crate::text::Special;

/// Texts of a request at most.
const TEXTS: usize = 2048;

/// `/v1/embeddings`.
pub(super) async fn embeddings(app: &Arc<App>, mut fields: Fields) -> Answer {
    let model = app.model(fields.text("model")?).await?;
    let vectors = model.vectors()?;
    if vectors.scores {
        return Err(Failure::unsupported("a vector", "this model gives scores of pairs: /v1/rerank works"));
    }
    let texts = texts(&mut fields, "input")?;
    fields.refuse("dimensions", &[], "vectors are as long as the model makes them")?;
    fields.ignore(&["user"]);
    let base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => return Err(Failure::invalid("encoding_format", format!("{other:?}; float and base64 work"))),
    };
    let made = vectors.of(Texts::Single { texts, truncate: false }).await?;
    let one = move |(index, vector): (usize, &Vec<f32>)| {
        let embedding = match base64 {
            true => STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).into(),
            false => numbers(vector),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    };
    // Thousands of vectors have millions of numbers.
    on_a_thread(move || {
        let data: Vec<Value> = made.vectors.iter().enumerate().map(one).collect();
        let usage = json!({ "prompt_tokens": made.tokens, "total_tokens": made.tokens });
        Ok(json_answer(&json!({ "object": "list", "data": data, "model": model.name(), "usage": usage })))
    })
    .await
}

/// `/v1/rerank`, as Cohere and Jina have it.
pub(super) async fn rerank(app: &Arc<App>, mut fields: Fields) -> Answer {
    let model = app.model(fields.text("model")?).await?;
    let vectors = model.vectors()?;
    if !vectors.scores {
        return Err(Failure::unsupported("a score", "this model gives vectors: /v1/embeddings works"));
    }
    let query = fields.text("query")?;
    let query = fields.needed("query", query)?;
    let documents = texts(&mut fields, "documents")?;
    let most = fields.count("top_n", 1..=u32::MAX)?.map_or(documents.len(), |n| n as usize);
    let texts = fields.flag("return_documents")?.unwrap_or(false).then(|| documents.clone());
    let made = vectors.of(Texts::Pairs(query, documents)).await?;
    on_a_thread(move || {
        let first = |vector: &Vec<f32>| vector.first().copied();
        let mut scores: Vec<(usize, f32)> = made.vectors.iter().filter_map(first).enumerate().collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let one = |(index, score): &(usize, f32)| {
            let mut result = json!({ "index": index, "relevance_score": number(*score) });
            if let (Value::Object(result), Some(texts)) = (&mut result, &texts) {
                result.insert("document".to_owned(), json!({ "text": texts[*index] }));
            }
            result
        };
        let results: Vec<Value> = scores.iter().take(most).map(one).collect();
        let usage = json!({ "prompt_tokens": made.tokens, "total_tokens": made.tokens });
        Ok(json_answer(&json!({ "model": model.name(), "results": results, "usage": usage })))
    })
    .await
}

/// `/tokenize`: a text as it is, or messages as the template writes them.
pub(super) async fn tokenize(app: Arc<App>, caller: Caller, mut fields: Fields) -> Answer {
    let model = app.model(fields.text("model")?).await?;
    let language = Arc::clone(model.language()?);
    let context = language.model.handle().context();
    let messages = fields.list("messages")?;
    // vLLM's name, and llama.cpp's.
    let text = fields.text("prompt")?.or(fields.text("content")?);
    let special = fields.flag("add_special_tokens")?.or(fields.flag("add_special")?);
    let made = move || match (text, messages) {
        (Some(text), None) => {
            let tokenizer = language.model.tokenizer();
            let ids = tokenizer.encode(&text, Special::Plain)?;
            let bos = tokenizer.bos().filter(|_| special.unwrap_or(true) && tokenizer.add_bos());
            Ok(bos.into_iter().chain(ids).collect::<Vec<u32>>())
        }
        (None, Some(messages)) => {
            let messages = super::ask::messages(messages, &language.template_source)?;
            let (tools, variables) = (Vec::new(), serde_json::Map::new());
            let asked = super::ask::Asked::Messages { messages, tools, variables };
            // Answers of the caller's keep their tokens, as they do when the same messages are to be answered.
            Ok(language.prompt(&asked, caller.salt.as_deref())?.0)
        }
        _ => Err(Failure::invalid("prompt", "either prompt or messages is needed")),
    };
    on_a_thread(move || {
        let ids = made()?;
        Ok(json_answer(&json!({ "count": ids.len(), "max_model_len": context, "tokens": ids })))
    })
    .await
}

/// `/detokenize`.
pub(super) async fn detokenize(app: Arc<App>, mut fields: Fields) -> Answer {
    let model = app.model(fields.text("model")?).await?;
    let language = Arc::clone(model.language()?);
    let tokens = fields.list("tokens")?;
    let tokens = fields.needed("tokens", tokens)?;
    on_a_thread(move || {
        let ids = token_ids(&tokens, "tokens", language.vocab())?;
        let text = language.model.tokenizer().decode(&ids, false);
        Ok(json_answer(&json!({ "prompt": text, "content": text })))
    })
    .await
}

/// Texts: one or several.
pub(super) fn texts(fields: &mut Fields, name: &str) -> Outcome<Vec<String>> {
    let at = fields.at(name);
    let texts = match fields.take(name) {
        None => fields.needed(name, None)?,
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list
            .into_iter()
            .enumerate()
            .map(|(i, text)| match text {
                Value::String(text) => Ok(text),
                Value::Number(_) | Value::Array(_) => {
                    Err(Failure::unsupported(format!("{at} in tokens"), "texts work"))
                }
                _ => Err(Failure::invalid(format!("{at}[{i}]"), "a string works")),
            })
            .collect::<Outcome<_>>()?,
        Some(_) => return Err(Failure::invalid(at, "a string or a list of strings works")),
    };
    if texts.is_empty() || texts.len() > TEXTS {
        return Err(Failure::invalid(at, format!("{} texts; 1 to {TEXTS} work", texts.len())));
    }
    if let Some(i) = texts.iter().position(String::is_empty) {
        return Err(Failure::invalid(format!("{at}[{i}]"), "it is empty; one character or more works"));
    }
    Ok(texts)
}

/// Numbers with as few digits as 32 bits need.
pub(super) fn numbers(vector: &[f32]) -> Value {
    vector.iter().copied().map(number).collect()
}

fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().unwrap_or(f64::from(x)).into()
}
