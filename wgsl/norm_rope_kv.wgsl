//! norm_rope_kv: RMS norms of the heads of q and k, then their rotation; q to out, k and v to the cache
//! q (rows, heads * k_dim), k (rows, kv_heads * k_dim), v (rows, kv_heads * v_dim) f32, views of one buffer or of three |
//! weights of the norms (k_dim) f32 | out as q | kv the cache
//! grid: x one workgroup for WG / THREADS heads of q, k or v, y one row
//! use: lib/batch, lib/heads, <angles>, <head_store>, <cache>, lib/owner
//! source: akunu, head_norm_rope_neox_kv_write
//!
//! THREADS threads share a head; each computes every THREADS-th unit of it. What they must find together, the mean square and
//! the scale of a vector stored in 8 bits, goes through workgroup memory once, or not at all where a thread has a head alone.
override WG: u32 = 64u;
override Q_NORM: bool = false;
override K_NORM: bool = false;
override HAS_Q_NORM_W: bool = false;
override HAS_K_NORM_W: bool = false;
override RAGGED: bool = false;    // k_dim, v_dim or the start of a view is not a multiple of 4, or ROPE_DIMS not one of 8
const MIN_SCALED: f32 = 1.5e-36;       // an 8-bit vector of smaller elements would have a subnormal scale: it is stored as zeros
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;
@group(0) @binding(8) var<storage, read> vecs: array<vec4<f32>>;
var<workgroup> sh_squares: array<f32, WG>;
var<workgroup> sh_max: array<u32, WG * KV_LANES>;  // [row of a word][thread]

/// The sum over a head's threads.
fn head_sum(x: f32, lid: u32) -> f32 {
    if THREADS == 1u {
        return x;
    }
    sh_squares[lid] = x;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < THREADS; i++) {
        sum += sh_squares[lid / THREADS * THREADS + i];
    }
    return sum;
}
/// The largest over a head's threads; called once for each `lane`.
fn head_max(x: u32, lid: u32, lane: u32) -> u32 {
    if THREADS == 1u {
        return x;
    }
    sh_max[lane * WG + lid] = x;
    workgroupBarrier();
    var max_bits = 0u;
    for (var i = 0u; i < THREADS; i++) {
        max_bits = max(max_bits, sh_max[lane * WG + lid / THREADS * THREADS + i]);
    }
    return max_bits;
}

