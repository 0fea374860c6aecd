//! half: what f16 holds of f32.

/// f16 has no numbers above 65504. What is not finite stays so.
fn within(v: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) < vec4<u32>(0x7f800000u);
    return select(v, clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)), finite);
}
