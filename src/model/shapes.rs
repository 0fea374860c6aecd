//! Models of known shapes with random weights: an ordinary one of every kind of layer, small enough for a bench.
//!
//! A shape is either one of [`file::Shape`](crate::file::Shape)'s, or the `config.json` of a folder: its program says which
//! tensors there would be, and what a conversion would make of them is the GGUF file. So every architecture can have one.

use std::collections::BTreeMap;

use crate::file::{Description, ModelFile, Shape, Texts, random_model};
use crate::model::arch::Arch;
use crate::model::config::Config;
use crate::model::embedding::Task;
use crate::model::files::Model;
use crate::model::program::{Program, Runs};
use crate::quant::BlockFormat;
use crate::quant::mix::{FileType, TensorContext};
use crate::{Error, Result};

/// A model of known dimensions whose weights are random.
#[derive(Clone, Copy, Debug)]
pub struct KnownShape {
    /// What a command calls it.
    pub name: &'static str,
    from: From,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Shape(Shape),
    Config(&'static Kind),
}

/// Layers of any of them at most.
const LAYERS: u32 = 64;

/// A model by its `config.json`.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    config: &'static str,
    /// Matrices of a layer whose rows a configuration is checked against, and how many these are.
    checked: &'static [(&'static str, u64)],
}

/// One of each kind, of 20 to 300 million parameters.
const KINDS: &[Kind] = &[
    Kind {
        name: "moe",
        config: r#"{"model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2048, "moe_intermediate_size": 512,
            "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true, "vocab_size": 32000,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}"#,
        checked: &[("mlp.gate", 16)],
    },
    Kind {
        name: "latent",
        config: r#"{"model_type": "deepseek_v3", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 16, "q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32, "v_head_dim": 64, "intermediate_size": 2816, "moe_intermediate_size": 512,
            "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
            "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "vocab_size": 32000,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}"#,
        checked: &[("mlp.gate", 16), ("self_attn.kv_b_proj", 2048)],
    },
    Kind {
        name: "hybrid",
        config: r#"{"model_type": "granitemoehybrid", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "num_key_value_heads": 4, "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba", "attention",
            "mamba", "mamba", "attention", "mamba", "mamba", "attention"], "intermediate_size": 512,
            "shared_intermediate_size": 2048, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_d_conv": 4,
            "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
            "mamba_conv_bias": true, "mamba_proj_bias": false, "attention_multiplier": 0.125,
            "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22,
            "position_embedding_type": "nope", "vocab_size": 32000, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#,
        checked: &[],
    },
    Kind {
        name: "delta",
        config: r#"{"model_type": "qwen3_next", "hidden_size": 768, "num_hidden_layers": 8, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 2048, "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 4,
            "linear_num_value_heads": 8, "linear_value_head_dim": 128, "moe_intermediate_size": 256, "num_experts": 16,
            "num_experts_per_tok": 4, "shared_expert_intermediate_size": 256, "norm_topk_prob": true,
            "vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
            "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000.0, "rope_type": "default"}}"#,
        checked: &[("mlp.gate", 16)],
    },
    Kind {
        name: "recurrent",
        config: r#"{"model_type": "mamba2", "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24, "head_dim": 64,
            "state_size": 128, "n_groups": 1, "conv_kernel": 4, "expand": 2, "use_conv_bias": true, "use_bias": false,
            "vocab_size": 32000, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true}"#,
        checked: &[],
    },
    Kind {
        name: "windows",
        config: r#"{"model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 18, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "sliding_window": 512,
            "query_pre_attn_scalar": 256, "vocab_size": 262144, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true}"#,
        checked: &[],
    },
    Kind {
        name: "sinks",
        config: r#"{"model_type": "gpt_oss", "hidden_size": 768, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 768, "num_local_experts": 16,
            "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 32000, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
            "rope_parameters": {"rope_theta": 150000.0, "rope_type": "default"}}"#,
        checked: &[("mlp.router", 16)],
    },
    Kind {
        name: "learned-positions",
        config: r#"{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": null, "n_positions": 32768,
            "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}"#,
        checked: &[],
    },
    Kind {
        name: "encoder",
        config: r#"{"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 384, "num_hidden_layers": 6,
            "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522, "type_vocab_size": 2,
            "max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}"#,
        checked: &[],
    },
];

