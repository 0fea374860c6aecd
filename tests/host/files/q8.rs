//! Dot products with int8 activations.

use wgslm::quant::{Q8, Simd};

use wgslm_test::int8;

#[test]
fn activations_are_rounded_to_int8() {
    let x: Vec<f32> = (0..64).map(|i| (i - 20) as f32 / if i < 32 { 1.0 } else { 7.0 }).collect();
    let mut out = [Q8::default(); 2];
    Q8::quantize(&x, &mut out);
    for (x, q8) in x.chunks(32).zip(&out) {
        let max = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        assert_eq!(q8.scale, max / 127.0);
        for (x, q) in x.iter().zip(q8.quants) {
            assert!((x - q8.scale * f32::from(q)).abs() <= 0.5001 * q8.scale);
        }
        let sum = |half: &[i8]| half.iter().map(|q| i32::from(*q)).sum::<i32>() as f32 * q8.scale;
        assert_eq!(q8.sum, sum(&q8.quants));
    }
    // What is not finite must stay visible, and nothing is 0.
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut out = [Q8::default()];
        Q8::quantize(&std::array::from_fn::<_, 32, _>(|i| if i == 3 { bad } else { 1.0 }), &mut out);
        assert!(!out[0].scale.is_finite(), "{bad}");
    }
    let mut out = [Q8::default()];
    Q8::quantize(&[0.0; 32], &mut out);
    assert_eq!(out[0], Q8::default());
}

#[test]
fn integer_dot_products_are_those_of_the_rounded_activations() {
    let checked = int8::products_are_those_of_the_rounded_activations();
    println!("{checked} products in {:?}", Simd::available());
}

#[test]
fn forms_agree_on_any_bytes() {
    int8::forms_agree_on_any_bytes();
}
