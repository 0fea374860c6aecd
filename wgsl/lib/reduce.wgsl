//! reduce: sums and maxima over a workgroup of WG threads (a power of two), through workgroup memory.
//! Every thread gets the result.
override WG: u32 = 32u;
var<workgroup> sh_scratch: array<vec4<f32>, WG>;

fn wg_sum4(v: vec4<f32>, lid: u32) -> vec4<f32> {
    sh_scratch[lid] = v;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lid < half {
            sh_scratch[lid] += sh_scratch[lid + half];
        }
        workgroupBarrier();
    }
    let sum = sh_scratch[0];
    workgroupBarrier();
    return sum;
}
fn wg_sum(v: f32, lid: u32) -> f32 { return wg_sum4(vec4<f32>(v, 0.0, 0.0, 0.0), lid).x; }
fn wg_max(v: f32, lid: u32) -> f32 {
    sh_scratch[lid].x = v;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lid < half {
            sh_scratch[lid].x = max(sh_scratch[lid].x, sh_scratch[lid + half].x);
        }
        workgroupBarrier();
    }
    let most = sh_scratch[0].x;
    workgroupBarrier();
    return most;
}