impl KnownShape {
    /// Every shape that has a name.
    pub fn all() -> impl Iterator<Item = Self> {
        let shapes = Shape::ALL.iter().map(|shape| Self { name: shape.name, from: From::Shape(*shape) });
        shapes.chain(KINDS.iter().map(|kind| Self { name: kind.name, from: From::Config(kind) }))
    }

    /// A model of this shape as a GGUF file of a type would have it. Its weights, sampled by `seed`, are made when they are
    /// read.
    pub async fn model_file(&self, to: FileType, seed: u64) -> Result<ModelFile> {
        let kind = match self.from {
            From::Shape(shape) => return shape.model_file(to, seed),
            From::Config(kind) => kind,
        };
        let folder = Model::open_whole(folder(kind).await?).await?;
        let conversion = folder.to_gguf().await?;
        let tensors = conversion.tensors.iter().map(|tensor| {
            let context = TensorContext {
                name: &tensor.name,
                shape: &tensor.shape,
                layers: conversion.layers,
                group: conversion.group,
                tied: conversion.tied,
            };
            (tensor.name.clone(), tensor.shape.clone(), to.format_of(&context))
        });
        let mut meta = Shape::labels(self.name, to, folder.program.vocab);
        for (key, value) in conversion.metadata {
            meta.insert(key, value);
        }
        random_model(&format!("{} {}, random", self.name, to.name), Description::Gguf(meta), tensors.collect(), seed)
    }
}

/// The folder of a configuration, with all tensors that its program asks for. Nothing reads them.
async fn folder(kind: &Kind) -> Result<ModelFile> {
    let description = || Description::Folder(Texts::from([("config.json".to_owned(), kind.config.to_owned())]));
    // A configuration may have no more layers than there are tensors with their numbers.
    let of_layer = |layer: u32| {
        let checked =
            kind.checked.iter().map(move |(tensor, rows)| (format!("model.layers.{layer}.{tensor}.weight"), *rows));
        checked.chain([(format!("layers.{layer}.none"), 1)]).map(|(name, rows)| (name, vec![rows, 1], BlockFormat::F32))
    };
    let empty = random_model(kind.name, description(), (0..LAYERS).flat_map(of_layer).collect(), 0)?;
    let arch = Arch::of(&empty)?;
    let program = (arch.build)(&Config::read(&empty, arch, Task::Own).await?)?;
    let tensors = extents(&program).into_iter().map(|(name, shape)| (name, shape, BlockFormat::F32));
    random_model(kind.name, description(), tensors.collect(), 0)
}

/// The tensors of a program, and dimensions that hold all that it has of them.
fn extents(program: &Program) -> BTreeMap<String, Vec<u64>> {
    let end = |start: u32, n: u32, runs: &Runs| u64::from(start) + runs.offset(n.saturating_sub(1)) + 1;
    let mut all = BTreeMap::<String, Vec<u64>>::new();
    let mut needs = |tensor: &str, extent: &[u64]| {
        let known = all.entry(tensor.to_owned()).or_insert_with(|| vec![0; extent.len()]);
        known.iter_mut().zip(extent).for_each(|(known, n)| *known = (*known).max(*n));
    };
    for spec in &program.weights {
        let rows = end(spec.start, spec.n, &spec.runs);
        match spec.transposed {
            None => needs(&spec.tensor, &[rows, spec.k.into()]),
            Some(first) => needs(&spec.tensor, &[u64::from(first) + u64::from(spec.k), rows]),
        }
    }
    for spec in &program.vectors {
        needs(&spec.tensor, &[end(spec.start, spec.n, &spec.runs)]);
    }
    all
}

impl std::str::FromStr for KnownShape {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::all().find(|shape| shape.name.eq_ignore_ascii_case(s)).ok_or_else(|| {
            let names: Vec<_> = Self::all().map(|shape| shape.name).collect();
            Error::argument("shape", format!("{s:?} is none; {} are", names.join(", ")))
        })
    }
}
