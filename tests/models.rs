//! Models: every file that is sound gives the logits of its reference, every other is refused by name.

mod support;

#[path = "models/as_gguf.rs"]
mod as_gguf;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "models/golden.rs"]
mod golden;
#[path = "models/hostile.rs"]
mod hostile;
#[path = "models/mutations.rs"]
mod mutations;
#[path = "support/npy.rs"]
mod npy;
#[path = "models/oracle.rs"]
mod oracle;
#[path = "models/runner.rs"]
mod runner;
#[path = "models/smollm2.rs"]
mod smollm2;

#[global_allocator]
static ALLOC: support::alloc::Counting = support::alloc::Counting;

use std::path::Path;
use std::sync::LazyLock;

use wgslm::Result;
use wgslm::exec::{CpuExecutor, CpuOptions, GpuExecutor, GpuOptions, Limits, Numerics};
use wgslm::file::{Description, ModelFile};
use wgslm::gpu::{Choice, Device};
use wgslm::model::Model;

/// lavapipe.
struct Gpu;

impl runner::Device for Gpu {
    type Exec = GpuExecutor;
    const LONGEST: usize = 40;

    fn load(model: &Model, numerics: Numerics, limits: Limits) -> GpuExecutor {
        static DEVICE: LazyLock<Device> = LazyLock::new(|| {
            let choice = Choice { name: Some("llvmpipe".into()), default_limits: true, ..Choice::default() };
            pollster::block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"))
        });
        let options = GpuOptions { numerics, limits, unfused: false, keep_values: false };
        pollster::block_on(GpuExecutor::load(&DEVICE, &model.program, model, options, &mut |_, _| {})).unwrap()
    }

    fn poison(exec: &mut GpuExecutor) {
        exec.fill_cache(0x7fc0_7e00); // NaN as f32, and as two f16
    }
}

/// The CPU, with two threads wherever the tests run.
struct Cpu;

impl runner::Device for Cpu {
    type Exec = CpuExecutor;
    const LONGEST: usize = usize::MAX;

    fn load(model: &Model, numerics: Numerics, limits: Limits) -> CpuExecutor {
        let weights = pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap();
        let options = CpuOptions { threads: Some(2), numerics, ..CpuOptions::new(limits) };
        CpuExecutor::new(&model.program, weights.into(), options).unwrap()
    }

    fn poison(exec: &mut CpuExecutor) {
        exec.fill_caches(f32::NAN);
    }
}

/// The same test bodies on every device.
macro_rules! on_every_device {
    ($($module:ident::$test:ident,)*) => {
        mod cpu {
            $(#[test]
            fn $test() {
                super::$module::$test::<super::Cpu>();
            })*
        }
        mod gpu {
            $(#[test]
            fn $test() {
                super::$module::$test::<super::Gpu>();
            })*
        }
    };
}

on_every_device! {
    golden::tiny_models_match,
    golden::stories_match,
    smollm2::smollm2_matches,
}

/// Opens a model by its path.
fn open(path: &Path) -> Result<Model> {
    pollster::block_on(Model::open(ModelFile::open(path)?))
}

/// Opens the model of a folder with another `config.json`.
fn open_with_config(path: &Path, config: String) -> Result<Model> {
    let mut file = ModelFile::open(path)?;
    if let Description::Folder(texts) = &mut file.description {
        texts.insert("config.json".into(), config);
    }
    pollster::block_on(Model::open(file))
}

/// The folders of tiny models whose architecture is one of these, and the configurations that each has.
fn tiny_models(model_types: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(support::shared("tiny-models")).unwrap() {
        let path = entry.unwrap().path();
        let config = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        let Some(first) = config("config.json") else { continue };
        let json: serde_json::Value = serde_json::from_str(&first).unwrap();
        if model_types.contains(&json["model_type"].as_str().unwrap()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            all.push((name, [Some(first), config("config.hub.json")].into_iter().flatten().collect()));
        }
    }
    all.sort();
    all
}

#[test]
fn both_forms_of_a_configuration_give_the_same_program() {
    let mut opened = 0;
    for (name, configs) in tiny_models(&["llama", "gpt2"]) {
        let path = support::shared("tiny-models").join(&name);
        let models: Vec<_> = configs.into_iter().map(|config| open_with_config(&path, config).unwrap()).collect();
        for model in &models {
            assert_eq!(model.program, models[0].program, "{name}");
            opened += 1;
        }
    }
    assert_eq!(opened, 7, "the data is not all there");
}

#[test]
fn folders_and_gguf_files_give_the_same_program_up_to_their_layout() {
    let gguf = open(&support::shared("stories260K/stories260K.gguf")).unwrap();
    let folder = open(&support::shared("stories260K/hf-float32")).unwrap();
    assert_eq!(gguf.program.listing(), folder.program.listing());
    assert_eq!(gguf.program.weights, folder.program.weights);
    assert_eq!(gguf.program.ropes, folder.program.ropes);
    assert_eq!((gguf.arch, gguf.specials.bos, &gguf.specials.eos[..]), ("llama", Some(1), &[2][..]));
    assert_eq!((gguf.parameters, gguf.name.as_str()), (folder.parameters, "stories260K"));
}
