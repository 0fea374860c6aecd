//! Mamba-2 (Dao & Gu 2024): state-space layers alone, without attention or feed-forward.

use super::Arch;
use crate::Result;
use crate::model::config::Config;
use crate::model::layers::recurrent::Mamba;
use crate::model::layers::{Head, Net};
use crate::model::program::Program;

pub(super) static ARCH: Arch = Arch {
    model_types: &["mamba2"],
    gguf: &["mamba2"],
    keys: &[
        ("num_heads", "mamba_n_heads"),
        ("head_dim", "mamba_d_head"),
        ("n_groups", "mamba_n_groups"),
        ("state_size", "mamba_d_state"),
        ("conv_kernel", "mamba_d_conv"),
        ("expand", "mamba_expand"),
        ("use_bias", "mamba_proj_bias"),
        ("use_conv_bias", "mamba_conv_bias"),
        ("hidden_act", "mamba_act"),
        ("layer_norm_epsilon", "rms_norm_eps"),
    ],
    gguf_keys: &[],
    tensors: &[
        ("backbone.embeddings", "token_embd"),
        ("backbone.layers.{}.norm", "blk.{}.attn_norm"),
        ("backbone.layers.{}.mixer.in_proj", "blk.{}.ssm_in"),
        ("backbone.layers.{}.mixer.conv1d", "blk.{}.ssm_conv1d"),
        ("backbone.layers.{}.mixer.dt_bias", "blk.{}.ssm_dt.bias"),
        ("backbone.layers.{}.mixer.A_log", "blk.{}.ssm_a"),
        ("backbone.layers.{}.mixer.D", "blk.{}.ssm_d"),
        ("backbone.layers.{}.mixer.norm", "blk.{}.ssm_norm"),
        ("backbone.layers.{}.mixer.out_proj", "blk.{}.ssm_out"),
        ("backbone.norm_f", "output_norm"),
    ],
    embedding: "backbone.embeddings.weight",
    build,
};

fn build(c: &Config<'_>) -> Result<Program> {
    let layers = c.layers()?;
    let dim = c.dim("hidden_size")?;
    let eps = c.eps("rms_norm_eps")?;
    let mamba = Mamba::read(c)?;

    let mut net = Net::endless(c)?;
    let mut x = net.embed(dim, 1.0);
    for layer in 0..layers {
        net.b.layer(layer, format!("backbone.layers.{layer}."));
        let h = net.rms_norm("norm", x, eps);
        let h = net.mamba_mixer("mixer", h, &mamba, eps);
        x = net.b.add("residual", x, h);
    }
    net.b.end_layers();
    let x = net.rms_norm("backbone.norm_f", x, eps);
    net.head(x, Head::PLAIN)
}
