//! f16: f32 clamped to the range of f16.

/// Infinite, or NaN.
fn is_non_finite(v: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) >= vec4<u32>(0x7f800000u);
}

/// Clamps to ±65504, the largest f16. Infinities and NaN stay as they are.
fn clamp_f16(v: vec4<f32>) -> vec4<f32> {
    return select(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)), v, is_non_finite(v));
}
