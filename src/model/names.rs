//! Names of tensors: programs use those of safetensors folders, and this finds them in any file.

use super::arch::Arch;
use crate::file::{ModelFile, TensorInfo};

/// Names that models have in common: without `.weight` or `.bias`, `{}` for the layer's number; in folders, in GGUF files.
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
];

/// What folders put before the names of a language model's tensors, where they do not agree.
const PREFIXES: &[&str] = &["model.", "transformer.", "bert.", "", "model.language_model.", "language_model.model."];

/// The words before a layer's number.
const LAYERS: &[&str] = &["blk", "layers", "layer", "h", "blocks"];

/// The tensors of a file, by the names that programs use.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) file: &'a ModelFile,
    pub(super) arch: &'static Arch,
}

impl<'a> Names<'a> {
    /// A tensor, if it is there.
    pub(super) fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        if self.file.gguf().is_some() {
            return self.file.find(&self.spelled(name));
        }
        let bare = PREFIXES[..3].iter().find_map(|prefix| name.strip_prefix(prefix));
        let others = bare.into_iter().flat_map(|bare| PREFIXES.iter().map(move |prefix| format!("{prefix}{bare}")));
        self.file.find(name).or_else(|| others.into_iter().find_map(|name| self.file.find(&name)))
    }

    /// The name that the file has, or should have, for a tensor.
    pub(super) fn spelled(&self, name: &str) -> String {
        if self.file.gguf().is_none() {
            return name.to_owned();
        }
        let (stem, suffix) = [".weight", ".bias"]
            .iter()
            .find_map(|suffix| Some((name.strip_suffix(suffix)?, *suffix)))
            .unwrap_or((name, ""));
        let number = stem.split('.').find(|part| part.parse::<u32>().is_ok());
        let pattern = match number {
            Some(number) => stem.replacen(&format!(".{number}."), ".{}.", 1),
            None => stem.to_owned(),
        };
        let all = self.arch.tensors.iter().chain(COMMON);
        match all.into_iter().find(|(folder, _)| *folder == pattern) {
            Some((_, gguf)) => gguf.replacen("{}", number.unwrap_or(""), 1) + suffix,
            None => name.to_owned(),
        }
    }

    /// How many layers there are tensors for.
    pub(super) fn layers(&self) -> u32 {
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
