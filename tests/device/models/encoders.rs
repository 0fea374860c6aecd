//! Encoders and embedders: last hidden states, vectors and scores of the references; the same bits in any batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wgslm::engine::{EmbedOptions, Embedder, Input, embed};
use wgslm::exec::{
    CpuExecutor, CpuOptions, DeviceChoice, Limits, Numerics, Options, Oracle, Phase, SeqStep, Step, Token,
};
use wgslm::file::{Description, ModelFile};
use wgslm::model::{Embedding, Model, Out, Task};
use wgslm::ops::{Pooling, ValueId};

use super::golden::{converted_file, golden, layer_outputs, nmse};
use super::mutations::{is_inert, mutated, others};
use super::runner::Device;
use super::{Gpu, as_gguf, tiny_models};
use wgslm_test::npy::{Npy, npz};
use wgslm_test::{data, data_bytes, data_json, fetched};

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
    let mut file = ModelFile::open(&data("tiny-models").join(name))?;
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
        if name != "qwen3-embedding" {
            let file = converted_file(&data("tiny-models").join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let model = pollster::block_on(Model::open_for(file, embedding(&name)));
            all.push(Case { model: model.unwrap_or_else(|e| panic!("{name}, converted: {e}")), name: name.clone() });
        }
        if let Some(file) = as_gguf::encoder(&name) {
            let model = pollster::block_on(Model::open_for(file, embedding(&name)));
            all.push(Case { model: model.unwrap_or_else(|e| panic!("{name} as GGUF: {e}")), name });
        }
    }
    assert_eq!(all.len(), 10 + 5 + 4, "the data is not all there");
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
            let seq = SeqStep { types: &input.types, ..SeqStep::new(0, Phase::Prefill, &tokens, 0, &tables) };
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
            let [vector] =
                &pollster::block_on(embed(&mut exec, &model.program, std::slice::from_ref(input))).unwrap()[..]
            else {
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

/// Any decoder gives vectors: its last token's, normalised, whatever its layers keep between steps.
#[test]
fn decoders_give_the_vector_of_their_last_token() {
    let mut wrong = Vec::new();
    let mut tested = 0;
    for (name, configs) in tiny_models().into_iter().filter(|(name, _)| golden(name).contains_key("greedy")) {
        let model = open_folder(&name, configs[0].clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        if model.program.ropes.iter().any(|rope| rope.long.is_some()) {
            continue; // what an executor is made for decides how it rotates, not how long a text is
        }
        let golden = golden(&name);
        let last = golden["hidden_norm"].data.chunks(model.program.value(hidden(&model)).width as usize).next_back();
        let last = last.unwrap();
        let length = last.iter().map(|x| x * x).sum::<f64>().sqrt();
        let expected: Vec<f64> = last.iter().map(|x| x / length).collect();
        let texts = [golden["ids_2"].ids(), golden["ids_1"].ids(), golden["ids_0"].ids()];
        let inputs = texts.map(|ids| Input { ids, types: Vec::new() });
        let mut exec = executor(&model, 2);
        exec.fill_caches(f32::NAN);
        let vectors = pollster::block_on(embed(&mut exec, &model.program, &inputs)).unwrap();
        let nmse = nmse(vectors[1].iter().copied().map(f64::from), &expected);
        println!("{name}: NMSE {nmse:.1e}");
        if nmse.is_nan() || nmse > 1e-8 {
            wrong.push(format!("{name}: NMSE {nmse:e}"));
        }
        tested += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tested >= 25, "only {tested}");
}

/// A real model: all-MiniLM-L6-v2 against transformers, from text to vector; through GGUF as well.
#[test]
fn all_minilm_l6_v2_matches() {
    let path = fetched("models/all-MiniLM-L6-v2");
    let sentences = data_json("real-models/minilm/sentences.json");
    let golden = npz(&data_bytes("real-models/minilm/embeddings.npz"));
    let options = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let cpu = Options { device: DeviceChoice::Cpu, numerics: Numerics::Exact, threads: Some(2), ..Options::default() };
    for file in [ModelFile::open(&path), converted_file(&path)] {
        let file = file.unwrap();
        let mut embedder = pollster::block_on(Embedder::open(file, &options, &cpu, &mut |_| {})).unwrap();
        assert_eq!((embedder.width(), embedder.scores()), (384, false));
        let mut inputs = Vec::new();
        for sentence in sentences.as_array().unwrap() {
            let ids = sentence["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
            let mut input = embedder.text(sentence["text"].as_str().unwrap()).unwrap();
            let ids: Vec<_> = ids.collect();
            if input.ids.len() > ids.len() {
                // GGUF files do not say where a model's texts are cut.
                input.ids.drain(ids.len() - 1..input.ids.len() - 1);
            }
            assert_eq!(input.ids, ids, "{}", sentence["text"]);
            inputs.push(input);
        }
        let vectors = pollster::block_on(embedder.run(&inputs)).unwrap();
        let expected = &golden["embeddings"];
        let (mut least, mut far) = (1.0f64, 0.0f64);
        for (i, vector) in vectors.iter().enumerate() {
            let cosine: f64 = vector.iter().zip(expected.row(i)).map(|(a, b)| f64::from(*a) * b).sum();
            least = least.min(cosine);
            far = vector.iter().zip(expected.row(i)).map(|(a, b)| (f64::from(*a) - b).abs()).fold(far, f64::max);
        }
        println!("{} sentences: cosine {least:.9} or more, {far:.1e} apart at most", vectors.len());
        assert!(vectors.len() == 24 && least >= 0.99999 && far < 2e-6, "cosine {least}, {far:e} apart");
    }

    // Without truncation, a text of 314 tokens is refused.
    let file = ModelFile::open(&path).unwrap();
    let strict = pollster::block_on(Embedder::open(file, &EmbedOptions::default(), &cpu, &mut |_| {})).unwrap();
    let long = sentences.as_array().unwrap().iter().find(|s| s["tokens_before_truncation"] == 314).unwrap();
    let error = strict.text(long["text"].as_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("314 tokens") && error.contains("256"), "{error}");

    // Hidden states of one sentence, after each layer.
    let model = pollster::block_on(Model::open(ModelFile::open(&path).unwrap())).unwrap();
    let weights = Arc::new(pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap());
    let options = CpuOptions {
        threads: Some(2),
        keep_values: true,
        fuse: false,
        numerics: Numerics::Exact,
        ..CpuOptions::new(LIMITS)
    };
    let mut exec = CpuExecutor::new(&model.program, weights, options).unwrap();
    let input = Input { ids: golden["hidden_ids"].ids(), types: Vec::new() };
    pollster::block_on(embed(&mut exec, &model.program, &[input])).unwrap();
    for (layer, value) in layer_outputs(&model).into_iter().enumerate() {
        let hidden = exec.value(value).unwrap().iter().copied().map(f64::from);
        let nmse = nmse(hidden, &golden[&format!("hidden_{layer}")].data);
        println!("after layer {layer}: NMSE {nmse:.1e}");
        assert!(nmse < 1e-9, "after layer {layer}: NMSE {nmse:e}");
    }
}

/// Every field of a fixture that its architecture reads, with another value: refused, or the vectors change.
#[test]
fn every_field_that_is_read_matters() {
    let mut seen = BTreeMap::<(String, String), (bool, String)>::new();
    for (name, configs) in fixtures() {
        let golden = golden(&name);
        let inputs = inputs(&golden);
        let config: serde_json::Value = serde_json::from_str(&configs[0]).unwrap();
        let model = open_folder(&name, configs[0].clone()).unwrap();
        let outcome = |config: String| -> Result<f64, String> {
            let model = open_folder(&name, config).map_err(|e| e.to_string())?;
            let vectors = pollster::block_on(embed(&mut executor(&model, 1), &model.program, &inputs));
            let vectors = vectors.map_err(|e| e.to_string())?;
            let far = |(i, vector): (usize, &Vec<f32>)| {
                nmse(vector.iter().copied().map(f64::from), &expected(&golden, i).data)
            };
            Ok(vectors.iter().enumerate().map(far).fold(0.0, f64::max))
        };
        for asked in &model.keys {
            let Some(pointer) = asked.source.as_ref().map(|s| format!("/{}", s.replace('.', "/"))) else { continue };
            let Some(value) = config.pointer(&pointer).filter(|value| !value.is_null()) else { continue };
            let fields: Vec<_> = match value {
                Value::Array(list) => (0..).zip(list).map(|(i, v)| (format!("{pointer}/{i}"), v.clone())).collect(),
                value => vec![(pointer, value.clone())],
            };
            for (pointer, value) in fields {
                for other in others(&asked.key, &value) {
                    let outcome = outcome(mutated(&name, &pointer, &other));
                    let matters = outcome.as_ref().map_or(true, |&nmse| nmse > 1e-8);
                    println!("{name}: {pointer} = {other} for {value}: {outcome:?}");
                    let entry = seen.entry((model.arch.to_owned(), asked.key.clone())).or_default();
                    entry.0 |= matters;
                    entry.1 += &format!("{name} {pointer} = {other}: {outcome:?}; ");
                }
            }
        }
    }
    let wrong: Vec<_> = seen.iter().filter(|((arch, key), (matters, _))| !matters && !is_inert(arch, key)).collect();
    assert!(wrong.is_empty(), "fields without effect: {wrong:#?}");
    assert!(seen.len() > 30, "only {} fields", seen.len());
}

/// What encoders do not do, and what the files beside a configuration may say.
#[test]
fn what_encoders_cannot_do_is_refused() {
    for (name, pointer, value, word) in [
        ("bert-cls", "/is_decoder", json!(true), "is_decoder"),
        ("bert-cls", "/position_embedding_type", json!("relative_key"), "position_embedding_type"),
        ("bert-cls", "/hidden_act", json!("quick_gelu"), "hidden_act"),
        ("nomicbert-rope", "/qkv_proj_bias", json!(true), "qkv_proj_bias"),
        ("nomicbert-rope", "/mlp_fc2_bias", json!(true), "mlp_fc2_bias"),
        ("nomicbert-rope", "/prenorm", json!(true), "prenorm"),
        ("nomicbert-rope", "/rotary_emb_interleaved", json!(true), "rotary_emb_interleaved"),
        ("nomicbert-rope", "/causal", json!(true), "causal"),
        ("modernbert-local", "/classifier_pooling", json!("max"), "classifier_pooling"),
    ] {
        let error = open_folder(name, mutated(name, pointer, &value)).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|e| e.contains(word)), "{name} {pointer}: {error:?}");
    }
    for (file, text, words) in [
        (
            "modules.json",
            r#"[{"path": "", "type": "a.Transformer"}, {"path": "9", "type": "a.Router"}]"#,
            "module Router",
        ),
        (
            "modules.json",
            r#"[{"path": "1_Pooling", "type": "a.Pooling"}, {"path": "1_Pooling", "type": "a.Pooling"}]"#,
            "module Pooling",
        ),
        ("modules.json", "[1]", "modules.json"),
        ("1_Pooling/config.json", r#"{"pooling_mode_max_tokens": true}"#, "\"max_tokens\""),
        ("1_Pooling/config.json", r#"{"pooling_mode": ["cls", "mean"]}"#, "1_Pooling/config.json"),
        (
            "1_Pooling/config.json",
            r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#,
            "cls_token, mean_tokens",
        ),
        ("2_Dense/config.json", r#"{"out_features": 55}"#, "56 works"),
        ("2_Dense/config.json", r#"{"out_features": 56, "bias": true}"#, "2_Dense/linear.bias"),
        (
            "2_Dense/config.json",
            r#"{"out_features": 56, "bias": false, "activation_function": "torch.nn.GELU"}"#,
            "torch.nn.GELU",
        ),
        ("2_Dense/config.json", r#"{"out_features": 56, "bias": false, "use_residual": true}"#, "use_residual"),
    ] {
        let error = with_text(file, text).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|e| e.contains(words)), "{file} {text}: {error:?}");
    }
    // What modules may say, and does change the vectors.
    let vector = |model: Model| {
        let ids = golden("embeddinggemma")["ids_1"].ids();
        let input = Input { ids, types: Vec::new() };
        pollster::block_on(embed(&mut executor(&model, 1), &model.program, &[input])).unwrap().remove(0)
    };
    let length = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
    let usual = vector(open_folder("embeddinggemma", config("embeddinggemma")).unwrap());
    assert!((length(&usual) - 1.0).abs() < 1e-6);
    let cls = vector(with_text("1_Pooling/config.json", r#"{"pooling_mode": "cls"}"#).unwrap());
    let tanh = vector(with_text("2_Dense/config.json", r#"{"out_features": 56, "bias": false}"#).unwrap());
    let longer = vector(with_text("modules.json", r#"[{"path": "1_Pooling", "type": "Pooling"}]"#).unwrap());
    assert!((length(&longer) - 1.0).abs() > 1e-3, "without Normalize");
    for other in [cls, tanh, longer] {
        assert!(usual.iter().zip(&other).any(|(a, b)| (a - b).abs() > 1e-3));
    }
}

fn config(name: &str) -> String {
    data_json(&format!("tiny-models/{name}/config.json")).to_string()
}

/// EmbeddingGemma with another text file.
fn with_text(file: &str, text: &str) -> wgslm::Result<Model> {
    let mut model = ModelFile::open(&data("tiny-models/embeddinggemma")).unwrap();
    if let Description::Folder(texts) = &mut model.description {
        assert!(texts.contains_key(file));
        texts.insert(file.to_owned(), text.to_owned());
    }
    pollster::block_on(Model::open_for(model, Task::Embed(Embedding::default())))
}

/// The GPU executor gives the references' vectors, too; where a kernel is missing it says so by name.
#[test]
fn gpu_vectors_are_right_or_refused() {
    let (mut wrong, mut without_kernel) = (Vec::new(), Vec::new());
    for (name, configs) in fixtures() {
        let model = open_folder(&name, configs[0].clone()).unwrap();
        let mut exec = match Gpu::load(&model, Numerics::Exact, LIMITS) {
            Ok(exec) => exec,
            Err(e @ wgslm::Error::Unsupported { .. }) => {
                without_kernel.push(format!("{name}: {e}"));
                continue;
            }
            Err(e) => panic!("{name}: {e}"),
        };
        Gpu::poison(&mut exec);
        let golden = golden(&name);
        let vectors = pollster::block_on(embed(&mut exec, &model.program, &inputs(&golden))).unwrap();
        for (i, vector) in vectors.iter().enumerate() {
            let nmse = nmse(vector.iter().copied().map(f64::from), &expected(&golden, i).data);
            if nmse.is_nan() || nmse > 1e-9 {
                wrong.push(format!("{name} {i}: NMSE {nmse:e}"));
            }
        }
    }
    without_kernel.iter().for_each(|e| println!("{e}"));
    assert!(wrong.is_empty(), "{wrong:#?}");
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
