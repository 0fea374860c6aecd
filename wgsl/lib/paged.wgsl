//! paged: where a position lies in a cache: [block][K: kv_head, slot, k_dim | V: kv_head, slot, v_dim | scales], in elements.
//! k_dim and v_dim are rounded up to 4, so that four elements are whole words in every storage type. A block id past the cache
//! is clamped to its last block.
//!
//! The layouts of a cache (this file, lib/vectorised) and its storage types (lib/kv_*) agree on this: element i of a key is at
//! k_at(base, head, pos) + k_elem(i), four from a multiple of 4 on are contiguous; element i of a value is at
//! v_at(base, head, pos) + v_elem(i), and four are contiguous unless V_APART. 8-bit storage has PAGE_EXTRA = 8: after the values
//! of a block lie the scales of its keys, then those of its values, [kv_head][slot] f32 each.
override PAGE_SLOTS: u32 = 16u;     // positions in a block
override PAGE_TABLE: u32 = 0u;      // first block table of the cache's group, in words of the step's tables
override PAGE_TABLES: bool = true;  // else sequence s has block s alone: a contiguous cache, of PAGE_SLOTS positions at most
override PAGE_BLOCKS: u32 = 1u;     // blocks in the cache
override PAGE_EXTRA: u32 = 0u;      // elements that a head has in a block for each slot beside its key and value
override KV_HEADS: u32 = 1u;
override K_DIM: u32 = 64u;          // rounded up to 4
override V_DIM: u32 = 64u;          // rounded up to 4
const V_APART: bool = false;        // neighbours in memory are elements of one value

fn page_base(seq: u32, pos: u32) -> u32 {
    var block = seq;
    if PAGE_TABLES {
        block = batch[BATCH_TABLES + PAGE_TABLE + seq * batch[3u] + pos / PAGE_SLOTS];
    }
    return min(block, PAGE_BLOCKS - 1u) * (KV_HEADS * PAGE_SLOTS * (K_DIM + V_DIM + PAGE_EXTRA));
}
fn k_at(base: u32, head: u32, pos: u32) -> u32 {
    return base + (head * PAGE_SLOTS + pos % PAGE_SLOTS) * K_DIM;
}
fn v_at(base: u32, head: u32, pos: u32) -> u32 {
    return base + KV_HEADS * PAGE_SLOTS * K_DIM + (head * PAGE_SLOTS + pos % PAGE_SLOTS) * V_DIM;
}
fn k_elem(i: u32) -> u32 { return i; }
fn v_elem(i: u32) -> u32 { return i; }
