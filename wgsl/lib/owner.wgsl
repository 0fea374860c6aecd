//! owner: which rows a thread stores for, where elements of neighbouring slots share a word.
//!
//! Two threads that replace their halves of a word lose one of them. So the first of the step's rows that falls into a word
//! stores for all of them: the rows of a sequence stand one behind the other, at positions that rise by one.

// Rows that are stored for at this row, itself included; 0: a row before it does that.
fn rows_owned(row: u32) -> u32 {
    if !V_APART {
        return 1u;
    }
    let pos = row_pos(row);
    let seq = row_seq(row);
    if pos % KV_LANES != 0u && row > 0u {
        if row_seq(row - 1u) == seq && row_pos(row - 1u) + 1u == pos {
            return 0u;
        }
    }
    var n = 1u;
    while (pos + n) % KV_LANES != 0u && row + n < step[0] {
        if row_seq(row + n) != seq || row_pos(row + n) != pos + n {
            break;
        }
        n++;
    }
    return n;
}

// Replaces four elements of a value from element i on, each in a word that it shares with other slots.
fn store_apart(at: u32, i: u32, v: vec4<f32>) {
    for (var j = 0u; j < 4u; j++) {
        let e = at + v_elem(i + j);
        kv[e / KV_LANES] = kv_insert(kv[e / KV_LANES], e % KV_LANES, v[j]);
    }
}
