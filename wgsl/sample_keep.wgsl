//! sample_keep: lists the tokens that top-k, top-p and min-p may keep: all whose depth lies in a bin up to the one where the goal is reached
//! logits (outs, vocab) f32 | bins (samples, BIN_WORDS): word 0 counts the tokens | kept (samples, vocab): tokens, in no order
//! grid: x one workgroup for PART logits, y one sample
//! use: lib/sample, lib/logit
//! source: as sample_bins
override WG: u32 = 64u;
override PART: u32 = 4096u;  // logits to a workgroup
@group(0) @binding(4) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> kept: array<u32>;
var<workgroup> sh_sums: array<vec2<u32>, WG>;
var<workgroup> sh_last: u32;

// The sum of a bin.
fn bin(d: u32, b: u32) -> vec2<u32> {
    let at = d * BIN_WORDS + 4u + b;
    return wide(atomicLoad(&bins[at]), atomicLoad(&bins[at + BINS]));
}

@compute @workgroup_size(WG)
fn sample_keep(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.y;
    let o = sample_word(d, OUT);
    let flags = sample_word(d, FLAGS);
    if (flags & FILTERED) == 0u {
        return;
    }
    let top_k = sample_word(d, TOP_K);
    let top_p = sample_word(d, TOP_P);
    // The bins of the first tokens that reach the goal: each workgroup finds them for itself.
    let own = BINS / WG;
    var sum = vec2<u32>(0u);
    for (var b = lid * own; b < (lid + 1u) * own; b++) {
        sum = add(sum, bin(d, b));
    }
    sh_sums[lid] = sum;
    workgroupBarrier();
    if lid == 0u {
        var goal = vec2<u32>(top_k, 0u);
        if top_k == 0u {
            var total = vec2<u32>(0u);
            for (var i = 0u; i < WG; i++) {
                total = add(total, sh_sums[i]);
            }
            goal = share(total, top_p);
        }
        var reached = vec2<u32>(0u);
        var chunk = 0u;
        while chunk < WG && less(add(reached, sh_sums[chunk]), goal) {
            reached = add(reached, sh_sums[chunk]);
            chunk++;
        }
        var b = chunk * own;
        while b < BINS && less(add(reached, bin(d, b)), goal) {
            reached = add(reached, bin(d, b));
            b++;
        }
        sh_last = select(BINS, b, (flags & BINNED) != 0u);
    }
    workgroupBarrier();
    let largest = unorder(atomicLoad(&bins[d * BIN_WORDS + 1u]));
    let scale = sample_f32(d, DEPTH_SCALE);
    // Top-p after top-k is a share of what top-k keeps, whatever min-p drops afterwards.
    let deepest = select(sample_word(d, DEEPEST), 0xffffffffu, top_k != 0u && top_p < 65536u);
    for (var i = group.x * PART + lid; i < min((group.x + 1u) * PART, params.vocab); i += WG) {
        if !allowed(d, flags, i) {
            continue;
        }
        let e = depth(largest, logit_of(d, o, flags, i), scale);
        if e >> 11u <= sh_last && e <= deepest {
            kept[d * params.vocab + min(atomicAdd(&bins[d * BIN_WORDS], 1u), params.vocab - 1u)] = i;
        }
    }
}
