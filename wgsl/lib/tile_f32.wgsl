//! tile_f32: tiles of W and x hold f32, as they are.
alias Held = vec4<f32>;

fn held(v: vec4<f32>) -> Held {
    return v;
}
