//! Keys and values of one layer, in pages.

use half::f16;

use super::Shared;
use crate::Result;

/// Rows of floats, as pages keep them, `stride` numbers apart.
#[derive(Clone, Copy)]
pub(crate) enum FloatRows<'a> {
    /// Of 32 bits.
    F32(&'a [f32], usize),
    /// Bits of f16.
    F16(&'a [u16], usize),
}

impl FloatRows<'_> {
    /// Without the first rows.
    pub(crate) fn after(self, rows: usize) -> Self {
        match self {
            Self::F32(x, stride) => Self::F32(&x[rows * stride..], stride),
            Self::F16(x, stride) => Self::F16(&x[rows * stride..], stride),
        }
    }
}

/// A cache of one layer: `[block][ K: kv_head, slot, k_dim | V: kv_head, slot, v_dim ]`, or without V where a value is the
/// first `v_dim` elements of its key.
pub(crate) struct Pages {
    /// The group whose block tables say which block holds which positions.
    pub(crate) group: usize,
    shape: PageShape,
    store: Store,
}

/// The shape of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageShape {
    pub(crate) kv_heads: usize,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    /// A value is the first `v_dim` elements of its key.
    pub(crate) v_in_k: bool,
    /// Positions in a block.
    pub(crate) block: usize,
}

impl PageShape {
    /// Elements of a block.
    pub(crate) fn len(&self) -> usize {
        self.kv_heads * self.block * (self.k_dim + if self.v_in_k { 0 } else { self.v_dim })
    }

    /// Keys and values of a block.
    fn vectors(&self) -> usize {
        self.kv_heads * self.block * if self.v_in_k { 1 } else { 2 }
    }
}

/// Below it, the scale of a vector of 8 bits would be no normal number: it is stored as zeros.
const LEAST: f32 = 1.5e-36;

/// The elements, as they are stored.
enum Store {
    F32(Shared<f32>),
    /// As bits, since only those are known to be zero when they come from the system.
    F16(Shared<u16>),
    /// Integers, and what each vector's are multiplied by: `[block][ K: kv_head, slot | V: kv_head, slot ]`.
    Q8(Shared<i8>, Shared<f32>),
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
    /// Zeros, in elements of 32, 16 or 8 bits.
    pub(crate) fn new(group: usize, shape: PageShape, blocks: usize, bits: u32) -> Result<Self> {
        const WHAT: &str = "the KV cache of a layer";
        let len = shape.len() * blocks;
        let store = match bits {
            32 => Store::F32(Shared::zeroed(WHAT, len)?),
            16 => Store::F16(Shared::zeroed(WHAT, len)?),
            _ => Store::Q8(Shared::zeroed(WHAT, len)?, Shared::zeroed(WHAT, shape.vectors() * blocks)?),
        };
        Ok(Self { group, shape, store })
    }

    /// The number of a vector's scale.
    fn scale(&self, kind: Kind, (block, slot): (usize, usize), head: usize) -> usize {
        let shape = &self.shape;
        let before = if matches!(kind, Kind::V) && !shape.v_in_k { shape.kv_heads } else { 0 };
        block * shape.vectors() + (before + head) * shape.block + slot
    }

    /// The first element of a vector, how many it has, and how far it is to that of the next slot.
    fn place(&self, kind: Kind, (block, slot): (usize, usize), head: usize) -> (usize, usize, usize) {
        let shape = &self.shape;
        let start = block * shape.len();
        let key = start + (head * shape.block + slot) * shape.k_dim;
        match kind {
            Kind::K => (key, shape.k_dim, shape.k_dim),
            Kind::V if shape.v_in_k => (key, shape.v_dim, shape.k_dim),
            Kind::V => {
                let keys = shape.kv_heads * shape.block * shape.k_dim;
                (start + keys + (head * shape.block + slot) * shape.v_dim, shape.v_dim, shape.v_dim)
            }
        }
    }

