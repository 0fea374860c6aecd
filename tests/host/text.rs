//! Tokenizers of the repository's own models, and hostile vocabularies.

use serde_json::Value;
use wgslm::text::{Special, Tokenizer};
use wgslm_test::gguf_vocab::{busy, gguf_tokenizer};
use wgslm_test::{data_bytes as read, data_json as json, hostile};

/// Ids of a reference.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of ids")
}

/// Counts the texts whose ids differ, and shows the first.
#[derive(Default)]
pub(crate) struct Tally {
    texts: usize,
    wrong: Vec<String>,
}

impl Tally {
    pub(crate) fn check(&mut self, tokenizer: &Tokenizer, text: &str, special: Special, expected: &[u32]) {
        self.texts += 1;
        let got = tokenizer.encode(text, special).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        if got != expected {
            self.wrong.push(format!("{text:?}\n  gives   {got:?}\n  must be {expected:?}"));
        }
    }

    pub(crate) fn finish(self, name: &str, at_least: usize) {
        println!("{name}: {} texts, {} wrong", self.texts, self.wrong.len());
        assert!(self.texts >= at_least, "{name}: only {} texts", self.texts);
        assert!(self.wrong.is_empty(), "{name}: {} wrong, the first: {}", self.wrong.len(), self.wrong[0]);
    }
}

#[test]
fn sentencepiece_ids() {
    let tokenizer = gguf_tokenizer(&read("stories/stories.gguf")).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos()), (512, Some(1), Some(2)));
    assert!(tokenizer.add_bos() && !tokenizer.add_eos());
    let mut tally = Tally::default();
    for case in json("stories/tokens.json").as_array().unwrap() {
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        tally.check(&tokenizer, text, Special::Plain, &expected);
        assert_eq!(tokenizer.decode(&expected, true), case["decoded"].as_str().unwrap(), "{text:?}");
    }
    tally.finish("stories", 20);
}

#[test]
fn hostile_vocabularies() {
    let index = json("hostile/index.json");
    let limits = &index["limits"];
    let mut cases = 0;
    for case in index["cases"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let (kind, stage) = (case["kind"].as_str().unwrap(), case["stage"].as_str().unwrap_or(""));
        if stage != "tokenizer" || !matches!(kind, "gguf" | "tokenizer") {
            continue;
        }
        cases += 1;
        let bytes = hostile::bytes(case);
        let (loaded, time) = busy(|| match kind {
            "gguf" => gguf_tokenizer(&bytes),
            _ => Tokenizer::from_json(&bytes, None),
        });
        assert!(time.as_millis() < limits["load_ms"].as_u64().unwrap().into(), "{file}: {time:?} to load");
        let probe = &case["probe"];
        let outcome = loaded.and_then(|tokenizer| {
            let Some(text) = probe["text"].as_str() else { return Ok(()) };
            let text = text.repeat(probe["repeat"].as_u64().unwrap() as usize) + probe["suffix"].as_str().unwrap();
            let (ids, time) = busy(|| tokenizer.encode(&text, Special::Plain).map(drop));
            assert!(time.as_millis() < limits["probe_ms"].as_u64().unwrap().into(), "{file}: {time:?} to encode");
            ids
        });
        let expect = case["expect"].as_str().unwrap();
        match outcome {
            Ok(()) => assert_ne!(expect, "error", "{file} was accepted: {}", case["why"]),
            Err(error) => {
                let text = error.to_string().to_lowercase();
                println!("{file}: {text}");
                assert_ne!(expect, "ok", "{file} was refused: {text}");
                let hints: Vec<&str> = case["hint"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
                assert!(hints.iter().any(|hint| text.contains(hint)), "{file}: {text:?} names none of {hints:?}");
            }
        }
    }
    assert!(cases >= 45, "only {cases} cases");
}
