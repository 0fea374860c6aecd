//! owner: which rows a thread stores for, where elements of neighbouring slots share a word.
//!
//! Of two threads that each replace a part of one word, one would undo the other's. So the first of the step's rows that falls
//! into a word stores for all of them: the rows of a sequence are contiguous, at positions that rise by one.

// Rows that this row's thread stores for, itself included; 0: the thread of an earlier row stores this one.
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
    while (pos + n) % KV_LANES != 0u && row + n < batch[0] {
        if row_seq(row + n) != seq || row_pos(row + n) != pos + n {
            break;
        }
        n++;
    }
    return n;
}

// The four words that elements i.. of a value share with neighbouring slots; `fresh`: this step writes all of them.
fn words_apart(at: u32, i: u32, fresh: bool) -> vec4<u32> {
    if fresh {
        return vec4<u32>(0u);
    }
    let e = vec4<u32>(v_elem(i), v_elem(i + 1u), v_elem(i + 2u), v_elem(i + 3u)) + at;
    return vec4<u32>(kv[e.x / KV_LANES], kv[e.y / KV_LANES], kv[e.z / KV_LANES], kv[e.w / KV_LANES]);
}
// The same with the elements of one slot replaced.
fn insert_apart(words: vec4<u32>, slot: u32, v: vec4<f32>) -> vec4<u32> {
    return kv_insert4(words, slot % KV_LANES, v);
}
fn store_apart(at: u32, i: u32, words: vec4<u32>) {
    for (var j = 0u; j < 4u; j++) {
        kv[(at + v_elem(i + j)) / KV_LANES] = words[j];
    }
}
