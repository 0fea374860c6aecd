//! Reference logits, hidden states and tokens.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use wgslm::Result;
use wgslm::convert;
use wgslm::engine::{Engine, Event, Request};
use wgslm::exec::{CpuExecutor, CpuOptions, Limits, Numerics, Oracle, Outs, Phase, SeqStep, Step, Token};
use wgslm::file::ModelFile;
use wgslm::model::{Model, WeightSource};
use wgslm::ops::{Access, CpuWeights, KvStorage, Load, Operand, ValueId};

use super::runner::{Device, Runner};
use super::{as_gguf, open, open_with_config, tiny_models};
use wgslm_test::npy::{Npy, npz};
use wgslm_test::{data, data_bytes, data_json};

/// The reference values of a tiny model.
pub(crate) fn golden(name: &str) -> HashMap<String, Npy> {
    npz(&data_bytes(&format!("tiny-models/{name}/golden.npz")))
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

/// The input of the first layer, and the last value of each.
pub(crate) fn layer_outputs(model: &Model) -> Vec<ValueId> {
    let nodes = &model.program.nodes;
    let mut input = None;
    nodes.iter().find(|n| n.layer == Some(0)).unwrap().op.reads(&mut |v| input = input.or(Some(v)));
    let last = |layer| nodes.iter().rfind(|n| n.layer == Some(layer)).and_then(|n| n.op.writes());
    [input].into_iter().chain((0..model.program.layers()).map(last)).map(Option::unwrap).collect()
}

/// The tiny models of the architectures that there are, those that give logits, each in every form: both configurations,
/// and GGUF.
fn all_tiny_models() -> Vec<(String, Model)> {
    let mut all = Vec::new();
    for (name, configs) in tiny_models() {
        if golden(&name).contains_key("greedy") {
            let path = data("tiny-models").join(&name);
            let open = |config| open_with_config(&path, config).unwrap_or_else(|e| panic!("{name}: {e}"));
            all.extend(configs.into_iter().map(|config| (name.clone(), open(config))));
            match converted(&path) {
                Ok(model) => all.push((format!("{name} as GGUF"), model)),
                Err(e) => println!("{name}: {e}"),
            }
        }
    }
    all.extend(["llama-rope3", "llama-linear-bias"].map(|name| (name.to_owned(), as_gguf::llama(name))));
    all.push(("gpt2-odd".to_owned(), as_gguf::gpt2("gpt2-odd")));
    assert!(all.len() >= 7 + 3, "the data is not all there");
    all
}

/// An op that reads a matrix or a cache of pages says what that costs: pacing and profiles rest on it.
#[test]
fn what_is_read_has_its_cost() {
    let mut asked = 0;
    for (name, model) in all_tiny_models() {
        for op in model.program.nodes.iter().map(|node| &node.op) {
            let mut reads = false;
            op.operands(&mut |access, operand| {
                let large = matches!(operand, Operand::Weight(_) | Operand::Cache(_));
                reads |= large && access == Access::Read;
            });
            let load = Load { rows: 3, pos: 5, kv: KvStorage::F16 };
            let cost = op.cost(&load, 3, &|weight| model.format(weight));
            assert!(!reads || cost.bytes > 0.0, "{name}: {} reads, and costs nothing", op.name());
            asked += u32::from(reads);
        }
    }
    assert!(asked > 500, "only {asked} ops were asked");
}

/// The fixture of a model in one of its forms.
fn fixture(name: &str) -> &str {
    name.split(' ').next().unwrap_or(name)
}

/// A folder's model, through the GGUF file that `convert` makes of it.
pub(crate) fn converted(path: &Path) -> Result<Model> {
    pollster::block_on(Model::open(converted_file(path)?))
}

pub(crate) fn converted_file(path: &Path) -> Result<ModelFile> {
    ModelFile::from_bytes("converted.gguf", converted_bytes(path)?)
}

/// The GGUF file that `convert` makes of a folder.
pub(crate) fn converted_bytes(path: &Path) -> Result<Vec<u8>> {
    let options = convert::Options { to: Some("F32".parse()?), requantize: false, threads: 1 };
    let mut bytes = Vec::new();
    pollster::block_on(convert::convert(ModelFile::open(path)?, options, &mut bytes, &mut |_, _| {}))?;
    Ok(bytes)
}

/// A model's canonical program in f64, on one sequence.
struct Reference<'a> {
    model: &'a Model,
    weights: Arc<CpuWeights>,
}

