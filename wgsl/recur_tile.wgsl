//! recur_tile: out = e^b S q + sum_s e^(b - b_s) (key_s . q) u_s over the rows s of a tile up to the row's own, and u alike
//! q, keys (rows, key_heads * k) f32 | x (rows, heads * v) f32 | gates (rows, heads, 2) f32 | out (rows, heads * v) f32
//! grid: x one workgroup for WG elements of a head's values, y one head, z one sequence
//! use: lib/batch, lib/recur
//! source: the chunked forms of Mamba-2, Dao and Gu 2024, and of gated delta nets, Yang et al. 2024
//!
//! The kernel of prefill: S is read once for the rows of a tile, and written when the tile is full; b is the sum of g since the
//! tile's beginning. Tiles lie at multiples of TILE positions, so no bit depends on how a prompt was split into steps.
const DEPTH: u32 = 32u;                                     // elements of keys that are staged at a time
const QUADS: u32 = TILE / 4u;
var<workgroup> sh_q: array<vec4<f32>, DEPTH * QUADS>;    // (DEPTH, TILE): rows of the tile side by side
var<workgroup> sh_k: array<vec4<f32>, DEPTH * QUADS>;
var<workgroup> sh_with_q: array<f32, TILE * TILE>;             // (row, s): e^(b - b_s) key_s . q
var<workgroup> sh_with_k: array<f32, TILE * TILE>;             // (row, s): e^(b - b_s) key_s . key
var<workgroup> sh_updates: array<f32, TILE * WG>;
var<workgroup> sh_decays: array<f32, TILE>;

