//! Every field of a configuration that changes the arithmetic matters: changed, it breaks the bound or is refused.
//!
//! Mutations are made from the fixtures: each field that an architecture read is changed, one at a time. Fields with which
//! nothing can change are listed with the reason; those that no fixture has, and those that need a certain value to show,
//! are written down.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wgslm::exec::{Numerics, Phase};

use super::golden::{golden, mean_kl};
use super::runner::Runner;
use super::{Cpu, open, open_with_config, tiny_models};
use wgslm_test::npy::Npy;
use wgslm_test::{data, data_json};

/// A fixture, the key as architectures call it, and a change to its `config.json` (a JSON pointer, the new value).
type Mutation = (&'static str, &'static str, &'static str, Value);

/// Changes after which the model runs, and is wrong.
fn breaking() -> Vec<Mutation> {
    vec![
        ("llama-mha-odd", "hidden_act", "/hidden_act", json!("gelu_new")),
        ("llama-mha-odd", "num_hidden_layers", "/num_hidden_layers", json!(1)),
        ("llama-mha-odd", "tie_word_embeddings", "/tie_word_embeddings", json!(true)),
        ("llama-mha-odd", "rotary_dim", "/rotary_dim", json!(4)),
        ("llama-mha-odd", "rope_parameters.freq_factors", "/rope_parameters/freq_factors", json!([1.0, 1.0, 1.1, 1.0])),
        ("llama-rope3", "rope_parameters.rope_type", "/rope_parameters/rope_type", json!("linear")),
        ("llama-rope3", "rope_parameters", "/rope_parameters", json!({"rope_type": "default", "rope_theta": 10000.0})),
        ("llama-rope3", "original_max_position_embeddings", "/original_max_position_embeddings", json!(24)),
        // Small changes vanish when YaRN rounds the pairs between which it stretches.
        (
            "olmo3-window",
            "rope_parameters.full_attention.beta_fast",
            "/rope_parameters/full_attention/beta_fast",
            json!(0.5),
        ),
        (
            "olmo3-window",
            "rope_parameters.full_attention.beta_slow",
            "/rope_parameters/full_attention/beta_slow",
            json!(2.0),
        ),
        (
            "olmo3-window",
            "rope_parameters.full_attention.original_max_position_embeddings",
            "/rope_parameters/full_attention/original_max_position_embeddings",
            json!(128),
        ),
        ("deepseek3-yarn", "rope_parameters.beta_fast", "/rope_parameters/beta_fast", json!(0.5)),
        ("deepseek3-yarn", "rope_parameters.beta_slow", "/rope_parameters/beta_slow", json!(1.0)),
        (
            "deepseek3-yarn",
            "rope_parameters.original_max_position_embeddings",
            "/rope_parameters/original_max_position_embeddings",
            json!(128),
        ),
        ("gpt2-odd", "hidden_act", "/activation_function", json!("relu")),
        ("falconh1-multipliers", "time_step_limit", "/time_step_limit", json!([0.5, 1.0])),
        ("mamba2-groups", "time_step_limit", "/time_step_limit", json!([0.5, 1.0])),
        ("granitehybrid-nope", "time_step_limit", "/time_step_limit", json!([0.5, 1.0])),
        // Transformers bounds its time steps by this alone.
        ("nemotronh-pattern", "time_step_min", "/time_step_min", json!(0.5)),
        ("gpt2-odd", "num_attention_heads", "/n_head", json!(2)),
        ("gpt2-odd", "num_hidden_layers", "/n_layer", json!(2)),
    ]
}

/// Changes that do not fit the tensors, or that no published model has: refused when the model is opened.
fn refused() -> Vec<Mutation> {
    vec![
        // Transformers ignores it here, or fails.
        ("llama-mha-odd", "rope_parameters.partial_rotary_factor", "/partial_rotary_factor", json!(0.5)),
        ("llama-rope3", "num_attention_heads", "/num_attention_heads", json!(2)),
        ("llama-rope3", "num_key_value_heads", "/num_key_value_heads", json!(1)),
        ("llama-rope3", "v_head_dim", "/v_head_dim", json!(10)),
        ("llama-rope3", "num_hidden_layers", "/num_hidden_layers", json!(4)),
        ("llama-rope3", "tie_word_embeddings", "/tie_word_embeddings", json!(false)),
        ("llama-rope3", "rope_parameters.rope_type", "/rope_parameters/rope_type", json!("spiral")),
        ("llama-rope3", "rope_parameters.freq_factors", "/rope_parameters/freq_factors", json!([1.0])),
        ("llama-rope3", "hidden_act", "/hidden_act", json!("quick_gelu")),
        ("gpt2-odd", "num_key_value_heads", "/num_key_value_heads", json!(1)),
        // Rounded up to whole blocks.
        ("lfm2-shortconv", "intermediate_size", "/intermediate_size", json!(90)),
        ("lfm2-shortconv", "full_attn_idxs", "/layer_types", json!(null)),
        ("gpt2-odd", "head_dim", "/head_dim", json!(6)),
        ("gpt2-odd", "v_head_dim", "/v_head_dim", json!(6)),
        ("gpt2-odd", "tie_word_embeddings", "/tie_word_embeddings", json!(false)),
        // Sizes whose products pass 32 bits, and more heads than there are rows for.
        ("falconh1-multipliers", "mamba_n_heads", "/mamba_n_heads", json!(4096)),
        ("falconh1-multipliers", "mamba_d_head", "/mamba_d_head", json!(1 << 20)),
        ("falconh1-multipliers", "mamba_d_state", "/mamba_d_state", json!(1 << 20)),
        ("qwen35-hybrid", "linear_value_head_dim", "/linear_value_head_dim", json!(1 << 20)),
        ("qwen35-hybrid", "linear_key_head_dim", "/linear_key_head_dim", json!(1 << 15)),
        ("deepseek3-yarn", "kv_lora_rank", "/kv_lora_rank", json!(1 << 20)),
        ("deepseek3-yarn", "num_attention_heads", "/num_attention_heads", json!(4096)),
        // Not asked for by the architecture, and not neutral.
        ("gpt2-odd", "", "/scale_attn_weights", json!(false)),
        ("gpt2-odd", "", "/scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2-odd", "", "/add_cross_attention", json!(true)),
        ("gpt2-odd", "", "/rope_theta", json!(10000.0)),
        ("llama-rope3", "sliding_window", "/sliding_window", json!(16)),
        ("llama-rope3", "", "/attn_logit_softcapping", json!(30.0)),
        ("llama-rope3", "", "/final_logit_softcapping", json!(30.0)),
        ("llama-rope3", "", "/logit_scale", json!(0.5)),
        ("llama-rope3", "", "/residual_multiplier", json!(0.5)),
        ("llama-rope3", "", "/embedding_multiplier", json!(2.0)),
        ("llama-rope3", "", "/attention_multiplier", json!(0.5)),
        (
            "llama-rope3",
            "layer_types",
            "/layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
        ),
        ("llama-rope3", "", "/num_local_experts", json!(4)),
        ("llama-rope3", "", "/qk_layernorm", json!(true)),
        ("llama-rope3", "", "/quantization_config", json!("fp8")),
        ("llama-rope3", "", "/rope_parameters/full_attention", json!({"rope_theta": 10000.0})),
    ]
}

/// Keys that no logits depend on, or that no fixture shows to matter: the architecture (all, if empty), the key, and why.
const INERT: &[(&str, &str, &str)] = &[
    ("", "max_position_embeddings", "the length of the context, which the engine keeps to; positions are computed"),
    ("nemotron_h", "tie_word_embeddings", "the class names no tied weights: folders have a matrix of their own"),
    ("nemotron_h", "time_step_limit", "Transformers reads time_step_min in its place"),
    ("ernie4_5_moe", "moe_norm_min", "the weights' sum is larger, unless the chosen have no probability at all"),
    ("llama", "num_experts", "only in GGUF files, of Mixtral's kind"),
    ("llama", "sliding_window_pattern", "only in GGUF files, of Mistral's kind"),
    ("qwen2_moe", "sliding_window", "use_sliding_window says that there is none"),
    (
        "qwen2",
        "max_window_layers",
        "layer_types says it too, and counts; the fixture's other configuration has only this",
    ),
    ("qwen2_moe", "use_sliding_window", "the fixture has no window that it could switch on"),
    ("qwen3", "use_sliding_window", "the fixture has no window that it could switch on"),
    ("qwen3_moe", "use_sliding_window", "the fixture has no window that it could switch on"),
    ("smollm3", "use_sliding_window", "the fixture has no window that it could switch on"),
    ("granitemoehybrid", "rope_parameters.rope_theta", "nothing rotates: position_embedding_type is null"),
    ("granitemoehybrid", "rope_parameters.rope_type", "nothing rotates: position_embedding_type is null"),
];

pub(crate) fn is_inert(arch: &str, key: &str) -> bool {
    INERT.iter().any(|(of, inert, _)| (of.is_empty() || *of == arch) && *inert == key)
}

pub(crate) fn mutated(name: &str, pointer: &str, value: &Value) -> String {
    let mut config = data_json(&format!("tiny-models/{name}/config.json"));
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap();
    match (parent.as_array_mut(), key.parse::<usize>()) {
        (Some(list), Ok(at)) => list[at] = value.clone(),
        _ => parent[key] = value.clone(),
    }
    config.to_string()
}

/// What becomes of a fixture with a changed configuration.
enum Outcome {
    Refused(String),
    /// The mean divergence of its logits.
    Ran(f64),
}

fn outcome(name: &str, config: String, reference: &[(Vec<u32>, Npy)]) -> Outcome {
    let model = match open_with_config(&data("tiny-models").join(name), config) {
        Ok(model) => model,
        Err(e) => return Outcome::Refused(e.to_string()),
    };
    if model.program.logits().is_none() {
        return Outcome::Refused("it gives vectors".to_owned());
    }
    let mut runner = match Runner::<Cpu>::open(&model, Numerics::Exact, 80, 70) {
        Ok(runner) => runner,
        Err(e) => return Outcome::Refused(e.to_string()),
    };
    // The longer text is past every window and every original context; some fields show only below it.
    let mut worst = 0.0f64;
    for (ids, logits) in reference {
        runner.restart();
        let kl = mean_kl(&runner.logits(ids, 70, Phase::Prefill), logits);
        worst = worst.max(kl);
        if kl.is_nan() || kl > 1e-7 {
            return Outcome::Ran(f64::INFINITY);
        }
    }
    Outcome::Ran(worst)
}

fn reference(name: &str) -> Vec<(Vec<u32>, Npy)> {
    let mut golden = golden(name);
    [2, 1].map(|i| (golden[&format!("ids_{i}")].ids(), golden.remove(&format!("logits_{i}")).unwrap())).into()
}

/// Other values than a field's.
pub(crate) fn others(key: &str, value: &Value) -> Vec<Value> {
    let words = |all: &[&str]| all.iter().filter(|word| value != **word).map(|word| json!(word)).collect();
    match value {
        Value::Bool(v) => vec![json!(!v)],
        Value::Number(v) if v.is_f64() => {
            let v = v.as_f64().unwrap();
            // An epsilon is small beside what it is added to.
            vec![if key.ends_with("eps") || key.ends_with("epsilon") { json!(10.0 * v + 1e-2) } else { json!(0.8 * v) }]
        }
        Value::Number(v) => {
            let v = v.as_i64().unwrap();
            vec![json!(v + 1), json!(v - 1)]
        }
        Value::String(v) if v.contains("attention") => words(&["full_attention", "sliding_attention"]),
        Value::String(v) if ["silu", "gelu", "relu"].iter().any(|a| v.starts_with(a)) => words(&["silu", "gelu"]),
        Value::String(_) => vec![json!("something else")],
        _ => Vec::new(),
    }
}

/// Every field that a fixture has and its architecture reads, with other values.
#[test]
fn every_field_that_is_read_matters() {
    // By architecture and key: what was tried, and whether anything came of it.
    let mut seen = BTreeMap::<(String, String), (bool, String)>::new();
    let (mut tried, mut refused) = (0, 0);
    for (name, _) in tiny_models() {
        if !golden(&name).contains_key("greedy") {
            continue;
        }
        let path = data("tiny-models").join(&name);
        let config = data_json(&format!("tiny-models/{name}/config.json"));
        let model = open_with_config(&path, config.to_string()).unwrap();
        let reference = reference(&name);
        for asked in &model.keys {
            let Some(source) = &asked.source else { continue };
            let pointer = format!("/{}", source.replace('.', "/"));
            let Some(value) = config.pointer(&pointer).filter(|value| !value.is_null()) else { continue };
            let fields: Vec<_> = match value {
                Value::Array(list) => (0..).zip(list).map(|(i, v)| (format!("{pointer}/{i}"), v.clone())).collect(),
                value => vec![(pointer, value.clone())],
            };
            for (pointer, value) in fields {
                for other in others(&asked.key, &value) {
                    let outcome = outcome(&name, mutated(&name, &pointer, &other), &reference);
                    let (matters, how) = match outcome {
                        Outcome::Refused(error) => {
                            refused += 1;
                            (true, error)
                        }
                        Outcome::Ran(kl) => (kl > 1e-8, format!("KL {kl:.0e}")),
                    };
                    tried += 1;
                    println!("{name}: {pointer} = {other} for {value}: {how}");
                    let entry = seen.entry((model.arch.to_owned(), asked.key.clone())).or_default();
                    entry.0 |= matters;
                    entry.1 += &format!("{name} {pointer} = {other}: {how}; ");
                }
            }
        }
    }
    println!("{tried} mutations, {refused} of them refused");
    let unfit = self::refused();
    let config = |name: &str| data_json(&format!("tiny-models/{name}/config.json"));
    let shown = |(arch, key): &(String, String)| {
        breaking()
            .iter()
            .chain(&unfit)
            .any(|(name, of, ..)| of == key && config(name)["model_type"].as_str() == Some(arch))
    };
    let without_effect =
        |(of, (matters, _)): &(&(String, String), &(bool, String))| !matters && !is_inert(&of.0, &of.1) && !shown(of);
    let mut wrong: Vec<_> = seen.iter().filter(without_effect).collect();
    wrong.sort();
    assert!(wrong.is_empty(), "fields without effect: {wrong:#?}");
    assert!(tried > 40, "only {tried} mutations");
}

#[test]
fn fields_that_change_the_arithmetic_break_the_bound() {
    for (name, key, pointer, value) in breaking() {
        match outcome(name, mutated(name, pointer, &value), &reference(name)) {
            Outcome::Ran(kl) => assert!(kl > 1e-8, "{name}: {pointer} = {value} ({key}) changes nothing: KL {kl:e}"),
            Outcome::Refused(e) => panic!("{name}: {pointer} = {value}: {e}"),
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (name, _, pointer, value) in refused() {
        let path = data("tiny-models").join(name);
        match open_with_config(&path, mutated(name, pointer, &value)) {
            Ok(_) => panic!("{name}: {pointer} = {value} is not refused"),
            Err(e) => println!("{name}: {e}"),
        }
    }
}

/// For the first architectures also what no fixture has was written down.
#[test]
fn every_key_that_is_read_is_in_a_list() {
    let of = |name: &str| if name.starts_with("gpt2") { "gpt2" } else { "llama" };
    let mutations = breaking().into_iter().chain(refused()).map(|(name, key, ..)| (of(name), key.to_owned()));
    let mut known: BTreeSet<_> = mutations.collect();
    let fixtures = ["llama-rope3", "llama-linear-bias", "llama-mha-odd", "gpt2-odd"];
    let mut files = fixtures.map(|name| format!("tiny-models/{name}")).to_vec();
    files.push("stories/stories.gguf".to_owned());
    let models: Vec<_> = files.iter().map(|file| open(&data(file)).unwrap()).collect();
    let keys = || models.iter().flat_map(|model| model.keys.iter().map(move |asked| (model.arch, asked)));
    known.extend(keys().filter(|(_, asked)| asked.source.is_some()).map(|(arch, asked)| (arch, asked.key.clone())));
    for (arch, asked) in keys() {
        let listed = known.contains(&(arch, asked.key.clone())) || is_inert(arch, &asked.key);
        assert!(listed, "{arch}: no mutation changes {}", asked.key);
    }
}
