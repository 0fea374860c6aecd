//! reduce_subgroup: sums and maxima over a workgroup of WG threads, by subgroups of any run-time size and one step through
//! workgroup memory. Every thread gets the result. A subgroup is identified by its lowest thread, not by builtins of the
//! entry point, so that the signatures are those of lib/reduce.
override WG: u32 = 32u;
var<workgroup> sh_scratch: array<vec4<f32>, WG>;

fn wg_sum4(v: vec4<f32>, lid: u32) -> vec4<f32> {
    sh_scratch[lid] = vec4<f32>(0.0);
    workgroupBarrier();
    let sum = subgroupAdd(v);
    let first = subgroupMin(lid);
    if lid == first {
        sh_scratch[lid] = sum;
    }
    workgroupBarrier();
    var total = vec4<f32>(0.0);
    for (var i = 0u; i < WG; i += 4u) {
        total += (sh_scratch[i] + sh_scratch[i + 1u]) + (sh_scratch[i + 2u] + sh_scratch[i + 3u]);
    }
    workgroupBarrier();
    return total;
}
fn wg_sum(v: f32, lid: u32) -> f32 { return wg_sum4(vec4<f32>(v, 0.0, 0.0, 0.0), lid).x; }
fn wg_max(v: f32, lid: u32) -> f32 {
    let most = subgroupMax(v);
    sh_scratch[lid] = vec4<f32>(most);
    workgroupBarrier();
    var total = sh_scratch[0].x;
    for (var i = 1u; i < WG; i++) {
        total = max(total, sh_scratch[i].x);
    }
    workgroupBarrier();
    return total;
}
