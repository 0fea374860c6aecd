//! Encoders and embedders: last hidden states, vectors and scores of the references; the same bits in any company.

use std::sync::Arc;

use wgslm::engine::{Input, embed};
use wgslm::exec::{CpuExecutor, CpuOptions, Limits, Numerics, Oracle, Outs, Role, SeqStep, Step, Token};
use wgslm::file::{Description, ModelFile};
use wgslm::model::{Embedding, Model, Out, Task};
use wgslm::ops::{Pooling, ValueId};

use super::golden::{golden, layer_outputs, nmse};
use super::npy::Npy;
use super::support::shared;
use super::{as_gguf, tiny_models};

/// A fixture of an encoder or an embedder, in one of its forms.
struct Case {
    name: String,
    model: Model,
}

/// How the vectors of a fixture were pooled, where its files do not say so.
fn pooling(name: &str) -> Option<Pooling> {
    (name == "bert-cls").then_some(Pooling::Cls)
}

fn embedding(name: &str) -> Task {
    Task::Embed(Embedding { pooling: pooling(name), normalize: None })
}

/// Opens the model of a folder with another `config.json`, for its vectors.
fn open_folder(name: &str, config: String) -> wgslm::Result<Model> {
    let mut file = ModelFile::open(&shared("tiny-models").join(name))?;
    if let Description::Folder(texts) = &mut file.description {
        texts.insert("config.json".into(), config);
    }
    pollster::block_on(Model::open_for(file, embedding(name)))
}

/// The fixtures that are not for generating, of the architectures that there are.
fn fixtures() -> Vec<(String, Vec<String>)> {
    tiny_models().into_iter().filter(|(name, _)| !golden(name).contains_key("greedy")).collect()
}

/// Every form of every fixture.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (name, configs) in fixtures() {
        for config in configs {
            let model = open_folder(&name, config).unwrap_or_else(|e| panic!("{name}: {e}"));
            all.push(Case { name: name.clone(), model });
        }
        if let Some(file) = as_gguf::encoder(&name) {
            let model = pollster::block_on(Model::open_for(file, embedding(&name)));
            all.push(Case { model: model.unwrap_or_else(|e| panic!("{name} as GGUF: {e}")), name });
        }
    }
    assert!(all.len() >= 4, "the data is not all there");
    all
}

/// A reference's inputs: its three texts.
fn inputs(golden: &std::collections::HashMap<String, Npy>) -> Vec<Input> {
    let of = |i: usize| Input {
        ids: golden[&format!("ids_{i}")].ids(),
        types: golden.get(&format!("token_types_{i}")).map_or(Vec::new(), Npy::ids),
    };
    (0..3).map(of).collect()
}

/// What the reference gives for text i: its vector, or its score.
fn expected(golden: &std::collections::HashMap<String, Npy>, i: usize) -> &Npy {
    golden.get(&format!("pooled_{i}")).unwrap_or_else(|| &golden[&format!("logits_{i}")])
}

const LIMITS: Limits =
    Limits { rows: 100, seqs: 4, outs: 1, block: 16, blocks: 10, context: 96, in_flight: 1, checkpoints: 0 };

fn hidden(model: &Model) -> ValueId {
    let hidden = model.program.outs.iter().find_map(|out| match out {
        Out::Hidden(v) => Some(*v),
        _ => None,
    });
    hidden.expect("last hidden states")
}

fn executor(model: &Model, threads: usize) -> CpuExecutor {
    let weights = pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap();
    let options = CpuOptions { threads: Some(threads), numerics: Numerics::Exact, ..CpuOptions::new(LIMITS) };
    CpuExecutor::new(&model.program, Arc::new(weights), options).unwrap()
}

