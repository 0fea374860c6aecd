//! sums_subgroup: many sums over a workgroup of WG threads, by subgroups of any run-time size, and one step through workgroup memory
//! for all of them: one slot for each SUBGROUP_MIN threads, of which the first thread of a subgroup fills its own. No subgroup is
//! smaller, and its threads stand one behind the other.
override WG: u32 = 32u;            // threads of a workgroup
override SUBGROUP_MIN: u32 = 4u;
override PARTS: u32 = 8u;          // slots times the sums; given, since naga 30 panics at such a product as a length
var<workgroup> parts: array<vec4<f32>, PARTS>;  // (sums, slots)

fn slots() -> u32 {
    return max(WG / SUBGROUP_MIN, 1u);
}

// Before the parts: subgroups may be larger, and then leave slots empty.
fn clear_parts(lid: u32) {
    for (var t = lid; t < PARTS; t += WG) {
        parts[t] = vec4<f32>(0.0);
    }
    workgroupBarrier();
}

// A thread's part of sum i.
fn put_part(i: u32, part: vec4<f32>, lid: u32) {
    let sum = subgroupAdd(part);
    if lid == subgroupMin(lid) {
        parts[i * slots() + lid / SUBGROUP_MIN] = sum;
    }
}

// Behind a barrier: the sum, in the order of the subgroups.
fn sum_of(i: u32) -> vec4<f32> {
    var sum = parts[i * slots()];
    for (var t = 1u; t < slots(); t++) {
        sum += parts[i * slots() + t];
    }
    return sum;
}
