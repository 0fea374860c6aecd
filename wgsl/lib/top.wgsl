//! top: finds a workgroup's candidates one behind the other: by their key, from the largest; of equal keys the lowest id first
override WG: u32 = 64u;
const NOTHING: vec2<u32> = vec2<u32>(0u, 0xffffffffu);  // key and id of no candidate
var<workgroup> first: array<vec2<u32>, WG>;
var<workgroup> sums: array<f32, WG>;

// Whether a candidate, (key, id), comes before another.
fn precedes(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// The first of the threads' candidates. Every thread gets the result.
fn wg_first(candidate: vec2<u32>, lid: u32) -> vec2<u32> {
    workgroupBarrier();
    first[lid] = candidate;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h && precedes(first[lid + h], first[lid]) {
            first[lid] = first[lid + h];
        }
        workgroupBarrier();
    }
    return first[0];
}

// The sum of the threads' numbers. Every thread gets the result.
fn wg_total(x: f32, lid: u32) -> f32 {
    sums[lid] = x;
    workgroupBarrier();
    for (var h = WG / 2u; h > 0u; h /= 2u) {
        if lid < h {
            sums[lid] += sums[lid + h];
        }
        workgroupBarrier();
    }
    return sums[0];
}
