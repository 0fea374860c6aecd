//! Reference logits, hidden states and tokens.

use std::collections::HashMap;

use wgslm::exec::{Numerics, Role};
use wgslm::model::{Model, Rows};
use wgslm::ops::ValueId;

use super::npy::{Npy, npz};
use super::oracle::{Weights, run};
use super::runner::{Device, Runner};
use super::support::{shared, shared_bytes, shared_json};
use super::{as_gguf, open, open_with_config, tiny_models};

/// The reference values of a tiny model.
pub(crate) fn golden(name: &str) -> HashMap<String, Npy> {
    npz(&shared_bytes(&format!("tiny-models/{name}/golden.npz")))
}

/// `Σ (a - b)² / Σ b²`
pub(crate) fn nmse(a: impl IntoIterator<Item = f64>, b: &[f64]) -> f64 {
    let error: f64 = a.into_iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    error / b.iter().map(|b| b * b).sum::<f64>()
}

/// The Kullback-Leibler divergence of softmax(a) from softmax(b): what b's distribution loses when a's is used.
pub(crate) fn kl(a: &[f64], b: &[f64]) -> f64 {
    let lse = |x: &[f64]| {
        let max = x.iter().copied().fold(f64::MIN, f64::max);
        max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
    };
    let (la, lb) = (lse(a), lse(b));
    a.iter().zip(b).map(|(a, b)| (b - lb).exp() * ((b - lb) - (a - la))).sum()
}

/// The mean divergence of rows of logits.
pub(crate) fn mean_kl(a: &[f64], b: &Npy) -> f64 {
    let (rows, vocab) = (b.shape[0], b.shape[1]);
    assert_eq!(a.len(), rows * vocab);
    a.chunks(vocab).enumerate().map(|(i, a)| kl(a, b.row(i))).sum::<f64>() / rows as f64
}

/// The last value of each layer, after that of the embedding.
fn layer_outputs(model: &Model) -> Vec<ValueId> {
    let nodes = &model.program.nodes;
    let last = |layer| nodes.iter().rfind(|n| n.layer == layer && n.op.writes().is_some());
    let in_step = |n: &&wgslm::model::Node| n.layer.is_none() && n.op.name() != "norm";
    let first = nodes.iter().take_while(|n| n.layer.is_none()).filter(in_step).last();
    let layers = (0..model.program.layers()).map(|layer| last(Some(layer)));
    [first].into_iter().chain(layers).map(|n| n.unwrap().op.writes().unwrap()).collect()
}

/// The tiny models of the architectures that there are, each in every form: both configurations, and GGUF.
fn all_tiny_models() -> Vec<(String, Model)> {
    let mut all = Vec::new();
    for (name, configs) in tiny_models(&["llama", "gpt2"]) {
        let path = shared("tiny-models").join(&name);
        all.extend(configs.into_iter().map(|config| (name.clone(), open_with_config(&path, config).unwrap())));
    }
    all.extend(["llama-rope3", "llama-linear-bias"].map(|name| (name.to_owned(), as_gguf::llama(name))));
    all.push(("gpt2-odd".to_owned(), as_gguf::gpt2("gpt2-odd")));
    assert_eq!(all.len(), 7 + 3, "the data is not all there");
    all
}

/// Programs as their architectures build them give the reference's logits and hidden states in f64.
#[test]
fn programs_are_right() {
    for (name, model) in all_tiny_models() {
        let golden = golden(&name);
        let weights = Weights::of(&model);
        for i in 0..3 {
            let ids = golden[&format!("ids_{i}")].ids();
            let run = run(&model.program, &weights, &ids);
            let expected = &golden[&format!("logits_{i}")];
            let logits = run.logits(&model.program);
            let (kl, nmse) = (mean_kl(logits, expected), nmse(logits.iter().copied(), &expected.data));
            println!("{name} {i}: KL {kl:.1e}, NMSE {nmse:.1e}");
            assert!(kl < 1e-10 && nmse < 1e-10, "{name} {i}: KL {kl:e}, NMSE {nmse:e}");
        }
        let run = run(&model.program, &weights, &golden["ids_1"].ids());
        for (i, value) in layer_outputs(&model).into_iter().enumerate() {
            assert_eq!(model.program.value(value).rows, Rows::Step);
            let nmse = nmse(run.value(value).iter().copied(), &golden[&format!("hidden_{i}")].data);
            assert!(nmse < 1e-9, "{name}, after layer {i}: NMSE {nmse:e}");
        }
    }
}

