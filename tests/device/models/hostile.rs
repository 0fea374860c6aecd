//! Every case of `data/hostile` that is decided by a model's configuration and tensors.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use wgslm::exec::{Numerics, Phase};
use wgslm::model::Model;
use wgslm::{Error, Result};

use super::runner::Runner;
use super::{Cpu, open, open_with_config};
use wgslm_test::alloc::counted;
use wgslm_test::{data, hostile};

/// Runs `open` and checks its limits on memory and time: 64 MiB beside the file, 100 ms, in the best of three runs, since the
/// machine may be busy.
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
    let stored = |name: &str| data("hostile").join(name);
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |m| m.len());
    match case["kind"].as_str().unwrap() {
        "config" => {
            let weights = stored(case["weights"].as_str().unwrap());
            // Files are read as text where they are opened: what is not UTF-8 ends there.
            let config = String::from_utf8(hostile::bytes(case)).ok()?;
            let size = size(&weights) + config.len() as u64;
            Some(within_limits(file, size, || open_with_config(&weights, config.clone())))
        }
        "gguf" | "safetensors" if case["stage"] != "container" && !case["setup"].is_object() => {
            let path = stored(file);
            Some(within_limits(file, size(&path), || open(&path)))
        }
        _ => None,
    }
}

#[test]
fn models_end_as_the_index_says() {
    let (mut refused, mut opened, mut wrong) = (0, 0, Vec::new());
    for case in &hostile::cases() {
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

/// Logits on the CPU of a text that begins with BOS.
fn logits(file: &str) -> Vec<f64> {
    let model = open(&data("hostile").join(file)).unwrap();
    Runner::<Cpu>::new(&model, Numerics::Exact, 16, 4).logits(&[1, 261, 270, 300], 4, Phase::Prefill)
}

#[test]
fn sound_files_agree_and_nan_is_seen() {
    let (mut same, mut nan) = (0, 0);
    for case in hostile::cases() {
        let file = case["file"].as_str().unwrap();
        let finite = |logits: &[f64]| logits.iter().all(|x| x.is_finite());
        if let Some(other) = case["same_as"].as_str() {
            // A folder's files have the dimensions of a head in another order, so its sums are rounded differently.
            let bound = if case["kind"] == "gguf" { 0.0 } else { 1e-5 };
            let (ours, theirs) = (logits(file), logits(other));
            let distance = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            println!("{file}: {distance:e}");
            assert!(finite(&ours) && ours.len() == theirs.len() && distance <= bound, "{file}: {distance} off {other}");
            same += 1;
        } else if case["expect"] == "nan" {
            assert!(!finite(&logits(file)), "{file}: finite logits");
            nan += 1;
        }
    }
    assert_eq!((same, nan), (14, 4), "the data is not all there");
}
