//! sums_subgroup: many sums over a workgroup of WG threads that is one subgroup on every device that has this fragment.
override WG: u32 = 32u;     // threads of a workgroup, no more than the smallest subgroup
override PARTS: u32 = 32u;  // the sums
var<workgroup> parts: array<vec4<f32>, PARTS>;

// A thread's part of sum i.
fn put_part(i: u32, part: vec4<f32>, lid: u32) {
    let sum = subgroupAdd(part);
    if lid == 0u {
        parts[i] = sum;
    }
}

// Behind a barrier.
fn sum_of(i: u32) -> vec4<f32> {
    return parts[i];
}