impl<'a> Reference<'a> {
    fn new(model: &'a Model) -> Self {
        let weights = pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap();
        Self { model, weights: weights.into() }
    }

    /// An oracle that has seen `ids`, and their logits.
    fn run(&self, ids: &[u32]) -> (Oracle, Vec<f64>) {
        let n = ids.len() as u32;
        let blocks = n.div_ceil(16);
        let limits = Limits { rows: n, seqs: 1, outs: n, block: 16, blocks, context: n, in_flight: 1, checkpoints: 0 };
        let mut oracle = Oracle::new(&self.model.program, self.weights.clone(), limits);
        let tokens: Vec<_> = ids.iter().map(|&id| Token::Host(id)).collect();
        let table: Vec<u32> = (0..limits.blocks).rev().collect();
        let tables = vec![&table[..]; self.model.program.groups as usize];
        let seq = SeqStep::new(0, Phase::Prefill, &tokens, 0, &tables);
        let seq = SeqStep { outs: Outs::All, read_logits: true, ..seq };
        let logits = oracle.step(&Step { seqs: &[seq] }).unwrap();
        (oracle, logits.into_iter().flatten().collect())
    }
}

/// The logits of a model's canonical program in f64.
pub(crate) fn logits_of(model: &Model, ids: &[u32]) -> Vec<f64> {
    Reference::new(model).run(ids).1
}

/// Hidden states after a layer, (rows, hidden) in `golden`, or (streams, rows, hidden) where a model has several streams;
/// as (rows, streams * hidden).
fn rows_of_streams(golden: &Npy) -> Vec<f64> {
    let &[streams, rows, hidden] = &golden.shape[..] else { return golden.data.clone() };
    let row = |r| (0..streams).flat_map(move |s| (0..hidden).map(move |i| (s * rows + r) * hidden + i));
    (0..rows).flat_map(row).map(|i| golden.data[i]).collect()
}

