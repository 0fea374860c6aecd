//! Qwen3.5 with experts (Qwen Team 2026): its layers with Qwen3-Next's experts.

use super::{Arch, qwen3_5, qwen3_next};
use crate::Result;
use crate::model::config::Config;
use crate::model::layers::Head;
use crate::model::layers::delta_net::{GGUF_KEYS, Hybrid};
use crate::model::layers::moe::Moe;
use crate::model::program::Program;
use crate::ops::Score;

pub(super) static ARCH: Arch = Arch {
    model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
    gguf: &["qwen35moe"],
    keys: &[],
    gguf_keys: GGUF_KEYS,
    tensors: qwen3_5::TENSORS,
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let hybrid = Hybrid::read(c, c.is_gguf())?;
    let moe = Moe::read(c, Score::Softmax, Moe::ffn(c)?)?.summing_to_one();
    let shared = qwen3_next::shared(c)?;

    let (mut net, rope) = hybrid.start(c)?;
    let mut x = net.embed(hybrid.dim, 1.0);
    for layer in 0..hybrid.attends.len() {
        x = hybrid.mixer(&mut net, (layer, x, rope), |net, h| qwen3_5::project(&hybrid, net, h));
        let h = net.rms_norm("post_attention_layernorm", x, hybrid.eps);
        let h = qwen3_next::experts(&mut net, h, &moe, &shared)?;
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, hybrid.eps);
    net.head(x, Head::PLAIN)
}
