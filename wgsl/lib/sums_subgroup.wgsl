//! sums_subgroup: many sums over a workgroup of WG threads, by subgroups of any run-time size and one step through workgroup
//! memory for all of them. There is one slot per SUBGROUP_MIN threads; the first thread of a subgroup fills its own. No subgroup
//! is smaller, and its threads have consecutive indices.
override WG: u32 = 32u;            // threads of a workgroup
override SUBGROUP_MIN: u32 = 4u;
override PARTIALS: u32 = 8u;          // slots times the sums; set by the host, since naga 30 panics at such a product as a length
var<workgroup> sh_partials: array<vec4<f32>, PARTIALS>;  // (sums, slots)

fn slots() -> u32 {
    return max(WG / SUBGROUP_MIN, 1u);
}

// Called before put_partial: subgroups may be larger than SUBGROUP_MIN, and then leave slots empty.
fn clear_partials(lid: u32) {
    for (var t = lid; t < PARTIALS; t += WG) {
        sh_partials[t] = vec4<f32>(0.0);
    }
    workgroupBarrier();
}

// Stores a thread's part of sum i.
fn put_partial(i: u32, partial: vec4<f32>, lid: u32) {
    let sum = subgroupAdd(partial);
    if lid == subgroupMin(lid) {
        sh_partials[i * slots() + lid / SUBGROUP_MIN] = sum;
    }
}

// After a barrier: the sum, in the order of the subgroups.
fn sum_of(i: u32) -> vec4<f32> {
    var sum = sh_partials[i * slots()];
    for (var t = 1u; t < slots(); t++) {
        sum += sh_partials[i * slots() + t];
    }
    return sum;
}
