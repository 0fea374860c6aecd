//! Models of known shapes with random weights: for benches and checks of sizes that nobody wants to download.

use super::metadata::{Array, Metadata, Value};
use super::model_file::{Description, ModelFile};
use super::random::random_model;
use crate::quant::mix::{FileType, TensorContext};
use crate::{Error, Result};

/// The dimensions of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The name of the model, or what its size is called.
    pub name: &'static str,
    arch: &'static str,
    dim: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    ffn: u32,
    /// Experts of a layer, how many a token uses, and columns inside each.
    experts: Option<[u32; 3]>,
    vocab: u32,
    /// The embedding table is the head, too.
    tied: bool,
    /// Queries and keys have norms.
    norms: bool,
    theta: f32,
    eps: f32,
    context: u32,
}

const LLAMA: Shape = Shape {
    name: "",
    arch: "llama",
    dim: 2048,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    experts: None,
    vocab: 128_256,
    tied: true,
    norms: false,
    theta: 500_000.0,
    eps: 1e-5,
    context: 131_072,
};

const QWEN3: Shape = Shape {
    arch: "qwen3",
    dim: 1024,
    layers: 28,
    heads: 16,
    head_dim: 128,
    ffn: 3072,
    vocab: 151_936,
    norms: true,
    theta: 1e6,
    eps: 1e-6,
    context: 40_960,
    ..LLAMA
};

impl Shape {
    /// Every shape that has a name here.
    pub const ALL: &'static [Self] = &[
        Self {
            name: "tiny",
            dim: 256,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            ffn: 512,
            vocab: 512,
            theta: 1e4,
            context: 16_384,
            ..LLAMA
        },
        Self {
            name: "160M",
            dim: 768,
            layers: 12,
            heads: 12,
            kv_heads: 4,
            ffn: 2048,
            vocab: 32_000,
            tied: false,
            theta: 1e4,
            context: 16_384,
            ..LLAMA
        },
        Self { name: "Llama-3.2-1B", ..LLAMA },
        Self { name: "Qwen3-0.6B", ..QWEN3 },
        Self {
            name: "Llama-3-8B",
            dim: 4096,
            layers: 32,
            head_dim: 128,
            ffn: 14_336,
            tied: false,
            context: 8192,
            ..LLAMA
        },
        Self {
            name: "Qwen3-30B-A3B",
            arch: "qwen3moe",
            dim: 2048,
            layers: 48,
            heads: 32,
            kv_heads: 4,
            ffn: 6144,
            experts: Some([128, 8, 768]),
            tied: false,
            ..QWEN3
        },
    ];

    /// A model of this shape as a GGUF file of a type would have it. Its weights, sampled by `seed`, are made
    /// when they are read.
    pub fn model_file(&self, to: FileType, seed: u64) -> Result<ModelFile> {
        let group = self.heads / self.kv_heads;
        let tensors = self.tensors().into_iter().map(|(name, shape)| {
            let context = TensorContext { name: &name, shape: &shape, layers: self.layers, group, tied: self.tied };
            let format = to.format_of(&context);
            (name, shape, format)
        });
        let name = format!("{} {}, random", self.name, to.name);
        random_model(&name, Description::Gguf(self.metadata(to)), tensors.collect(), seed)
    }

    /// What is the same in the metadata of every model with random weights: names, types, and a vocabulary.
    pub(crate) fn labels(name: &str, to: FileType, vocab: u32) -> Metadata {
        let mut meta = Metadata::default();
        meta.insert("general.name", Value::Str(name.to_owned()));
        meta.insert("general.file_type", Value::U32(to.number));
        meta.insert("general.quantization_version", Value::U32(2));
        vocabulary(vocab, &mut meta);
        meta
    }

    fn metadata(&self, to: FileType) -> Metadata {
        let mut meta = Self::labels(self.name, to, self.vocab);
        meta.insert("general.architecture", Value::Str(self.arch.to_owned()));
        let mut set = |key: &str, value| meta.insert(format!("{}.{key}", self.arch), value);
        for (key, number) in [
            ("vocab_size", self.vocab),
            ("context_length", self.context),
            ("embedding_length", self.dim),
            ("block_count", self.layers),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ] {
            set(key, Value::U32(number));
        }
        if self.arch == "llama" {
            set("rope.dimension_count", Value::U32(self.head_dim));
        }
        if let Some([count, used, ffn]) = self.experts {
            set("expert_count", Value::U32(count));
            set("expert_used_count", Value::U32(used));
            set("expert_feed_forward_length", Value::U32(ffn));
        }
        set("attention.layer_norm_rms_epsilon", Value::F32(self.eps));
        set("rope.freq_base", Value::F32(self.theta));
        meta
    }

    /// Names in GGUF files, and dimensions, outermost first.
    fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let [dim, ffn, vocab, head_dim] = [self.dim, self.ffn, self.vocab, self.head_dim].map(u64::from);
        let [q, kv] = [self.heads, self.kv_heads].map(|heads| u64::from(heads) * head_dim);
        let mut all = vec![("token_embd.weight".to_owned(), vec![vocab, dim])];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[u64]| all.push((format!("blk.{layer}.{name}.weight"), shape.to_vec()));
            add("attn_norm", &[dim]);
            add("attn_q", &[q, dim]);
            add("attn_k", &[kv, dim]);
            add("attn_v", &[kv, dim]);
            add("attn_output", &[dim, q]);
            if self.norms {
                add("attn_q_norm", &[head_dim]);
                add("attn_k_norm", &[head_dim]);
            }
            add("ffn_norm", &[dim]);
            match self.experts.map(|experts| experts.map(u64::from)) {
                None => {
                    add("ffn_gate", &[ffn, dim]);
                    add("ffn_up", &[ffn, dim]);
                    add("ffn_down", &[dim, ffn]);
                }
                Some([count, _, ffn]) => {
                    add("ffn_gate_inp", &[count, dim]);
                    add("ffn_gate_exps", &[count, ffn, dim]);
                    add("ffn_up_exps", &[count, ffn, dim]);
                    add("ffn_down_exps", &[count, dim, ffn]);
                }
            }
        }
        all.push(("output_norm.weight".to_owned(), vec![dim]));
        if !self.tied {
            all.push(("output.weight".to_owned(), vec![vocab, dim]));
        }
        all
    }
}

/// A vocabulary of bytes and words, only since llama.cpp runs no model without one.
fn vocabulary(vocab: u32, meta: &mut Metadata) {
    let (marks, bytes) = (["<unk>", "<s>", "</s>"], 0..=255u8);
    let first = marks.len() + bytes.len();
    let mut tokens: Vec<String> = marks.map(str::to_owned).into();
    tokens.extend(bytes.map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend((first..vocab as usize).map(|i| format!("t{i}")));
    let types = (0..vocab as usize).map(|i| match i {
        0 => 2,
        1..=2 => 3,
        _ if i < first => 6,
        _ => 1,
    });
    let mut set = |key: &str, value| meta.insert(format!("tokenizer.ggml.{key}"), value);
    set("model", Value::Str("llama".to_owned()));
    set("tokens", Value::Array(Array::Str(tokens.iter().collect())));
    set("scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    set("token_type", Value::Array(Array::I32(types.collect())));
    set("unknown_token_id", Value::U32(0));
    set("bos_token_id", Value::U32(1));
    set("eos_token_id", Value::U32(2));
}

impl std::str::FromStr for Shape {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|shape| shape.name.eq_ignore_ascii_case(s)).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|shape| shape.name).collect();
            Error::argument("shape", format!("{s:?} is none; {} are", names.join(", ")))
        })
    }
}
