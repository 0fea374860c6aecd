//! vectorised: where a position lies in a cache of [block][K: kv_head, k_dim / x, slot, x | V: kv_head, v_dim, slot | scales],
//! in elements, where x elements are 16 bytes: 4 KV_LANES, which the storage type says. k_dim is rounded up to x, v_dim to 4.
//! The rest is as in lib/paged.
override PAGE_SLOTS: u32 = 16u;     // positions in a block, a multiple of 4
override PAGE_TABLE: u32 = 0u;      // first block table of the cache's group, in words of the step's tables
override PAGE_TABLES: bool = true;  // else sequence s has block s alone
override PAGE_BLOCKS: u32 = 1u;     // blocks in the cache
override PAGE_EXTRA: u32 = 0u;      // elements that a head has in a block for each slot beside its key and value
override KV_HEADS: u32 = 1u;
override K_DIM: u32 = 64u;          // rounded up to x
override V_DIM: u32 = 64u;          // rounded up to 4
const K_X: u32 = 4u * KV_LANES;     // x
const V_APART: bool = true;         // neighbours in memory are the same element of neighbouring slots' values

fn page_base(seq: u32, pos: u32) -> u32 {
    var block = seq;
    if PAGE_TABLES {
        block = batch[BATCH_TABLES + PAGE_TABLE + seq * batch[3u] + pos / PAGE_SLOTS];
    }
    return min(block, PAGE_BLOCKS - 1u) * (KV_HEADS * PAGE_SLOTS * (K_DIM + V_DIM + PAGE_EXTRA));
}
fn k_at(base: u32, head: u32, pos: u32) -> u32 {
    return base + head * PAGE_SLOTS * K_DIM + (pos % PAGE_SLOTS) * K_X;
}
fn v_at(base: u32, head: u32, pos: u32) -> u32 {
    return base + KV_HEADS * PAGE_SLOTS * K_DIM + head * PAGE_SLOTS * V_DIM + pos % PAGE_SLOTS;
}
fn k_elem(i: u32) -> u32 { return i / K_X * (K_X * PAGE_SLOTS) + i % K_X; }
fn v_elem(i: u32) -> u32 { return i * PAGE_SLOTS; }
