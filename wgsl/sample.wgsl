//! sample: the best token of each part of a row of logits, by logit or by logit / temperature + Gumbel noise
//! logits (outs, vocab) f32 | best (outs, parts) score, token, broken, -
//! grid: x one workgroup for PART logits, y one output row
//! use: lib/step, lib/noise
override WG: u32 = 64u;
override PART: u32 = 2048u;  // logits to a workgroup
struct Params {
    vocab: u32,
    stride: u32,  // elements from a row of logits to the next
    parts: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> best: array<vec4<u32>>;
var<workgroup> score: array<f32, WG>;
var<workgroup> token: array<u32, WG>;
var<workgroup> broken: array<u32, WG>;

@compute @workgroup_size(WG)
fn sample(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let o = group.y;
    if o >= step[2] {
        return;
    }
    let inv_temperature = bitcast<f32>(out_word(o, 6u));
    let key = noise_key(out_word(o, 4u), out_word(o, 5u), out_word(o, 3u));
    var best_score = -3.0e38;
    var best_token = 0xffffffffu;
    var bad = 0u;
    for (var i = group.x * PART + lid; i < min((group.x + 1u) * PART, params.vocab); i += WG) {
        let logit = logits[o * params.stride + i];
        // Bits, not comparisons: a compiler may assume that there is no NaN.
        if (bitcast<u32>(logit) & 0x7f800000u) == 0x7f800000u {
            bad = 1u;
        }
        var s = logit;
        if inv_temperature != 0.0 {
            s = logit * inv_temperature + gumbel(key, i);
        }
        if s > best_score || best_token == 0xffffffffu {
            best_score = s;
            best_token = i;
        }
    }
    score[lid] = best_score;
    token[lid] = best_token;
    broken[lid] = bad;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h {
            let s = score[lid + h];
            let t = token[lid + h];
            if s > score[lid] || (s == score[lid] && t < token[lid]) {
                score[lid] = s;
                token[lid] = t;
            }
            broken[lid] |= broken[lid + h];
        }
        workgroupBarrier();
    }
    if lid == 0u {
        best[o * params.parts + group.x] = vec4<u32>(bitcast<u32>(score[0]), token[0], broken[0], 0u);
    }
}
