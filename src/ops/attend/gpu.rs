//! The kernels of `attend`: one for single rows, which splits the positions that a row of a long sequence sees (split-KV), and
//! one for tiles of prefill rows.

use crate::ops::kernels;
use std::ops::Range;

use super::{Attend, Kv, Mask};
use crate::gpu::compose::lib;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim, Kernel, Tuning};
use crate::ops::lower::{Lower, Lowered};
use crate::ops::operation::{GpuForm, GpuNeeds};

params! {
    pub(crate) struct Params {
        heads: u32,
        group: u32,
        k_dim: u32,
        v_dim: u32,
        q_stride: u32,
        out_stride: u32,
        sinks: u32,
        slopes: u32,
        before: u32,
        after: u32,
        scale: f32,
        softcap: f32,
        k_stride: u32,
        v_stride: u32,
        zero: u32,
    }
}

/// Rows of a tile of `attend_tiled`.
pub(crate) const TILE_ROWS: u32 = 8;
/// The most query heads that share a load of keys and values: the elements of a vector in the kernels.
pub(super) const HEADS: u32 = 4;
/// The most vec4s of a value that a kernel sums up: workgroup memory holds weights for no more threads.
const V_VEC4S: u32 = 128;
/// The most threads of a workgroup of `attend_tiled`, for the same reason.
const TILED_THREADS: u32 = 64;

/// The least positions of a KV split.
const MIN_SPLIT: u32 = 256;

/// Positions of a KV split, for a row at `pos`: [`MIN_SPLIT`], doubled until there are at most [`MAX_SPLITS`] splits.
///
/// A function of the position alone: a row's result does not depend on the other rows of its step.
pub(crate) fn split_size(pos: u32) -> u32 {
    let mut size = MIN_SPLIT;
    while pos / size >= MAX_SPLITS {
        size *= 2;
    }
    size
}

/// The most KV splits of a row of a sequence of so many positions.
pub(crate) fn max_splits(positions: u32) -> u32 {
    positions.div_ceil(MIN_SPLIT).clamp(1, MAX_SPLITS)
}

/// The most KV splits of a row.
pub(crate) const MAX_SPLITS: u32 = 32;

/// In an item of a work list: all KV splits of its row.
pub(crate) const ALL_SPLITS: u32 = u32::MAX;

impl GpuForm for Attend {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        match l.switches.v1 {
            Some(blocks) => self.lower_v1(l, blocks),
            None if l.decode => self.passes().try_for_each(|value_vec4s| self.lower_rows(l, value_vec4s)),
            None => self.passes().try_for_each(|value_vec4s| match self.cooperative(l, &value_vec4s) {
                Some(matrices) => self.lower_cooperative(l, value_vec4s, matrices),
                None => self.lower_tiles(l, value_vec4s),
            }),
        }
    }

    fn gpu_needs(&self) -> GpuNeeds {
        let kv_split = u64::from(self.heads) * (1 + u64::from(self.v_dim.div_ceil(4))) * 16;
        GpuNeeds { kv_split, ..GpuNeeds::default() }
    }
}

impl Attend {
    /// The vec4s of a value that each pass of the kernels sums up. There is one pass, but for values of more than 512 elements,
    /// whose scores each pass computes anew.
    fn passes(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let value_vec4s = self.v_dim.div_ceil(4);
        (0..value_vec4s).step_by(V_VEC4S as usize).map(move |first| first..value_vec4s.min(first + V_VEC4S))
    }

    /// Query heads of a workgroup, at most `most`: chosen so that as few as possible are computed in vain.
    pub(super) fn heads_together(&self, most: u32) -> u32 {
        let group = self.heads / self.kv_heads;
        group.div_ceil(group.div_ceil(most))
    }

    /// For single rows.
    fn lower_rows(&self, l: &mut Lower<'_>, value_vec4s: Range<u32>) -> Lowered {
        let heads = self.heads_together(HEADS);
        let threads = l.tuning.table.attend.max((value_vec4s.len() as u32).next_power_of_two());
        let mut kernel = l.kernel(kernels::ATTEND);
        kernel.set("WG", threads);
        kernel.set("GROUP_HEADS", heads);
        kernel.set("KEPT", (heads * value_vec4s.len() as u32).div_ceil(threads));
        let groups = self.kv_heads * (self.heads / self.kv_heads).div_ceil(heads);
        let mut args = self.bind(l, &mut kernel, &value_vec4s);
        self.bind_kv(l, &mut kernel, &mut args)?;
        l.exchange(&mut kernel);
        l.plan.dispatch(&kernel, &self.params(l), &args, [Dim::Fixed(groups), Dim::Items, Dim::Fixed(1)])?;

        let mut merge = l.kernel(kernels::ATTEND_REDUCE);
        let args = self.bind(l, &mut merge, &value_vec4s);
        l.plan.dispatch(&merge, &self.params(l), &args, [Dim::Fixed(self.heads), Dim::SplitRows, Dim::Fixed(1)])
    }

