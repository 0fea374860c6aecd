//! expert_linear: out[r, j] = W[e] x + bias[e], e = chosen[r, j] (or j itself), x = x[r] or x[r, j], for few rows (decode)
//! x (rows, k) or (rows, parts * k) f32 | w (matrices * n, k) any block format | out (rows, parts * n) f32
//! grid: x one workgroup for four rows of a matrix, y one for a row of x, z one for a part
//! use: lib/batch, lib/experts, <weights>, lib/unpack, <reduce>
//! source: sparsely gated experts, Shazeer et al. 2017
//!
//! All pairs of row and expert in one dispatch. The reduction order depends on k alone.
@group(0) @binding(6) var<storage, read_write> out: array<f32>;  // (rows, parts * n)

@compute @workgroup_size(WG)
fn expert_linear(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    let part = group.z;
    if row >= batch[params.rows_at] {
        return;
    }
    let matrix = matrix_of(row, part);
    if matrix - params.first >= params.count {  // wraps where it lies before the first
        return;
    }
    let k = params.k;
    let j = vec4<u32>(4u * group.x) + vec4<u32>(0u, 1u, 2u, 3u);
    let at = params.row0 + (matrix - params.first) * params.n + min(j, vec4<u32>(params.n - 1u));
    let base = at * row_words(k);
    var sum = vec4<f32>(0.0);
    for (var c = lid; c < (k + 31u) / 32u; c += WG) {
        let w0 = chunk(base.x, k, c);
        let w1 = chunk(base.y, k, c);
        let w2 = chunk(base.z, k, c);
        let w3 = chunk(base.w, k, c);
        for (var half = 0u; half < 2u; half++) {
            let i = chunk_at(c) + half * HALF_GAP;
            let v = mat4x4<f32>(x4(row, part, i), x4(row, part, i + 4u), x4(row, part, i + 8u), x4(row, part, i + 12u));
            let total = total16(v);
            sum.x += product16(scaled16(w0, half), v, total);
            sum.y += product16(scaled16(w1, half), v, total);
            sum.z += product16(scaled16(w2, half), v, total);
            sum.w += product16(scaled16(w3, half), v, total);
        }
    }
    sum = wg_sum4(sum, lid);
    if lid < 4u {
        store(row, part, matrix, j[lid], sum[lid]);
    }
}
