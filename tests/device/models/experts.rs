//! Models of experts: where they run, with which numerics, and that their number is checked before memory is allocated for it.

use serde_json::json;
use wgslm::exec::{AnyExecutor, DeviceChoice, Numerics, Options, Phase};
use wgslm::ops::Op;

use super::golden::{golden, mean_kl, nmse};
use super::hostile::within_limits;
use super::runner::Runner;
use super::{Cpu, as_gguf, open, open_safetensors, open_with_config};
use wgslm_test::gguf::{Meta, Tensor};
use wgslm_test::{data, data_json};

const FOLDERS: [&str; 10] = [
    "mixtral-5x2",
    "qwen2moe-shared",
    "qwen3moe-norm",
    "olmoe-clip",
    "granitemoe-6x2",
    "glm4moe-groups",
    "ernie45moe-shared",
    "gptoss-sinks",
    "deepseek2-groups",
    "deepseek3-yarn",
];

#[test]
fn fast_numerics_are_close() {
    for name in FOLDERS {
        let model = open(&data("tiny-models").join(name)).unwrap();
        let golden = golden(name);
        for (chunk, phase) in [(70, Phase::Prefill), (3, Phase::Prefill), (1, Phase::Decode)] {
            let mut runner = Runner::<Cpu>::new(&model, Numerics::Fast, 96, 70);
            let logits = runner.logits(&golden["ids_2"].ids(), chunk, phase);
            let nmse = nmse(logits, &golden["logits_2"].data);
            assert!(nmse < 1e-4, "{name}, {chunk} rows a step: NMSE {nmse:e}");
        }
    }
}

/// An op without a kernel is refused by name, before weights are loaded.
#[test]
fn without_kernels_a_gpu_refuses_by_name() {
    let mut model = open(&data("tiny-models").join("mixtral-5x2")).unwrap();
    let route = model.program.nodes.iter_mut().find_map(|node| match &mut node.op {
        Op::Route(route) => Some(route),
        _ => None,
    });
    route.unwrap().spec.experts = 5000;
    let options = Options { device: DeviceChoice::Gpu, ..Options::new(&model.program, 64) };
    let mut loaded = false;
    let gpu = pollster::block_on(AnyExecutor::open(&model, &options, &mut |_| loaded = true));
    let error = gpu.err().expect("there is no kernel").to_string();
    assert!(error.contains("of 5000 experts on the GPU is not supported; --device cpu runs it"), "{error}");
    assert!(!loaded, "weights were loaded first");
}

#[test]
fn the_number_of_experts_is_judged_by_the_tensors() {
    for name in FOLDERS {
        let path = data("tiny-models").join(name);
        let size = std::fs::metadata(path.join("model.safetensors")).unwrap().len();
        for count in [0u64, 1, 4096, 5_000_000, 1 << 40] {
            let mut config = data_json(&format!("tiny-models/{name}/config.json"));
            let keys = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
            let key = keys.into_iter().find(|key| config[*key].is_u64()).unwrap();
            config[key] = json!(count);
            let result = within_limits(name, size, || open_with_config(&path, config.to_string()));
            let error = result.err().unwrap_or_else(|| panic!("{name} with {count} experts")).to_string();
            assert!(error.contains("expert") || error.contains("moe_k"), "{name}: {error}");
        }
    }
}

/// The tensors of single experts as one of all, whose name `rename` makes of a name without the expert's number.
fn stacked(tensors: Vec<Tensor>, rename: impl Fn(&str) -> String) -> Vec<Tensor> {
    let mut all: Vec<Tensor> = Vec::new();
    let number = |name: &str| name.split("experts.").nth(1)?.split('.').next()?.parse::<u64>().ok();
    let mut single: Vec<_> = Vec::new();
    for tensor in tensors {
        match number(&tensor.name) {
            Some(expert) => {
                single.push((rename(&tensor.name.replace(&format!("experts.{expert}."), "experts.")), expert, tensor))
            }
            None => all.push(tensor),
        }
    }
    single.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    for (name, expert, tensor) in single {
        if expert == 0 {
            all.push(Tensor { name, shape: [&[0], &tensor.shape[..]].concat(), data: Vec::new() });
        }
        let stack = all.last_mut().unwrap();
        stack.shape[0] += 1;
        stack.data.extend(tensor.data);
    }
    all
}

fn is_right(model: &wgslm::model::Model, name: &str) {
    let golden = golden(name);
    let mut runner = Runner::<Cpu>::new(model, Numerics::Exact, 96, 70);
    let kl = mean_kl(&runner.logits(&golden["ids_2"].ids(), 16, Phase::Prefill), &golden["logits_2"]);
    assert!(kl < 1e-9, "{name}: KL {kl:e}");
}

