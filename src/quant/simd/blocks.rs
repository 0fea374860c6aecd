//! The blocks that stand at one place of several rows.
#![allow(unsafe_code, reason = "loads at offsets within rows whose length was checked")]

use std::marker::PhantomData;

use super::super::q8::{Group, LANES, Unpack};
use super::vector::{Bytes, Vector};

/// Bytes, at least, between the rows that are multiplied together and those that are fetched. From 7 KiB ahead they came too late
/// (160M Q4_0: 0.78 times the rate).
const AHEAD: usize = 12 << 10;

/// A block of each of `4 * PARTS` rows, or, with [`Vector::BLOCK`], two of each of `2 * PARTS`.
pub(in super::super) struct Blocks<V, const BYTES: usize> {
    at: *const u8,
    stride: usize,
    vector: PhantomData<V>,
}

impl<V: Vector, const BYTES: usize> Blocks<V, BYTES> {
    /// 16 bytes of each row's block, from byte `at` of it.
    #[inline(always)]
    pub(in super::super) fn bytes(&self, at: usize) -> Bytes<V> {
        assert!(at + 16 <= BYTES);
        let mut out = [V::word(0); 4];
        for (e, out) in out.iter_mut().enumerate() {
            // SAFETY: each row has a block here (`each_group`), or two (`each_pair`).
            *out = unsafe { V::load(self.at.add(at + e * self.stride), 4 * self.stride) };
        }
        Bytes(out)
    }

    /// The word at byte `at` of each row's block.
    #[inline(always)]
    pub(in super::super) fn words(&self, at: usize) -> V {
        assert!(at + 4 <= BYTES);
        // SAFETY: each row has a block here (`each_group`), or two (`each_pair`).
        unsafe { V::gather(self.at.add(at), self.stride) }
    }

    /// The f16 at byte `at` of each row's block; not the last one of a block.
    #[inline(always)]
    pub(in super::super) fn f16s(&self, at: usize) -> V::Floats {
        assert!(at + 4 <= BYTES);
        // SAFETY: each row has a block here (`each_group`), or two (`each_pair`).
        unsafe { V::gather_f16s(self.at.add(at), self.stride) }
    }
}

/// Calls `each` with every 32 columns of the `4 * PARTS` rows from row `first` on, in order; rows that `w` does not have are zeros.
#[inline(always)]
pub(in super::super) fn each_group<U: Unpack<BYTES>, V: Vector, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    first: usize,
    mut each: impl FnMut(usize, Group<V>),
) {
    const { assert!(V::BLOCK == 0) };
    let rows = 4 * V::PARTS;
    let w = w.get(first * row_bytes..).unwrap_or_default();
    let whole = w.len() >= rows * row_bytes;
    let ahead = ahead(rows * row_bytes);
    // Made only where there are not as many rows: clearing it each time costs 4 % of decode.
    let mut copies = (!whole).then_some([[0; BYTES]; LANES]);
    for b in 0..row_bytes / BYTES {
        let (at, stride) = match &mut copies {
            None => (w[b * BYTES..].as_ptr(), row_bytes),
            Some(copies) => {
                for (row, copy) in w.chunks_exact(row_bytes).zip(copies.iter_mut()) {
                    copy.copy_from_slice(&row[b * BYTES..][..BYTES]);
                }
                (copies.as_ptr().cast(), BYTES)
            }
        };
        // From here on every row has a block of BYTES bytes at `at + row * stride`: of the file's, or a copy.
        let blocks = Blocks { at, stride, vector: PhantomData };
        U::block(
            &blocks,
            #[inline(always)]
            |g, group| {
                if whole {
                    // Later rows, which lie after these, a group's share with each group: many at once would hold up the loads of
                    // these.
                    V::fetch_after(
                        w,
                        ahead + rows * BYTES * (b * U::GROUPS + g) / U::GROUPS,
                        (rows * BYTES).div_ceil(U::GROUPS),
                    );
                }
                each(b * U::GROUPS + g, group);
            },
        );
    }
}

/// Calls `each` with every 32 columns of block b and of the one after it, of `2 * PARTS` rows from row `first` on, which are
/// there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in super::super) fn each_pair<U: Unpack<BYTES>, V: Vector, const BYTES: usize>(
    w: &[u8],
    row_bytes: usize,
    first: usize,
    b: usize,
    ahead: usize,
    mut each: impl FnMut(usize, Group<V>),
) {
    const { assert!(V::BLOCK == BYTES) };
    let rows = 2 * V::PARTS;
    let w = &w[first * row_bytes..][..rows * row_bytes];
    assert!((b + 2) * BYTES <= row_bytes);
    let blocks = Blocks { at: w[b * BYTES..].as_ptr(), stride: row_bytes, vector: PhantomData };
    U::block(
        &blocks,
        #[inline(always)]
        |g, group| {
            V::fetch_after(w, ahead + rows * BYTES * (b * U::GROUPS + 2 * g) / U::GROUPS, 2 * rows * BYTES / U::GROUPS);
            each(g, group);
        },
    );
}

/// Bytes between rows of so many bytes that are multiplied together and those that are fetched meanwhile.
#[inline(always)]
pub(in super::super) fn ahead(bytes: usize) -> usize {
    AHEAD.next_multiple_of(bytes)
}

/// Puts 16 columns of `4 * PARTS` of [`LANES`] rows beside each other: `out[c][4 r + i]` is column `4 c + i` of row r.
#[inline(always)]
pub(in super::super) fn columns<V: Vector>(q: Bytes<V>, first: usize, out: &mut [[u8; 4 * LANES]]) {
    for (words, out) in q.words().into_iter().zip(out) {
        words.to_bytes(&mut out[4 * first..][..16 * V::PARTS]);
    }
}
