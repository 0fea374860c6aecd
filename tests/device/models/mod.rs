//! Models: every file that is sound gives the logits of its reference, every other is refused by name.

mod as_gguf;
mod compatibility;
mod configurations;
mod encoders;
mod experts;
mod forms;
mod golden;
mod hostile;
mod mutations;
mod real;
mod runner;
mod serving;
mod shapes;
mod sharing;
mod turns;

use std::path::Path;
use std::sync::LazyLock;

use wgslm::Result;
use wgslm::exec::{CpuExecutor, CpuOptions, GpuExecutor, GpuOptions, Limits, Numerics};
use wgslm::file::{Bytes, Description, ModelFile};
use wgslm::gpu::{Choice, Device};
use wgslm::model::Model;
use wgslm_test::adapter;

/// lavapipe, or the adapter that is requested.
struct Gpu;

impl runner::Device for Gpu {
    type Exec = GpuExecutor;
    const LONGEST: usize = 40;
    const LACKS_KERNELS: bool = true;

    fn load(model: &Model, numerics: Numerics, limits: Limits) -> Result<GpuExecutor> {
        static DEVICE: LazyLock<Device> = LazyLock::new(|| {
            let name = adapter::requested().unwrap_or_else(|| "llvmpipe".into());
            let choice = Choice { name: Some(name), default_limits: true, ..Choice::default() };
            pollster::block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"))
        });
        let options = GpuOptions { numerics, kv: None, limits, unfused: false, keep_values: false };
        pollster::block_on(GpuExecutor::load(&DEVICE, &model.program, model, options, &mut |_, _| {}))
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
    const LACKS_KERNELS: bool = false;

    fn load(model: &Model, numerics: Numerics, limits: Limits) -> Result<CpuExecutor> {
        let weights = pollster::block_on(model.cpu_weights(&mut |_, _| {})).unwrap();
        let options = CpuOptions { threads: Some(2), numerics, ..CpuOptions::new(limits) };
        CpuExecutor::new(&model.program, weights.into(), options)
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
    real::smollm2_matches,
    sharing::exact_requests_have_the_same_bits,
    sharing::answers_are_replayed,
    serving::who_lets_go_costs_nobody,
}

/// On a software adapter these take many minutes.
#[test]
fn gemma_3_matches_on_the_cpu() {
    real::gemma3_matches::<Cpu>();
}

#[test]
fn likelihoods_match_on_the_cpu() {
    real::likelihoods_match::<Cpu>();
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

/// The folders of tiny models, and the configurations that each has. Those of architectures that are not there yet are
/// listed in `golden`.
fn tiny_models() -> Vec<(String, Vec<String>)> {
    let known: Vec<_> = wgslm::model::architectures().flatten().copied().collect();
    let mut all = Vec::new();
    for entry in std::fs::read_dir(wgslm_test::data("tiny-models")).unwrap() {
        let path = entry.unwrap().path();
        let config = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        let Some(first) = config("config.json") else { continue };
        let json: serde_json::Value = serde_json::from_str(&first).unwrap();
        if known.contains(&json["model_type"].as_str().unwrap()) {
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
    for (name, configs) in tiny_models() {
        let path = wgslm_test::data("tiny-models").join(&name);
        let models: Vec<_> = configs.into_iter().map(|config| open_with_config(&path, config).unwrap()).collect();
        for model in &models {
            assert_eq!(model.program, models[0].program, "{name}");
            opened += 1;
        }
    }
    assert!(opened >= 7, "the data is not all there");
}

#[test]
fn folders_and_gguf_files_give_the_same_program_up_to_their_layout() {
    let gguf = open(&wgslm_test::data("stories/stories.gguf")).unwrap();
    let folder = open(&wgslm_test::data("stories/hf-float32")).unwrap();
    assert_eq!(gguf.program.listing(), folder.program.listing());
    assert_eq!(gguf.program.weights, folder.program.weights);
    assert_eq!(gguf.program.ropes, folder.program.ropes);
    assert_eq!((gguf.arch, gguf.specials.bos, &gguf.specials.eos[..]), ("llama", Some(1), &[2][..]));
    assert_eq!((gguf.parameters, gguf.name.as_str()), (folder.parameters, "stories"));
}

/// Published folders of several parts have the language model's configuration inside, and leave out what has a default.
#[test]
fn a_language_model_among_others_is_found_in_its_part_of_the_configuration() {
    let path = wgslm_test::data("tiny-models/gemma3-local-global");
    let mut text = wgslm_test::data_json("tiny-models/gemma3-local-global/config.json");
    let whole = open_with_config(&path, text.to_string()).unwrap();
    text.as_object_mut().unwrap().remove("rms_norm_eps").unwrap();
    let config = serde_json::json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 7}});
    let inside = open_with_config(&path, config.to_string()).unwrap();
    assert_eq!(inside.program, whole.program);
}

/// Ministral 3 without attention temperature scaling is Mistral; with it, queries grow with the position.
#[test]
fn queries_grow_by_steps_of_the_original_context() {
    let path = wgslm_test::data("tiny-models/mistral-window");
    let mut config = wgslm_test::data_json("tiny-models/mistral-window/config.json");
    let mistral = open_with_config(&path, config.to_string()).unwrap();
    config["model_type"] = "ministral3".into();
    let rope = serde_json::json!({"rope_theta": 10000.0, "rope_type": "default"});
    config["rope_parameters"] = rope;
    let ministral = open_with_config(&path, config.to_string()).unwrap();
    let values = |model: &Model| golden::logits_of(model, &[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]);
    assert_eq!(values(&ministral), values(&mistral));

    config["rope_parameters"]["llama_4_scaling_beta"] = 0.5.into();
    config["rope_parameters"]["original_max_position_embeddings"] = 4.into();
    let growing = open_with_config(&path, config.to_string()).unwrap();
    let (plain, grown) = (values(&ministral), values(&growing));
    let vocab = growing.program.vocab as usize;
    assert_eq!(plain[..4 * vocab], grown[..4 * vocab], "the first four positions are as they were");
    assert!(plain[4 * vocab..5 * vocab].iter().zip(&grown[4 * vocab..]).any(|(a, b)| (a - b).abs() > 1e-3));
    let table = growing.program.ropes.iter().find(|rope| rope.temperature_scaling.is_some()).unwrap();
    assert!((table.factor(3) - 1.0).abs() < 1e-9 && (table.factor(9) - (1.0 + 0.5 * 3f64.ln())).abs() < 1e-6);
}

/// The tensors of a folder under other names, as bytes: every `from` that a name holds is replaced.
fn renamed(folder: &str, from: &str, to: &str) -> Vec<u8> {
    let bytes = wgslm_test::data_bytes(&format!("tiny-models/{folder}/model.safetensors"));
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header = std::str::from_utf8(header).unwrap().replace(&format!("\"{from}"), &format!("\"{to}"));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Opens the bytes of a safetensors file with text files beside it.
fn open_safetensors(bytes: Vec<u8>, texts: &[(&str, String)]) -> Result<Model> {
    let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect();
    let source = Bytes::new("here/model.safetensors", bytes);
    pollster::block_on(async { Model::open(ModelFile::open_safetensors(texts, vec![Box::new(source)]).await?).await })
}

#[test]
fn tensors_are_found_with_and_without_prefixes() {
    for (folder, from, to) in [
        ("gpt2-odd", "transformer.", ""),
        ("gpt2-odd", "transformer.", "model."),
        ("llama-mha-odd", "model.", ""),
        ("llama-mha-odd", "model.", "model.language_model."),
        ("llama-mha-odd", "model.", "language_model.model."),
        ("llama-mha-odd", "lm_head.", "language_model.lm_head."),
    ] {
        let path = wgslm_test::data("tiny-models").join(folder);
        let config = std::fs::read_to_string(path.join("config.json")).unwrap();
        let model = open_safetensors(renamed(folder, from, to), &[("config.json", config.clone())]).unwrap();
        assert_eq!(model.program, open(&path).unwrap().program, "{folder} with {to:?}");
        let error = open_safetensors(renamed(folder, from, "other."), &[("config.json", config)]).err().unwrap();
        assert!(error.to_string().contains("is missing"), "{error}");
    }
}

#[test]
fn a_folders_other_files_say_how_texts_end_and_chats_look() {
    let bytes = || renamed("llama-mha-odd", "", "");
    let mut config = wgslm_test::data_json("tiny-models/llama-mha-odd/config.json");
    let open = |config: &serde_json::Value, texts: &[(&'static str, &str)]| {
        let mut all = vec![("config.json", config.to_string())];
        all.extend(texts.iter().map(|(name, text)| (*name, (*text).to_owned())));
        open_safetensors(bytes(), &all)
    };
    let model = open(&config, &[]).unwrap();
    assert_eq!((model.specials.bos, &model.specials.eos[..], model.chat_template), (Some(1), &[2][..], None));
    assert_eq!((model.name.as_str(), model.parameters), ("here", 45800));

    let generation = ("generation_config.json", r#"{"eos_token_id": [5, 9]}"#);
    let model = open(&config, &[generation, ("tokenizer_config.json", r#"{"chat_template": "one"}"#)]).unwrap();
    assert_eq!((model.specials.bos, &model.specials.eos[..]), (Some(1), &[5, 9][..]));
    assert_eq!(model.chat_template.as_deref(), Some("one"));

    let several = r#"{"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]}"#;
    let model = open(&config, &[("tokenizer_config.json", several)]).unwrap();
    assert_eq!(model.chat_template.as_deref(), Some("b"));
    let model = open(&config, &[("tokenizer_config.json", several), ("chat_template.jinja", "file")]).unwrap();
    assert_eq!(model.chat_template.as_deref(), Some("file"));

    // A sign of padding that published folders have; what ends a text must exist.
    config["pad_token_id"] = (-1).into();
    assert!(open(&config, &[]).is_ok());
    for (key, value) in [("eos_token_id", 209.into()), ("bos_token_id", (-1).into()), ("eos_token_id", "2".into())] {
        let mut config = config.clone();
        config[key] = value;
        let error = open(&config, &[]).err().unwrap().to_string();
        assert!(error.contains(key), "{error}");
    }
}
