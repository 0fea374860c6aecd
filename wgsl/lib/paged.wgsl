//! paged: where a position lies in a cache: [block][K: kv_head, slot, k_dim | V: kv_head, slot, v_dim], in elements.
//! k_dim and v_dim are rounded up to 4, so that four elements are whole words in every storage type.
//! A block id past the cache is clamped to its last block.
override PAGE_SLOTS: u32 = 16u;     // positions in a block
override PAGE_TABLE: u32 = 0u;      // first block table of the cache's group, in words of the step's tables
override PAGE_BLOCKS: u32 = 1u;     // blocks in the cache
override KV_HEADS: u32 = 1u;
override K_DIM: u32 = 64u;          // rounded up to 4
override V_DIM: u32 = 64u;          // rounded up to 4

fn page_base(seq: u32, pos: u32) -> u32 {
    let block = step[STEP_TABLES + PAGE_TABLE + seq * step[3u] + pos / PAGE_SLOTS];
    return min(block, PAGE_BLOCKS - 1u) * (KV_HEADS * PAGE_SLOTS * (K_DIM + V_DIM));
}
fn k_at(base: u32, head: u32, pos: u32) -> u32 {
    return base + (head * PAGE_SLOTS + pos % PAGE_SLOTS) * K_DIM;
}
fn v_at(base: u32, head: u32, pos: u32) -> u32 {
    return base + KV_HEADS * PAGE_SLOTS * K_DIM + (head * PAGE_SLOTS + pos % PAGE_SLOTS) * V_DIM;
}
