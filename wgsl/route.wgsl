//! route: the experts of the highest scores in each row, in their order, and the weights of their results
//! x (rows, experts) f32: logits | bias (experts) f32 | out (rows, 2 * used) f32: their numbers, then their weights
//! grid: x one workgroup for a row
//! use: lib/batch, <reduce>
//! source: top-k routing, Shazeer et al. 2017; groups and a bias for the choice, DeepSeek-V3 2024
//!
//! Scores are compared as integers of the same order. A NaN is the highest of all, so that it shows in the result. Of equals,
//! the expert of the lower number comes first.
struct Params {
    rows_at: u32,      // word of batch with the number of rows
    x_stride: u32,
    out_stride: u32,
    bias: u32,         // element of vecs where the bias lies (HAS_BIAS)
    kept: u32,         // groups that experts may be chosen from (GROUPS > 1)
    plus: f32,         // added to the sum that the weights are divided by
    least: f32,        // the least that they are divided by
    scale: f32,
}
override EXPERTS: u32 = 8u;
override USED: u32 = 2u;
override GROUPS: u32 = 1u;         // equal groups of consecutive experts
override TWO_BEST: bool = false;   // a group's score is the sum of its two best; else its best
override SCORE: u32 = 0u;          // 0 softmax, 1 sigmoid, 2 the logit; then weights are the softmax of the chosen
override DIVIDE: bool = false;     // weights are divided by their sum
override HAS_BIAS: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
const LOWEST: f32 = -3.4028234e38;
var<workgroup> sh_scores: array<f32, EXPERTS>;
var<workgroup> sh_keys: array<u32, EXPERTS>;         // 0: closed
var<workgroup> sh_group_keys: array<u32, GROUPS>;
var<workgroup> sh_best: array<vec2<u32>, WG>;        // key and number of the best expert of each thread
var<workgroup> sh_chosen: array<u32, USED>;

// An integer above 0 of the same order as x; for NaN, the highest.
fn key_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u {
        return 0xffffffffu;
    }
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >> 31u == 1u));
}

// The best open expert among those of a thread: lid, lid + WG, …
fn best_of(lid: u32) -> vec2<u32> {
    var found = vec2<u32>(0u, 0u);
    for (var i = lid; i < EXPERTS; i += WG) {
        if sh_keys[i] > found.x {
            found = vec2<u32>(sh_keys[i], i);
        }
    }
    return found;
}

@compute @workgroup_size(WG)
fn route(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.x;
    if row >= batch[params.rows_at] {
        return;
    }
    let from_x = row * params.x_stride;
    var most = 0.0;
    var total = 1.0;
    if SCORE == 0u {
        most = LOWEST;
        for (var i = lid; i < EXPERTS; i += WG) {
            most = max(most, x[from_x + i]);
        }
        most = wg_max(most, lid);
        var sum = 0.0;
        for (var i = lid; i < EXPERTS; i += WG) {
            sum += exp(x[from_x + i] - most);
        }
        total = wg_sum(sum, lid);
    }
    for (var i = lid; i < EXPERTS; i += WG) {
        var score = x[from_x + i];
        switch SCORE {
            case 0u: { score = exp(score - most) / total; }
            case 1u: { score = 1.0 / (1.0 + exp(-score)); }
            default: {}
        }
        sh_scores[i] = score;
        if HAS_BIAS {
            let at = params.bias + i;
            score += vecs[at / 4u][at % 4u];
        }
        sh_keys[i] = key_of(score);
    }
    workgroupBarrier();

    if GROUPS > 1u {
        let size = EXPERTS / GROUPS;
        for (var g = lid; g < GROUPS; g += WG) {
            var first = 0u;
            var second = 0u;
            for (var i = g * size; i < (g + 1u) * size; i++) {
                second = max(second, min(first, sh_keys[i]));
                first = max(first, sh_keys[i]);
            }
            sh_group_keys[g] = first;
            if TWO_BEST && size > 1u && first != 0xffffffffu {
                sh_group_keys[g] = key_of(value_of(first) + value_of(second));
            }
        }
        workgroupBarrier();
        for (var i = lid; i < EXPERTS; i += WG) {
            let own = i / size;
            var above = 0u;  // groups that come before its own
            for (var g = 0u; g < GROUPS; g++) {
                let before = sh_group_keys[g] > sh_group_keys[own] || (sh_group_keys[g] == sh_group_keys[own] && g < own);
                above += select(0u, 1u, before);
            }
            if above >= params.kept {
                sh_keys[i] = 0u;
            }
        }
        workgroupBarrier();
    }

    sh_best[lid] = best_of(lid);
    workgroupBarrier();
    for (var j = 0u; j < USED; j++) {
        var found = sh_best[0];
        for (var t = 1u; t < WG; t++) {
            let other = sh_best[t];
            if other.x > found.x || (other.x == found.x && other.y < found.y) {
                found = other;
            }
        }
        workgroupBarrier();
        if lid == 0u {
            sh_chosen[j] = found.y;
        }
        if lid == found.y % WG {
            sh_keys[found.y] = 0u;
            sh_best[lid] = best_of(lid);
        }
        workgroupBarrier();
    }

    // A few numbers, added up in order.
    if lid == 0u {
        let to = row * params.out_stride;
        most = LOWEST;
        for (var j = 0u; j < USED; j++) {
            most = max(most, sh_scores[sh_chosen[j]]);
        }
        var sum = 0.0;
        for (var j = 0u; j < USED; j++) {
            var weight = sh_scores[sh_chosen[j]];
            if SCORE == 2u {
                weight = exp(weight - most);
            }
            sum += weight;
            out[to + j] = f32(sh_chosen[j]);
            out[to + USED + j] = weight;
        }
        var divisor = 1.0;
        if SCORE == 2u {
            divisor = sum;
            sum = 1.0;
        }
        if DIVIDE {
            divisor *= max(sum + params.plus, params.least);
        }
        for (var j = 0u; j < USED; j++) {
            out[to + USED + j] = out[to + USED + j] / divisor * params.scale;
        }
    }
}
