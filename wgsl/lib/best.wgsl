//! best: the best of a workgroup's tokens: the largest score, of equal ones the lowest id; and whether a logit is NaN or infinite
override WG: u32 = 64u;
const NO_TOKEN: u32 = 0xffffffffu;
var<workgroup> sh_score: array<f32, WG>;
var<workgroup> sh_token: array<u32, WG>;
var<workgroup> sh_broken: array<u32, WG>;

// Whether a token beats another. No token beats none.
fn beats(s: f32, t: u32, other_score: f32, other: u32) -> bool {
    return t != NO_TOKEN && (s > other_score || other == NO_TOKEN || (s == other_score && t < other));
}

// Puts the best of the threads' tokens into sh_score[0] and sh_token[0], and into sh_broken[0] whether a logit is not finite.
fn wg_best(s: f32, t: u32, bad: u32, lid: u32) {
    sh_score[lid] = s;
    sh_token[lid] = t;
    sh_broken[lid] = bad;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h {
            if beats(sh_score[lid + h], sh_token[lid + h], sh_score[lid], sh_token[lid]) {
                sh_score[lid] = sh_score[lid + h];
                sh_token[lid] = sh_token[lid + h];
            }
            sh_broken[lid] |= sh_broken[lid + h];
        }
        workgroupBarrier();
    }
}
