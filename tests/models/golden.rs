//! Reference logits, hidden states and tokens.

use std::collections::HashMap;

use wgslm::model::{Model, Rows};
use wgslm::ops::ValueId;

use super::npy::{Npy, npz};
use super::oracle::{Weights, run};
use super::support::{shared, shared_bytes, shared_json};
use super::{open, open_with_config, tiny_models};

/// The reference values of a tiny model.
fn golden(name: &str) -> HashMap<String, Npy> {
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

/// Programs as their architectures build them give the reference's logits and hidden states in f64.
#[test]
fn programs_are_right() {
    let mut cases = 0;
    for (name, configs) in tiny_models(&["llama", "gpt2"]) {
        let golden = golden(&name);
        for config in configs {
            let model = open_with_config(&shared("tiny-models").join(&name), config).unwrap();
            let weights = Weights::of(&model);
            for i in 0..3 {
                let ids = golden[&format!("ids_{i}")].ids();
                let run = run(&model.program, &weights, &ids);
                let expected = &golden[&format!("logits_{i}")];
                let logits = run.logits(&model.program);
                let (kl, nmse) = (mean_kl(logits, expected), nmse(logits.iter().copied(), &expected.data));
                println!("{name} {i}: KL {kl:.1e}, NMSE {nmse:.1e}");
                assert!(kl < 1e-9 && nmse < 1e-9, "{name} {i}: KL {kl:e}, NMSE {nmse:e}");
            }
            let run = run(&model.program, &weights, &golden["ids_1"].ids());
            for (i, value) in layer_outputs(&model).into_iter().enumerate() {
                assert_eq!(model.program.value(value).rows, Rows::Step);
                let nmse = nmse(run.value(value).iter().copied(), &golden[&format!("hidden_{i}")].data);
                assert!(nmse < 1e-9, "{name}, after layer {i}: NMSE {nmse:e}");
            }
            cases += 1;
        }
    }
    assert_eq!(cases, 7, "the data is not all there");
}

#[test]
fn stories_files_give_the_reference_logits() {
    let golden = npz(&shared_bytes("stories260K/reference.npz"));
    let ids = golden["ids"].ids();
    let expected = &golden["logits"];
    for (file, bound) in [
        ("stories260K.gguf", 1e-9),
        ("hf-float32", 1e-9),
        ("stories260K-f16.gguf", 1e-5),
        ("hf-bfloat16", 1e-3),
        ("stories260K-q8_0.gguf", 1e-2),
    ] {
        let model = open(&shared("stories260K").join(file)).unwrap();
        let run = run(&model.program, &Weights::of(&model), &ids[..expected.shape[0]]);
        let nmse = nmse(run.logits(&model.program).iter().copied(), &expected.data);
        println!("{file}: NMSE {nmse:.1e}");
        assert!(nmse < bound, "{file}: {nmse:e}");
    }
    let _ = shared_json("stories260K/reference-quant.json");
}
