//! What `expert_linear` and `head_linear` share on the GPU: each of several parts of a row is multiplied by one of many
//! matrices, a chosen one or the one of its own number.

use super::lower::{self, Lower, Lowered};
use super::{Part, ValueId};
use crate::gpu::{Arg, Dim, Kernel};
use crate::quant::BlockFormat;

/// Matrices of one shape, and what they are multiplied with.
pub(super) struct Matrices {
    /// (n, k) each
    pub(super) parts: Vec<Part>,
    pub(super) n: u32,
    pub(super) k: u32,
    /// (rows, count * k), or (rows, k) for all parts
    pub(super) x: ValueId,
    /// Each part has a row of its own.
    pub(super) own: bool,
    /// (rows, count or more): the number of each part's matrix; without it, the part's own.
    pub(super) chosen: Option<ValueId>,
    /// Parts of a row.
    pub(super) count: u32,
    /// (rows, count * n)
    pub(super) out: ValueId,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
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

/// Whole matrices that lie one behind the other in a buffer, or some rows of one that does not fit into a buffer.
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

    pub(super) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        self.segments(l).iter().try_for_each(|segment| self.lower_segment(l, segment))
    }

    fn lower_segment(&self, l: &mut Lower<'_>, segment: &Segment) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let mut kernel = l.kernel("expert_linear");
        lower::weights(&mut kernel, segment.format);
        l.reduce(&mut kernel, l.layout.reduce);
        let params = self.params(l, &mut kernel, segment);
        let chosen = self.chosen.map_or(x, |chosen| l.value(chosen));
        let (w, vectors) = (Arg::read(&l.weights[segment.buffer]), Arg::read(l.vectors));
        let (x_arg, chosen) = (Arg::read(&x.buffer), Arg::read(&chosen.buffer));
        let args = [Arg::read(l.step), x_arg, chosen, vectors, w, Arg::Write(&out.buffer)];
        l.plan.dispatch(&kernel, &params, &args, [Dim::Fixed(segment.n.div_ceil(4)), x.rows(1), Dim::Fixed(self.count)])
    }

    fn params(&self, l: &Lower<'_>, kernel: &mut Kernel, segment: &Segment) -> Params {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let bias = (l.bias_at)(&self.parts);
        let aligned = !self.own || self.k.is_multiple_of(4);
        let flags = [("CHOSEN", self.chosen.is_some()), ("ALIGNED", aligned), ("HAS_BIAS", bias.is_some())];
        kernel.overrides.extend(flags.map(|(name, on)| (name, f64::from(u8::from(on)))));
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
