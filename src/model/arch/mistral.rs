//! Mistral (Jiang et al. 2023): Llama with a sliding window in all layers, if there is one.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::program::Program;

pub(super) static ARCH: Arch = Arch {
    model_types: &["mistral"],
    gguf: &["llama"],
    keys: &[],
    gguf_keys: &[],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    super::llama::with_windows(c, &c.windows_everywhere(c.layers()?)?)
}
