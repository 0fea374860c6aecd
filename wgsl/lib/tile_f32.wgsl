//! tile_f32: tiles of W and x hold numbers of 32 bits, as they are.
alias Held = vec4<f32>;

fn held(v: vec4<f32>) -> Held {
    return v;
}
