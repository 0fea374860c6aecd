//! recur_step: for each row, S = e^g S + u keyᵀ and out = S q, u = gain * (x - e^g S key) by the delta rule, gain * x without it
//! q, keys (rows, key_heads * k) f32 | x (rows, heads * v) f32 | gates (rows, heads, 2) f32 | out (rows, heads * v) f32
//! grid: x one workgroup for WG elements of a head's values, y one head, z one sequence
//! use: lib/batch, lib/recur
//! source: Mamba-2, Dao and Gu 2024; gated delta nets, Yang et al. 2024
//!
//! The kernel of decode: row after row, without a barrier, since each thread has a column of S to itself.

// Puts the rows of a tile that was not full into S.
fn fold(part: u32, lid: u32) {
    let count = min(u32(state[count_at(part) + lid]), TILE);
    if count == 0u {
        return;
    }
    let last = state[decays_at(part) + count - 1u];
    for (var i = 0u; i < params.k; i++) {
        var s = exp(last) * state[part + i * WG + lid];
        for (var m = 0u; m < count; m++) {
            let learnt = exp(last - state[decays_at(part) + m]) * state[updates_at(part) + m * WG + lid];
            s += learnt * state[keys_at(part) + m * params.k + i];
        }
        state[part + i * WG + lid] = s;
    }
    state[count_at(part) + lid] = 0.0;
}

@compute @workgroup_size(WG)
fn recur_step(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let head = group.y;
    let seq = group.z;
    let j = group.x * WG + lid;
    if seq >= batch[1] || j >= params.v {
        return;
    }
    let row0 = seq_row0(seq);
    let part = part_at(seq, head, group.x);
    if row_pos(row0) == 0u {
        forget(part, lid);
    }
    fold(part, lid);
    for (var row = row0; row < row0 + seq_rows(seq); row++) {
        let gate = gates[row * params.heads + head];
        let keep = exp(gate.y);
        let from_q = row * params.q_stride + key_of(head);
        let from_k = row * params.k_stride + key_of(head);
        let own = x[row * params.x_stride + head * params.v + j];
        var u = gate.x * own;
        if CORRECTS {
            var known = 0.0;
            for (var i = 0u; i < params.k; i++) {
                known += keep * state[part + i * WG + lid] * keys[from_k + i];
            }
            u = gate.x * (own - known);
        }
        var y = 0.0;
        for (var i = 0u; i < params.k; i++) {
            let s = keep * state[part + i * WG + lid] + u * keys[from_k + i];
            state[part + i * WG + lid] = s;
            y += s * q[from_q + i];
        }
        store(row, head, j, y, own);
    }
}
