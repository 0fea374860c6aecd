//! sample_merge: the best token of a row, from those of its parts; kept for the sequence's next step
//! best (outs, parts) | drawn (slots): the token drawn last | result (outs): token, or 0xffffffff where logits are not finite
//! grid: x one thread for an output row
//! use: lib/step
override WG: u32 = 64u;
struct Params {
    parts: u32,
    slots: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> best: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> drawn: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(WG)
fn sample_merge(@builtin(global_invocation_id) id: vec3<u32>) {
    let o = id.x;
    if o >= step[2] {
        return;
    }
    var chosen = best[o * params.parts];
    for (var i = 1u; i < params.parts; i++) {
        let next = best[o * params.parts + i];
        // Parts are in the order of their tokens: a tie stays with the lower.
        if bitcast<f32>(next.x) > bitcast<f32>(chosen.x) {
            chosen = vec4<u32>(next.x, next.y, chosen.z, 0u);
        }
        chosen.z |= next.z;
    }
    let token = select(chosen.y, 0xffffffffu, chosen.z != 0u);
    result[o] = token;
    if out_word(o, 2u) != 0u {
        drawn[min(out_word(o, 1u), params.slots - 1u)] = select(token, 0u, chosen.z != 0u);
    }
}
