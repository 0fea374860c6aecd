//! OLMo 3 (Team OLMo 2025): OLMo 2 with a window in three layers of four; only the others are stretched by YaRN.

use super::Arch;
use crate::Result;
use crate::model::config::{Config, keys};
use crate::model::program::Program;

pub(super) static ARCH: Arch = Arch {
    model_types: &["olmo3"],
    gguf: &["olmo2"],
    keys: keys::OF_FULL,
    gguf_keys: &[],
    tensors: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    super::olmo2::with_windows(c, c.windows(c.layers()?, |layer| (layer + 1) % 4 != 0)?)
}
