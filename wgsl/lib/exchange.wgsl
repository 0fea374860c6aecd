//! exchange: what the WG threads (a power of two) of `attend` learn from one another, through workgroup memory.
override WG: u32 = 64u;
var<workgroup> sh_maxima: array<vec4<f32>, WG>;
var<workgroup> sh_quarters: array<vec4<f32>, 4u * WG>;  // [thread of four][thread that the sum is for]

/// Of four neighbouring threads, each the sum of what all four have for it: thread j gets those of `parts[j]`.
fn sum_of_four(parts: mat4x4<f32>, lid: u32) -> vec4<f32> {
    let first = lid / 4u * 4u;
    for (var j = 0u; j < 4u; j++) {
        sh_quarters[lid % 4u * WG + first + j] = parts[j];
    }
    workgroupBarrier();
    return (sh_quarters[lid] + sh_quarters[WG + lid]) + (sh_quarters[2u * WG + lid] + sh_quarters[3u * WG + lid]);
}

/// The maxima of all threads.
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
