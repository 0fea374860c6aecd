//! matvec: four rows of W times up to eight rows of x, by a workgroup of WG threads.
//! Thread t takes the columns 4t, 4(t + WG), …: the order of a sum depends on k alone, not on how many rows of x there are.
const COLS: u32 = 8u;
var<private> sums: array<vec4<f32>, COLS>;     // one a row of x
var<private> centre: array<vec2<f32>, COLS>;   // what the norm takes away and multiplies by

// Mean and reciprocal deviation of a row of x, by all threads of the workgroup.
fn norm_of(row: u32, lid: u32) -> vec2<f32> {
    var mean = 0.0;
    if NORM == 2u {
        var sum = 0.0;
        for (var i = 4u * lid; i < params.k; i += 4u * WG) {
            sum += dot(x4(row, i), vec4<f32>(1.0));
        }
        mean = wg_sum(sum, lid) / f32(params.k);
    }
    var squares = 0.0;
    for (var i = 4u * lid; i < params.k; i += 4u * WG) {
        let inside = vec4<u32>(i, i + 1u, i + 2u, i + 3u) < vec4<u32>(params.k);
        let d = select(vec4<f32>(0.0), x4(row, i) - mean, inside);
        squares += dot(d, d);
    }
    return vec2<f32>(mean, inverseSqrt(wg_sum(squares, lid) / f32(params.k) + params.eps));
}

fn normed4(row: u32, i: u32, c: vec2<f32>) -> vec4<f32> {
    var v = x4(row, i);
    if NORM != 0u {
        v = (v - c.x) * c.y;
        if HAS_NORM_W {
            v *= vecs[params.norm_w + i / 4u];
        }
        if HAS_NORM_B {
            v += vecs[params.norm_b + i / 4u];
        }
        v = select(vec4<f32>(0.0), v, vec4<u32>(i, i + 1u, i + 2u, i + 3u) < vec4<u32>(params.k));
    }
    return v;
}

// sums[c] = the products of the four rows `at` (in w) with row first + c of x, in every thread.
fn multiply4(at: vec4<u32>, first: u32, cols: u32, lid: u32) {
    let k = params.k;
    let base = at * row_words(k);
    for (var c = 0u; c < cols; c++) {
        centre[c] = vec2<f32>(0.0, 1.0);
        if NORM != 0u {
            centre[c] = norm_of(first + c, lid);
        }
        sums[c] = vec4<f32>(0.0);
    }
    if cols == 1u {
        // The common case, in registers.
        var sum = vec4<f32>(0.0);
        let c = centre[0];
        for (var i = 4u * lid; i < k; i += 4u * WG) {
            let v = normed4(first, i, c);
            sum += vec4<f32>(dot(dequant4(base.x, k, i), v), dot(dequant4(base.y, k, i), v),
                dot(dequant4(base.z, k, i), v), dot(dequant4(base.w, k, i), v));
        }
        sums[0] = wg_sum4(sum, lid);
        return;
    }
    for (var i = 4u * lid; i < k; i += 4u * WG) {
        let w0 = dequant4(base.x, k, i);
        let w1 = dequant4(base.y, k, i);
        let w2 = dequant4(base.z, k, i);
        let w3 = dequant4(base.w, k, i);
        for (var c = 0u; c < cols; c++) {
            let v = normed4(first + c, i, centre[c]);
            sums[c] += vec4<f32>(dot(w0, v), dot(w1, v), dot(w2, v), dot(w3, v));
        }
    }
    for (var c = 0u; c < cols; c++) {
        sums[c] = wg_sum4(sums[c], lid);
    }
}
