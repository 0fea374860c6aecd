//! Every field of a configuration that changes the arithmetic matters: changed, it breaks the bound or is refused. The lists
//! here are complete: a key that an architecture reads must be in one of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wgslm::exec::{Numerics, Role};
use wgslm::file::ModelFile;

use super::golden::{golden, mean_kl};
use super::runner::Runner;
use super::support::{shared, shared_json};
use super::{Cpu, open_with_config};

/// A fixture, the key as architectures call it, and a change to its `config.json` (a JSON pointer, the new value).
type Mutation = (&'static str, &'static str, &'static str, Value);

/// Changes after which the model runs, and is wrong.
fn breaking() -> Vec<Mutation> {
    const ROPE: &str = "/rope_parameters";
    vec![
        ("llama-linear-bias", "attention_bias", "/attention_bias", json!(false)),
        ("llama-linear-bias", "mlp_bias", "/mlp_bias", json!(false)),
        ("llama-linear-bias", "rms_norm_eps", "/rms_norm_eps", json!(1.2e-3)),
        ("llama-mha-odd", "hidden_act", "/hidden_act", json!("silu")),
        ("llama-mha-odd", "hidden_act", "/hidden_act", json!("gelu_new")),
        ("llama-mha-odd", "num_hidden_layers", "/num_hidden_layers", json!(1)),
        ("llama-mha-odd", "tie_word_embeddings", "/tie_word_embeddings", json!(true)),
        ("llama-mha-odd", "rope_parameters.rope_theta", "/rope_parameters/rope_theta", json!(510.0)),
        ("llama-mha-odd", "rope_parameters.partial_rotary_factor", "/partial_rotary_factor", json!(0.5)),
        ("llama-mha-odd", "rotary_dim", "/rotary_dim", json!(4)),
        ("llama-mha-odd", "rope_parameters.freq_factors", "/rope_parameters/freq_factors", json!([1.0, 1.0, 1.1, 1.0])),
        ("llama-rope3", "rope_parameters.rope_type", "/rope_parameters/rope_type", json!("linear")),
        ("llama-rope3", "rope_parameters", ROPE, json!({"rope_type": "default", "rope_theta": 10000.0})),
        ("llama-rope3", "rope_parameters.factor", "/rope_parameters/factor", json!(7.0)),
        ("llama-linear-bias", "rope_parameters.factor", "/rope_parameters/factor", json!(3.1)),
        ("llama-rope3", "rope_parameters.low_freq_factor", "/rope_parameters/low_freq_factor", json!(1.2)),
        ("llama-rope3", "rope_parameters.high_freq_factor", "/rope_parameters/high_freq_factor", json!(5.0)),
        (
            "llama-rope3",
            "rope_parameters.original_max_position_embeddings",
            "/rope_parameters/original_max_position_embeddings",
            json!(64),
        ),
        ("gpt2-odd", "hidden_act", "/activation_function", json!("gelu")),
        ("gpt2-odd", "hidden_act", "/activation_function", json!("relu")),
        ("gpt2-odd", "layer_norm_eps", "/layer_norm_epsilon", json!(2e-3)),
        ("gpt2-odd", "num_attention_heads", "/n_head", json!(2)),
        ("gpt2-odd", "num_hidden_layers", "/n_layer", json!(2)),
    ]
}

/// Changes that do not fit the tensors, or that no such model is known to run with: refused when it is opened.
fn refused() -> Vec<Mutation> {
    vec![
        ("llama-rope3", "hidden_size", "/hidden_size", json!(36)),
        ("llama-rope3", "intermediate_size", "/intermediate_size", json!(40)),
        ("llama-rope3", "num_attention_heads", "/num_attention_heads", json!(2)),
        ("llama-rope3", "num_key_value_heads", "/num_key_value_heads", json!(1)),
        ("llama-rope3", "head_dim", "/head_dim", json!(10)),
        ("llama-rope3", "v_head_dim", "/v_head_dim", json!(10)),
        ("llama-rope3", "vocab_size", "/vocab_size", json!(102)),
        ("llama-rope3", "num_hidden_layers", "/num_hidden_layers", json!(4)),
        ("llama-rope3", "tie_word_embeddings", "/tie_word_embeddings", json!(false)),
        ("llama-rope3", "rope_parameters.rope_type", "/rope_parameters/rope_type", json!("dynamic")),
        ("llama-rope3", "rope_parameters.freq_factors", "/rope_parameters/freq_factors", json!([1.0])),
        ("llama-rope3", "hidden_act", "/hidden_act", json!("quick_gelu")),
        ("gpt2-odd", "hidden_size", "/n_embd", json!(39)),
        ("gpt2-odd", "intermediate_size", "/n_inner", json!(78)),
        ("gpt2-odd", "num_key_value_heads", "/num_key_value_heads", json!(1)),
        ("gpt2-odd", "head_dim", "/head_dim", json!(6)),
        ("gpt2-odd", "v_head_dim", "/v_head_dim", json!(6)),
        ("gpt2-odd", "vocab_size", "/vocab_size", json!(100)),
        ("gpt2-odd", "max_position_embeddings", "/n_positions", json!(150)),
        ("gpt2-odd", "tie_word_embeddings", "/tie_word_embeddings", json!(false)),
        // Not asked for by the architecture, and not neutral.
        ("gpt2-odd", "", "/scale_attn_weights", json!(false)),
        ("gpt2-odd", "", "/scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2-odd", "", "/add_cross_attention", json!(true)),
        ("gpt2-odd", "", "/rope_theta", json!(10000.0)),
        ("llama-rope3", "", "/sliding_window", json!(16)),
        ("llama-rope3", "", "/attn_logit_softcapping", json!(30.0)),
        ("llama-rope3", "", "/final_logit_softcapping", json!(30.0)),
        ("llama-rope3", "", "/logit_scale", json!(0.5)),
        ("llama-rope3", "", "/residual_multiplier", json!(0.5)),
        ("llama-rope3", "", "/embedding_multiplier", json!(2.0)),
        ("llama-rope3", "", "/attention_multiplier", json!(0.5)),
        ("llama-rope3", "", "/layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("llama-rope3", "", "/num_local_experts", json!(4)),
        ("llama-rope3", "", "/qk_layernorm", json!(true)),
        ("llama-rope3", "", "/quantization_config", json!("fp8")),
        ("llama-rope3", "", "/rope_parameters/full_attention", json!({"rope_theta": 10000.0})),
    ]
}

/// Keys that no logits depend on, and why.
const INERT: &[(&str, &str, &str)] = &[(
    "llama",
    "max_position_embeddings",
    "the length of the context, which the engine keeps to; positions are computed, not looked up",
)];

fn mutated(name: &str, pointer: &str, value: &Value) -> String {
    let mut config = shared_json(&format!("tiny-models/{name}/config.json"));
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[key] = value.clone();
    config.to_string()
}

#[test]
fn fields_that_change_the_arithmetic_break_the_bound() {
    for (name, key, pointer, value) in breaking() {
        let path = shared("tiny-models").join(name);
        let model =
            open_with_config(&path, mutated(name, pointer, &value)).unwrap_or_else(|e| panic!("{pointer}: {e}"));
        let golden = golden(name);
        let mut runner = Runner::<Cpu>::new(&model, Numerics::Exact, 80, 70);
        let logits = runner.logits(&golden["ids_2"].ids(), 70, Role::Prompt);
        let kl = mean_kl(&logits, &golden["logits_2"]);
        println!("{name} {key} = {value}: KL {kl:.1e}");
        assert!(kl > 1e-8, "{name}: {pointer} = {value} changes nothing: KL {kl:e}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (name, _, pointer, value) in refused() {
        let path = shared("tiny-models").join(name);
        match open_with_config(&path, mutated(name, pointer, &value)) {
            Ok(_) => panic!("{name}: {pointer} = {value} is not refused"),
            Err(e) => println!("{name}: {e}"),
        }
    }
}

#[test]
fn every_key_that_is_read_is_in_a_list() {
    let of = |name: &str| if name.starts_with("gpt2") { "gpt2" } else { "llama" };
    let mutations = breaking().into_iter().chain(refused()).map(|(name, key, ..)| (of(name), key.to_owned()));
    let inert = INERT.iter().map(|(arch, key, _)| (*arch, (*key).to_owned()));
    let known: BTreeSet<_> = mutations.chain(inert).collect();
    let mut files: Vec<_> = ["llama-rope3", "llama-linear-bias", "llama-mha-odd", "gpt2-odd"]
        .map(|name| ModelFile::open(&shared("tiny-models").join(name)).unwrap())
        .into();
    files.push(ModelFile::open(&shared("stories260K/stories260K.gguf")).unwrap());
    for file in files {
        let model = pollster::block_on(wgslm::model::Model::open(file)).unwrap();
        for key in model.keys {
            assert!(known.contains(&(model.arch, key.clone())), "{}: no mutation changes {key}", model.arch);
        }
    }
}
