//! max_subgroup: the maxima of a workgroup of WG threads, by subgroups of any run-time size and one step through workgroup
//! memory. Every thread gets the result.
//!
//! Every thread stores its subgroup's maximum; one in SUBGROUP_MIN is read, since no subgroup is smaller.
override WG: u32 = 64u;
override SUBGROUP_MIN: u32 = 4u;
var<workgroup> sh_maxima: array<vec4<f32>, WG>;

fn wg_max4(v: vec4<f32>, lid: u32) -> vec4<f32> {
    sh_maxima[lid] = subgroupMax(v);
    workgroupBarrier();
    var most = sh_maxima[0];
    for (var i = SUBGROUP_MIN; i < WG; i += SUBGROUP_MIN) {
        most = max(most, sh_maxima[i]);
    }
    return most;
}
