//! What `expert_linear` and `head_linear` share on the GPU: each of several parts of a row is multiplied by one of many
//! matrices, a chosen one or the one of its own number.

pub(in crate::ops) mod combine;
pub(in crate::ops) mod expert_linear;
pub(in crate::ops) mod head_linear;
pub(in crate::ops) mod route;

use crate::gpu::params::params;
use crate::gpu::{Arg, Dim, Kernel, Small};
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::GpuNeeds;
use crate::ops::{Part, Rows, ValueId};
use crate::quant::BlockFormat;

/// Matrices of one shape, and what they are multiplied with.
pub(in crate::ops) struct Matrices {
    /// (n, k) each
    pub(in crate::ops) parts: Vec<Part>,
    pub(in crate::ops) n: u32,
    pub(in crate::ops) k: u32,
    /// (rows, count * k), or (rows, k) for all parts
    pub(in crate::ops) x: ValueId,
    /// Each part has an x of its own.
    pub(in crate::ops) own: bool,
    /// (rows, count or more): the number of each part's matrix; without it, the part's own.
    pub(in crate::ops) chosen: Option<ValueId>,
    /// Parts of a row.
    pub(in crate::ops) count: u32,
    /// (rows, count * n)
    pub(in crate::ops) out: ValueId,
}

params! {
    pub(crate) struct Params {
        n: u32,
        k: u32,
        row0: u32,
        first: u32,
        count: u32,
        matrices: u32,
        out0: u32,
        out_n: u32,
        parts: u32,
        rows_at: u32,
        x_stride: u32,
        x_part: u32,
        chosen_stride: u32,
        out_stride: u32,
        bias_at: u32,
    }
}

params! {
    pub(crate) struct SortParams {
        rows_at: u32,
        parts: u32,
        stride: u32,
    }
}

/// Rows of a matrix in a tile of `expert_matmul`.
const TILE_N: u32 = 64;

/// Pairs of row and part in a tile: where a matrix has few pairs, and where it has many. A tile that is not full costs as much
/// as one that is: 16 are as fast as 64 on lavapipe where a matrix has 64, and 1.5 to 3 times as fast where it has fewer
/// (docs/benchmarks-history.md).
const TILES: [u32; 2] = [16, 64];

/// Pairs of a thread.
const OF_THREAD: u32 = 4;

/// The most matrices whose pairs can be counted in workgroup memory.
const MOST_SORTED: usize = 2048;

/// What sorting the parts of rows by matrix needs.
pub(in crate::ops) fn gpu_needs(matrices: usize, parts: u32) -> GpuNeeds {
    GpuNeeds { scratch: (matrices as u64 + 1) * 4, scratch_of_row: u64::from(parts) * 4, ..GpuNeeds::default() }
}

/// Complete matrices that are contiguous in a buffer, or some rows of one that does not fit into a buffer.
struct Segment {
    format: BlockFormat,
    buffer: usize,
    /// The first row's place in the buffer.
    at: u32,
    /// The first matrix.
    first: u32,
    /// Matrices.
    count: u32,
    /// The first row of each that is there.
    row: u32,
    /// Rows of each that are there.
    n: u32,
}