/// A file as llama.cpp's converter wrote it before it split latent attention's matrices: one tensor for those into and out of
/// the compressed space, and sizes of heads under the usual names.
#[test]
fn older_files_of_latent_attention_run() {
    const NAMES: &[(&str, &str)] = &[
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_a_layernorm", "attn_q_a_norm"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
        ("self_attn.kv_b_proj", "attn_kv_b"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate.weight", "ffn_gate_inp.weight"),
        ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let name = "deepseek2-groups";
    let (config, tensors) = as_gguf::folder(name, NAMES);
    let tensors = stacked(tensors, |name| {
        let parts = [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];
        parts.iter().fold(name.to_owned(), |name, (from, to)| name.replace(&format!("mlp.experts.{from}"), to))
    });
    let int = |key: &str| config[key].as_u64().unwrap() as u32;
    let u = |key: &str, v| (format!("deepseek2.{key}"), Meta::U32(v));
    let f = |key: &str, v: f64| (format!("deepseek2.{key}"), Meta::F32(v as f32));
    let meta = vec![
        ("general.architecture".into(), Meta::Str("deepseek2")),
        u("context_length", int("max_position_embeddings")),
        u("embedding_length", int("hidden_size")),
        u("block_count", int("num_hidden_layers")),
        u("feed_forward_length", int("intermediate_size")),
        u("attention.head_count", int("num_attention_heads")),
        u("attention.head_count_kv", int("num_attention_heads")),
        u("attention.key_length", int("qk_nope_head_dim") + int("qk_rope_head_dim")),
        u("attention.value_length", int("v_head_dim")),
        u("attention.q_lora_rank", int("q_lora_rank")),
        u("attention.kv_lora_rank", int("kv_lora_rank")),
        u("rope.dimension_count", int("qk_rope_head_dim")),
        u("vocab_size", int("vocab_size")),
        f("attention.layer_norm_rms_epsilon", config["rms_norm_eps"].as_f64().unwrap()),
        f("rope.freq_base", config["rope_parameters"]["rope_theta"].as_f64().unwrap()),
        u("leading_dense_block_count", int("first_k_dense_replace")),
        u("expert_count", int("n_routed_experts")),
        u("expert_used_count", int("num_experts_per_tok")),
        u("expert_shared_count", int("n_shared_experts")),
        u("expert_feed_forward_length", int("moe_intermediate_size")),
        u("expert_group_count", int("n_group")),
        u("expert_group_used_count", int("topk_group")),
        f("expert_weights_scale", config["routed_scaling_factor"].as_f64().unwrap()),
    ];
    is_right(&as_gguf::open(name, meta, &tensors), name);
}

/// The bytes of a safetensors file.
fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let start = data.len();
        tensor.data.iter().for_each(|v| data.extend(v.to_le_bytes()));
        let info = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(tensor.name.clone(), info);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// A folder whose experts are in one tensor, gate and up in one, as newer families are published.
#[test]
fn experts_in_one_tensor_run() {
    let name = "qwen3moe-norm";
    let (config, tensors) = as_gguf::folder(name, &[]);
    let stacks = stacked(tensors, |name| name.replace(".weight", ""));
    let (gates, mut all): (Vec<_>, Vec<_>) = stacks.into_iter().partition(|t| t.name.ends_with("experts.gate_proj"));
    let (ups, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|t| t.name.ends_with("experts.up_proj"));
    all = rest;
    for (gate, up) in gates.into_iter().zip(ups) {
        let [experts, n, k] = gate.shape[..] else { panic!("{:?}", gate.shape) };
        let of_expert = |t: &Tensor, e: u64| t.data[(e * n * k) as usize..((e + 1) * n * k) as usize].to_vec();
        let data = (0..experts).flat_map(|e| [of_expert(&gate, e), of_expert(&up, e)].concat()).collect();
        let name = gate.name.replace("gate_proj", "gate_up_proj");
        all.push(Tensor { name, shape: vec![experts, 2 * n, k], data });
    }
    let open = |tensors: &[Tensor]| open_safetensors(safetensors(tensors), &[("config.json", config.to_string())]);
    is_right(&open(&all).unwrap(), name);
    // A stack of more experts than the router knows was misunderstood.
    let stack = all.iter_mut().find(|t| t.name.ends_with("experts.down_proj")).unwrap();
    stack.shape[0] += 1;
    let longer = stack.data.len() / (stack.shape[0] as usize - 1);
    stack.data.extend(vec![0.0; longer]);
    let error = open(&all).err().expect("a stack is too long").to_string();
    assert!(error.contains("experts.down_proj"), "{error}");
}
