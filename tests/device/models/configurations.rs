//! Configurations that were once read wrong, in every form: `tools/config_fuzz/fixtures.py` has them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wgslm::file::{Bytes, ModelFile};
use wgslm::model::Model;
use wgslm_test::npy::npz;
use wgslm_test::{data, data_bytes, data_json};

use super::golden::{converted, converted_bytes, converted_file, logits_of, mean_kl};
use super::{open_with_config, tiny_models};

/// KL divergence from references in float64. Float32 alone is below 1e-11 in these models.
const BOUND: f64 = 1e-9;

/// The message of a folder with this configuration.
fn refusal(folder: &str, config: &Value) -> String {
    match open_with_config(&data(folder), config.to_string()) {
        Ok(_) => panic!("{folder} opens with {config}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn configurations_match_in_every_form_and_through_convert() {
    let mut seen = 0;
    for entry in std::fs::read_dir(data("configurations")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let golden = npz(&data_bytes(&format!("configurations/{name}/golden.npz")));
        let ids: Vec<_> = golden["ids"].data.iter().map(|&id| id as u32).collect();
        let check = |form: &str, model: &Model| {
            let kl = mean_kl(&logits_of(model, &ids), &golden["logits"]);
            assert!(kl <= BOUND, "{name}, {form}: KL {kl:e}");
        };
        for form in ["config.json", "config.saved.json", "config.full.json", "config.old.json"] {
            let Ok(config) = std::fs::read_to_string(path.join(form)) else { continue };
            check(form, &open_with_config(&path, config).unwrap_or_else(|e| panic!("{name}, {form}: {e}")));
            seen += 1;
        }
        let refused = match name.as_str() {
            // GGUF files have no bound of time steps.
            "nemotronh-default-layers" => Some("time_step_min = 0.3"),
            _ => None,
        };
        match (converted(&path), refused) {
            (Ok(model), None) => check("GGUF", &model),
            (Err(e), Some(named)) => assert!(e.to_string().contains(named), "{name}: {e}"),
            (Ok(_), Some(named)) => panic!("{name} is converted in spite of {named}"),
            (Err(e), None) => panic!("{name} as GGUF: {e}"),
        }
    }
    assert!(seen >= 60, "the data is not all there: {seen} configurations");
}

/// Every way of quantization that transformers writes: before a tensor is missing for it.
#[test]
fn quantized_folders_are_refused_by_name() {
    let folder = "tiny-models/llama-rope3";
    let mut config = data_json(&format!("{folder}/config.json"));
    for (key, table, named) in [
        ("quantization_config", json!({"quant_method": "gptq", "bits": 4, "group_size": 128}), "\"gptq\""),
        ("quantization_config", json!({"quant_method": "awq", "bits": 4}), "\"awq\""),
        ("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), "\"fp8\""),
        (
            "quantization_config",
            json!({"quant_method": "bitnet", "quantization_mode": "online", "linear_class": "autobitlinear"}),
            "\"bitnet\"",
        ),
        ("quantization_config", json!({"bits": 4}), "quantization_config"),
        ("compression_config", json!({"quant_method": "compressed-tensors"}), "compression_config"),
        ("quantization", json!({"group_size": 64, "bits": 4}), "quantization"),
    ] {
        config[key] = table;
        let message = refusal(folder, &config);
        assert!(message.contains(key) && message.contains(named) && message.contains("GGUF"), "{message}");
        config.as_object_mut().unwrap().remove(key);
    }
    // A model of several parts may say it of its language model.
    let mut text = config.clone();
    text["quantization_config"] = json!({"quant_method": "gptq"});
    let gemma = json!({"model_type": "llama", "text_config": text});
    assert!(refusal(folder, &gemma).contains("gptq"));
    for nothing in [json!(null), json!({})] {
        config["quantization_config"] = nothing;
        open_with_config(&data(folder), config.to_string()).unwrap();
    }
}

/// A table that no architecture reads counts as a whole.
#[test]
fn what_stands_in_a_table_is_refused_as_well() {
    let folder = "tiny-models/llama-rope3";
    let mut config = data_json(&format!("{folder}/config.json"));
    config["per_layer_config"] = json!({"0": {"rms_norm_eps": 0.5}});
    let message = refusal(folder, &config);
    assert!(message.contains("per_layer_config.0.rms_norm_eps = 0.5"), "{message}");
}

#[test]
fn windows_that_the_architecture_has_not_are_refused() {
    for (folder, kinds) in [
        ("mistral-window", json!(["full_attention", "sliding_attention", "sliding_attention"])),
        ("qwen3moe-norm", json!(["sliding_attention", "full_attention", "full_attention"])),
    ] {
        let path = format!("tiny-models/{folder}");
        let mut config = data_json(&format!("{path}/config.json"));
        let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
        config["layer_types"] = kinds.as_array().unwrap().iter().cycle().take(layers).cloned().collect();
        let message = refusal(&path, &config);
        assert!(message.contains("layer_types"), "{folder}: {message}");
    }
}

/// Where the class divides the hidden size among the heads, it has no `head_dim`.
#[test]
fn a_head_dim_that_the_class_has_not_is_refused() {
    for folder in ["tiny-models/gpt2-odd", "tiny-models/gptneox-parallel"] {
        let mut config = data_json(&format!("{folder}/config.json"));
        config["head_dim"] = json!(64);
        let message = refusal(folder, &config);
        assert!(message.contains("head_dim is 64") && message.contains("num_attention_heads"), "{folder}: {message}");
    }
}

/// In the class it is half of `local_attention`, and no published folder has it.
#[test]
fn half_a_window_is_refused() {
    let folder = "tiny-models/modernbert-local";
    let mut config = data_json(&format!("{folder}/config.json"));
    config["sliding_window"] = json!(7);
    let message = refusal(folder, &config);
    assert!(message.contains("sliding_window is 7") && message.contains("local_attention"), "{message}");
}

/// A flag without effect in transformers has none here: the folder's own head counts.
#[test]
fn nemotron_ties_no_weights() {
    let folder = "tiny-models/nemotronh-pattern";
    let mut config = data_json(&format!("{folder}/config.json"));
    let ids: Vec<u32> = (3..20).collect();
    let logits = |config: &Value| logits_of(&open_with_config(&data(folder), config.to_string()).unwrap(), &ids);
    let untied = logits(&config);
    config["tie_word_embeddings"] = json!(true);
    assert_eq!(logits(&config), untied);
}

/// Without a table, the class's own counts as a whole: a base beside it has no effect.
#[test]
fn a_base_beside_the_default_table_is_left_out() {
    let folder = "configurations/ministral3-default-rotation";
    let mut config = data_json(&format!("{folder}/config.json"));
    assert!(config.get("rope_parameters").is_none() && config.get("rope_scaling").is_none());
    let ids: Vec<u32> = (3..40).collect();
    let logits = |config: &Value| logits_of(&open_with_config(&data(folder), config.to_string()).unwrap(), &ids);
    let without = logits(&config);
    config["rope_theta"] = json!(500.0);
    assert_eq!(logits(&config), without);
}

/// Where no list says which layers rotate, each but every so many-th does.
#[test]
fn an_interval_says_which_layers_do_not_rotate() {
    let folder = "tiny-models/smollm3-nope";
    let mut config = data_json(&format!("{folder}/config.json"));
    let program = |config: &Value| open_with_config(&data(folder), config.to_string()).unwrap().program;
    for (interval, flags) in [(None, [1, 1, 1, 0]), (Some(2), [1, 0, 1, 0]), (Some(3), [1, 1, 0, 1])] {
        config["no_rope_layers"] = json!(flags);
        let listed = program(&config);
        config.as_object_mut().unwrap().remove("no_rope_layers");
        config["no_rope_layer_interval"] = interval.map_or(Value::Null, Value::from);
        assert_eq!(program(&config), listed, "{interval:?}");
    }
}

/// A GGUF file may say that it has no layers that predict further tokens.
#[test]
fn no_further_tokens_are_a_number_too() {
    let file = |zero: bool| {
        let mut bytes = converted_bytes(&data("tiny-models/qwen35-hybrid")).unwrap();
        if zero {
            // Two keys of 64 bytes together, so that tensors stay aligned.
            let entry = |key: &str| {
                let uint32 = 4u32;
                [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &uint32.to_le_bytes(), &[0; 4]].concat()
            };
            let entries = [entry("qwen35.nextn_predict_layers"), entry("x.pad")].concat();
            assert_eq!(entries.len(), 64);
            let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
            bytes.splice(16..24, [&(count + 2).to_le_bytes()[..], &entries].concat());
        }
        pollster::block_on(Model::open(ModelFile::from_bytes("model.gguf", bytes).unwrap())).unwrap().program
    };
    assert_eq!(file(true), file(false));
}

/// transformers reads the type of such a table by its newer name alone, and leaves out the rest without a word.
#[test]
fn an_older_name_that_is_not_read_is_refused() {
    let folder = "tiny-models/gemma3-local-global";
    let mut config = data_json(&format!("{folder}/config.json"));
    config.as_object_mut().unwrap().remove("rope_parameters");
    let table = json!({"factor": 8.0, "original_max_position_embeddings": 24});
    for (name, refused) in [("type", true), ("rope_type", false)] {
        config["rope_scaling"] = table.clone();
        config["rope_scaling"][name] = json!("linear");
        let message = open_with_config(&data(folder), config.to_string())
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert_eq!(message.contains("rope_scaling") && message.contains("rope_type"), refused, "{name}: {message}");
    }
}

#[test]
fn a_part_that_rotates_is_refused_where_heads_rotate_whole() {
    let mut config = data_json("tiny-models/llama-rope3/config.json");
    config["partial_rotary_factor"] = json!(0.5);
    let message = refusal("tiny-models/llama-rope3", &config);
    assert!(message.contains("partial_rotary_factor is 0.5"), "{message}");
}

/// Defaults that no fixture reads, and why that is right.
const UNREAD: &[(&str, &str)] = &[
    ("add_cross_attention", "the default is neutral, anything else is refused"),
    ("altup_coef_clip", "for training"),
    ("attention_bias", "the same; Nemotron-H has no such biases in transformers"),
    ("enable_moe_block", "the default is neutral"),
    ("expand", "the heads and their size say it"),
    ("intermediate_size", "of models all of whose layers have experts"),
    ("is_decoder", "the default is neutral, anything else is refused"),
    ("mamba_expand", "the heads and their size say it"),
    ("mamba_norm_before_gate", "read where there is such a norm"),
    ("mamba_proj_bias", "Nemotron-H has another name for it in transformers"),
    ("max_window_layers", "read where windows are used"),
    ("no_rope_layer_interval", "read where no_rope_layers is absent"),
    ("norm_topk_prob", "DeepSeek-V2 ignores it in transformers"),
    ("num_experts", "the fixture has the other name"),
    ("qk_layernorm", "the default is neutral, anything else is refused"),
    ("scale_attn_by_inverse_layer_idx", "the default is neutral, anything else is refused"),
    ("scale_attn_weights", "the default is neutral, anything else is refused"),
    ("sliding_window_pattern", "read where layer_types is absent"),
    ("tie_word_embeddings", "encoders have no head"),
];

/// What transformers has where a folder says nothing is what the architectures ask for: no key is unknown, and to write a
/// default out changes nothing.
#[test]
fn defaults_are_of_keys_that_are_read() {
    let defaults: Value = serde_json::from_str(include_str!("../../../src/model/config/defaults.json")).unwrap();
    let defaults = defaults.as_object().unwrap();
    let known: Vec<_> = wgslm::model::architectures().map(|types| types[0]).collect();
    let named: Vec<_> = defaults.keys().map(String::as_str).collect();
    assert!(known.iter().all(|arch| named.contains(arch)), "{known:?} and {named:?}");
    assert!(named.iter().all(|arch| known.contains(arch)), "{named:?} and {known:?}");
    // By architecture: what some fixture of it reads, in the names of its file.
    let mut read = BTreeMap::<&str, BTreeSet<String>>::new();
    for (name, configs) in tiny_models() {
        let path = data("tiny-models").join(&name);
        let config: Value = serde_json::from_str(&configs[0]).unwrap();
        let model = open_with_config(&path, configs[0].clone()).unwrap();
        // With every default written out it is the same model.
        let mut full = config.clone();
        for (key, value) in defaults[model.arch].as_object().unwrap() {
            // The fixture may say it in another name.
            let said = model.keys.iter().any(|asked| asked.key == *key && asked.source.is_some());
            if !key.contains("rope_parameters") && !said && full.get(key).is_none() {
                full[key] = value.clone();
            }
        }
        let full = open_with_config(&path, full.to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(full.program, model.program, "{name}");
        read.entry(model.arch).or_default().extend(full.keys.into_iter().filter_map(|asked| asked.source));
    }
    let mut unread = Vec::new();
    for (arch, read) in &read {
        let keys = defaults[*arch].as_object().unwrap().keys().filter(|key| !key.contains("rope_parameters"));
        let known = |key: &str| read.contains(key) || UNREAD.iter().any(|(name, _)| *name == key);
        unread.extend(keys.filter(|key| !known(key)).map(|key| format!("{arch}: {key}")));
    }
    assert!(unread.is_empty(), "no architecture reads {unread:#?}");
}

/// A Qwen3 that is not tied and has no head gives vectors, and becomes a GGUF file that does the same.
#[test]
fn a_model_without_a_head_is_converted() {
    let mut config = data_json("tiny-models/qwen3-tied/config.json");
    config["tie_word_embeddings"] = json!(false);
    let weights =
        || Box::new(Bytes::new("here/model.safetensors", data_bytes("tiny-models/qwen3-tied/model.safetensors")));
    let folder = || {
        let texts = [("config.json".to_owned(), config.to_string())].into_iter().collect();
        pollster::block_on(ModelFile::open_safetensors(texts, vec![weights()])).unwrap()
    };
    let options = wgslm::convert::Options { to: Some("F32".parse().unwrap()), requantize: false, threads: 1 };
    let mut bytes = Vec::new();
    pollster::block_on(wgslm::convert::convert(folder(), options, &mut bytes, &mut |_, _| {})).unwrap();
    let gguf = || ModelFile::from_bytes("headless.gguf", bytes.clone()).unwrap();
    assert!(gguf().find("output.weight").is_none());
    // Neither has logits, and both say which tensor is missing.
    for file in [folder(), gguf()] {
        let message = pollster::block_on(Model::open(file)).err().expect("no logits").to_string();
        assert!(message.contains("lm_head.weight") || message.contains("output.weight"), "{message}");
    }
    let task = || wgslm::model::Task::Embed(wgslm::model::Embedding::default());
    let of_folder = pollster::block_on(Model::open_for(folder(), task())).unwrap();
    let of_gguf = pollster::block_on(Model::open_for(gguf(), task())).unwrap();
    assert_eq!(of_folder.program.listing(), of_gguf.program.listing());
}

/// The first folders of Gemma say "gelu" and mean its approximation, as transformers knows.
#[test]
fn gelu_is_its_approximation_in_gemma() {
    let mut config = data_json("tiny-models/gemma-mqa/config.json");
    let path = data("tiny-models/gemma-mqa");
    let [said, meant] = ["gelu", "gelu_pytorch_tanh"].map(|act| {
        config["hidden_act"] = json!(act);
        open_with_config(&path, config.to_string()).unwrap().program
    });
    assert_eq!(said, meant);
}

/// The message names the field that a GGUF file cannot hold.
#[test]
fn convert_names_what_a_gguf_file_cannot_say() {
    let message = converted_file(&data("tiny-models/llama-mha-odd")).err().expect("no GGUF").to_string();
    assert!(message.contains("hidden_act = ") && message.contains("the folder works as it is"), "{message}");
}
