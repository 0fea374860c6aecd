//! tile: tiles of W x for many rows of x: which rows of W one takes, and what is done with its sums.
override EPI: u32 = 0u;        // 0 nothing, 1 plus residual, 2 act, 3 act(gate) * up, 4 times what out holds
@group(0) @binding(5) var<storage, read> residual: array<f32>;    // (rows, n)
@group(0) @binding(6) var<storage, read_write> out: array<f32>;   // (rows, n)

// The row of W behind row i of a tile of TILE_N rows: of a gated pair, gates fill its first half and their ups the second.
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

// The results of eight rows of W in a row of x: from row j of the tile on, `apart` from each other; gated, `high` are the ups of `low`.
fn store_eight(tile: u32, row: u32, j: u32, apart: u32, low: vec4<f32>, high: vec4<f32>) {
    for (var r = 0u; r < 4u; r++) {
        if EPI == 3u {
            store(row, tile * (TILE_N / 2u) + j + r * apart, low[r], high[r]);
        } else {
            store(row, tile * TILE_N + j + r * apart, low[r], 0.0);
            store(row, tile * TILE_N + j + r * apart + TILE_N / 2u, high[r], 0.0);
        }
    }
}
