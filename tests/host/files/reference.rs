//! The model of `tests/data/stories` in all its files against `hf-float32`, which is parsed here, apart from the engine.

use std::collections::HashMap;
use std::ops::Range;

use wgslm::Error;
use wgslm::file::{Access, ByteSource, Bytes, ModelFile, Strings, TensorType};
use wgslm::quant::BlockFormat;

use super::{bytes, f32s, open_bytes};
use wgslm_test::{data, data_bytes};

const DIM: usize = 64;
const HIDDEN: usize = 172;
const LAYERS: usize = 5;
const HEAD_DIM: usize = 8;
const VOCAB: usize = 512;

/// The names of tensors, folder to GGUF, by parts.
const NAMES: [(&str, &str); 12] = [
    ("model.layers.", "blk."),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The weights by GGUF names, in GGUF's order.
fn weights() -> HashMap<String, Vec<f32>> {
    let all = data_bytes("stories/hf-float32/model.safetensors");
    let (length, rest) = all.split_first_chunk().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let mut weights = HashMap::new();
    for (name, about) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        assert_eq!(about["dtype"], "F32");
        let at = |i: usize| about["data_offsets"][i].as_u64().unwrap() as usize;
        let four = values[at(0)..at(1)].as_chunks().0.iter();
        let tensor: Vec<f32> = four.map(|&four| f32::from_le_bytes(four)).collect();
        let name = NAMES.iter().fold(name.clone(), |name, (hf, gguf)| name.replace(hf, gguf));
        let rotates = name.contains("attn_q") || name.contains("attn_k");
        weights.insert(name, if rotates { neighbours(&tensor) } else { tensor });
    }
    assert_eq!(weights.len(), 2 + 9 * LAYERS);
    weights
}

/// A head's rows from rotate-half order, which folders have, to neighbours, which GGUF files have.
fn neighbours(tensor: &[f32]) -> Vec<f32> {
    let head = |rows: &[f32]| -> Vec<f32> {
        let (low, high) = rows.split_at(rows.len() / 2);
        low.chunks(DIM).zip(high.chunks(DIM)).flat_map(|(a, b)| [a, b].concat()).collect()
    };
    tensor.chunks(HEAD_DIM * DIM).flat_map(head).collect()
}

fn rounded(format: BlockFormat, weights: &[f32]) -> Vec<u8> {
    let mut out = vec![0; format.row_bytes(weights.len() as u64).unwrap() as usize];
    format.encode(weights, &mut out).unwrap();
    out
}

#[test]
fn gguf_files_hold_the_reference_weights() {
    let reference = weights();
    for (file, matrices) in [
        ("", BlockFormat::F32),
        ("-f16", BlockFormat::F16),
        ("-q8_0", BlockFormat::Q8_0),
        ("-q5_1", BlockFormat::Q5_1),
        ("-q4_0", BlockFormat::Q4_0),
    ] {
        let path = data(&format!("stories/stories{file}.gguf"));
        for access in [Access::Mapped, Access::Read] {
            let model = ModelFile::open_as(&path, access).unwrap();
            assert_eq!(model.tensors().len(), 47);
            for tensor in model.tensors() {
                let Some(expected) = reference.get(&tensor.name) else { panic!("{} is unexpected", tensor.name) };
                let format = tensor.format().unwrap();
                if tensor.shape.len() == 2 && !tensor.name.contains("ffn_down") {
                    assert_eq!(format, matrices, "{}", tensor.name);
                }
                // Rounded by us as the writer rounded it: bit for bit.
                let stored = bytes(&model, &tensor.name, 0..tensor.bytes);
                assert!(stored == rounded(format, expected), "{} in {}", tensor.name, path.display());
                assert_eq!(model.mapped(tensor).is_some(), access == Access::Mapped);
            }
        }
    }
}

#[test]
fn gguf_dimensions_are_turned_round() {
    let model = ModelFile::open(&data("stories/stories.gguf")).unwrap();
    let shape = |name: &str| model.tensor(name).unwrap().shape.clone();
    assert_eq!(shape("token_embd.weight"), [VOCAB as u64, DIM as u64]);
    assert_eq!(shape("blk.0.ffn_down.weight"), [DIM as u64, HIDDEN as u64]); // rows: outputs, row length: inputs
    assert_eq!(shape("blk.0.ffn_up.weight"), [HIDDEN as u64, DIM as u64]);
    assert_eq!(shape("output_norm.weight"), [DIM as u64]);
    let down = model.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.rows(), down.row_len()), (DIM as u64, HIDDEN as u64));
}

