//! sample_merge: the token of a sample: the best of its parts, or of the tokens that its filters keep; remembered for the next step
//! best (samples, parts), kept (samples, vocab), bins, left empty | sampled (slots, RING): the tokens sampled last | result (samples): token, or 0xffffffff for none
//! grid: x one workgroup a sample
//! use: lib/sample, lib/logit, lib/noise, lib/best
//! source: as sample and sample_bins
//
// Tokens are ordered by logit, from the largest; equal ones by id: a place is (inverted order of the logit, id). A filter keeps
// the tokens up to a place, which a radix select finds 8 bits at a time, by a histogram of sums. The sums are integers, so
// nothing depends on the order of additions.
@group(0) @binding(4) var<storage, read> best: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> bins: array<u32>;
@group(0) @binding(6) var<storage, read> kept: array<u32>;
@group(0) @binding(7) var<storage, read_write> sampled: array<u32>;
@group(0) @binding(8) var<storage, read_write> result: array<u32>;
var<workgroup> sh_sums: array<vec2<u32>, WG>;
var<workgroup> sh_lower: array<atomic<u32>, 256>;
var<workgroup> sh_upper: array<atomic<u32>, 256>;
var<workgroup> sh_found: u32;
var<workgroup> sh_left: vec2<u32>;  // what is left to reach the goal
var<workgroup> sh_tokens_kept: u32;

const ALL: vec2<u32> = vec2<u32>(0xffffffffu);

fn place(d: u32, o: u32, flags: u32, id: u32) -> vec2<u32> {
    return vec2<u32>(~order(logit_of(d, o, flags, id)), id);
}

fn comes_after(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y > b.y);
}

// Digit i of a place: four of its order, three of its id.
fn digit(a: vec2<u32>, i: u32) -> u32 {
    return (select(a.y >> ((6u - i) * 8u % 32u), a.x >> ((3u - i) * 8u % 32u), i < 4u)) & 255u;
}

// Whether the digits before digit i are those of a prefix.
fn follows(a: vec2<u32>, prefix: vec2<u32>, i: u32) -> bool {
    if i < 4u {
        return i == 0u || ((a.x ^ prefix.x) >> ((4u - i) * 8u % 32u)) == 0u;
    }
    return a.x == prefix.x && (i == 4u || ((a.y ^ prefix.y) >> ((7u - i) * 8u % 32u)) == 0u);
}

fn total(lid: u32, sum: vec2<u32>) -> vec2<u32> {
    sh_sums[lid] = sum;
    workgroupBarrier();
    var all = vec2<u32>(0u);
    for (var i = 0u; i < WG; i++) {
        all = add(all, sh_sums[i]);
    }
    workgroupBarrier();
    return all;
}

// The weight of a kept token.
fn kept_weight(d: u32, o: u32, flags: u32, id: u32) -> u32 {
    let largest = unorder(bins[d * BIN_WORDS + 1u]);
    return weight(depth(largest, logit_of(d, o, flags, id), sample_f32(d, DEPTH_SCALE)));
}

// The place of the token, among those up to `bound`, at which the sum of weights, or the count, reaches the goal.
fn reach(lid: u32, d: u32, flags: u32, by_weight: bool, goal: vec2<u32>, bound: vec2<u32>) -> vec2<u32> {
    let o = sample_word(d, OUT);
    var prefix = vec2<u32>(0u);
    if lid == 0u {
        sh_left = goal;
    }
    for (var i = 0u; i < 7u; i++) {
        for (var b = lid; b < 256u; b += WG) {
            atomicStore(&sh_lower[b], 0u);
            atomicStore(&sh_upper[b], 0u);
        }
        workgroupBarrier();
        for (var j = lid; j < bins[d * BIN_WORDS]; j += WG) {
            let id = kept[d * params.vocab + j];
            let at = place(d, o, flags, id);
            if comes_after(at, bound) || !follows(at, prefix, i) {
                continue;
            }
            var w = 1u;
            if by_weight {
                w = kept_weight(d, o, flags, id);
            }
            atomicAdd(&sh_lower[digit(at, i)], w & LOWER);
            atomicAdd(&sh_upper[digit(at, i)], w >> LOWER_BITS);
        }
        workgroupBarrier();
        if lid < 16u {
            var sum = vec2<u32>(0u);
            for (var b = 16u * lid; b < 16u * lid + 16u; b++) {
                sum = add(sum, wide(atomicLoad(&sh_lower[b]), atomicLoad(&sh_upper[b])));
            }
            sh_sums[lid] = sum;
        }
        workgroupBarrier();
        if lid == 0u {
            var chunk = 0u;
            while chunk < 15u && less(sh_sums[chunk], sh_left) {
                sh_left = sub(sh_left, sh_sums[chunk]);
                chunk++;
            }
            var b = 16u * chunk;
            var sum = wide(atomicLoad(&sh_lower[b]), atomicLoad(&sh_upper[b]));
            while b < 16u * chunk + 15u && less(sum, sh_left) {
                sh_left = sub(sh_left, sum);
                b++;
                sum = wide(atomicLoad(&sh_lower[b]), atomicLoad(&sh_upper[b]));
            }
            sh_found = b;
        }
        workgroupBarrier();
        if i < 4u {
            prefix.x |= sh_found << ((3u - i) * 8u);
        } else {
            prefix.y |= sh_found << ((6u - i) * 8u);
        }
    }
    return prefix;
}