/// An executor gives the reference's logits whatever the chunks and the role of the rows, and the reference's tokens.
pub(crate) fn tiny_models_match<D: Device>() {
    for (name, model) in all_tiny_models() {
        let golden = golden(&name);
        let mut runner = Runner::<D>::new(&model, Numerics::Exact, 96, 70);
        let mut worst = 0.0f64;
        for i in 0..3 {
            let expected = &golden[&format!("logits_{i}")];
            for (chunk, role) in
                [(70, Role::Prompt), (1, Role::Prompt), (3, Role::Prompt), (16, Role::Prompt), (1, Role::Generated)]
            {
                runner.restart();
                let logits = runner.logits(&golden[&format!("ids_{i}")].ids(), chunk, role);
                let kl = mean_kl(&logits, expected);
                assert!(kl < 1e-9, "{name} {i}, {chunk} rows a step, {role:?}: KL {kl:e}");
                worst = worst.max(kl);
            }
        }
        // The fixtures' gaps are wide for the first 24 tokens.
        for chunk in [5, 70] {
            runner.restart();
            let ids = runner.greedy(&golden["prompt"].ids(), chunk, 24);
            assert_eq!(ids, golden["greedy"].ids()[..24], "{name}");
        }
        println!("{name}: KL {worst:.1e}");
    }
}

/// Every file of stories260K: reference logits, and the tokens after four prompts.
pub(crate) fn stories_match<D: Device>() {
    let golden = npz(&shared_bytes("stories260K/reference.npz"));
    let expected = &golden["logits"];
    let ids = &golden["ids"].ids()[..expected.shape[0]];
    let runs = shared_json("stories260K/reference.json");
    // The bounds of the rounded files say how far rounding takes them; their tokens are compared below.
    for (file, bound) in [
        ("stories260K.gguf", 1e-9),
        ("hf-float32", 1e-9),
        ("stories260K-f16.gguf", 1e-6),
        ("hf-bfloat16", 1e-4),
        ("stories260K-q8_0.gguf", 1e-3),
    ] {
        let model = open(&shared("stories260K").join(file)).unwrap();
        for (numerics, fast) in [(Numerics::Exact, 0.0), (Numerics::Fast, 5e-4)] {
            let mut runner = Runner::<D>::new(&model, numerics, 256, 200);
            for (chunk, role) in [(200, Role::Prompt), (7, Role::Prompt), (1, Role::Generated)] {
                runner.restart();
                let nmse = nmse(runner.logits(ids, chunk, role), &expected.data);
                println!("{file}, {numerics:?}, {chunk} rows a step: NMSE {nmse:.1e}");
                assert!(nmse < bound + fast, "{file}, {numerics:?}, {chunk} rows a step, {role:?}: NMSE {nmse:e}");
            }
            if bound > 1e-9 || numerics == Numerics::Fast {
                continue;
            }
            for run in runs["runs"].as_array().unwrap() {
                let (prompt, all) = (ids_of(&run["prompt_ids"]), ids_of(&run["ids"]));
                runner.restart();
                let drawn = runner.greedy(&prompt, 4, all.len() - prompt.len());
                assert_eq!(drawn, all[prompt.len()..], "{file}, after {:?}", run["prompt"]);
            }
        }
    }
    for run in shared_json("stories260K/reference-quant.json")["runs"].as_array().unwrap() {
        let file = run["file"].as_str().unwrap();
        if run["type"] == "Q8_0" {
            let model = open(&shared("stories260K").join(file)).unwrap();
            let mut runner = Runner::<D>::new(&model, Numerics::Exact, 256, 8);
            let (prompt, all) = (ids_of(&run["prompt_ids"]), ids_of(&run["ids"]));
            let drawn = runner.greedy(&prompt, 8, all.len() - prompt.len());
            assert_eq!(drawn, all[prompt.len()..], "{file}");
            runner.restart();
            let logits = runner.logits(&prompt, 8, Role::Prompt);
            let last = &logits[logits.len() - model.program.vocab as usize..];
            let expected: Vec<_> = run["last_logits"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            let nmse = nmse(last.iter().copied(), &expected);
            assert!(nmse < 1e-9, "{file}: NMSE {nmse:e}");
        }
    }
}

fn ids_of(list: &serde_json::Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
