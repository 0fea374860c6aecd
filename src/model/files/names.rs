//! Names of tensors: programs use those of safetensors folders, and this finds them in any file.
//!
//! Programs name every expert's matrices alone: `model.layers.0.mlp.experts.3.gate_proj.weight`. Many files hold those of all
//! experts as one tensor.

use crate::file::{ModelFile, TensorInfo};
use crate::model::arch::Arch;

/// Names that models have in common: without `.weight` or `.bias` (which GGUF files have, too), `{}` for the layer's number; in folders, in GGUF files.
const COMMON: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
    ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
    ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
    ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
    ("model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
    ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
    ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
    ("2_Dense/linear", "dense_2"),
    ("3_Dense/linear", "dense_3"),
    ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
    ("model.layers.{}.block_sparse_moe.gate", "blk.{}.ffn_gate_inp"),
    ("model.layers.{}.block_sparse_moe.experts.{}.w1", "blk.{}.ffn_gate_exps"),
    ("model.layers.{}.block_sparse_moe.experts.{}.w3", "blk.{}.ffn_up_exps"),
    ("model.layers.{}.block_sparse_moe.experts.{}.w2", "blk.{}.ffn_down_exps"),
    ("model.layers.{}.mlp.gate.e_score_correction_bias", "blk.{}.exp_probs_b.bias"),
    ("model.layers.{}.mlp.experts.{}.gate_proj", "blk.{}.ffn_gate_exps"),
    ("model.layers.{}.mlp.experts.{}.up_proj", "blk.{}.ffn_up_exps"),
    ("model.layers.{}.mlp.experts.{}.down_proj", "blk.{}.ffn_down_exps"),
    ("model.layers.{}.mlp.shared_expert_gate", "blk.{}.ffn_gate_inp_shexp"),
    ("model.layers.{}.mlp.shared_expert.gate_proj", "blk.{}.ffn_gate_shexp"),
    ("model.layers.{}.mlp.shared_expert.up_proj", "blk.{}.ffn_up_shexp"),
    ("model.layers.{}.mlp.shared_expert.down_proj", "blk.{}.ffn_down_shexp"),
    ("model.layers.{}.mlp.shared_experts.gate_proj", "blk.{}.ffn_gate_shexp"),
    ("model.layers.{}.mlp.shared_experts.up_proj", "blk.{}.ffn_up_shexp"),
    ("model.layers.{}.mlp.shared_experts.down_proj", "blk.{}.ffn_down_shexp"),
];

/// A tensor of a folder that holds what programs have by the names of single experts.
struct Stack {
    /// The only architecture that has it; none: any.
    arch: Option<&'static str>,
    /// The name in programs: layer, expert.
    name: &'static str,
    /// The name in folders.
    tensor: &'static str,
    /// Which of the matrices that an expert has in it, and how many those are.
    part: (u32, u32),
    order: Order,
}

/// How the matrices of experts lie in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Order {
    /// Contiguous.
    Rows,
    /// Rows of an expert's matrices are interleaved.
    Turns,
    /// Transposes, contiguous; columns of an expert's matrices are interleaved.
    Columns,
}

macro_rules! stacks {
    ($($arch:expr, $order:ident: $($name:literal in $tensor:literal as $part:literal of $parts:literal),*;)*) => {
        &[$($(Stack {
            arch: $arch,
            name: concat!("model.layers.{}.", $name),
            tensor: concat!("model.layers.{}.", $tensor),
            part: ($part, $parts),
            order: Order::$order,
        },)*)*]
    };
}

/// What is special to an architecture comes first.
const STACKS: &[Stack] = stacks! {
    Some("gpt_oss"), Columns:
        "mlp.experts.{}.gate_proj.weight" in "mlp.experts.gate_up_proj" as 0 of 2,
        "mlp.experts.{}.up_proj.weight" in "mlp.experts.gate_up_proj" as 1 of 2,
        "mlp.experts.{}.down_proj.weight" in "mlp.experts.down_proj" as 0 of 1;
    Some("gpt_oss"), Turns:
        "mlp.experts.{}.gate_proj.bias" in "mlp.experts.gate_up_proj_bias" as 0 of 2,
        "mlp.experts.{}.up_proj.bias" in "mlp.experts.gate_up_proj_bias" as 1 of 2,
        "mlp.experts.{}.down_proj.bias" in "mlp.experts.down_proj_bias" as 0 of 1;
    None, Rows:
        "mlp.experts.{}.gate_proj.weight" in "mlp.experts.gate_up_proj" as 0 of 2,
        "mlp.experts.{}.up_proj.weight" in "mlp.experts.gate_up_proj" as 1 of 2,
        "mlp.experts.{}.down_proj.weight" in "mlp.experts.down_proj" as 0 of 1,
        "block_sparse_moe.experts.{}.gate_proj.weight" in "block_sparse_moe.input_linear.weight" as 0 of 2,
        "block_sparse_moe.experts.{}.up_proj.weight" in "block_sparse_moe.input_linear.weight" as 1 of 2,
        "block_sparse_moe.experts.{}.down_proj.weight" in "block_sparse_moe.output_linear.weight" as 0 of 1;
};

