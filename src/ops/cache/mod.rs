//! The shape of a cache of keys and values: how its elements are stored, and where.

pub(in crate::ops) mod kv_blocks;
pub(in crate::ops) mod kv_replicate;
pub(in crate::ops) mod kv_write;

use crate::{Error, Result};

/// In a block table, a block that no row sees any more.
pub const FREED: u32 = u32::MAX;

/// How the elements of keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvStorage {
    /// 32 bits each.
    F32,
    /// 16 bits each.
    #[default]
    F16,
    /// 8-bit integers, and an f32 scale for each key and value: x ≈ integer * scale, scale = max |x| / 127. A vector that
    /// holds NaN or infinity has NaN for its scale; one whose scale would be subnormal is stored as zeros.
    Q8,
}

impl KvStorage {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8];

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        32 / self.lanes()
    }

    /// Bytes of a vector of `dim` elements, its scale included.
    pub fn vector_bytes(self, dim: u32) -> u32 {
        dim * 4 / self.lanes() + if self == Self::Q8 { 4 } else { 0 }
    }

    /// Elements in a 32-bit word.
    pub fn lanes(self) -> u32 {
        match self {
            Self::F32 => 1,
            Self::F16 => 2,
            Self::Q8 => 4,
        }
    }
}

/// Where elements lie in a block, and blocks in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvLayout {
    /// `[block][K: kv_head, slot, k_dim | V: kv_head, slot, v_dim]`, blocks found by tables: the engine's.
    #[default]
    Paged,
    /// `[seq][K: kv_head, position, k_dim | V: kv_head, position, v_dim]`: sequence s has block s alone, without a table.
    Contiguous,
    /// `[block][K: kv_head, k_dim / x, slot, x | V: kv_head, v_dim, slot]` with x elements in 16 bytes, blocks found by
    /// tables: vLLM's.
    Vectorised,
}

impl KvLayout {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Paged, Self::Contiguous, Self::Vectorised];
}

/// The shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Elements of a key.
    pub k_dim: u32,
    /// Elements of a value; 0 where values are the first elements of their keys.
    pub v_dim: u32,
    /// Positions in a block; of a contiguous cache, the longest sequence.
    pub slots: u32,
    /// Blocks; of a contiguous cache, sequences.
    pub blocks: u32,
    /// How elements are stored.
    pub storage: KvStorage,
    /// Where they lie.
    pub layout: KvLayout,
}

impl std::str::FromStr for KvStorage {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            _ => Err(Error::argument("type of keys and values", format!("{s:?}; f32, f16 and q8 work"))),
        }
    }
}

impl CacheShape {
    /// Elements of a key with its padding: complete words in every storage type, complete vectors in the vectorised layout.
    pub fn padded_k(&self) -> u32 {
        match self.layout {
            KvLayout::Vectorised => self.k_dim.next_multiple_of(4 * self.storage.lanes()),
            _ => self.k_dim.next_multiple_of(4),
        }
    }

    /// Whether keys or values are padded.
    pub(crate) fn is_padded(&self) -> bool {
        (self.padded_k(), self.padded_v()) != (self.k_dim, self.v_dim)
    }

    /// Elements of a value with its padding.
    pub fn padded_v(&self) -> u32 {
        self.v_dim.next_multiple_of(4)
    }

    /// Elements that a head has in a block for each slot besides its key and value: the two scales of 8-bit storage.
    pub(crate) fn extra(&self) -> u32 {
        if self.storage == KvStorage::Q8 { 8 } else { 0 }
    }

    /// 32-bit words of a block.
    pub fn block_words(&self) -> u64 {
        let head = u64::from(self.padded_k()) + u64::from(self.padded_v()) + u64::from(self.extra());
        u64::from(self.kv_heads) * u64::from(self.slots) * head / u64::from(self.storage.lanes())
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> u64 {
        self.block_words() * 4 * u64::from(self.blocks)
    }

    /// The element of the cache where element `i` of a key lies.
    pub fn k_element(&self, block: u32, head: u32, slot: u32, i: u32) -> u64 {
        let inside = match self.layout {
            KvLayout::Vectorised => {
                let x = 4 * self.storage.lanes();
                u64::from(self.slots) * u64::from(head * self.padded_k() + i / x * x) + u64::from(slot * x + i % x)
            }
            _ => u64::from(head * self.slots + slot) * u64::from(self.padded_k()) + u64::from(i),
        };
        self.block_element(block) + inside
    }

    /// The element of the cache where element `i` of a value lies.
    pub fn v_element(&self, block: u32, head: u32, slot: u32, i: u32) -> u64 {
        let keys = u64::from(self.kv_heads) * u64::from(self.slots) * u64::from(self.padded_k());
        let inside = match self.layout {
            KvLayout::Vectorised => u64::from(head * self.padded_v() + i) * u64::from(self.slots) + u64::from(slot),
            _ => u64::from(head * self.slots + slot) * u64::from(self.padded_v()) + u64::from(i),
        };
        self.block_element(block) + keys + inside
    }

    /// The word of the cache where the scale of a key (or value) lies, in 8-bit storage.
    pub fn scale_word(&self, block: u32, head: u32, slot: u32, of_value: bool) -> u64 {
        let heads = u64::from(self.kv_heads) * u64::from(self.slots);
        let elements = heads * u64::from(self.padded_k() + self.padded_v()) / 4;
        let before = if of_value { heads } else { 0 };
        u64::from(block) * self.block_words() + elements + before + u64::from(head * self.slots + slot)
    }

    /// Where in the cache all elements of keys and values lie, block by block, without padding: entry `n` is element `n` of the
    /// CPU's pages.
    pub(crate) fn elements(&self) -> impl Iterator<Item = u64> {
        let Self { kv_heads, k_dim, v_dim, slots, blocks, .. } = *self;
        let shape = *self;
        let vectors = move |head| (0..slots).map(move |slot| (head, slot));
        (0..blocks).flat_map(move |block| {
            let all = (0..kv_heads).flat_map(vectors);
            let keys = all.clone().map(move |(head, slot)| (shape.k_element(block, head, slot, 0), k_dim));
            let values = all.map(move |(head, slot)| (shape.v_element(block, head, slot, 0), v_dim));
            keys.chain(values).flat_map(|(first, dim)| first..first + u64::from(dim))
        })
    }

    fn block_element(&self, block: u32) -> u64 {
        u64::from(block) * self.block_words() * u64::from(self.storage.lanes())
    }

    /// Fails on a shape that no cache can have: empty, or of more elements than 32 bits count.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::argument("cache", problem));
        let Self { kv_heads, k_dim, slots, blocks, layout, .. } = *self;
        if kv_heads == 0 || k_dim == 0 || slots == 0 || blocks == 0 {
            return wrong(format!("{blocks} blocks of {slots} slots, {kv_heads} heads of {k_dim} elements"));
        }
        if layout == KvLayout::Vectorised && !slots.is_multiple_of(4) {
            return wrong(format!(
                "{slots} slots in a block, but neighbouring slots share words: a multiple of 4 works"
            ));
        }
        let in_range = [self.k_dim, self.v_dim].into_iter().all(|dim| dim <= 1 << 16);
        let elements = u128::from(self.block_words()) * u128::from(self.storage.lanes()) * u128::from(blocks);
        if !in_range || elements > u128::from(u32::MAX) {
            return wrong(format!("{elements} elements, but a kernel counts them in 32 bits"));
        }
        Ok(())
    }
}
