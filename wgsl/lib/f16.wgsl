//! f16: what f16 holds of f32.

/// Infinite, or NaN.
fn is_non_finite(v: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) >= vec4<u32>(0x7f800000u);
}

/// f16 has no numbers above 65504. What is broken stays so.
fn clamp_f16(v: vec4<f32>) -> vec4<f32> {
    return select(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)), v, is_non_finite(v));
}