/// Where something with a name in a program lies.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct TensorRows<'a> {
    pub(in crate::model) tensor: &'a TensorInfo,
    /// The expert, where the tensor holds those of all.
    pub(in crate::model) expert: u32,
    /// Which of the matrices that an expert has in it, and how many those are.
    pub(in crate::model) part: (u32, u32),
    pub(in crate::model) order: Order,
}

impl<'a> TensorRows<'a> {
    /// A tensor that holds nothing else, or several things at offsets that the program knows.
    pub(in crate::model) fn alone(tensor: &'a TensorInfo) -> Self {
        Self { tensor, expert: 0, part: (0, 1), order: Order::Rows }
    }
}

/// Prefixes that some folders put before the names of a language model's tensors.
const PREFIXES: &[&str] = &["model.", "transformer.", "bert.", "", "model.language_model.", "language_model.model."];

/// The words before a layer's number.
const LAYERS: &[&str] = &["blk", "layers", "layer", "h", "blocks"];

/// The tensors of a file, by the names that programs use.
#[derive(Clone, Copy)]
pub(in crate::model) struct Names<'a> {
    pub(in crate::model) file: &'a ModelFile,
    pub(in crate::model) arch: &'static Arch,
}

impl<'a> Names<'a> {
    /// A tensor, if it is there.
    pub(in crate::model) fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        if self.file.gguf().is_some() {
            return self.file.find(&self.spelled(name));
        }
        let bare = PREFIXES[..3].iter().find_map(|prefix| name.strip_prefix(prefix));
        let others = bare.into_iter().flat_map(|bare| PREFIXES.iter().map(move |prefix| format!("{prefix}{bare}")));
        let head = || self.file.find(&format!("language_model.{name}")); // beside the model, whose prefix it lacks
        self.file.find(name).or_else(|| others.into_iter().find_map(|name| self.file.find(&name))).or_else(head)
    }

    /// Where the matrix or vector of a name lies, alone or with those of other experts.
    pub(in crate::model) fn place(&self, name: &str) -> Option<TensorRows<'a>> {
        if self.file.gguf().is_some() {
            let (spelled, expert) = self.translated(name);
            return self.file.find(&spelled).map(|tensor| TensorRows { expert, ..TensorRows::alone(tensor) });
        }
        self.find(name).map(TensorRows::alone).or_else(|| {
            let (pattern, numbers) = pattern(name);
            let [layer, expert] = numbers[..] else { return None };
            let arch = self.arch.name();
            let stack = STACKS.iter().find(|s| s.name == pattern && s.arch.is_none_or(|only| only == arch))?;
            let tensor = self.find(&stack.tensor.replacen("{}", &layer.to_string(), 1))?;
            Some(TensorRows { tensor, expert, part: stack.part, order: stack.order })
        })
    }

    /// The name that the file has, or should have, for a tensor.
    pub(in crate::model) fn spelled(&self, name: &str) -> String {
        if self.file.gguf().is_none() {
            return name.to_owned();
        }
        self.translated(name).0
    }

    /// A name in GGUF files; and an expert's number, where they hold all experts in one tensor.
    pub(in crate::model) fn translated(&self, name: &str) -> (String, u32) {
        let (generic, numbers) = pattern(name);
        let ending = [".weight", ".bias"].iter().find_map(|suffix| Some((generic.strip_suffix(suffix)?, *suffix)));
        // A name that is listed with its ending has none in GGUF files.
        let spellings = [Some((&generic[..], "")), ending];
        let all = || self.arch.tensors.iter().chain(COMMON);
        let known = |(stem, suffix)| all().find(|(folder, _)| *folder == stem).map(|(_, gguf)| (*gguf, suffix));
        match spellings.into_iter().flatten().find_map(known) {
            Some((gguf, suffix)) => {
                let named = gguf.matches("{}").count();
                let spelled = numbers.iter().fold(gguf.to_owned(), |s, n| s.replacen("{}", &n.to_string(), 1));
                (spelled + suffix, numbers.get(named).copied().unwrap_or(0))
            }
            None => (name.to_owned(), 0),
        }
    }

    /// How many layers there are tensors for.
    pub(in crate::model) fn layers(&self) -> u32 {
        let number = |name: &str| {
            let mut parts = name.split('.');
            parts.by_ref().find(|part| LAYERS.contains(part))?;
            parts.next()?.parse::<u32>().ok()
        };
        // No more than there are tensors, whatever numbers they carry.
        let most = u32::try_from(self.file.tensors().len()).unwrap_or(u32::MAX);
        let layers = self.file.tensors().iter().filter_map(|t| number(&t.name)).max();
        layers.map_or(0, |last| last.saturating_add(1)).min(most)
    }
}

/// A name with `{}` for each part that is a number, and the numbers.
fn pattern(name: &str) -> (String, Vec<u32>) {
    let mut numbers = Vec::new();
    let part = |part: &str| match part.parse::<u32>() {
        Ok(number) => {
            numbers.push(number);
            "{}".to_owned()
        }
        Err(_) => part.to_owned(),
    };
    let parts: Vec<_> = name.split('.').map(part).collect();
    (parts.join("."), numbers)
}
