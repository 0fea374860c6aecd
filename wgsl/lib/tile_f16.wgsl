//! tile_f16: tiles of W and x hold numbers of 16 bits, the nearest there are.
enable f16;
alias Held = vec4<f16>;

fn held(v: vec4<f32>) -> Held {
    return vec4<f16>(clamp_f16(v));
}