/// Four weights of the norm of q or k, around element i.
fn weight4(of_q: bool, i: u32) -> vec4<f32> {
    if HAS_Q_NORM_W && of_q {
        return vecs[(params.q_norm + i) / 4u];
    }
    if HAS_K_NORM_W && !of_q {
        return vecs[(params.k_norm + i) / 4u];
    }
    return vec4<f32>(1.0);
}
/// An element of q or k, where heads are of any size.
fn plain1(of_q: bool, row: u32, head: u32, i: u32) -> f32 {
    if of_q {
        let at = q_at(row, head) + i;
        return q[at / 4u][at % 4u];
    }
    let at = key_at(row, head) + i;
    return k[at / 4u][at % 4u];
}
/// The same, normalised. Norms' weights begin at multiples of 4.
fn normed1(of_q: bool, row: u32, head: u32, i: u32, scale: f32) -> f32 {
    return plain1(of_q, row, head, i) * (scale * weight4(of_q, i)[i % 4u]);
}
/// Elements i.. of a head of q or k of any size, normalised and rotated, with zeros past its end.
fn ragged4(of_q: bool, row: u32, head: u32, i: u32, scale: f32) -> vec4<f32> {
    let half = max(ROPE_DIMS / 2u, 1u);
    var v4 = vec4<f32>(0.0);
    for (var j = i; j < min(i + 4u, params.k_dim); j++) {
        var y = normed1(of_q, row, head, j, scale);
        if j < ROPE_DIMS {
            let other = normed1(of_q, row, head, select(j ^ 1u, (j + half) % (2u * half), NEOX), scale);
            let t = angle(row, select(j / 2u, j % half, NEOX));
            let first = select(j % 2u == 0u, j < half, NEOX);
            y = y * t.x + other * select(t.y, -t.y, first);
        }
        v4[j - i] = y;
    }
    return v4;
}
/// Where the vec4s of a unit begin.
fn vec4s_at(u: u32) -> vec2<u32> {
    return select(unit_at(u), vec2<u32>(8u * u, 8u * u + 4u), RAGGED);
}
/// A unit of q or k, normalised and rotated.
fn made(of_q: bool, row: u32, head: u32, u: u32, scale: f32) -> Unit {
    let e = vec4s_at(u);
    if RAGGED {
        return Unit(ragged4(of_q, row, head, e.x, scale), ragged4(of_q, row, head, e.y, scale));
    }
    var x = Unit(vec4<f32>(0.0), vec4<f32>(0.0));
    if of_q {
        x = q_unit(q_at(row, head), e);
    } else {
        x = k_unit(key_at(row, head), e);
    }
    if Q_NORM || K_NORM {
        x.a *= scale * weight4(of_q, e.x);
        x.b *= scale * weight4(of_q, e.y);
    }
    return rotated(x, row, u);
}
/// A unit of v.
fn value(row: u32, head: u32, u: u32) -> Unit {
    let e = vec4s_at(u);
    let at = value_at(row, head);
    if !RAGGED {
        return v_unit(at, e);
    }
    var x = Unit(vec4<f32>(0.0), vec4<f32>(0.0));
    for (var j = 0u; j < 4u; j++) {
        if e.x + j < params.v_dim {
            x.a[j] = v[(at + e.x + j) / 4u][(at + e.x + j) % 4u];
        }
        if e.y + j < params.v_dim {
            x.b[j] = v[(at + e.y + j) / 4u][(at + e.y + j) % 4u];
        }
    }
    return x;
}
/// The sum of the squares of a unit of q or k.
fn squared(of_q: bool, row: u32, head: u32, u: u32) -> f32 {
    var sum = 0.0;
    let n = params.k_dim;
    if RAGGED {
        for (var i = 8u * u; i < min(8u * u + 8u, n); i++) {
            let x = plain1(of_q, row, head, i);
            sum += x * x;
        }
        return sum;
    }
    let e = vec2<u32>(8u * u, 8u * u + 4u);
    var x = Unit(vec4<f32>(0.0), vec4<f32>(0.0));
    if of_q {
        x = q_unit(q_at(row, head), e);
    } else {
        x = k_unit(key_at(row, head), e);
    }
    return dot(x.a, x.a) + select(0.0, dot(x.b, x.b), e.y < n);
}
/// The largest of four magnitudes, as bits: NaN and infinity are above all others, where `max` of floats may drop a NaN.
fn size4(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

@compute @workgroup_size(WG)
fn norm_rope_kv(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if row >= batch[0] {
        return;
    }
    let h = head_of(group.x * WG + lid);
    var q_scale = 1.0;
    var k_scale = 1.0;
    if Q_NORM || K_NORM {
        var squares = 0.0;
        for (var u = h.first; u < select(0u, h.q_units, Q_NORM); u += THREADS) {
            squares += squared(true, row, h.own, u);
        }
        for (var u = h.first; u < select(0u, h.k_units, K_NORM); u += THREADS) {
            squares += squared(false, row, h.own, u);
        }
        let mean = head_sum(squares, lid) / f32(params.k_dim);
        q_scale = select(1.0, inverseSqrt(mean + params.q_eps), Q_NORM);
        k_scale = select(1.0, inverseSqrt(mean + params.k_eps), K_NORM);
    }
    for (var u = h.first; u < h.q_units; u += THREADS) {
        let e = vec4s_at(u);
        let y = made(true, row, h.own, u, q_scale);
        let to = row * params.out_stride + h.own * params.k_dim;
        for (var j = 0u; j < 4u; j++) {
            if e.x + j < params.k_dim {
                out[to + e.x + j] = y.a[j];
            }
            if e.y + j < params.k_dim {
                out[to + e.y + j] = y.b[j];
            }
        }
    }
    var owned = 1u;
    if V_APART {
        owned = rows_owned(row);
    }
    for (var lane = 0u; lane < select(1u, KV_LANES, V_APART); lane++) {
        // Keys are this row's; values are those of all rows that this one stores for.
        let r = select(row, row + lane, lane < owned);
        let k_units = select(0u, h.k_units, lane == 0u);
        let v_units = select(0u, h.v_units, lane < owned);
        let pos = row_pos(r);
        let base = page_base(row_seq(r), pos);
        var by = 1.0;
        var down = 1.0;
        if KV_SCALED {
            var max_bits = 0u;
            for (var u = h.first; u < k_units; u += THREADS) {
                let y = made(false, row, h.own, u, k_scale);
                max_bits = max(max_bits, max(size4(y.a), size4(y.b)));
            }
            for (var u = h.first; u < v_units; u += THREADS) {
                let y = value(r, h.own, u);
                max_bits = max(max_bits, max(size4(y.a), size4(y.b)));
            }
            max_bits = head_max(max_bits, lid, lane);
            var largest = bitcast<f32>(min(max_bits, 0x7f7fffffu));
            if largest < MIN_SCALED {
                largest = 0.0;
                by = 0.0;
            } else {
                // The inverse of a huge number would be a subnormal f32.
                down = select(1.0, 0.00390625, largest > 1e37);
                by = 1.0 / (largest * down);
            }
            if h.first == 0u && k_units + v_units > 0u {
                // Scales lie after the elements, four of which are a word.
                let of_v = select(0u, 1u, v_units > 0u);
                let scales = base / 4u + KV_HEADS * PAGE_SLOTS * ((K_DIM + V_DIM) / 4u + of_v);
                kv[scales + h.own * PAGE_SLOTS + pos % PAGE_SLOTS] =
                    select(bitcast<u32>(largest / 127.0), 0x7fc00000u, max_bits >= 0x7f800000u);
            }
        }
        for (var u = h.first; u < k_units; u += THREADS) {
            let y = made(false, row, h.own, u, k_scale);
            store_key(k_at(base, h.own, pos), vec4s_at(u), Unit(by * (down * y.a), by * (down * y.b)));
        }
        for (var u = h.first; u < v_units; u += THREADS) {
            let e = vec4s_at(u);
            let x = value(r, h.own, u);
            let y = Unit(by * (down * x.a), by * (down * x.b));
            let to = v_at(base, h.own, pos);
            if !V_APART {
                store_value(to, e, y);
            } else {
                store_apart(to, e.x, insert_apart(words_apart(to, e.x, false), pos, y.a));
                if e.y < V_DIM {
                    store_apart(to, e.y, insert_apart(words_apart(to, e.y, false), pos, y.b));
                }
            }
        }
    }
}
