//! matvec_qkv: q | k | v = W norm(x[r]) + bias; q and k rotated; q to out, k and v to the cache's pages
//! x (rows, k) f32 | w ((heads + 2 kv_heads) * head_dim, k) any block format | out (rows, heads * head_dim) f32
//! grid: x one workgroup for ROW_VEC4S times four rows of W that make whole words of the cache, y one for COLS rows of x
//! use: lib/batch, lib/linear, <products>, <weights>, lib/unpack, lib/paged, lib/angles_table, lib/rotate, <kv_store>, <sums>, lib/results
//! source: our own: matvec and the KV write of rope_kv in one
override HEADS: u32 = 1u;
override HEAD_DIM: u32 = 64u;
@group(0) @binding(5) var<storage, read> angles: array<vec2<u32>>;  // (rows, ROPE_DIMS / 2): cosine, sine
@group(0) @binding(6) var<storage, read_write> out: array<f32>;     // (rows, heads * head_dim)
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;      // the cache

// The head of row vec4 v4, counted over q's heads, then k's, then v's. A dispatch may begin within them, at row `out0`.
fn head_of(v4: u32) -> u32 {
    return (params.out0 / 4u + v4) / (HEAD_DIM / 4u);
}

fn is_v(head: u32) -> bool {
    return head >= HEADS + KV_HEADS;
}

// The elements of its head that v4 computes.
fn elements_of(v4: u32) -> vec4<u32> {
    let g = (params.out0 / 4u + v4) % (HEAD_DIM / 4u);
    if is_v(head_of(v4)) {
        return vec4<u32>(4u * g) + vec4<u32>(0u, 1u, 2u, 3u);
    }
    return elements(g);
}

// The rows of v4, counted from this dispatch's first.
fn rows_of(v4: u32) -> vec4<u32> {
    return head_of(v4) * HEAD_DIM + elements_of(v4) - params.out0;
}

fn w_rows(v4: u32) -> vec4<u32> {
    return params.row0 + min(rows_of(v4), vec4<u32>(params.n - 1u));
}

@compute @workgroup_size(WG)
fn matvec_qkv(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let rows = batch[params.rows_at];
    let first = group.y * COLS;
    let cols = min(COLS, rows - min(first, rows));
    if cols == 0u {
        return;
    }
    let four0 = group.x * ROW_VEC4S;
    multiply(four0, first, cols, lid);
    for (var i = lid; i < cols * ROW_VEC4S; i += WG) {
        let v4 = four0 + i % ROW_VEC4S;
        if 4u * v4 >= params.n {
            continue;
        }
        let head = head_of(v4);
        let e = elements_of(v4);
        let row = first + i / ROW_VEC4S;
        var y = sh_results[i];
        if HAS_BIAS {
            let b = rows_of(v4);
            y += vec4<f32>(vec1(params.bias_at, b.x), vec1(params.bias_at, b.y), vec1(params.bias_at, b.z),
                vec1(params.bias_at, b.w));
        }
        if !is_v(head) {
            y = rotate(y, row, (params.out0 / 4u + v4) % (HEAD_DIM / 4u));
        }
        if head < HEADS {
            let to = row * params.out_stride + head * HEAD_DIM;
            out[to + e.x] = y.x;
            out[to + e.y] = y.y;
            out[to + e.z] = y.z;
            out[to + e.w] = y.w;
        } else {
            let pos = row_pos(row);
            let base = page_base(row_seq(row), pos);
            var to = 0u;
            if is_v(head) {
                to = v_at(base, head - HEADS - KV_HEADS, pos);
            } else {
                to = k_at(base, head - HEADS, pos);
            }
            kv_store2(to + e.x, y.xy);
            kv_store2(to + e.z, y.zw);
        }
    }
}
