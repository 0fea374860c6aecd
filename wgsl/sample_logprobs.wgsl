//! sample_logprobs: ln of the probability of the sampled token and of the most likely ones: logit - ln(sum of e^logit)
//! top (samples, parts, TOPS), result (samples) | logprobs (samples, TOPS): the sampled token and its ln p f32, then those of the most likely ones
//! grid: x one workgroup a sample
//! use: lib/sample, lib/noise, lib/top
//! source: our own
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> samples: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read> top: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> result: array<u32>;
@group(0) @binding(5) var<storage, read_write> logprobs: array<vec2<u32>>;

@compute @workgroup_size(WG)
fn sample_logprobs(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.x;
    let wanted = sample_word(d, TOP);
    if wanted == 0u {
        return;
    }
    let own = max(wanted, 2u) - 1u;  // tokens that each part lists
    var last = vec2<u32>(0xffffffffu, 0u);
    var largest = 0.0;
    var rest = 0.0;  // ln(sum of e^(logit - largest))
    for (var n = 0u; n < own; n++) {
        var next = NOTHING;
        for (var i = lid; i < params.parts * own; i += WG) {
            let candidate = top[(d * params.parts + i / own) * TOPS + 1u + i % own];
            if precedes(last, candidate) && precedes(candidate, next) {
                next = candidate;
            }
        }
        last = wg_first(next, lid);
        if n == 0u {
            largest = unorder(last.x);
            var sum = 0.0;
            for (var part = lid; part < params.parts; part += WG) {
                let at = (d * params.parts + part) * TOPS;
                sum += bitcast<f32>(top[at].x) * exp(unorder(top[at + 1u].x) - largest);
            }
            rest = ln(wg_total(sum, lid));
        }
        if lid == 0u && n + 1u < wanted {
            logprobs[d * TOPS + 1u + n] = vec2<u32>(last.y, bitcast<u32>(unorder(last.x) - largest - rest));
        }
    }
    if lid == 0u {
        let token = result[d];
        let x = logits[sample_word(d, OUT) * params.stride + min(token, params.vocab - 1u)];
        logprobs[d * TOPS] = vec2<u32>(token, bitcast<u32>(x - largest - rest));
    }
}
