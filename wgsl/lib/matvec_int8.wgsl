//! matvec_int8: what lib/matvec does, with x in int8.
//! use: lib/int8
//!
//! A half chunk of 16 weights is integers q times d, plus low; its product with x is d d_x Σ q q_x + low d_x Σ q_x, whose sums
//! are exact. Threads take chunks, and sums are added up, as in lib/matvec: the order depends on k alone. `quantize` has applied
//! the weight of a norm, and leaves Σ x² of each 32 columns.
// A sum and the product of 16 weights with 16 columns, whose scale is s and whose sum, times that, is `total`.
fn plus_product(sum: f32, w: Ints, v: vec4<u32>, s: f32, total: f32) -> f32 {
    var y = sum;
    if LOWS {
        y += w.low * total;
    }
    return y + f32(dot16(w.q, v)) * (w.d * s);
}

// results[c * ROW_VEC4S + f] = the products of the rows `w_rows(v4 + f)` of W with row first + c of x.
fn multiply(v4: u32, first: u32, cols: u32, lid: u32) {
    let k = params.k;
    let units = int8_units(k);
    var row = array<vec4<u32>, ROW_VEC4S>();
    for (var f = 0u; f < ROW_VEC4S; f++) {
        row[f] = w_rows(v4 + f) * row_words(k);
    }
    var sums = array<vec4<f32>, COLS * ROW_VEC4S>();
    var squares = array<f32, COLS>();
    var chunks = array<Chunk, 4u * ROW_VEC4S>();
    for (var c = lid; c < k / 32u; c += WG) {
        for (var f = 0u; f < ROW_VEC4S; f++) {
            chunks[4u * f] = chunk(row[f].x, k, c);
            chunks[4u * f + 1u] = chunk(row[f].y, k, c);
            chunks[4u * f + 2u] = chunk(row[f].z, k, c);
            chunks[4u * f + 3u] = chunk(row[f].w, k, c);
        }
        for (var half = 0u; half < 2u; half++) {
            let i = chunk_at(c) + half * HALF_GAP;
            // The first 16 of 32 columns, or the last.
            let first16 = i % 32u == 0u;
            var weights = array<Ints, 4u * ROW_VEC4S>();
            for (var r = 0u; r < 4u * ROW_VEC4S; r++) {
                weights[r] = ints16(chunks[r], half);
            }
            for (var col = 0u; col < COLS; col++) {
                let x_row = (first + min(col, cols - 1u)) * units;
                let v = int8_16(x_row, i);
                let scales = int8_scales(x_row, i);
                let total = select(scales.w, scales.z, first16);
                if NORM {
                    squares[col] += select(0.0, scales.y, first16);
                }
                for (var f = 0u; f < ROW_VEC4S; f++) {
                    let at = col * ROW_VEC4S + f;
                    sums[at].x = plus_product(sums[at].x, weights[4u * f], v, scales.x, total);
                    sums[at].y = plus_product(sums[at].y, weights[4u * f + 1u], v, scales.x, total);
                    sums[at].z = plus_product(sums[at].z, weights[4u * f + 2u], v, scales.x, total);
                    sums[at].w = plus_product(sums[at].w, weights[4u * f + 3u], v, scales.x, total);
                }
            }
        }
    }
    add_up(&sums, &squares, lid);
}
