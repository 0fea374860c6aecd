//! What `convert` writes where llama.cpp expects it: facts about its reader that our own would not notice.

use wgslm::file::{Array, ModelFile, Value};

use super::golden::converted_file;
use wgslm_test::data;

fn file(fixture: &str) -> ModelFile {
    converted_file(&data("tiny-models").join(fixture)).unwrap_or_else(|e| panic!("{fixture}: {e}"))
}

fn key(file: &ModelFile, key: &str) -> Option<Value> {
    file.gguf().unwrap().iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone())
}

fn float(file: &ModelFile, name: &str) -> f64 {
    match key(file, name) {
        Some(Value::F32(value)) => f64::from(value),
        other => panic!("{name}: {other:?}"),
    }
}

/// One number n (every n-th layer) where llama.cpp reads only that; flags where it reads them, or where no n fits.
#[test]
fn patterns_of_windows_are_in_the_form_that_is_read() {
    const PATTERN: &str = "attention.sliding_window_pattern";
    for (fixture, arch, expected) in [
        ("gemma2-softcap", "gemma2", Value::U32(2)),
        ("gemma3-local-global", "gemma3", Value::U32(4)),
        ("gptoss-sinks", "gpt-oss", Value::U32(2)),
        ("modernbert-local", "modern-bert", Value::U32(3)),
        ("olmo3-window", "olmo2", Value::Array(Array::Bool(vec![true, true, true, false]))),
        ("gemma3n-altup", "gemma3n", Value::Array(Array::Bool(vec![true, true, false, true, false]))),
    ] {
        assert_eq!(key(&file(fixture), &format!("{arch}.{PATTERN}")), Some(expected), "{fixture}");
    }
    // No single number gives the pattern in which layers 0 and 3 of four are delta nets.
    let moe = file("qwen35moe-hybrid");
    let recurrent = Value::Array(Array::Bool(vec![true, false, false]));
    assert_eq!(key(&moe, "qwen35moe.attention.recurrent_layers"), Some(recurrent));
    assert_eq!(key(&moe, "qwen35moe.full_attention_interval"), None);
    assert_eq!(key(&file("qwen35-hybrid"), "qwen35.full_attention_interval"), Some(Value::U32(4)));
}

/// With YaRN a file says by how much lengths differ from `0.1 ln(factor) + 1`, for DeepSeek also scores.
#[test]
fn lengths_after_a_rotation_are_relative_to_what_is_known() {
    let olmo = float(&file("olmo3-window"), "olmo2.rope.scaling.attn_factor");
    assert!((olmo - 1.2 / (0.1 * 8f64.ln() + 1.0)).abs() < 1e-6, "{olmo}");
    let phi = float(&file("phi3-longrope"), "phi3.rope.scaling.attn_factor");
    assert!((phi - (1.0 + 8f64.ln() / 32f64.ln()).sqrt()).abs() < 1e-6, "{phi}");
    let deepseek = file("deepseek3-yarn");
    let length = |mscale: f64| 0.1 * mscale * 4f64.ln() + 1.0;
    let factor = float(&deepseek, "deepseek2.rope.scaling.attn_factor");
    assert!((factor - length(1.0) / length(0.8)).abs() < 1e-6, "{factor}");
    let tenth = float(&deepseek, "deepseek2.rope.scaling.yarn_log_multiplier");
    assert!((factor * (tenth * 4f64.ln() + 1.0) - length(0.8)).abs() < 1e-6, "{tenth}");
}

#[test]
fn names_and_sizes_are_those_that_are_asked_for() {
    let nemotron = file("nemotronh-pattern");
    let text = |value: &str| Some(Value::Str(value.to_owned()));
    assert_eq!(key(&nemotron, "general.architecture"), text("nemotron_h_moe"));
    let inside = Value::Array(Array::I32(vec![0, 20, 0, 36, 0]));
    assert_eq!(key(&nemotron, "nemotron_h_moe.feed_forward_length"), Some(inside));
    for epsilon in ["layer_norm_epsilon", "layer_norm_rms_epsilon"] {
        assert!(float(&nemotron, &format!("nemotron_h_moe.attention.{epsilon}")) > 0.0);
    }
    assert_eq!(key(&file("bitnet-subnorm"), "bitnet.hidden_activation"), text("relu2"));

    let falcon = file("falconh1-multipliers");
    assert_eq!(key(&falcon, "falcon-h1.embedding_scale"), None, "it is in the weights");
    assert!(falcon.find("blk.0.ffn_norm").is_some() && falcon.find("blk.0.ffn_norm.weight").is_none());
    let qwen = file("qwen3next-hybrid");
    assert_eq!(key(&qwen, "qwen3next.attention.head_count_kv"), Some(Value::U32(2)), "of layers that attend");
    let names = ["attn_qkv", "attn_gate", "ssm_ba"].map(|name| qwen.find(&format!("blk.0.{name}.weight")).is_some());
    assert_eq!(names, [true; 3]);
    // Loaded, and not used.
    let gemma = file("gemma3n-altup");
    let shapes = [0, 4].map(|layer| gemma.tensor(&format!("blk.{layer}.attn_k.weight")).unwrap().shape.clone());
    assert_eq!(shapes[0], shapes[1]);
}
