//! max: the maxima of a workgroup of WG threads (a power of two), through workgroup memory. Every thread gets the result.
override WG: u32 = 64u;
var<workgroup> maxima: array<vec4<f32>, WG>;

fn wg_max4(v: vec4<f32>, lid: u32) -> vec4<f32> {
    maxima[lid] = v;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lid < half {
            maxima[lid] = max(maxima[lid], maxima[lid + half]);
        }
        workgroupBarrier();
    }
    return maxima[0];
}
