//! Keys and values of one layer, in pages.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::Shared;

/// A cache of one layer: `[block][ K: kv_head, slot, k_dim | V: kv_head, slot, v_dim ]`.
pub(crate) struct Pages {
    /// The group whose block tables say which block holds which positions.
    pub(crate) group: usize,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    /// Positions in a block.
    block: usize,
    store: Store,
}

/// The elements, in the type of the numerics.
enum Store {
    F32(Shared<f32>),
    /// As bits, since only those are known to be zero when they come from the system.
    F16(Shared<u16>),
}

/// One of the vectors that a position keeps.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Key.
    K,
    /// Value.
    V,
}

impl Pages {
    /// Elements of a block.
    pub(crate) fn block_len(kv_heads: usize, k_dim: usize, v_dim: usize, block: usize) -> usize {
        kv_heads * block * (k_dim + v_dim)
    }

    /// Zeros. `half`: in f16.
    pub(crate) fn new(
        group: usize,
        [kv_heads, k_dim, v_dim]: [usize; 3],
        block: usize,
        blocks: usize,
        half: bool,
    ) -> Self {
        let len = Self::block_len(kv_heads, k_dim, v_dim, block) * blocks;
        let store = if half { Store::F16(Shared::zeroed(len)) } else { Store::F32(Shared::zeroed(len)) };
        Self { group, kv_heads, k_dim, v_dim, block, store }
    }

    /// The first element of a vector, and how many it has.
    fn place(&self, kind: Kind, (block, slot): (usize, usize), head: usize) -> (usize, usize) {
        let start = block * Self::block_len(self.kv_heads, self.k_dim, self.v_dim, self.block);
        match kind {
            Kind::K => (start + (head * self.block + slot) * self.k_dim, self.k_dim),
            Kind::V => {
                let keys = self.kv_heads * self.block * self.k_dim;
                (start + keys + (head * self.block + slot) * self.v_dim, self.v_dim)
            }
        }
    }

    /// A vector, in f32; `scratch` is where it is converted to if it is stored otherwise.
    #[inline]
    pub(crate) fn load<'a>(&'a self, kind: Kind, at: (usize, usize), head: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let (start, n) = self.place(kind, at, head);
        match &self.store {
            Store::F32(store) => store.slice(start..start + n),
            Store::F16(store) => {
                let bits: &[f16] = store.slice(start..start + n).reinterpret_cast();
                bits.convert_to_f32_slice(&mut scratch[..n]);
                &scratch[..n]
            }
        }
    }

    /// Stores a vector.
    pub(crate) fn store(&self, kind: Kind, at: (usize, usize), head: usize, vector: &[f32]) {
        let (start, n) = self.place(kind, at, head);
        match &self.store {
            Store::F32(store) => store.slice_mut(start..start + n).copy_from_slice(vector),
            Store::F16(store) => {
                for (place, x) in store.slice_mut(start..start + n).iter_mut().zip(vector) {
                    *place = f16::from_f32(*x).to_bits();
                }
            }
        }
    }

    /// Copies a block onto another.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let n = Self::block_len(self.kv_heads, self.k_dim, self.v_dim, self.block);
        match &mut self.store {
            Store::F32(store) => store.all_mut().copy_within(from * n..(from + 1) * n, to * n),
            Store::F16(store) => store.all_mut().copy_within(from * n..(from + 1) * n, to * n),
        }
    }

    /// Fills a block.
    pub(crate) fn fill(&mut self, block: usize, value: f32) {
        let n = Self::block_len(self.kv_heads, self.k_dim, self.v_dim, self.block);
        match &mut self.store {
            Store::F32(store) => store.all_mut()[block * n..(block + 1) * n].fill(value),
            Store::F16(store) => store.all_mut()[block * n..(block + 1) * n].fill(f16::from_f32(value).to_bits()),
        }
    }
}
