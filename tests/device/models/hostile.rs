//! Every case of `data/hostile` that a model's configuration and tensors must settle.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use wgslm::model::Model;
use wgslm::{Error, Result};

use super::{open, open_with_config};
use wgslm_test::alloc::counted;
use wgslm_test::{data, data_json};

/// Runs `open`, and holds it to the limits on memory and time: 64 MiB beside the file, 100 ms, in the best of three runs,
/// since the machine may be busy.
pub(crate) fn within_limits(name: &str, size: u64, open: impl Fn() -> Result<Model>) -> Result<Model> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let (result, held, _) = counted(&open);
        best = best.min(start.elapsed());
        assert!(held < (64 << 20) + size as usize, "{name}: held {held} bytes");
        if best < Duration::from_millis(100) {
            return result;
        }
    }
    panic!("{name}: took {best:?}");
}

fn open_case(case: &serde_json::Value) -> Option<Result<Model>> {
    let file = case["file"].as_str().unwrap();
    let hostile = |name: &str| data("hostile").join(name);
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |m| m.len());
    match case["kind"].as_str().unwrap() {
        "config" => {
            let weights = hostile(case["weights"].as_str().unwrap());
            // Files are read as text where they are opened: what is no UTF-8 ends there.
            let config = String::from_utf8(std::fs::read(hostile(file)).unwrap()).ok()?;
            let size = size(&weights) + config.len() as u64;
            Some(within_limits(file, size, || open_with_config(&weights, config.clone())))
        }
        "gguf" | "safetensors" if case["stage"] != "container" && !case["setup"].is_object() => {
            let path = hostile(file);
            Some(within_limits(file, size(&path), || open(&path)))
        }
        _ => None,
    }
}

#[test]
fn models_end_as_the_index_says() {
    let (mut refused, mut opened, mut wrong) = (0, 0, Vec::new());
    for case in data_json("hostile/index.json")["cases"].as_array().unwrap() {
        let Some(result) = open_case(case) else { continue };
        let (file, stage) = (case["file"].as_str().unwrap(), case["stage"].as_str().unwrap());
        let hints: Vec<_> = case["hint"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
        match (case["expect"].as_str().unwrap(), &result) {
            // A vocabulary without a model has no tensors.
            ("ok", Err(_)) if stage == "tokenizer" => {}
            ("ok" | "nan", Err(e)) => wrong.push(format!("{file}: {e}")),
            ("error", Ok(_)) if stage == "model" => wrong.push(format!("{file}: opened")),
            ("error" | "either", Err(e)) if stage == "model" => {
                let message = e.to_string().to_lowercase();
                if !hints.iter().any(|hint| message.contains(hint)) {
                    wrong.push(format!("{file}: `{e}` has none of {hints:?}"));
                }
                assert!(!matches!(e, Error::Argument { .. }), "{file}: {e}");
                println!("{file}: {e}");
                refused += 1;
            }
            (_, Ok(_)) => opened += 1,
            (_, Err(_)) => refused += 1,
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{refused} refused, {opened} opened");
    assert!(refused >= 90 && opened >= 30, "the data is not all there: {refused} refused, {opened} opened");
}
