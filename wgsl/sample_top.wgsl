//! sample_top: of each part of a row of logits, the most likely tokens, and the sum of e^(logit - largest), for samples that ask for probabilities
//! logits (outs, vocab) f32 | top (samples, parts, TOPS): sum f32, -, then (order of the logit, token)
//! grid: x one workgroup for PART logits, y one sample
//! use: lib/sample, lib/top
//! source: our own
override PART: u32 = 4096u;  // logits to a workgroup
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> samples: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> top: array<vec2<u32>>;

@compute @workgroup_size(WG)
fn sample_top(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.y;
    let wanted = sample_word(d, TOP);
    if wanted == 0u {
        return;
    }
    let row = sample_word(d, OUT) * params.stride;
    let end = min((group.x + 1u) * PART, params.vocab);
    let at = (d * params.parts + group.x) * TOPS;
    var last = vec2<u32>(0xffffffffu, 0u);
    var largest = 0.0;
    for (var n = 0u; n < max(wanted, 2u) - 1u; n++) {
        var next = NOTHING;
        for (var i = group.x * PART + lid; i < end; i += WG) {
            let candidate = vec2<u32>(order(logits[row + i]), i);
            if precedes(last, candidate) && precedes(candidate, next) {
                next = candidate;
            }
        }
        last = wg_first(next, lid);
        if n == 0u {
            largest = unorder(last.x);
        }
        if lid == 0u {
            top[at + 1u + n] = last;
        }
    }
    var sum = 0.0;
    for (var i = group.x * PART + lid; i < end; i += WG) {
        sum += exp(logits[row + i] - largest);
    }
    sum = wg_total(sum, lid);
    if lid == 0u {
        top[at] = vec2<u32>(bitcast<u32>(sum), 0u);
    }
}