#[test]
fn metadata_is_typed() {
    let model = ModelFile::open(&data("stories/stories.gguf")).unwrap();
    let meta = model.gguf().unwrap();
    assert_eq!(meta.str("general.architecture").unwrap(), "llama");
    assert_eq!(meta.u32("llama.block_count").unwrap(), 5);
    assert_eq!(meta.f32("llama.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert!(meta.bool("tokenizer.ggml.add_bos_token").unwrap());
    let tokens = meta.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), VOCAB);
    assert_eq!((tokens.get(1), tokens.get(2), tokens.get(VOCAB)), (Some("<s>"), Some("</s>"), None));
    assert_eq!(tokens.iter().collect::<Strings>(), *tokens);
    assert_eq!(meta.need::<&[f32]>("tokenizer.ggml.scores").unwrap().len(), VOCAB);
    assert_eq!(meta.need::<Vec<i32>>("tokenizer.ggml.token_type").unwrap().len(), VOCAB);
    assert_eq!(meta.get::<u32>("llama.expert_count").unwrap(), None);

    for (wrong, words) in [
        (meta.u32("general.architecture").err(), ["general.architecture", "integer"]),
        (meta.str("llama.block_count").err(), ["5 (u32)", "a string"]),
        (meta.f32("llama.block_count").err(), ["llama.block_count", "a float"]),
        (meta.u32("llama.expert_count").err(), ["llama.expert_count", "missing"]),
        (meta.need::<&[f32]>("tokenizer.ggml.tokens").err(), ["array of 512 strings", "array of f32"]),
    ] {
        let message = wrong.unwrap().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn a_missing_tensor_is_named_with_its_neighbours() {
    let model = ModelFile::open(&data("stories/stories.gguf")).unwrap();
    let message = model.tensor("blk.5.attn_q.weight").err().unwrap().to_string();
    assert!(message.contains("blk.5.attn_q.weight") && message.contains("blk.0.attn_q.weight"), "{message}");
}

#[test]
fn reads_stay_inside_a_tensor() {
    let model = ModelFile::open(&data("stories/stories.gguf")).unwrap();
    let norm = model.tensor("output_norm.weight").unwrap();
    for (range, len) in
        [(0..257, 257), (250..300, 50), (Range { start: 8, end: 4 }, 0), (0..8, 4), (u64::MAX - 4..u64::MAX, 4)]
    {
        let read = pollster::block_on(model.read(norm, range.clone(), &mut vec![0; len]));
        assert!(matches!(read, Err(Error::Argument { .. })), "{range:?}");
    }
}

#[test]
fn safetensors_folders_hold_the_reference_weights() {
    let reference = weights();
    let names = [
        ("embed_tokens.weight", "token_embd.weight"),
        ("norm.weight", "output_norm.weight"),
        ("layers.3.input_layernorm.weight", "blk.3.attn_norm.weight"),
        ("layers.3.self_attn.v_proj.weight", "blk.3.attn_v.weight"),
        ("layers.3.self_attn.o_proj.weight", "blk.3.attn_output.weight"),
        ("layers.4.mlp.gate_proj.weight", "blk.4.ffn_gate.weight"),
        ("layers.4.mlp.down_proj.weight", "blk.4.ffn_down.weight"),
        ("layers.4.mlp.up_proj.weight", "blk.4.ffn_up.weight"),
    ];
    for (folder, format) in [("hf-float32", BlockFormat::F32), ("hf-bfloat16", BlockFormat::BF16)] {
        let model = ModelFile::open(&data(&format!("stories/{folder}"))).unwrap();
        assert!(model.text("config.json").unwrap().contains("\"hidden_size\""));
        assert!(model.text("tokenizer.json").is_none() && model.gguf().is_none());
        for (hf, gguf) in names {
            let name = format!("model.{hf}");
            assert_eq!(model.tensor(&name).unwrap().format().unwrap(), format);
            let stored = bytes(&model, &name, 0..model.tensor(&name).unwrap().bytes);
            assert!(stored == rounded(format, &reference[gguf]), "{name} in {folder}");
        }
        let down = model.tensor("model.layers.0.mlp.down_proj.weight").unwrap();
        assert_eq!(down.shape, [DIM as u64, HIDDEN as u64]);
    }
}

#[test]
fn split_files_equal_the_whole() {
    let same = |parts: &str, whole: &str| {
        let (parts, whole) = (data(&format!("hostile/{parts}")), data(&format!("hostile/{whole}")));
        let (parts, whole) = (ModelFile::open(&parts).unwrap(), ModelFile::open(&whole).unwrap());
        for tensor in whole.tensors() {
            assert_eq!(parts.tensor(&tensor.name).unwrap().shape, tensor.shape);
            let all = 0..tensor.bytes;
            assert_eq!(bytes(&parts, &tensor.name, all.clone()), bytes(&whole, &tensor.name, all), "{}", tensor.name);
        }
        assert_eq!(parts.tensors().len(), whole.tensors().len());
    };
    same("g-ok-split3-00001-of-00003.gguf", "g-ok-full-baseline.gguf");
    same("g-ok-split3-00003-of-00003.gguf", "g-ok-full-baseline.gguf"); // any part names the model
    same("g-ok-split2-00001-of-00002.gguf", "g-ok-mini-baseline.gguf");
    same("d-ok-shards-two", "d-ok-folder-baseline");

    // A part alone, as an application may bring it, is not a model.
    let name = "g-ok-split2-00001-of-00002.gguf";
    let alone = open_bytes(name, data_bytes(&format!("hostile/{name}"))).err().unwrap().to_string();
    assert!(alone.contains("split.count is 2"), "{alone}");
    let part = |no: u32| -> Box<dyn ByteSource> {
        let name = format!("g-ok-split2-0000{no}-of-00002.gguf");
        Box::new(Bytes::new(&name, data_bytes(&format!("hostile/{name}"))))
    };
    assert!(pollster::block_on(ModelFile::open_gguf(vec![part(1), part(2)])).is_ok());
    let swapped = pollster::block_on(ModelFile::open_gguf(vec![part(2), part(1)])).err().unwrap().to_string();
    assert!(swapped.contains("split.no is 1"), "{swapped}");
    let twice = pollster::block_on(ModelFile::open_gguf(vec![part(1), part(1)])).err().unwrap().to_string();
    assert!(twice.contains("split.no is 0"), "{twice}");
}

#[test]
fn bytes_in_memory_are_a_model() {
    let bytes = data_bytes("stories/stories.gguf");
    let model = ModelFile::from_bytes("embedded", bytes).unwrap();
    let file = ModelFile::open(&data("stories/stories.gguf")).unwrap();
    assert_eq!((model.gguf(), model.tensors()), (file.gguf(), file.tensors()));
    assert_eq!(model.name(), "embedded");
}

#[test]
fn models_may_cross_threads() {
    fn crosses<T: Send + Sync>(_: &T) {}
    let model = ModelFile::open(&data("stories/stories.gguf")).unwrap();
    crosses(&model);
    fn may_be_spawned(_: impl Future<Output = wgslm::Result<Vec<f32>>> + Send) {}
    may_be_spawned(model.read_f32(&model.tensors()[0]));
}

#[test]
fn types_that_are_not_run_say_so_when_used() {
    // The file's Q3_K (11) as IQ3_S (21), whose blocks are as large.
    let mut file = data_bytes("dequant/quant-types.gguf");
    let name = file.windows(6).position(|w| w == b"q.q3_k").unwrap();
    let at = name + 6 + 4 + 2 * 8; // after the name, the number of dimensions and two of them
    assert_eq!(file[at], 11);
    file[at] = 21;
    let model = open_bytes("types.gguf", file).unwrap();
    let tensor = model.tensor("q.q3_k").unwrap();
    assert_eq!((tensor.ty, tensor.bytes), (TensorType::Other("IQ3_S"), 4 * 2 * 110));
    let message = pollster::block_on(model.read_f32(tensor)).err().unwrap().to_string();
    assert!(message.contains("q.q3_k") && message.contains("IQ3_S") && message.contains("Q8_0"), "{message}");
    assert_eq!(f32s(&model, "t.f16").len(), model.tensor("t.f16").unwrap().len() as usize);
}
