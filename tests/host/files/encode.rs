//! Encoders against ggml's, by the error that they leave.

use wgslm::quant::BlockFormat;

use wgslm_test::Rng;

/// Root mean squares of what ggml's encoders leave, of weights around 0 with deviation 1 and of the same with every 61st
/// twelve times as large: `ggml_quantize_chunk(type, x, out, 0, 64, 512, NULL)` of the `libggml-base.so` in npm's
/// `@node-llama-cpp/linux-x64` 3.22.1 called through ctypes on [`weights`], then gguf-py 0.19.0's `dequantize`.
const GGML: &[(BlockFormat, f64, f64)] = &[
    (BlockFormat::Q8_0, 5.264664e-3, 1.982624e-2),
    (BlockFormat::Q4_0, 8.493609e-2, 3.002058e-1),
    (BlockFormat::Q4_1, 7.702538e-2, 1.912723e-1),
    (BlockFormat::Q5_0, 4.216382e-2, 1.539542e-1),
    (BlockFormat::Q5_1, 3.746228e-2, 9.302828e-2),
    (BlockFormat::Q2_K, 2.935020e-1, 5.592868e-1),
    (BlockFormat::Q3_K, 1.494060e-1, 3.530758e-1),
    (BlockFormat::Q4_K, 7.030992e-2, 1.784662e-1),
    (BlockFormat::Q5_K, 3.561445e-2, 9.038077e-2),
    (BlockFormat::Q6_K, 1.747497e-2, 5.585268e-2),
    (BlockFormat::IQ4_NL, 7.510710e-2, 2.283185e-1),
    (BlockFormat::IQ4_XS, 7.567301e-2, 2.311955e-1),
    (BlockFormat::MXFP4, 1.143924e-1, 3.143884e-1),
];

/// Sums of twelve even samples, which every language adds to the same bits; some of them outliers.
fn weights(outliers: bool) -> Vec<f32> {
    let mut rng = Rng(7);
    let mut sample = |i: usize| {
        let normal = (0..12).map(|_| f64::from(rng.signed())).sum::<f64>() / 2.0;
        (if outliers && i.is_multiple_of(61) { normal * 12.0 } else { normal }) as f32
    };
    (0..64 * 512).map(&mut sample).collect()
}

/// The root mean square of what encoding changes.
fn rmse(format: BlockFormat, weights: &[f32]) -> f64 {
    let mut blocks = vec![0; format.row_bytes(weights.len() as u64).unwrap() as usize];
    format.encode(weights, &mut blocks).unwrap();
    let mut decoded = vec![0.0; weights.len()];
    format.decode(&blocks, &mut decoded).unwrap();
    let squares: f64 = weights.iter().zip(&decoded).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    (squares / weights.len() as f64).sqrt()
}

#[test]
fn encoding_loses_no_more_than_in_ggml() {
    let (normal, outliers) = (weights(false), weights(true));
    for &format in BlockFormat::ALL.iter().filter(|f| f.info().weights > 1) {
        let (_, ggml_normal, ggml_outliers) =
            GGML.iter().find(|(f, ..)| *f == format).unwrap_or_else(|| panic!("{}: its errors", format.name()));
        for (kind, weights, ggml) in [("normal", &normal, ggml_normal), ("outliers", &outliers, ggml_outliers)] {
            let error = rmse(format, weights);
            println!(
                "{:7} {kind:8} {error:.6e}, ggml {ggml:.6e}: {:+.2} %",
                format.name(),
                (error / ggml - 1.0) * 100.0
            );
            assert!(error <= ggml * 1.02, "{} {kind}: {error:e}, ggml leaves {ggml:e}", format.name());
        }
    }
}

#[test]
fn blocks_that_fit_a_format_are_kept() {
    // Zeros, and single values: what a search over steps must not spoil.
    for &format in BlockFormat::ALL {
        let k = format.info().weights.max(32);
        assert_eq!(rmse(format, &vec![0.0; k]), 0.0, "{}", format.name());
        for value in [1.0, -3.0] {
            let error = rmse(format, &vec![value; k]);
            assert!(error < 0.01, "{} of {value}: {error}", format.name());
        }
    }
}
