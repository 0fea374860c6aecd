//! results: how the threads of mat-vec add up their sums, and where the results are left.
const COLS: u32 = 1u;       // set: at most 8
const ROW_VEC4S: u32 = 1u;  // set: at most 4
var<workgroup> sh_results: array<vec4<f32>, COLS * ROW_VEC4S>;  // (COLS, ROW_VEC4S)

// sh_results[c * ROW_VEC4S + f] = each thread's sums of that number added up; after an RMS norm, which has `squares`, scaled.
fn add_up(
    sums: ptr<function, array<vec4<f32>, COLS * ROW_VEC4S>>,
    squares: ptr<function, array<f32, COLS>>,
    lid: u32,
) {
    clear_partials(lid);
    for (var i = 0u; i < COLS * ROW_VEC4S; i++) {
        put_partial(i, (*sums)[i], lid);
    }
    if NORM {
        for (var col = 0u; col < COLS; col += 4u) {
            var four = vec4<f32>(0.0);
            for (var j = 0u; j < min(4u, COLS - col); j++) {
                four[j] = (*squares)[col + j];
            }
            put_partial(COLS * ROW_VEC4S + col / 4u, four, lid);
        }
    }
    workgroupBarrier();
    for (var i = lid; i < COLS * ROW_VEC4S; i += WG) {
        var scale = 1.0;
        if NORM {
            let col = i / ROW_VEC4S;
            scale = inverseSqrt(sum_of(COLS * ROW_VEC4S + col / 4u)[col % 4u] / f32(params.k) + params.eps);
        }
        sh_results[i] = scale * sum_of(i);
    }
    workgroupBarrier();
}
