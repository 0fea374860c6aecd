//! Tiny models as GGUF files: names, orders and permutations as llama.cpp's converter writes them.

use wgslm::file::{Bytes, ModelFile};
use wgslm::model::Model;

use wgslm_test::gguf::{Meta, Tensor, gguf};
use wgslm_test::{data, data_json};

/// The names of tensors, folder to GGUF, by parts.
const LLAMA: &[(&str, &str)] = &[
    ("model.layers.", "blk."),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
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
const GPT2: &[(&str, &str)] = &[
    ("transformer.h.", "blk."),
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

/// A folder's config.json and its tensors under their GGUF names.
pub(crate) fn folder(name: &str, names: &[(&str, &str)]) -> (serde_json::Value, Vec<Tensor>) {
    let file = ModelFile::open(&data("tiny-models").join(name)).unwrap();
    let tensor = |info: &wgslm::file::TensorInfo| Tensor {
        name: names.iter().fold(info.name.clone(), |name, (from, to)| name.replace(from, to)),
        shape: info.shape.clone(),
        data: pollster::block_on(file.read_f32(info)).unwrap(),
    };
    let tensors = file.tensors().iter().map(tensor).collect();
    (data_json(&format!("tiny-models/{name}/config.json")), tensors)
}

pub(crate) fn open(name: &str, meta: Vec<(String, Meta<'_>)>, tensors: &[Tensor]) -> Model {
    let bytes = Bytes::new(format!("{name}.gguf"), gguf(&meta, tensors));
    pollster::block_on(async { Model::open(ModelFile::open_gguf(vec![Box::new(bytes)]).await?).await }).unwrap()
}

/// The safetensors file of a GGUF file of architecture `llama` whose output matrix is the embedding, in F32.
pub(crate) fn safetensors(file: &ModelFile, head_dim: u64) -> Vec<u8> {
    let (mut header, mut values) = (serde_json::Map::new(), Vec::new());
    for info in file.tensors() {
        let names = LLAMA.iter().rev().filter(|(folder, _)| *folder != "lm_head");
        let name = names.fold(info.name.clone(), |name, (folder, gguf)| name.replace(gguf, folder));
        let data = pollster::block_on(file.read_f32(info)).unwrap();
        let start = values.len();
        let mut push = |row: &[f32]| values.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        if info.name.contains("attn_q") || info.name.contains("attn_k") {
            // A head's rows are neighbours there, and here the even ones come before the odd ones.
            let columns = info.shape[1] as usize;
            for head in data.chunks(head_dim as usize * columns) {
                let rows: Vec<_> = head.chunks(columns).collect();
                rows.iter().step_by(2).chain(rows.iter().skip(1).step_by(2)).for_each(|row| push(row));
            }
        } else {
            push(&data);
        }
        let about = serde_json::json!({"dtype": "F32", "shape": info.shape, "data_offsets": [start, values.len()]});
        header.insert(name, about);
    }
    let mut header = serde_json::Value::from(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().wrapping_neg() % 8));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &values].concat()
}

/// A model of architecture `llama`.
pub(crate) fn llama(name: &str) -> Model {
    let (config, mut tensors) = folder(name, LLAMA);
    let int = |key: &str| config[key].as_u64().unwrap() as u32;
    let head_dim = int("head_dim");
    for tensor in &mut tensors {
        if tensor.name.contains("attn_q") || tensor.name.contains("attn_k") {
            pair_up(tensor, head_dim as usize);
        }
    }
    let u = |key: &str, v| (format!("llama.{key}"), Meta::U32(v));
    let f = |key: &str, v: &serde_json::Value| (format!("llama.{key}"), Meta::F32(v.as_f64().unwrap() as f32));
    let rope = &config["rope_parameters"];
    let mut meta = vec![
        ("general.architecture".into(), Meta::Str("llama")),
        u("context_length", int("max_position_embeddings")),
        u("embedding_length", int("hidden_size")),
        u("block_count", int("num_hidden_layers")),
        u("feed_forward_length", int("intermediate_size")),
        u("attention.head_count", int("num_attention_heads")),
        u("attention.head_count_kv", int("num_key_value_heads")),
        u("attention.key_length", head_dim),
        u("attention.value_length", head_dim),
        u("rope.dimension_count", head_dim),
        u("vocab_size", int("vocab_size")),
        f("attention.layer_norm_rms_epsilon", &config["rms_norm_eps"]),
        f("rope.freq_base", &rope["rope_theta"]),
    ];
    match rope["rope_type"].as_str().unwrap() {
        "linear" => {
            meta.push(("llama.rope.scaling.type".into(), Meta::Str("linear")));
            meta.push(f("rope.scaling.factor", &rope["factor"]));
        }
        "llama3" => {
            let data = llama3_factors(rope, head_dim);
            tensors.push(Tensor { name: "rope_freqs.weight".into(), shape: vec![data.len() as u64], data });
        }
        other => panic!("{other}"),
    }
    open(name, meta, &tensors)
}

/// A model of architecture `gpt2`.
pub(crate) fn gpt2(name: &str) -> Model {
    let (config, mut tensors) = folder(name, GPT2);
    for tensor in &mut tensors {
        if tensor.shape.len() == 2 && tensor.name.starts_with("blk.") {
            transpose(tensor);
        }
    }
    let u = |key: &str, from: &str| (format!("gpt2.{key}"), Meta::U32(config[from].as_u64().unwrap() as u32));
    let eps = config["layer_norm_epsilon"].as_f64().unwrap() as f32;
    let meta = vec![
        ("general.architecture".into(), Meta::Str("gpt2")),
        u("context_length", "n_positions"),
        u("embedding_length", "n_embd"),
        u("block_count", "n_layer"),
        u("feed_forward_length", "n_inner"),
        u("attention.head_count", "n_head"),
        ("gpt2.attention.layer_norm_epsilon".into(), Meta::F32(eps)),
    ];
    open(name, meta, &tensors)
}

const BERT: &[(&str, &str)] = &[
    ("bert.", ""),
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("encoder.layer.", "blk."),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("classifier", "cls.output"),
    ("pooler.dense", "cls"),
];
const NOMIC_BERT: &[(&str, &str)] = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("emb_ln", "token_embd_norm"),
    ("encoder.layers.", "blk."),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("norm1", "attn_output_norm"),
    ("norm2", "layer_output_norm"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc2", "ffn_down"),
];

const MODERNBERT: &[(&str, &str)] = &[
    ("embeddings.tok_embeddings", "token_embd"),
    ("embeddings.norm", "token_embd_norm"),
    ("final_norm", "output_norm"),
    ("layers.", "blk."),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.Wo", "attn_output"),
    ("mlp_norm", "ffn_norm"),
    ("mlp.Wi", "ffn_up"),
    ("mlp.Wo", "ffn_down"),
];

/// A fixture of an encoder, if it is known how the converter writes it.
pub(crate) fn encoder(name: &str) -> Option<ModelFile> {
    let (arch, names, pooling) = match name {
        "bert-cls" => ("bert", BERT, 2),
        "bert-rerank" => ("bert", BERT, 4),
        "nomicbert-rope" => ("nomic-bert", NOMIC_BERT, 1),
        "modernbert-local" => ("modern-bert", MODERNBERT, 2),
        _ => return None,
    };
    let (config, tensors) = folder(name, names);
    let u = |key: &str, from: &str| (format!("{arch}.{key}"), Meta::U32(config[from].as_u64().unwrap() as u32));
    let mut meta = vec![
        ("general.architecture".into(), Meta::Str(arch)),
        u("context_length", "max_position_embeddings"),
        u("embedding_length", "hidden_size"),
        u("block_count", "num_hidden_layers"),
        u("feed_forward_length", "intermediate_size"),
        u("attention.head_count", "num_attention_heads"),
        (format!("{arch}.attention.causal"), Meta::Bool(false)),
        (format!("{arch}.pooling_type"), Meta::U32(pooling)),
    ];
    let f = |key: &str, v: &serde_json::Value| (format!("{arch}.{key}"), Meta::F32(v.as_f64().unwrap() as f32));
    let eps = if arch == "modern-bert" { "norm_eps" } else { "layer_norm_eps" };
    meta.push(f("attention.layer_norm_epsilon", &config[eps]));
    let rope = &config["rope_parameters"];
    if arch == "nomic-bert" {
        meta.push(f("rope.freq_base", &rope["rope_theta"]));
    }
    if arch == "modern-bert" {
        meta.push(f("rope.freq_base", &rope["full_attention"]["rope_theta"]));
        meta.push(f("rope.freq_base_swa", &rope["sliding_attention"]["rope_theta"]));
        meta.push(u("attention.sliding_window", "local_attention"));
        meta.push((format!("{arch}.attention.sliding_window_pattern"), Meta::U32(3)));
        meta.push((format!("{arch}.rope.scaling.type"), Meta::Str("none")));
    }
    let bytes = Bytes::new(format!("{name}.gguf"), gguf(&meta, &tensors));
    Some(pollster::block_on(ModelFile::open_gguf(vec![Box::new(bytes)])).unwrap())
}

/// Rows (or elements) i and i + d/2 of each head of d become neighbours.
fn pair_up(tensor: &mut Tensor, head_dim: usize) {
    let row = tensor.shape.get(1).map_or(1, |&k| k as usize);
    let half = head_dim / 2;
    let old = tensor.data.clone();
    for (new, row) in tensor.data.chunks_mut(row).enumerate() {
        let (head, i) = (new / head_dim, new % head_dim);
        let from = head * head_dim + (i % 2) * half + i / 2;
        row.copy_from_slice(&old[from * row.len()..(from + 1) * row.len()]);
    }
}

fn transpose(tensor: &mut Tensor) {
    let (k, n) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
    tensor.data = (0..n * k).map(|i| tensor.data[i % k * n + i / k]).collect();
    tensor.shape.swap(0, 1);
}

/// What each rotary frequency is divided by, as the converter computes it.
fn llama3_factors(rope: &serde_json::Value, dim: u32) -> Vec<f32> {
    let p = |key: &str| rope[key].as_f64().unwrap();
    let (factor, low, high) = (p("factor"), p("low_freq_factor"), p("high_freq_factor"));
    let context = p("original_max_position_embeddings");
    let factor = |i: u32| {
        let wave = std::f64::consts::TAU * p("rope_theta").powf(f64::from(2 * i) / f64::from(dim));
        if wave < context / high {
            1.0
        } else if wave > context / low {
            factor
        } else {
            let smooth = (context / wave - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..dim / 2).map(|i| factor(i) as f32).collect()
}