    /// For tiles of rows.
    fn lower_tiles(&self, l: &mut Lower<'_>, value_vec4s: Range<u32>) -> Lowered {
        let Tuning { tiled_keys: keys, tiled_values, .. } = l.tuning.table;
        let vec4s = value_vec4s.len() as u32;
        // Values of more vec4s than there are threads take two a thread.
        let values = if vec4s > TILED_THREADS { 2 } else { tiled_values };
        let of_value = vec4s.div_ceil(values);
        let heads = self.heads_together(HEADS.min(TILED_THREADS / of_value));
        let threads = (of_value * heads).next_multiple_of(32);
        // It scores four of eight rows.
        let tile = keys * (threads / (2 * heads));
        let mut kernel = l.kernel(kernels::ATTEND_TILED);
        kernel.set("WG", threads);
        kernel.set("GROUP_HEADS", heads);
        kernel.set("TILE", tile);
        kernel.set("KEYS", keys);
        kernel.set("VALUES", values);
        let groups = self.kv_heads * (self.heads / self.kv_heads).div_ceil(heads);
        let mut args = self.bind(l, &mut kernel, &value_vec4s);
        self.bind_kv(l, &mut kernel, &mut args)?;
        l.plan.dispatch(&kernel, &self.params(l), &args, [Dim::Fixed(groups), Dim::Tiles(TILE_ROWS), Dim::Fixed(1)])
    }

    /// Sets what the kernels have in common, and returns their arguments, but for keys and values. `value_vec4s`: which vec4s of
    /// a value are summed up.
    pub(super) fn bind<'a>(&self, l: &Lower<'a>, kernel: &mut Kernel, value_vec4s: &Range<u32>) -> Vec<Arg<'a>> {
        let layout = &l.layout;
        let ragged = [self.k_dim, self.v_dim].iter().any(|dim| !dim.is_multiple_of(4));
        kernel.set("BATCH_ITEMS", layout.items);
        kernel.set("BATCH_SPLIT_ROWS", layout.split_rows);
        kernel.set("BATCH_TILES", layout.tiles);
        kernel.set("TREE", layout.tree);
        kernel.set("SEARCH", l.switches.search);
        kernel.set("HAS_SINKS", self.sinks.is_some());
        kernel.set("HAS_SLOPES", self.slopes.is_some());
        kernel.set("HAS_SOFTCAP", self.softcap != 0.0);
        kernel.set("K_VEC4S", self.k_dim.div_ceil(4));
        kernel.set("V_VEC4S", value_vec4s.len() as u32);
        kernel.set("V_FROM", value_vec4s.start);
        kernel.set("RAGGED", ragged);
        let (q, out) = (&l.value(self.q).buffer, &l.value(self.out).buffer);
        vec![Arg::read(l.step), Arg::read(q), Arg::read(l.vectors), Arg::Write(out), Arg::Write(l.partials)]
    }

    /// Binds keys and values, with the fragments that read them.
    pub(super) fn bind_kv<'a>(&self, l: &Lower<'a>, kernel: &mut Kernel, args: &mut Vec<Arg<'a>>) -> Lowered {
        match self.kv {
            Kv::Cache(cache) => {
                let cache = l.cache(cache);
                kernel.set("V_IN_K", cache.shape.v_dim == 0);
                l.paged(kernel, cache)?;
                l.kv_load(kernel, cache);
                args.push(Arg::read(&cache.buffer));
            }
            Kv::Packed { k, v } => {
                kernel.fill("cache", lib::PAGED);
                kernel.fill("kv", lib::KV_ROWS);
                args.extend([k, v].map(|id| Arg::read(&l.value(id).buffer)));
            }
        }
        Ok(())
    }

    pub(super) fn params(&self, l: &Lower<'_>) -> Params {
        let (before, after) = match self.mask {
            Mask::Causal => (u32::MAX, 0),
            Mask::Window(n) => (n, 0),
            Mask::Full => (u32::MAX, u32::MAX),
            Mask::BidirectionalWindow(n) => (n.saturating_add(1), n),
        };
        let stride = |id| l.value(id).stride();
        let (k_stride, v_stride) = match self.kv {
            Kv::Cache(_) => (0, 0),
            Kv::Packed { k, v } => (stride(k), stride(v)),
        };
        Params {
            heads: self.heads,
            group: self.heads / self.kv_heads,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
            q_stride: stride(self.q),
            out_stride: stride(self.out),
            sinks: self.sinks.map_or(0, |s| l.vector(s)),
            slopes: self.slopes.map_or(0, |s| l.vector(s)),
            before,
            after,
            scale: self.scale,
            softcap: self.softcap,
            k_stride,
            v_stride,
            zero: 0,
        }
    }
}
