//! Ministral (Mistral AI 2024): Mistral with full attention in some layers.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::program::Program;

pub(super) static ARCH: Arch = Arch {
    model_types: &["ministral"],
    gguf: &["llama"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    super::llama::with_windows(c, &c.windows(c.layers()?, |_| true)?)
}
