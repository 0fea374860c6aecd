//! Ministral 3 (Mistral AI 2025): Mistral with YaRN and attention temperature scaling (Llama 4).

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::config::rotary::Rotary;
use crate::model::layers::{Attention, Head, Mlp, Net};
use crate::model::program::Program;
use crate::model::program::RopeTable;
use crate::ops::Act;

pub(super) static ARCH: Arch = Arch {
    model_types: &["ministral3"],
    gguf: &["mistral3"],
    keys: &[],
    gguf_keys: &[
        ("attention.temperature_scale", "rope_parameters.llama_4_scaling_beta"),
        ("rope.scaling.yarn_log_multiplier", "rope_parameters.mscale_all_dim"),
    ],
    tensors: &[],
    embedding: "model.embed_tokens.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let heads = c.heads()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let mlp = Mlp::read(c, Act::Silu)?;
    let windows = c.windows_everywhere(c.layers()?)?;
    let of_keys = Rotary::read(c, heads.head_dim, Rotary::reordered(c))?;
    let temperature_scaling = match c.maybe_float("rope_parameters.llama_4_scaling_beta", 0.0..=1e3)? {
        Some(beta) => Some((beta as f32, c.int("rope_parameters.original_max_position_embeddings", 1..=1 << 30)?)),
        None => None,
    };
    let mut of_queries = of_keys.clone();
    of_queries.table = RopeTable { temperature_scaling, ..of_queries.table };
    if temperature_scaling.is_some() && of_queries.dims() != heads.head_dim {
        return Err(c.wrong("rope_parameters.partial_rotary_factor", "1, rotating whole heads,"));
    }

    let mut net = Net::new(c)?;
    let (q_rope, k_rope) = (net.rotary(&of_queries), net.rotary(&of_keys));
    let mut x = net.embed(dim, 1.0);
    for (layer, window) in (0..).zip(windows) {
        net.b.layer(layer, format!("model.layers.{layer}."));
        let attention = Attention { window, ..Attention::new(heads, Some(k_rope)) };
        let h = net.rms_norm("input_layernorm", x, eps);
        let q = net.linear("self_attn.q_proj", h, heads.q(), attention.bias);
        let k = net.linear("self_attn.k_proj", h, heads.kv(), attention.bias);
        let v = net.linear("self_attn.v_proj", h, heads.kv(), attention.bias);
        let q = net.b.rope("q", q, heads.head_dim, q_rope);
        let k = net.b.rope("k", k, heads.head_dim, k_rope);
        let cache = net.cache(&attention);
        net.b.kv_write(cache, k, v);
        let h = net.attend(q, cache, &attention);
        let h = net.linear("self_attn.o_proj", h, dim, attention.out_bias);
        x = net.b.add("attention residual", x, h);

        let h = net.rms_norm("post_attention_layernorm", x, eps);
        let h = net.gated_mlp("mlp", h, &mlp);
        x = net.b.add("mlp residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("model.norm", x, eps);
    net.head(x, Head::PLAIN)
}
