//! Models of known shapes with random weights.

use wgslm::file::Shape;
use wgslm::model::{KnownShape, Model};
use wgslm::quant::mix::FILE_TYPES;

/// Every shape opens in every type, with as many parameters as the model that it is named after. No weight is read.
#[test]
fn every_shape_is_a_model() {
    let parameters = [
        ("tiny", 1_312_000),
        ("160M", 124_668_672),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Qwen3-0.6B", 596_049_920),
        ("Llama-3-8B", 8_030_261_248),
        ("Qwen3-30B-A3B", 30_532_122_624),
    ];
    assert_eq!(parameters.len(), Shape::ALL.len());
    for (name, parameters) in parameters {
        let shape: Shape = name.parse().unwrap();
        for to in FILE_TYPES {
            let model = pollster::block_on(Model::open(shape.model_file(*to, 1).unwrap())).unwrap();
            assert_eq!(model.parameters, parameters, "{name}");
            if name == "Qwen3-30B-A3B" {
                break; // the program of 18,432 matrices once is enough
            }
        }
    }
}

/// An ordinary model of every kind of layer opens, as the architecture that it is named for; GPT-2's folder, which leaves the
/// feed-forward length to be computed, becomes a file that states it.
#[test]
fn every_kind_is_a_model() {
    let kinds = [
        ("moe", "qwen3_moe", 0),
        ("latent", "deepseek_v3", 0),
        ("hybrid", "granitemoehybrid", 2048),
        ("delta", "qwen3_next", 0),
        ("recurrent", "mamba2", 0),
        ("windows", "gemma3_text", 2048),
        ("sinks", "gpt_oss", 0),
        ("learned-positions", "gpt2", 3072),
        ("encoder", "bert", 1536),
    ];
    assert_eq!(KnownShape::all().count(), Shape::ALL.len() + kinds.len());
    for (name, arch, inside) in kinds {
        let shape: KnownShape = name.parse().unwrap();
        for to in ["Q4_K_M", "F16"] {
            let file = pollster::block_on(shape.model_file(to.parse().unwrap(), 1)).unwrap();
            let meta = file.gguf().unwrap();
            let prefix = meta.get::<&str>("general.architecture").unwrap().unwrap().to_owned();
            if inside > 0 {
                let length = meta.get::<u32>(&format!("{prefix}.feed_forward_length")).unwrap();
                assert_eq!(length, Some(inside), "{name}");
            }
            let model = pollster::block_on(Model::open(file)).unwrap();
            assert_eq!(model.arch, arch, "{name}");
            assert!((10_000_000..400_000_000).contains(&model.parameters), "{name}: {}", model.parameters);
        }
    }
    assert!("none".parse::<KnownShape>().unwrap_err().to_string().contains("learned-positions"));
}
