//! matvec_qkv: q | k | v = W norm(x[r]) + bias; q and k rotated; q to out, k and v to the cache's pages
//! x (rows, k) f32 | w ((heads + 2 kv_heads) * head_dim, k) any block format | out (rows, heads * head_dim) f32
//! grid: x one workgroup for four rows of W that make whole words of the cache, y one for eight rows of x
//! use: lib/step, lib/linear, <weights>, <reduce>, lib/matvec, lib/paged, lib/angles_table, lib/rotate, <kv_store>
override HEADS: u32 = 1u;
override HEAD_DIM: u32 = 64u;
@group(0) @binding(5) var<storage, read> angles: array<vec2<u32>>;  // (rows, ROPE_DIMS / 2): cosine, sine
@group(0) @binding(6) var<storage, read_write> out: array<f32>;     // (rows, heads * head_dim)
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;      // the cache

@compute @workgroup_size(WG)
fn matvec_qkv(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let rows = step[params.rows_at];
    let first = group.y * COLS;
    let cols = min(COLS, rows - min(first, rows));
    if cols == 0u {
        return;
    }
    // `out0` counts rows of q | k | v: a dispatch may hold some of the three.
    let index = params.out0 / 4u + group.x;
    let head = index / (HEAD_DIM / 4u);          // q heads, then k heads, then v heads
    let g = index % (HEAD_DIM / 4u);
    let is_v = head >= HEADS + KV_HEADS;
    var e = elements(g);
    if is_v {
        e = vec4<u32>(4u * g) + vec4<u32>(0u, 1u, 2u, 3u);
    }
    let j = head * HEAD_DIM + e;                 // rows of q | k | v
    let at = params.row0 + min(j - params.out0, vec4<u32>(params.n - 1u));
    multiply4(at, first, cols, lid);
    for (var c = lid; c < cols; c += WG) {
        let row = first + c;
        var y = sums[c];
        if HAS_BIAS {
            let b = j - params.out0;
            y += vec4<f32>(vec1(params.bias_at, b.x), vec1(params.bias_at, b.y), vec1(params.bias_at, b.z),
                vec1(params.bias_at, b.w));
        }
        if !is_v {
            y = rotate(y, row, g);
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
            if is_v {
                to = v_at(base, head - HEADS - KV_HEADS, pos);
            } else {
                to = k_at(base, head - HEADS, pos);
            }
            kv_store2(to + e.x, y.xy);
            kv_store2(to + e.z, y.zw);
        }
    }
}
