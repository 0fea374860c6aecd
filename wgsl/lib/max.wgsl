//! max: the maxima of a workgroup of WG threads (a power of two), through workgroup memory. Every thread gets the result.
override WG: u32 = 64u;
var<workgroup> sh_maxima: array<vec4<f32>, WG>;

fn wg_max4(v: vec4<f32>, lid: u32) -> vec4<f32> {
    sh_maxima[lid] = v;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lid < half {
            sh_maxima[lid] = max(sh_maxima[lid], sh_maxima[lid + half]);
        }
        workgroupBarrier();
    }
    return sh_maxima[0];
}
