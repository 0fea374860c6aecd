//! Dot products with int8 activations, in every form that the CPU has: natively and in a browser.

use wgslm::quant::{BlockFormat, Q8, Simd};

use crate::programs::Rng;

/// Products of all formats are those of the rounded activations, and have the same bits in all forms; how many were compared.
pub fn products_are_those_of_the_rounded_activations() -> usize {
    let mut rng = Rng(11);
    let mut checked = 0;
    for &format in BlockFormat::ALL.iter().filter(|f| f.info().weights > 1) {
        let info = format.info();
        for blocks in [1, 2, 3, 4, 7, 16] {
            let k = blocks * info.weights;
            let sample = |rng: &mut Rng| (0..k).map(|_| rng.signed() + rng.signed() * rng.signed()).collect::<Vec<_>>();
            let (w, x) = (sample(&mut rng), sample(&mut rng));
            let mut row = vec![0; blocks * info.bytes];
            format.encode(&w, &mut row).unwrap();
            let mut decoded = vec![0.0; k];
            format.decode(&row, &mut decoded).unwrap();
            let mut q8 = vec![Q8::default(); k / 32];
            Q8::quantize(&x, &mut q8);
            let rounded = q8.iter().flat_map(|x| x.quants.map(|q| f64::from(x.scale) * f64::from(q)));
            let products: Vec<f64> = decoded.iter().zip(rounded).map(|(w, x)| f64::from(*w) * x).collect();
            let (exact, size) = (products.iter().sum::<f64>(), products.iter().map(|p| p.abs()).sum::<f64>());
            let portable = format.dot_q8(Simd::Portable, &row, &q8).unwrap();
            // A minimum is subtracted from larger sums, so the bound is wider than a half-unit a product.
            let bound = 3e-6 * size;
            assert!((f64::from(portable) - exact).abs() <= bound, "{} k = {k}: {portable} for {exact}", info.name);
            for simd in Simd::available() {
                let dot = format.dot_q8(simd, &row, &q8).unwrap();
                assert_eq!(dot.to_bits(), portable.to_bits(), "{} k = {k} {simd:?}", info.name);
                checked += 1;
            }
        }
    }
    assert_eq!(BlockFormat::F16.dot_q8(Simd::best(), &[0; 64], &[Q8::default()]), None);
    checked
}

/// Products of any bytes have the same bits in all forms.
pub fn forms_agree_on_any_bytes() {
    let mut rng = Rng(12);
    for &format in BlockFormat::ALL.iter().filter(|f| f.info().weights > 1) {
        let info = format.info();
        for blocks in 1..50 {
            let row: Vec<u8> = (0..blocks * info.bytes).map(|_| rng.word() as u8).collect();
            let x: Vec<f32> = (0..blocks * info.weights).map(|_| rng.signed()).collect();
            let mut q8 = vec![Q8::default(); x.len() / 32];
            Q8::quantize(&x, &mut q8);
            let portable = format.dot_q8(Simd::Portable, &row, &q8).unwrap();
            for simd in Simd::available() {
                let dot = format.dot_q8(simd, &row, &q8).unwrap();
                let same = dot.to_bits() == portable.to_bits() || dot.is_nan() && portable.is_nan();
                assert!(same, "{} {simd:?}: {dot} for {portable}", info.name);
            }
        }
    }
}
