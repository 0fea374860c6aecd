//! Block formats against `tests/data/dequant`, which gguf-py has made: it agrees with ggml bit for bit.

use wgslm::file::ModelFile;
use wgslm::quant::BlockFormat;

use super::{bytes, f32s};
use wgslm_test::{Rng, data, data_f32, data_json};

#[test]
fn blocks_decode_bit_for_bit_and_dot_products_agree() {
    let model = ModelFile::open(&data("dequant/quant-types.gguf")).unwrap();
    let mut checked = 0;
    for case in data_json("dequant/index.json").as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let number = |key: &str| case[key].as_u64().unwrap();
        let tensor = model.tensor(text("tensor")).unwrap();
        assert_eq!((tensor.ty.name(), &tensor.shape[..]), (text("type"), &[number("rows"), number("cols")][..]));
        let Some(format) = BlockFormat::from_ggml(number("ggml_type") as u32) else { continue };
        checked += 1;

        let expected = data_f32(&format!("dequant/{}", text("f32")));
        let decoded = f32s(&model, &tensor.name);
        assert_eq!(expected.len(), decoded.len());
        assert!(expected.iter().zip(&decoded).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", text("type"));

        let x = data_f32(&format!("dequant/{}", text("vec")));
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
    assert!(checked >= 13, "{checked} formats checked");
}

/// FNV-1a over the bits of what gguf-py 0.19.0's `dequantize` and ggml's `dequantize_row_*` make of 64 blocks whose bytes are
/// the lowest of SplitMix64's numbers from seed 9, every NaN as 7fc00000.
const HASHES: &[(BlockFormat, u64)] = &[
    (BlockFormat::Q8_0, 0x6a332d4c32b8a4a5),
    (BlockFormat::Q4_0, 0x14358a87882a1725),
    (BlockFormat::Q4_1, 0x432a15d77815fd27),
    (BlockFormat::Q5_0, 0x23239457d873bf25),
    (BlockFormat::Q5_1, 0x188372228accf2cb),
    (BlockFormat::Q2_K, 0xb05ad459a6360c29),
    (BlockFormat::Q3_K, 0xacd80a6ec77bec65),
    (BlockFormat::Q4_K, 0x204b9f2ce202374b),
    (BlockFormat::Q5_K, 0xae2cd651a78d41cf),
    (BlockFormat::Q6_K, 0x2f3418c458db5505),
    (BlockFormat::IQ4_NL, 0x2c0f55f104361765),
    (BlockFormat::IQ4_XS, 0xce7bcf7857c1bdcf),
    (BlockFormat::MXFP4, 0x26b84fece48ec325),
];

#[test]
fn any_bytes_decode_as_in_ggml() {
    for &format in BlockFormat::ALL.iter().filter(|f| f.info().weights > 1) {
        let mut rng = Rng(9);
        let bytes: Vec<u8> = (0..64 * format.info().bytes).map(|_| rng.word() as u8).collect();
        let mut decoded = vec![0.0; 64 * format.info().weights];
        format.decode(&bytes, &mut decoded).unwrap();
        let hash = decoded.iter().fold(0xcbf29ce484222325, |hash: u64, w| {
            let bits = if w.is_nan() { 0x7fc0_0000 } else { w.to_bits() };
            (hash ^ u64::from(bits)).wrapping_mul(0x100000001b3)
        });
        let expected = HASHES.iter().find(|(f, _)| *f == format).unwrap_or_else(|| panic!("{}: a hash", format.name()));
        assert_eq!(hash, expected.1, "{}", format.name());
    }
}

#[test]
fn dot_products_agree_between_formats() {
    let mut rng = Rng(1);
    for k in [1u64, 2, 31, 32, 33, 63, 64, 65, 256, 257, 768, 1000] {
        let x: Vec<f32> = (0..k).map(|_| rng.signed()).collect();
        let w: Vec<f32> = (0..k).map(|_| rng.signed()).collect();
        for &format in BlockFormat::ALL.iter().filter(|f| k.is_multiple_of(f.info().weights as u64)) {
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