@compute @workgroup_size(WG)
fn recur_tile(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let head = group.y;
    let seq = group.z;
    if seq >= batch[1] {
        return;
    }
    let j = group.x * WG + lid;
    let k = params.k;
    let row0 = seq_row0(seq);
    let rows = seq_rows(seq);
    let pos = row_pos(row0);
    let part = part_at(seq, head, group.x);
    var count = 0u;  // rows of the tile that came in earlier steps
    if pos == 0u {
        forget(part, lid);
    } else {
        count = min(u32(state[count_at(part)]), TILE - 1u);
    }
    for (var first = 0u; first < rows; ) {
        let added = min(rows - first, TILE - (pos + first) % TILE);
        let row = row0 + first;
        let full = (pos + first + added) % TILE == 0u;
        count = min(count, TILE - added);  // changes nothing, unless the state is another sequence's

        for (var i = lid; i < added * k; i += WG) {
            state[keys_at(part) + count * k + i] = keys[(row + i / k) * params.k_stride + key_of(head) + i % k];
        }
        for (var m = lid; m < count; m += WG) {
            sh_decays[m] = state[decays_at(part) + m];
        }
        if lid == 0u {
            var b = 0.0;
            if count > 0u {
                b = state[decays_at(part) + count - 1u];
            }
            for (var i = 0u; i < added; i++) {
                b += gates[(row + i) * params.heads + head].y;
                sh_decays[count + i] = b;
            }
        }
        for (var m = 0u; m < count; m++) {
            sh_updates[m * WG + lid] = state[updates_at(part) + m * WG + lid];
        }
        storageBarrier();
        workgroupBarrier();

        // The products within the tile, one thread per pair of rows.
        for (var pair = lid; pair < added * TILE; pair += WG) {
            let i = pair / TILE;
            let s = pair % TILE;
            if s > count + i {
                continue;
            }
            let key = keys_at(part) + s * k;
            let from_q = (row + i) * params.q_stride + key_of(head);
            let from_k = (row + i) * params.k_stride + key_of(head);
            var products = vec2<f32>(0.0);
            for (var e = 0u; e < k; e++) {
                products += state[key + e] * vec2<f32>(q[from_q + e], keys[from_k + e]);
            }
            let left = exp(sh_decays[count + i] - sh_decays[s]);
            sh_with_q[pair] = left * products.x;
            sh_with_k[pair] = left * products.y;
        }

        // S times the queries and keys of the new rows.
        // Initialised explicitly: Chromium does not clear an uninitialised variable each time that a loop comes to it.
        var from_q = array<vec4<f32>, QUADS>();
        var from_k = array<vec4<f32>, QUADS>();
        for (var e0 = 0u; e0 < k; e0 += DEPTH) {
            for (var i = lid; i < DEPTH * QUADS; i += WG) {
                let e = e0 + i / QUADS;
                var query = vec4<f32>(0.0);
                var key = vec4<f32>(0.0);
                for (var r = 0u; r < 4u; r++) {
                    let at = 4u * (i % QUADS) + r;
                    if e < k && at < added {
                        query[r] = q[(row + at) * params.q_stride + key_of(head) + e];
                        key[r] = keys[(row + at) * params.k_stride + key_of(head) + e];
                    }
                }
                sh_q[i] = query;
                sh_k[i] = key;
            }
            workgroupBarrier();
            for (var e = 0u; e < min(DEPTH, k - e0); e++) {
                let s = state[part + (e0 + e) * WG + lid];
                for (var i = 0u; i < QUADS; i++) {
                    from_q[i] += s * sh_q[e * QUADS + i];
                    from_k[i] += s * sh_k[e * QUADS + i];
                }
            }
            workgroupBarrier();
        }

        // Each row's update depends on those of the rows before it; a thread has its own column of them.
        for (var i = 0u; i < added; i++) {
            var own = 0.0;
            if j < params.v {
                own = x[(row + i) * params.x_stride + head * params.v + j];
            }
            let m = count + i;
            let keep = exp(sh_decays[m]);
            var u = own;
            if CORRECTS {
                u -= keep * from_k[i / 4u][i % 4u];
                for (var s = 0u; s < m; s++) {
                    u -= sh_with_k[i * TILE + s] * sh_updates[s * WG + lid];
                }
            }
            sh_updates[m * WG + lid] = gates[(row + i) * params.heads + head].x * u;
            var y = keep * from_q[i / 4u][i % 4u];
            for (var s = 0u; s <= m; s++) {
                y += sh_with_q[i * TILE + s] * sh_updates[s * WG + lid];
            }
            if j < params.v {
                store(row + i, head, j, y, own);
            }
        }

        count += added;
        let last = sh_decays[count - 1u];
        if full {
            // Adds the updates to S, with keys staged as above.
            for (var m = 0u; m < count; m++) {
                sh_updates[m * WG + lid] *= exp(last - sh_decays[m]);
            }
            for (var e0 = 0u; e0 < k; e0 += DEPTH) {
                for (var i = lid; i < DEPTH * QUADS; i += WG) {
                    let e = e0 + i / QUADS;
                    var key = vec4<f32>(0.0);
                    for (var r = 0u; r < 4u; r++) {
                        let m = 4u * (i % QUADS) + r;
                        if e < k && m < count {
                            key[r] = state[keys_at(part) + m * k + e];
                        }
                    }
                    sh_k[i] = key;
                }
                workgroupBarrier();
                for (var e = 0u; e < min(DEPTH, k - e0); e++) {
                    let at = part + (e0 + e) * WG + lid;
                    var s = exp(last) * state[at];
                    for (var m = 0u; m < count; m++) {
                        s += sh_updates[m * WG + lid] * sh_k[e * QUADS + m / 4u][m % 4u];
                    }
                    state[at] = s;
                }
                workgroupBarrier();
            }
            count = 0u;
        } else {
            for (var m = 0u; m < count; m++) {
                state[updates_at(part) + m * WG + lid] = sh_updates[m * WG + lid];
            }
            for (var m = lid; m < count; m += WG) {
                state[decays_at(part) + m] = sh_decays[m];
            }
            state[count_at(part) + lid] = f32(count);
        }
        storageBarrier();
        workgroupBarrier();
        first += added;
    }
    if (pos + rows) % TILE == 0u {
        state[count_at(part) + lid] = 0.0;
    }
}
