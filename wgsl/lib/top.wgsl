//! top: finds a workgroup's candidates in order: by their key, from the largest; of equal keys the lowest id first
override WG: u32 = 64u;
const NOTHING: vec2<u32> = vec2<u32>(0u, 0xffffffffu);  // key and id of no candidate
var<workgroup> sh_first: array<vec2<u32>, WG>;
var<workgroup> sh_sums: array<f32, WG>;

// Whether a candidate, (key, id), comes before another.
fn precedes(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// The first of the threads' candidates. Every thread gets the result.
fn wg_first(candidate: vec2<u32>, lid: u32) -> vec2<u32> {
    workgroupBarrier();
    sh_first[lid] = candidate;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h && precedes(sh_first[lid + h], sh_first[lid]) {
            sh_first[lid] = sh_first[lid + h];
        }
        workgroupBarrier();
    }
    return sh_first[0];
}

// The sum of the threads' numbers. Every thread gets the result.
fn wg_total(x: f32, lid: u32) -> f32 {
    sh_sums[lid] = x;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h {
            sh_sums[lid] += sh_sums[lid + h];
        }
        workgroupBarrier();
    }
    return sh_sums[0];
}