/// Programs as their architectures build them, in f64.
#[test]
fn hidden_states_and_vectors_are_right() {
    let mut wrong = Vec::new();
    for Case { name, model } in cases() {
        let golden = golden(&name);
        let weights = Arc::new(pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap());
        for (i, input) in inputs(&golden).into_iter().enumerate() {
            let mut oracle = Oracle::new(&model.program, weights.clone(), LIMITS);
            let tokens: Vec<_> = input.ids.iter().map(|&id| Token::Host(id)).collect();
            let table: Vec<u32> = (0..LIMITS.blocks).rev().collect();
            let tables = vec![&table[..]; model.program.groups as usize];
            let seq = SeqStep {
                slot: 0,
                role: Role::Prompt,
                tokens: &tokens,
                types: &input.types,
                pos: 0,
                tables: &tables,
                outs: Outs::None,
                sample: None,
                read_logits: false,
            };
            oracle.step(&Step { seqs: &[seq] }).unwrap();
            let value = |id| oracle.value(id).iter().flatten().copied();
            let mut check = |what: &str, id: ValueId, expected: &[f64]| {
                let nmse = nmse(value(id), expected);
                println!("{name} {i}, {what}: NMSE {nmse:.1e}");
                if nmse.is_nan() || nmse > 1e-9 {
                    wrong.push(format!("{name} {i}, {what}: NMSE {nmse:e}"));
                }
            };
            if let Some(last) = golden.get(&format!("last_hidden_{i}")) {
                check("last hidden states", hidden(&model), &last.data);
            }
            check("result", model.program.pooled().unwrap(), &expected(&golden, i).data);
            if i == 1 {
                for (layer, value) in layer_outputs(&model).into_iter().enumerate() {
                    check(&format!("after layer {layer}"), value, &golden[&format!("hidden_{layer}")].data);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The CPU executor gives the references' vectors and scores, bit for bit the same for a text alone and among others.
#[test]
fn vectors_are_right_alone_and_in_company() {
    for Case { name, model } in cases() {
        let golden = golden(&name);
        let inputs = inputs(&golden);
        let mut alone = Vec::new();
        let mut exec = executor(&model, 2);
        for (i, input) in inputs.iter().enumerate() {
            exec.fill_caches(f32::NAN);
            let [vector] = &pollster::block_on(embed(&mut exec, &model.program, &[input.clone()])).unwrap()[..] else {
                panic!("one vector")
            };
            let nmse = nmse(vector.iter().copied().map(f64::from), &expected(&golden, i).data);
            assert!(nmse < 1e-9, "{name} {i}: NMSE {nmse:e}");
            alone.push(vector.clone());
        }
        for (threads, order) in [(1, vec![2, 1, 0]), (3, vec![0, 1, 2, 1, 1, 0, 2]), (2, vec![0, 0, 0, 0, 0, 1])] {
            let mut exec = executor(&model, threads);
            let batch: Vec<_> = order.iter().map(|&i| inputs[i].clone()).collect();
            let vectors = pollster::block_on(embed(&mut exec, &model.program, &batch)).unwrap();
            assert_eq!(vectors.len(), order.len());
            for (i, vector) in order.into_iter().zip(&vectors) {
                assert_eq!(vector, &alone[i], "{name}: text {i} in company");
            }
        }
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let Case { model, .. } = cases().swap_remove(0);
    let mut exec = executor(&model, 1);
    let mut run = |ids: Vec<u32>, types| pollster::block_on(embed(&mut exec, &model.program, &[Input { ids, types }]));
    let error = run(vec![1; 97], vec![]).unwrap_err().to_string();
    assert!(error.contains("97 tokens") && error.contains("96"), "{error}");
    assert!(run(vec![], vec![]).unwrap_err().to_string().contains("at least one"));
    assert!(run(vec![103], vec![]).unwrap_err().to_string().contains("the vocabulary has 103"));
    assert!(run(vec![1, 2], vec![0]).unwrap_err().to_string().contains("1 token types for 2 tokens"));
    assert!(run(vec![1; 96], vec![]).is_ok());
}
