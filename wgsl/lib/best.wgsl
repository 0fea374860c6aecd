//! best: the best of a workgroup's tokens: the largest score, of equal ones the lowest id; and whether one of its logits is no number
override WG: u32 = 64u;
const NO_TOKEN: u32 = 0xffffffffu;
var<workgroup> score: array<f32, WG>;
var<workgroup> token: array<u32, WG>;
var<workgroup> broken: array<u32, WG>;

// Whether a token beats another. No token beats none.
fn beats(s: f32, t: u32, other_score: f32, other: u32) -> bool {
    return t != NO_TOKEN && (s > other_score || other == NO_TOKEN || (s == other_score && t < other));
}

// Puts the best of the threads' tokens into score[0] and token[0], and into broken[0] whether one is bad.
fn wg_best(s: f32, t: u32, bad: u32, lid: u32) {
    score[lid] = s;
    token[lid] = t;
    broken[lid] = bad;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h {
            if beats(score[lid + h], token[lid + h], score[lid], token[lid]) {
                score[lid] = score[lid + h];
                token[lid] = token[lid + h];
            }
            broken[lid] |= broken[lid + h];
        }
        workgroupBarrier();
    }
}
