//! tile: tiles of W x for many rows of x (prefill), TILE_N rows of W by TILE_M rows of x: which rows a tile takes, and what
//! happens to its sums.
override EPI: u32 = 0u;        // 0 nothing, 1 plus residual, 2 act, 3 act(gate) * up, 4 times what out holds
@group(0) @binding(5) var<storage, read> residual: array<f32>;    // (rows, n)
@group(0) @binding(6) var<storage, read_write> out: array<f32>;   // (rows, n)

// A workgroup's tile of results.
struct Tile {
    number: u32,  // among the tiles of rows of W
    first: u32,   // row of x
    rows: u32,    // all rows of x
    words: u32,   // of a row of W
}

fn tile_of(group: vec3<u32>) -> Tile {
    return Tile(group.x, group.y * TILE_M, batch[params.rows_at], row_words(params.k));
}

// Chunk c of the row of W at row i of a tile.
fn tile_chunk(t: Tile, i: u32, c: u32) -> Chunk {
    return chunk((params.row0 + tile_row(t.number, i)) * t.words, params.k, c);
}

// The row of x at row i of a tile; past the end, the last row again.
fn row_of_x(t: Tile, i: u32) -> u32 {
    return min(t.first + i, t.rows - 1u);
}

// The row of W at row i of a tile of TILE_N rows: of a gated pair, gates fill its first half and their ups the second.
fn tile_row(tile: u32, i: u32) -> u32 {
    if EPI == 3u {
        return min(tile * (TILE_N / 2u) + i % (TILE_N / 2u), params.n - 1u) + select(0u, params.up, i >= TILE_N / 2u);
    }
    return min(tile * TILE_N + i, params.n - 1u);
}

// The result of a row of x and row j of W: its sum, and that of the up if j is a gate.
fn store(row: u32, j: u32, value: f32, second: f32) {
    if j >= params.n {
        return;
    }
    var y = value;
    if HAS_BIAS {
        y += vec1(params.bias_at, j);
    }
    if EPI == 2u || EPI == 3u {
        y = act(y);
    }
    if EPI == 3u {
        var up = second;
        if HAS_BIAS {
            up += vec1(params.bias_up, j);
        }
        y *= up;
    }
    let to = row * params.out_stride + params.out0 + j;
    if EPI == 1u {
        y += residual[to];
    }
    if EPI == 4u {
        y *= out[to];
    }
    out[to] = y;
}

// Stores the results of eight rows of W for the row of x at row i: from row j of a tile on, `apart` rows from one to the next.
// Of a gated pair, `high` are the ups of `low`.
fn store_eight(t: Tile, i: u32, j: u32, apart: u32, low: vec4<f32>, high: vec4<f32>) {
    let row = t.first + i;
    if row >= t.rows {
        return;
    }
    for (var r = 0u; r < 4u; r++) {
        if EPI == 3u {
            store(row, t.number * (TILE_N / 2u) + j + r * apart, low[r], high[r]);
        } else {
            store(row, t.number * TILE_N + j + r * apart, low[r], 0.0);
            store(row, t.number * TILE_N + j + r * apart + TILE_N / 2u, high[r], 0.0);
        }
    }
}
