//! Tests over data that cannot be fetched and may not be in the repository. They run where `WGSLM_SHARED` points to it;
//! `scripts/test` says when they did not.

use serde_json::Value;
use wgslm::text::{Special, Tokenizer};
use wgslm_test::shared;

use crate::templates::{Tally, render};

/// Removes what stands for undefined.
fn defined(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| value.get("__undefined__").is_none())
            .map(|(name, value)| (name.clone(), defined(value)))
            .collect(),
        Value::Array(items) => items.iter().map(defined).collect(),
        other => other.clone(),
    }
}

#[test]
fn templates_of_huggingface_js() {
    let Some(folder) = shared("chat-templates") else { return };
    let cases = |name: &str| -> Vec<Value> {
        let bytes = std::fs::read(folder.join(format!("hf-jinja-{name}.json"))).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    let mut tally = Tally::default();
    for case in cases("e2e") {
        let got = render(case["chat_template"].as_str().unwrap(), &defined(&case["data"]));
        tally.check(case["name"].as_str().unwrap(), got, case["target"].as_str().unwrap());
    }
    for case in cases("unit") {
        let got = render(case["template"].as_str().unwrap(), &defined(&case["context"]));
        tally.check(case["name"].as_str().unwrap(), got, case["target"].as_str().unwrap());
    }
    tally.finish(70);
}

/// Texts and ids of the tokenizer library kitoken.
#[test]
fn texts_of_kitoken() {
    let Some(folder) = shared("tokenizers") else { return };
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    for name in ["gpt2", "mistral03"] {
        let file = std::fs::read(folder.join(format!("models/tokenizers/{name}.json"))).unwrap();
        let tokenizer = Tokenizer::from_json(&file, None).unwrap();
        let mut texts = 0;
        for set in ["small", "mixed", "utf8"] {
            let input = read(&format!("data/{set}_input.txt"));
            let output = read(&format!("data/tokenizers/{set}_tokens_{name}.txt"));
            let inputs: Vec<String> = match set {
                "utf8" => vec![input],
                "small" => input.lines().map(|line| line.replace("\\n", "\n").replace("\\s", " ")).collect(),
                _ => input.lines().map(str::to_owned).collect(),
            };
            assert_eq!(inputs.len(), output.lines().count(), "{set}");
            for (text, line) in inputs.iter().zip(output.lines()) {
                texts += 1;
                let expected: Vec<u32> =
                    line.split(',').filter(|id| !id.trim().is_empty()).map(|id| id.trim().parse().unwrap()).collect();
                assert_eq!(tokenizer.encode(text, Special::Parse).unwrap(), expected, "{name}: {text:?}");
                if name == "gpt2" {
                    assert_eq!(&tokenizer.decode(&expected, false), text);
                }
            }
            let decoded = folder.join(format!("data/tokenizers/{set}_output_{name}.txt"));
            if set == "utf8" && decoded.exists() {
                let expected: Vec<u32> = output.trim().split(',').map(|id| id.trim().parse().unwrap()).collect();
                assert_eq!(tokenizer.decode(&expected, false), std::fs::read_to_string(decoded).unwrap());
            }
        }
        assert!(texts >= 140, "{name}: only {texts} texts");
    }
}
