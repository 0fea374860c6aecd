//! Block formats against `data/dequant`, which agrees with ggml bit for bit.

use wgslm::file::ModelFile;
use wgslm::quant::BlockFormat;

use super::support::{Rng, shared, shared_f32, shared_json};
use super::{bytes, f32s};

#[test]
fn blocks_decode_bit_for_bit_and_dot_products_agree() {
    let model = ModelFile::open(&shared("dequant/quant-types.gguf")).unwrap();
    let mut checked = 0;
    for case in shared_json("dequant/index.json").as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let number = |key: &str| case[key].as_u64().unwrap();
        let tensor = model.tensor(text("tensor")).unwrap();
        assert_eq!((tensor.ty.name(), &tensor.shape[..]), (text("type"), &[number("rows"), number("cols")][..]));
        let Some(format) = BlockFormat::from_ggml(number("ggml_type") as u32) else { continue };
        checked += 1;

        let expected = shared_f32(&format!("dequant/{}", text("f32")));
        let decoded = f32s(&model, &tensor.name);
        assert_eq!(expected.len(), decoded.len());
        assert!(expected.iter().zip(&decoded).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", text("type"));

        let x = shared_f32(&format!("dequant/{}", text("vec")));
        let stored = bytes(&model, &tensor.name, 0..tensor.bytes);
        let row_bytes = format.row_bytes(number("cols")).unwrap() as usize;
        for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
            let weights = &decoded[r * x.len()..][..x.len()];
            let dot = format.dot(row, &x);
            let exact = case["matvec_f64"][r].as_f64().unwrap();
            // A sum of n products in f32 is off by less than (n/32 + 6) half-units of the sum of their sizes.
            let size: f64 = weights.iter().zip(&x).map(|(w, x)| f64::from(w * x).abs()).sum();
            assert!((f64::from(dot) - exact).abs() < 22.0 * 6e-8 * size, "{}: {dot} for {exact}", text("type"));
            // The same bits as over the decoded row.
            let as_f32: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
            assert_eq!(dot.to_bits(), BlockFormat::F32.dot(&as_f32, &x).to_bits());
        }
    }
    assert!(checked >= 2, "{checked} formats checked");
}

#[test]
fn dot_products_of_odd_lengths_agree_between_formats() {
    let mut rng = Rng(1);
    for k in [1, 2, 31, 32, 33, 63, 64, 65, 257, 1000] {
        let x: Vec<f32> = (0..k).map(|_| rng.signed()).collect();
        let w: Vec<f32> = (0..k).map(|_| rng.signed()).collect();
        for format in [BlockFormat::F16, BlockFormat::BF16, BlockFormat::F32] {
            let mut row = vec![0; format.row_bytes(k).unwrap() as usize];
            format.encode(&w, &mut row).unwrap();
            let mut decoded = vec![0.0; k as usize];
            format.decode(&row, &mut decoded).unwrap();
            let exact: f64 = decoded.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let dot = format.dot(&row, &x);
            assert!((f64::from(dot) - exact).abs() < 1e-6 * k as f64, "{} k = {k}: {dot} for {exact}", format.name());
            let as_f32: Vec<u8> = decoded.iter().flat_map(|w| w.to_le_bytes()).collect();
            assert_eq!(dot.to_bits(), BlockFormat::F32.dot(&as_f32, &x).to_bits());
        }
    }
}
