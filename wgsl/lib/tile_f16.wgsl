//! tile_f16: tiles of W and x hold f16, clamped to its range.
enable f16;
alias Held = vec4<f16>;

fn held(v: vec4<f32>) -> Held {
    return vec4<f16>(clamp_f16(v));
}
