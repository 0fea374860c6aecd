//! sample_bins: how many tokens lie at each depth below the largest logit, or, where only their probability counts, their weights
//! logits (outs, vocab) f32 | bins (samples, BIN_WORDS): sums over the depths in the bin, of the lower bits and of the upper ones
//! grid: x one workgroup for PART logits, y one sample
//! use: lib/sample, lib/logit
//! source: radix select by histograms of integer atomics; fixed-point weights, whose sums do not depend on their order, our own
override WG: u32 = 64u;
override PART: u32 = 4096u;  // logits to a workgroup
@group(0) @binding(4) var<storage, read_write> bins: array<atomic<u32>>;
var<workgroup> sh_lower: array<atomic<u32>, 1024>;
var<workgroup> sh_upper: array<atomic<u32>, 1024>;

@compute @workgroup_size(WG)
fn sample_bins(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.y;
    let o = sample_word(d, OUT);
    let flags = sample_word(d, FLAGS);
    if (flags & BINNED) == 0u {
        return;
    }
    for (var b = lid; b < BINS; b += WG) {
        atomicStore(&sh_lower[b], 0u);
        atomicStore(&sh_upper[b], 0u);
    }
    workgroupBarrier();
    let largest = unorder(atomicLoad(&bins[d * BIN_WORDS + 1u]));
    let scale = sample_f32(d, DEPTH_SCALE);
    let counted = sample_word(d, TOP_K) != 0u;
    for (var i = group.x * PART + lid; i < min((group.x + 1u) * PART, params.vocab); i += WG) {
        if !allowed(d, flags, i) {
            continue;
        }
        let e = depth(largest, logit_of(d, o, flags, i), scale);
        if counted {
            atomicAdd(&sh_lower[e >> 11u], 1u);
        } else {
            let w = weight(e);
            atomicAdd(&sh_lower[e >> 11u], w & LOWER);
            atomicAdd(&sh_upper[e >> 11u], w >> LOWER_BITS);
        }
    }
    workgroupBarrier();
    for (var b = lid; b < BINS; b += WG) {
        let l = atomicLoad(&sh_lower[b]);
        let u = atomicLoad(&sh_upper[b]);
        if l != 0u {
            atomicAdd(&bins[d * BIN_WORDS + 4u + b], l);
        }
        if u != 0u {
            atomicAdd(&bins[d * BIN_WORDS + 4u + BINS + b], u);
        }
    }
}
