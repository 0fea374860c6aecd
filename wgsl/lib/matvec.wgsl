//! matvec: ROW_VEC4S times four rows of W times up to COLS rows of x, by a workgroup of WG threads.
//!
//! Thread t takes the chunks t, t + WG, … of a row: its weights and x in registers, each x for all rows of W, each weight for all
//! rows of x. The reduction order depends on k alone, not on COLS or ROW_VEC4S: a row gives the same bits alone and in a batch.
//! An RMS norm costs no pass of its own: `W (x * weight)` and `Σ x²` come out of the same loop.
//!
//! The kernel says which rows they are: `w_rows(v4)`, their numbers in w.
fn normed16(x: mat4x4<f32>, i: u32) -> mat4x4<f32> {
    let at = params.norm_w + i / 4u;
    return mat4x4<f32>(x[0] * vecs[at], x[1] * vecs[at + 1u], x[2] * vecs[at + 2u], x[3] * vecs[at + 3u]);
}

// results[c * ROW_VEC4S + f] = the products of the rows `w_rows(v4 + f)` of W with row first + c of x.
fn multiply(v4: u32, first: u32, cols: u32, lid: u32) {
    let k = params.k;
    var row = array<vec4<u32>, ROW_VEC4S>();
    for (var f = 0u; f < ROW_VEC4S; f++) {
        row[f] = w_rows(v4 + f) * row_words(k);
    }
    var sums = array<vec4<f32>, COLS * ROW_VEC4S>();
    var squares = array<f32, COLS>();
    var chunks = array<Chunk, 4u * ROW_VEC4S>();
    for (var c = lid; c < (k + 31u) / 32u; c += WG) {
        for (var f = 0u; f < ROW_VEC4S; f++) {
            chunks[4u * f] = chunk(row[f].x, k, c);
            chunks[4u * f + 1u] = chunk(row[f].y, k, c);
            chunks[4u * f + 2u] = chunk(row[f].z, k, c);
            chunks[4u * f + 3u] = chunk(row[f].w, k, c);
        }
        for (var half = 0u; half < 2u; half++) {
            let i = chunk_at(c) + half * HALF_GAP;
            // One row of x stays in registers while rows of W are unpacked one by one; of several, unpacked rows stay.
            if COLS == 1u {
                var v = x16(first, i);
                if NORM {
                    squares[0] += sum16(v, v);
                    if HAS_NORM_W {
                        v = normed16(v, i);
                    }
                }
                let total = total16(v);
                for (var f = 0u; f < ROW_VEC4S; f++) {
                    sums[f].x += product16(scaled16(chunks[4u * f], half), v, total);
                    sums[f].y += product16(scaled16(chunks[4u * f + 1u], half), v, total);
                    sums[f].z += product16(scaled16(chunks[4u * f + 2u], half), v, total);
                    sums[f].w += product16(scaled16(chunks[4u * f + 3u], half), v, total);
                }
                continue;
            }
            var weights = array<Scaled, 4u * ROW_VEC4S>();
            for (var r = 0u; r < 4u * ROW_VEC4S; r++) {
                weights[r] = scaled16(chunks[r], half);
            }
            for (var col = 0u; col < COLS; col++) {
                var v = x16(first + min(col, cols - 1u), i);
                if NORM {
                    squares[col] += sum16(v, v);
                    if HAS_NORM_W {
                        v = normed16(v, i);
                    }
                }
                let total = total16(v);
                for (var f = 0u; f < ROW_VEC4S; f++) {
                    let at = col * ROW_VEC4S + f;
                    sums[at].x += product16(weights[4u * f], v, total);
                    sums[at].y += product16(weights[4u * f + 1u], v, total);
                    sums[at].z += product16(weights[4u * f + 2u], v, total);
                    sums[at].w += product16(weights[4u * f + 3u], v, total);
                }
            }
        }
    }
    add_up(&sums, &squares, lid);
}