impl Matrices {
    fn segments(&self, l: &Lower<'_>) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for (number, part) in (0..).zip(&self.parts) {
            let matrix = l.matrix(part.weight);
            for piece in &matrix.pieces {
                let (format, buffer, at) = (matrix.format, piece.buffer, piece.at);
                match segments.last_mut() {
                    Some(s)
                        if (s.format, s.buffer, s.at + s.count * s.n) == (format, buffer, at)
                            && (s.n, piece.n) == (self.n, self.n) =>
                    {
                        s.count += 1;
                    }
                    _ => segments.push(Segment {
                        format,
                        buffer,
                        at,
                        first: number,
                        count: 1,
                        row: piece.row,
                        n: piece.n,
                    }),
                }
            }
        }
        segments
    }

    /// Prefill rows are grouped by matrix; every other row is multiplied on its own.
    pub(in crate::ops) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let tiles = !l.decode && l.value(self.x).rows == Rows::Step && self.parts.len() <= MOST_SORTED;
        if let Some(chosen) = self.chosen.filter(|_| tiles) {
            self.lower_sort(l, chosen)?;
        }
        self.segments(l).iter().try_for_each(|segment| self.lower_segment(l, segment, tiles))
    }

    /// Sorts the pairs of row and part by matrix, unless the op before has done so.
    fn lower_sort(&self, l: &mut Lower<'_>, id: ValueId) -> Lowered {
        if l.sorted.replace(id) == Some(id) {
            return Ok(());
        }
        let chosen = l.value(id);
        let mut kernel = l.kernel(kernels::EXPERT_SORT);
        kernel.set("MATRICES", self.parts.len() as u32);
        let params = SortParams { rows_at: chosen.rows_at(), parts: self.count, stride: chosen.stride() };
        let args = [Arg::read(l.step), Arg::read(&chosen.buffer), Arg::Write(l.scratch)];
        l.plan.dispatch(&kernel, &params, &args, [Dim::Fixed(1); 3])
    }

    fn lower_segment(&self, l: &mut Lower<'_>, segment: &Segment, tiles: bool) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let mut kernel = l.kernel(if tiles { kernels::EXPERT_MATMUL } else { kernels::EXPERT_LINEAR });
        lower::weights(&mut kernel, segment.format);
        let params = self.params(l, &mut kernel, segment);
        // Every binding needs a buffer, even one that the kernel does not use.
        let chosen = self.chosen.map_or(x, |chosen| l.value(chosen));
        let (w, vectors) = (Arg::read(&l.weights[segment.buffer]), Arg::read(l.vectors));
        let mut args = vec![Arg::read(l.step), Arg::read(&x.buffer), Arg::read(&chosen.buffer), vectors, w];
        if !tiles {
            l.reduce(&mut kernel, l.matmul(segment.format).lanes);
            args.push(Arg::Write(&out.buffer));
            let grid = [Dim::Fixed(segment.n.div_ceil(4)), x.rows(1), Dim::Fixed(self.count)];
            return l.plan.dispatch(&kernel, &params, &args, grid);
        }
        args.extend([Arg::read(l.scratch), Arg::Write(&out.buffer)]);
        let [few, many] = TILES.map(|pairs| {
            let mut kernel = kernel.clone();
            kernel.set("THREADS_M", pairs / OF_THREAD);
            (kernel, [Dim::Fixed(segment.n.div_ceil(TILE_N)), x.rows(pairs), Dim::Fixed(segment.count)])
        });
        // From so many rows on, a matrix fills a large tile on average.
        let full = (u64::from(TILES[1]) * self.parts.len() as u64).div_ceil(u64::from(self.count.max(1)));
        let most = u32::try_from(full - 1).unwrap_or(u32::MAX);
        if l.layout.rows <= most {
            return l.plan.dispatch(&few.0, &params, &args, few.1);
        }
        let small = Small { kernel: &few.0, rows: x.rows(1), most, grid: few.1 };
        l.plan.dispatch_forms(&many.0, &params, &args, many.1, Some(small))
    }

    fn params(&self, l: &Lower<'_>, kernel: &mut Kernel, segment: &Segment) -> Params {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let bias = (l.bias_at)(&self.parts);
        let aligned = !self.own || self.k.is_multiple_of(4);
        kernel.set("CHOSEN", self.chosen.is_some());
        kernel.set("ALIGNED", aligned);
        kernel.set("HAS_BIAS", bias.is_some());
        Params {
            n: segment.n,
            k: self.k,
            row0: segment.at,
            first: segment.first,
            count: segment.count,
            matrices: self.parts.len() as u32,
            out0: segment.row,
            out_n: self.n,
            parts: self.count,
            rows_at: x.rows_at(),
            x_stride: x.stride(),
            x_part: if self.own { self.k } else { 0 },
            chosen_stride: self.chosen.map_or(0, |chosen| l.value(chosen).stride()),
            out_stride: out.stride(),
            bias_at: bias.unwrap_or(0),
        }
    }
}
