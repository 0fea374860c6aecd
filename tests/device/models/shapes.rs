//! Models of known shapes with random weights.

use wgslm::file::Shape;
use wgslm::model::Model;
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