// The last place that top-k and top-p keep.
fn last_place(lid: u32, d: u32, flags: u32) -> vec2<u32> {
    let o = sample_word(d, OUT);
    let top_k = sample_word(d, TOP_K);
    let top_p = sample_word(d, TOP_P);
    if lid == 0u {
        sh_tokens_kept = bins[d * BIN_WORDS];
    }
    let count = workgroupUniformLoad(&sh_tokens_kept);  // uniform for the compiler: all threads reach the barriers that follow
    var last = ALL;
    if top_k != 0u && top_k < count {
        last = reach(lid, d, flags, false, vec2<u32>(top_k, 0u), last);
    }
    if top_p < 65536u {
        var sum = vec2<u32>(0u);
        if top_k != 0u {
            for (var j = lid; j < count; j += WG) {
                let id = kept[d * params.vocab + j];
                if !comes_after(place(d, o, flags, id), last) {
                    sum = add(sum, vec2<u32>(kept_weight(d, o, flags, id), 0u));
                }
            }
        } else {
            for (var b = lid; b < BINS; b += WG) {
                let at = d * BIN_WORDS + 4u + b;
                sum = add(sum, wide(bins[at], bins[at + BINS]));
            }
        }
        last = reach(lid, d, flags, true, share(total(lid, sum), top_p), last);
    }
    return last;
}

// Whether the text ended before this sample: a step in the same submission may follow one that sampled a stop.
fn ended(d: u32, before: u32) -> bool {
    let stops = params.lists + sample_word(d, STOPS);
    for (var i = 0u; i < sample_word(d, STOPS + 1u); i++) {
        if samples[stops + i] == before {
            return true;
        }
    }
    return false;
}

@compute @workgroup_size(WG)
fn sample_merge(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.x;
    let o = sample_word(d, OUT);
    let flags = sample_word(d, FLAGS);
    var best_score = -3.0e38;
    var best_token = NO_TOKEN;
    var bad = 0u;
    for (var i = lid; i < params.parts; i += WG) {
        let part = best[d * params.parts + i];
        let s = bitcast<f32>(part.x);
        bad |= part.z;
        if (flags & FILTERED) == 0u && beats(s, part.y, best_score, best_token) {
            best_score = s;
            best_token = part.y;
        }
    }
    if (flags & FILTERED) != 0u {
        let last = last_place(lid, d, flags);
        let largest = unorder(bins[d * BIN_WORDS + 1u]);
        let key = noise_key(sample_word(d, SEED), sample_word(d, SEED + 1u), sample_word(d, POS));
        for (var j = lid; j < bins[d * BIN_WORDS]; j += WG) {
            let id = kept[d * params.vocab + j];
            let x = logit_of(d, o, flags, id);
            let out = comes_after(place(d, o, flags, id), last);
            if out || depth(largest, x, sample_f32(d, DEPTH_SCALE)) > sample_word(d, DEEPEST) {
                continue;
            }
            let s = tempered(x, sample_f32(d, INV_TEMPERATURE)) + gumbel(key, id);
            if beats(s, id, best_score, best_token) {
                best_score = s;
                best_token = id;
            }
        }
    }
    wg_best(best_score, best_token, bad, lid);
    if (flags & FILTERED) != 0u {
        for (var b = lid; b < BIN_WORDS; b += WG) {
            bins[d * BIN_WORDS + b] = 0u;
        }
    }
    if lid == 0u {
        let ring = min(sample_word(d, SLOT), params.slots - 1u) * RING;
        let before = sampled[ring + (sample_word(d, POS) - 1u) % RING];
        let over = ended(d, before);
        let sampled_token = select(sh_token[0], NO_TOKEN, sh_broken[0] != 0u || over);
        result[d] = sampled_token;
        // A request without a token ends. Until it does, its rows need some token; after a stop, one that is a stop.
        let row_token = select(sampled_token, 0u, sampled_token == NO_TOKEN);
        sampled[ring + sample_word(d, POS) % RING] = select(row_token, before, over);
    }
}
