//! DeepSeek-V2 (2024): latent attention, experts in groups chosen by probabilities.

use super::{Arch, deepseek_v3};
use crate::Result;
use crate::model::config::Config;
use crate::model::layers::moe::Moe;
use crate::model::program::Program;
use crate::ops::{GroupScore, Pairing, Score};

pub(super) static ARCH: Arch = Arch {
    model_types: &["deepseek_v2"],
    gguf: &["deepseek2"],
    keys: &[],
    gguf_keys: deepseek_v3::GGUF_KEYS,
    tensors: deepseek_v3::TENSORS,
    embedding: "model.embed_tokens.weight",
    build,
};

/// GGUF files come here from V3.
pub(super) fn build(c: &Config<'_>) -> Result<Program> {
    if c.text("scoring_func")?.is_some_and(|score| score != "softmax") {
        return Err(c.wrong("scoring_func", "softmax"));
    }
    let mut moe = Moe::read(c, Score::Softmax, Moe::ffn(c)?)?;
    moe.route.scale = c.factor("routed_scaling_factor")?;
    let grouped = match c.text("topk_method")? {
        None => c.is_gguf(),
        Some("greedy") => false,
        Some("group_limited_greedy") => true,
        Some(_) => return Err(c.wrong("topk_method", "greedy or group_limited_greedy")),
    };
    if grouped {
        moe.route.groups = Moe::groups(c, GroupScore::Best)?;
    }
    super::deepseek_v3::decoder(c, Pairing::Interleaved, moe)
}
