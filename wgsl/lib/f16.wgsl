//! f16: f32 clamped to the range of f16.

// As bits: compilers may take for granted that no float is NaN.
const NON_FINITE: u32 = 0x7f800000u;

/// The largest of four numbers without their signs, as bits: at least NON_FINITE where one is infinite or NaN.
fn magnitude(v: vec4<f32>) -> u32 {
    let b = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(b.x, b.y), max(b.z, b.w));
}

/// Infinite, or NaN.
fn is_non_finite(v: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) >= vec4<u32>(NON_FINITE);
}

/// Clamps to ±65504, the largest f16. Infinities and NaN stay as they are.
fn clamp_f16(v: vec4<f32>) -> vec4<f32> {
    return select(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)), v, is_non_finite(v));
}
