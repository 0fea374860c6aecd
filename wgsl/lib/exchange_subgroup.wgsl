//! exchange_subgroup: what the WG threads of `attend` learn from one another, by subgroups of any run-time size and one step
//! through workgroup memory.
override WG: u32 = 64u;
override SUBGROUP_MIN: u32 = 4u;  // no subgroup is smaller
var<workgroup> sh_maxima: array<vec4<f32>, WG / SUBGROUP_MIN>;

/// Of four neighbouring threads, each the sum of what all four have for it: thread j gets those of `parts[j]`.
fn sum_of_four(parts: mat4x4<f32>, lid: u32) -> vec4<f32> {
    // Each keeps what is for itself and for the thread two further on, and gives the rest away; then it gives one of the two.
    let odd = (lid & 1u) != 0u;
    let low = select(parts[0], parts[1], odd) + quadSwapX(select(parts[1], parts[0], odd));
    let high = select(parts[2], parts[3], odd) + quadSwapX(select(parts[3], parts[2], odd));
    let upper = (lid & 2u) != 0u;
    return select(low, high, upper) + quadSwapY(select(high, low, upper));
}

/// The maxima of all threads.
fn wg_max4(v: vec4<f32>, lid: u32) -> vec4<f32> {
    let own = subgroupMax(v);
    if lid % SUBGROUP_MIN == 0u {
        sh_maxima[lid / SUBGROUP_MIN] = own;
    }
    workgroupBarrier();
    var most = sh_maxima[0];
    for (var i = 1u; i < WG / SUBGROUP_MIN; i++) {
        most = max(most, sh_maxima[i]);
    }
    return most;
}