    /// The vectors of `count` slots of a block from `at` on; `scratch` is where integers are converted to.
    #[inline]
    pub(crate) fn load<'a>(
        &'a self,
        kind: Kind,
        at: (usize, usize),
        count: usize,
        head: usize,
        scratch: &'a mut [f32],
    ) -> FloatRows<'a> {
        let (start, n, stride) = self.place(kind, at, head);
        let len = (count - 1) * stride + n;
        match &self.store {
            Store::F32(store) => FloatRows::F32(store.slice(start..start + len), stride),
            Store::F16(store) => FloatRows::F16(store.slice(start..start + len), stride),
            Store::Q8(store, scales) => {
                let scratch = &mut scratch[..len];
                let first = self.scale(kind, at, head);
                let vectors = scratch.chunks_mut(stride).zip(store.slice(start..start + len).chunks(stride));
                for ((vector, stored), scale) in vectors.zip(scales.slice(first..first + count)) {
                    vector.iter_mut().zip(stored).for_each(|(x, q)| *x = f32::from(*q) * scale);
                }
                FloatRows::F32(scratch, stride)
            }
        }
    }

    /// Stores a vector.
    pub(crate) fn store(&self, kind: Kind, at: (usize, usize), head: usize, vector: &[f32]) {
        let (start, n, _) = self.place(kind, at, head);
        match &self.store {
            Store::F32(store) => store.slice_mut(start..start + n).copy_from_slice(vector),
            Store::F16(store) => {
                for (place, x) in store.slice_mut(start..start + n).iter_mut().zip(vector) {
                    *place = f16::from_f32(*x).to_bits();
                }
            }
            Store::Q8(store, scales) => {
                // What is not finite makes the scale NaN, and with it the vector.
                let finite = vector.iter().all(|x| x.is_finite());
                let most = if finite { vector.iter().fold(0f32, |most, x| most.max(x.abs())) } else { f32::NAN };
                let most = if most < LEAST { 0.0 } else { most };
                scales.set(self.scale(kind, at, head), most / 127.0);
                let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
                for (place, x) in store.slice_mut(start..start + n).iter_mut().zip(vector) {
                    *place = (x * inverse).round_ties_even() as i8;
                }
            }
        }
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> usize {
        let elements = match &self.store {
            Store::F32(store) => store.len(),
            Store::F16(store) => store.len(),
            Store::Q8(store, _) => store.len(),
        };
        elements.checked_div(self.shape.len()).unwrap_or(0)
    }

    /// Copies a block onto another.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let n = self.shape.len();
        match &mut self.store {
            Store::F32(store) => store.all_mut().copy_within(from * n..(from + 1) * n, to * n),
            Store::F16(store) => store.all_mut().copy_within(from * n..(from + 1) * n, to * n),
            Store::Q8(store, scales) => {
                store.all_mut().copy_within(from * n..(from + 1) * n, to * n);
                let n = self.shape.vectors();
                scales.all_mut().copy_within(from * n..(from + 1) * n, to * n);
            }
        }
    }

    /// Sets element `i` of all blocks, in the order in which they lie, to `value(i)`, from -1 to 1.
    pub(crate) fn fill_with(&mut self, value: impl Fn(usize) -> f32) {
        match &mut self.store {
            Store::F32(store) => store.all_mut().iter_mut().enumerate().for_each(|(i, x)| *x = value(i)),
            Store::F16(store) => {
                store.all_mut().iter_mut().enumerate().for_each(|(i, x)| *x = f16::from_f32(value(i)).to_bits());
            }
            Store::Q8(store, scales) => {
                store
                    .all_mut()
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x = (value(i) * 127.0).round_ties_even() as i8);
                scales.all_mut().fill(1.0 / 127.0);
            }
        }
    }

    /// Fills a block.
    pub(crate) fn fill(&mut self, block: usize, value: f32) {
        let n = self.shape.len();
        match &mut self.store {
            Store::F32(store) => store.all_mut()[block * n..(block + 1) * n].fill(value),
            Store::F16(store) => store.all_mut()[block * n..(block + 1) * n].fill(f16::from_f32(value).to_bits()),
            Store::Q8(store, scales) => {
                store.all_mut()[block * n..(block + 1) * n].fill(1);
                let n = self.shape.vectors();
                scales.all_mut()[block * n..(block + 1) * n].fill(value);
            }
        }
    }
}
