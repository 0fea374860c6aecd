//! Models of experts: where they run, with which numerics, and that their number is judged before memory is taken for it.

use serde_json::json;
use wgslm::exec::{AnyExecutor, Numerics, Options, Place, Role};

use super::golden::{golden, nmse};
use super::hostile::within_limits;
use super::runner::Runner;
use super::support::{shared, shared_json};
use super::{Cpu, open, open_with_config};

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
        let model = open(&shared("tiny-models").join(name)).unwrap();
        let golden = golden(name);
        for (chunk, role) in [(70, Role::Prompt), (3, Role::Prompt), (1, Role::Generated)] {
            let mut runner = Runner::<Cpu>::new(&model, Numerics::Fast, 96, 70);
            let logits = runner.logits(&golden["ids_2"].ids(), chunk, role);
            let nmse = nmse(logits, &golden["logits_2"].data);
            assert!(nmse < 1e-4, "{name}, {chunk} rows a step: NMSE {nmse:e}");
        }
    }
}

#[test]
fn without_kernels_a_gpu_refuses_by_name_and_auto_takes_the_cpu() {
    for (name, op) in [("mixtral-5x2", "route"), ("deepseek3-yarn", "head_linear")] {
        let model = open(&shared("tiny-models").join(name)).unwrap();
        let options = |place| Options { place, ..Options::new(&model.program, 64) };
        let executor = pollster::block_on(AnyExecutor::open(&model, &options(Place::Auto), &mut |_| {})).unwrap();
        assert!(matches!(executor, AnyExecutor::Cpu(_)), "{name}");
        let mut loaded = false;
        let gpu = pollster::block_on(AnyExecutor::open(&model, &options(Place::Gpu), &mut |_| loaded = true));
        let error = gpu.err().expect("there is no kernel").to_string();
        assert!(error.contains(op) && error.contains("cpu"), "{name}: {error}");
        assert!(!loaded, "{name}: weights were loaded first");
    }
}

#[test]
fn the_number_of_experts_is_judged_by_the_tensors() {
    for name in FOLDERS {
        let path = shared("tiny-models").join(name);
        let size = std::fs::metadata(path.join("model.safetensors")).unwrap().len();
        for count in [0u64, 1, 4096, 5_000_000, 1 << 40] {
            let mut config = shared_json(&format!("tiny-models/{name}/config.json"));
            let keys = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
            let key = keys.into_iter().find(|key| config[*key].is_u64()).unwrap();
            config[key] = json!(count);
            let result = within_limits(name, size, || open_with_config(&path, config.to_string()));
            let error = result.err().unwrap_or_else(|| panic!("{name} with {count} experts")).to_string();
            assert!(error.contains("expert") || error.contains("moe_k"), "{name}: {error}");
        }
    }
}
