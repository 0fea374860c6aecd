//! sample: the best token of each part of a row of logits: by logit / temperature + Gumbel noise, or by logit if greedy or filtered
//! logits (outs, vocab) f32 | best (samples, parts): score, token, broken, - | bins (samples): the order of the largest logit
//! grid: x one workgroup for PART logits, y one sample
//! use: lib/sample, lib/logit, lib/noise, lib/best
//! source: the Gumbel-max trick (Gumbel 1954)
override PART: u32 = 4096u;  // logits to a workgroup
@group(0) @binding(4) var<storage, read_write> best: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> bins: array<atomic<u32>>;

@compute @workgroup_size(WG)
fn sample(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.y;
    let o = sample_word(d, OUT);
    let flags = sample_word(d, FLAGS);
    let filtered = (flags & FILTERED) != 0u;
    let inv_temperature = select(sample_f32(d, INV_TEMPERATURE), 0.0, filtered);
    let key = noise_key(sample_word(d, SEED), sample_word(d, SEED + 1u), sample_word(d, POS));
    var best_score = -3.0e38;
    var best_token = NO_TOKEN;
    var bad = 0u;
    for (var i = group.x * PART + lid; i < min((group.x + 1u) * PART, params.vocab); i += WG) {
        // By bits, not comparisons: a compiler may assume that there is no NaN.
        if (bitcast<u32>(logits[o * params.stride + i]) & 0x7f800000u) == 0x7f800000u {
            bad = 1u;
        }
        if !allowed(d, flags, i) {
            continue;
        }
        var s = logit_of(d, o, flags, i);
        if inv_temperature != 0.0 {
            s = tempered(s, inv_temperature) + gumbel(key, i);
        }
        if s > best_score || best_token == NO_TOKEN {
            best_score = s;
            best_token = i;
        }
    }
    wg_best(best_score, best_token, bad, lid);
    if lid == 0u {
        best[d * params.parts + group.x] = vec4<u32>(bitcast<u32>(sh_score[0]), sh_token[0], sh_broken[0], 0u);
        if filtered && sh_token[0] != NO_TOKEN {
            atomicMax(&bins[d * BIN_WORDS + 1u], order(sh_score[0]));
        }
    }
}