/// Programs as their architectures build them give the reference's logits and hidden states in f64.
#[test]
fn programs_are_right() {
    let mut wrong = Vec::new();
    for (name, model) in all_tiny_models() {
        let golden = golden(fixture(&name));
        let reference = Reference::new(&model);
        for i in 0..3 {
            let ids = golden[&format!("ids_{i}")].ids();
            let expected = &golden[&format!("logits_{i}")];
            let (oracle, logits) = reference.run(&ids);
            let (kl, worst) = (mean_kl(&logits, expected), nmse(logits.iter().copied(), &expected.data));
            println!("{name} {i}: KL {kl:.1e}, NMSE {worst:.1e}");
            let bound = f32_noise(model.arch);
            if !(kl < bound && worst < bound) {
                wrong.push(format!("{name} {i}: KL {kl:e}, NMSE {worst:e}"));
            }
            if i != 1 {
                continue;
            }
            for (layer, value) in layer_outputs(&model).into_iter().enumerate() {
                let expected = rows_of_streams(&golden[&format!("hidden_{layer}")]);
                let nmse = nmse(oracle.value(value).iter().flatten().copied(), &expected);
                if nmse >= 10.0 * bound || nmse.is_nan() {
                    wrong.push(format!("{name}, after layer {layer}: NMSE {nmse:e}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// How far the references, made in f32, are from the same in f64: 1e-10 but for gated delta nets, whose reference has
/// rounded more (README.md beside the fixtures has the measurement).
fn f32_noise(arch: &str) -> f64 {
    if ["qwen3_next", "qwen3_5", "qwen3_5_moe"].iter().any(|a| arch.starts_with(a)) { 1e-9 } else { 1e-10 }
}

/// An executor gives the reference's logits whatever the chunks and the phase of the rows, and the reference's tokens.
pub(crate) fn tiny_models_match<D: Device>() {
    let (mut wrong, mut without_kernel) = (Vec::new(), Vec::new());
    for (name, model) in all_tiny_models() {
        let golden = golden(fixture(&name));
        let longrope = model.program.ropes.iter().any(|rope| rope.long.is_some());
        let mut runner = match Runner::<D>::open(&model, Numerics::Exact, 96, 70) {
            Ok(runner) => runner,
            Err(e @ wgslm::Error::Unsupported { .. }) if D::LACKS_KERNELS => {
                without_kernel.push(format!("{name}: {e}"));
                continue;
            }
            Err(e) => panic!("{name}: {e}"),
        };
        let every =
            [(70, Phase::Prefill), (1, Phase::Prefill), (3, Phase::Prefill), (16, Phase::Prefill), (1, Phase::Decode)];
        // On a software adapter the forms are seen on two architectures, and each form of row on the others.
        let few = D::LACKS_KERNELS && !["llama", "gpt2"].contains(&model.arch);
        let (forms, texts) = if few { (vec![every[0], every[4]], 1..2) } else { (every.to_vec(), 0..3) };
        let mut worst = 0.0f64;
        for i in texts {
            let expected = &golden[&format!("logits_{i}")];
            if longrope {
                // What an executor is made for decides how it rotates.
                runner = Runner::new(&model, Numerics::Exact, expected.shape[0], 70);
            }
            for &(chunk, phase) in &forms {
                runner.restart();
                let logits = runner.logits(&golden[&format!("ids_{i}")].ids(), chunk, phase);
                let kl = mean_kl(&logits, expected);
                if kl >= 10.0 * f32_noise(model.arch) || kl.is_nan() {
                    wrong.push(format!("{name} {i}, {chunk} rows a step, {phase:?}: KL {kl:e}"));
                }
                worst = worst.max(kl);
            }
        }
        if longrope {
            runner = Runner::new(&model, Numerics::Exact, 96, 70);
        }
        // The fixtures' gaps are wide for the first 24 tokens.
        for chunk in if few { vec![70] } else { vec![5, 70] } {
            runner.restart();
            let ids = runner.greedy(&golden["prompt"].ids(), chunk, 24);
            if ids != golden["greedy"].ids()[..24] {
                wrong.push(format!("{name}: {ids:?}"));
            }
        }
        println!("{name}: KL {worst:.1e}");
    }
    without_kernel.iter().for_each(|e| println!("{e}"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An engine frees the blocks outside windows and samples the reference's tokens, all of them. A model with windows in all
/// layers runs in a cache that could not hold the whole text.
#[test]
fn an_engine_gives_blocks_back_and_samples_the_same() {
    for (name, blocks) in
        [("mistral-window", 12), ("gemma3-local-global", 20), ("gemma3n-altup", 20), ("gemma4-ple", 20)]
    {
        let model = open(&data("tiny-models").join(name)).unwrap();
        let golden = golden(name);
        let weights = pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap();
        let limits = Limits { rows: 7, seqs: 1, outs: 1, block: 4, blocks, context: 96, in_flight: 2, checkpoints: 0 };
        let options = CpuOptions { threads: Some(2), numerics: Numerics::Exact, ..CpuOptions::new(limits) };
        let executor = CpuExecutor::new(&model.program, weights.into(), options).unwrap();
        let mut engine = Engine::new(executor, &model.program);
        engine.submit(Request { max_tokens: Some(64), ..Request::new(golden["prompt"].ids()) }).unwrap();
        let mut ids = Vec::new();
        while engine.busy() {
            for event in pollster::block_on(engine.step()) {
                match event {
                    Event::Token { id, .. } => ids.push(id),
                    Event::Finished { reason, .. } => assert_eq!(reason.name(), "length", "{name}"),
                }
            }
        }
        assert_eq!(ids, golden["greedy"].ids(), "{name}");
    }
}

/// Every file of `tests/data/stories`: reference logits, and the tokens after four prompts.
pub(crate) fn stories_match<D: Device>() {
    let golden = npz(&data_bytes("stories/reference.npz"));
    let expected = &golden["logits"];
    let ids = &golden["ids"].ids()[..expected.shape[0]];
    let runs = data_json("stories/reference.json");
    // The bounds of the rounded files say how far rounding takes them; their tokens are compared below.
    for (file, bound) in [
        ("stories.gguf", 1e-9),
        ("hf-float32", 1e-9),
        ("stories-f16.gguf", 1e-6),
        ("hf-bfloat16", 1e-4),
        ("stories-q8_0.gguf", 1e-3),
    ] {
        let model = open(&data("stories").join(file)).unwrap();
        for (numerics, fast) in [(Numerics::Exact, 0.0), (Numerics::Fast, 5e-4)] {
            let mut runner = Runner::<D>::new(&model, numerics, 256, 200);
            for (chunk, phase) in [(200, Phase::Prefill), (7, Phase::Prefill), (1, Phase::Decode)] {
                runner.restart();
                let nmse = nmse(runner.logits(ids, chunk, phase), &expected.data);
                println!("{file}, {numerics:?}, {chunk} rows a step: NMSE {nmse:.1e}");
                assert!(nmse < bound + fast, "{file}, {numerics:?}, {chunk} rows a step, {phase:?}: NMSE {nmse:e}");
            }
            if bound > 1e-9 || numerics == Numerics::Fast {
                continue;
            }
            for run in runs["runs"].as_array().unwrap() {
                let (prompt, all) = (ids_of(&run["prompt_ids"]), ids_of(&run["ids"]));
                runner.restart();
                let sampled = runner.greedy(&prompt, 4, all.len() - prompt.len());
                assert_eq!(sampled, all[prompt.len()..], "{file}, after {:?}", run["prompt"]);
            }
        }
    }
    for run in data_json("stories/reference-quant.json")["runs"].as_array().unwrap() {
        let file = run["file"].as_str().unwrap();
        let model = open(&data("stories").join(file)).unwrap();
        let mut runner = Runner::<D>::new(&model, Numerics::Exact, 256, 8);
        let (prompt, all) = (ids_of(&run["prompt_ids"]), ids_of(&run["ids"]));
        let sampled = runner.greedy(&prompt, 8, all.len() - prompt.len());
        assert_eq!(sampled, all[prompt.len()..], "{file}");
        runner.restart();
        let logits = runner.logits(&prompt, 8, Phase::Prefill);
        let last = &logits[logits.len() - model.program.vocab as usize..];
        let expected: Vec<_> = run["last_logits"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        let nmse = nmse(last.iter().copied(), &expected);
        assert!(nmse < 1e-9, "{file}: NMSE {nmse:e}");
    }
}

/// The embedded model as it is, and as a folder of safetensors files, which has other names and another order of rows.
#[test]
fn the_embedded_model_matches() {
    let golden = npz(&data_bytes("embedded/reference.npz"));
    let (ids, expected) = (golden["ids"].ids(), &golden["logits"]);
    let file = || ModelFile::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny.gguf"))).unwrap();
    let config = String::from_utf8(data_bytes("embedded/config.json")).unwrap();
    let folder = super::open_safetensors(as_gguf::safetensors(&file(), 32), &[("config.json", config)]);
    for (what, model) in [("GGUF", pollster::block_on(Model::open(file()))), ("safetensors", folder)] {
        let model = model.unwrap();
        let kl = mean_kl(&logits_of(&model, &ids), expected);
        assert!(kl < 1e-10, "{what}, in f64: KL {kl:e}");
        let mut runner = Runner::<super::Cpu>::new(&model, Numerics::Exact, 64, 48);
        let kl = mean_kl(&runner.logits(&ids, 48, Phase::Prefill), expected);
        assert!(kl < 1e-9, "{what}: KL {kl:e}");
    }
}

fn ids_of(list: &serde_json::Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
