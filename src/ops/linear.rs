//! `linear`: y = W x, the op that nine tenths of the time goes to, with what `fuse` folds into it.

use super::cpu::CpuRun;
use super::lower::{self, Lower, Lowered};
use super::oracle::{OracleRun, Rows64};
use super::product::{X, product, product_scratch, q8_scratch};
use super::{Act, NormSpec, RopeKv, Rows, ValueId, VectorId, WeightId};
use crate::gpu::{Arg, Dim, Kernel};
use crate::quant::{BlockFormat, LANES};

/// `out[r] = epi(W pre(x[r]) + b)`, where W is a stack of parts by rows.
///
/// x (rows, k) f32 | parts (nᵢ, k) any block format, each its own | out (rows, Σ nᵢ) f32, or what the epilogue says.
/// A canonical linear has one part, no `pre` and no `epi`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// (rows, k)
    pub x: ValueId,
    /// Columns of every part.
    pub k: u32,
    /// The rows of W, stacked. More than one part is *set by fuse only*.
    pub parts: Vec<Part>,
    /// *Set by fuse only.*
    pub pre: Pre,
    /// *Set by fuse only.*
    pub epi: Epi,
    /// (rows, width of the epilogue's result)
    pub out: ValueId,
}

/// Some rows of a stacked weight matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// (n, k)
    pub weight: WeightId,
    /// Rows.
    pub n: u32,
    /// (n)
    pub bias: Option<VectorId>,
}

/// What happens to a row of x before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pre {
    /// Nothing.
    None,
    /// A norm over the whole row.
    Norm(NormSpec),
}

/// What happens to a row of W x + b before it is stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Epi {
    /// Nothing: out (rows, Σ nᵢ).
    None,
    /// `out = residual + y`; residual and out (rows, n).
    Add(ValueId),
    /// `out = act(y)`.
    Act(Act),
    /// Two parts of the same n, gate then up: `out = act(gate) * up`, (rows, n).
    Gated(Act),
    /// Three parts q, k, v: q is rotated into `out` (rows, heads * head_dim); k, rotated, and v go to the cache.
    /// The `qkv` and `out` operands inside are not used.
    RopeKv(RopeKv),
}

impl Linear {
    /// Rows of the stacked matrix.
    pub fn n(&self) -> u32 {
        self.parts.iter().map(|p| p.n).sum()
    }
}

// CPU

impl Linear {
    /// Splits the rows of W. A folded norm is computed by every member for itself: cheaper than a barrier.
    pub(super) fn cpu(&self, run: &CpuRun<'_>) {
        let (k, rows) = (self.k as usize, run.rows(self.x));
        let (own, rest) = run.scratch().split_at_mut(if self.pre == Pre::None { 0 } else { rows * k });
        let stored = run.value(self.x);
        let x: &[f32] = match self.pre {
            Pre::None => stored.slice(0..rows * k),
            Pre::Norm(spec) => {
                for r in 0..rows {
                    let row = r * k..(r + 1) * k;
                    spec.cpu(run, 0, stored.slice(row.clone()), &mut own[row]);
                }
                own
            }
        };
        let (eight, rest) = rest.split_at_mut(q8_scratch(rows, self.k));
        let x = &X::new(run, x, self.k, self.parts.iter().map(|part| part.weight), eight);
        let out = run.value(self.out);
        match &self.epi {
            Epi::None => self.each(run, x, rest, |at, y| out.set(at, y)),
            Epi::Act(act) => self.each(run, x, rest, |at, y| out.set(at, act.f32(y))),
            Epi::Add(residual) => {
                let residual = run.value(*residual);
                self.each(run, x, rest, |at, y| out.set(at, residual.get(at) + y));
            }
            Epi::Gated(act) => {
                let [gate, up] = [&self.parts[0], &self.parts[1]];
                let n = gate.n as usize;
                let columns = run.member.share(n, LANES);
                product(run, gate, columns.clone(), x, 0..rows, rest, |r, j, y| out.set(r * n + j, act.f32(y)));
                product(run, up, columns, x, 0..rows, rest, |r, j, y| out.set(r * n + j, out.get(r * n + j) * y));
            }
            Epi::RopeKv(rope_kv) => {
                let dim = rope_kv.head_dim as usize;
                let (heads, rest) = rest.split_at_mut(rows * dim);
                for unit in run.member.share(rope_kv.units(), 1) {
                    let (part, head) = rope_kv.unit(unit);
                    let columns = head * dim..(head + 1) * dim;
                    let store = |r: usize, j: usize, y| heads[r * dim + j - head * dim] = y;
                    product(run, &self.parts[part as usize], columns, x, 0..rows, rest, store);
                    for (r, head) in heads.chunks_exact_mut(dim).enumerate() {
                        rope_kv.finish(run, unit, r, head);
                    }
                }
            }
        }
    }

    /// Calls `store` with the place in `out` and the value of every element that is this member's.
    fn each(&self, run: &CpuRun<'_>, x: &X<'_>, scratch: &mut [f32], mut store: impl FnMut(usize, f32)) {
        let n = self.n() as usize;
        let (own, rows) = (run.member.share(n, LANES), run.rows(self.x));
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.n as usize;
            let columns = own.start.clamp(start, end) - start..own.end.clamp(start, end) - start;
            product(run, part, columns, x, 0..rows, scratch, |r, j, y| store(r * n + start + j, y));
            start = end;
        }
    }

    pub(super) fn cpu_scratch(&self, rows: usize) -> usize {
        let norm = if self.pre == Pre::None { 0 } else { rows * self.k as usize };
        let heads = if let Epi::RopeKv(rope_kv) = &self.epi { rows * rope_kv.head_dim as usize } else { 0 };
        norm + heads + q8_scratch(rows, self.k) + product_scratch(self.k)
    }
}

// Oracle

impl Linear {
    pub(super) fn oracle(&self, run: &mut OracleRun<'_>) {
        let x: Rows64 = match self.pre {
            Pre::None => run.value(self.x).clone(),
            Pre::Norm(spec) => run.value(self.x).iter().map(|row| spec.oracle(run, 0, row)).collect(),
        };
        let mut y: Rows64 = vec![Vec::new(); x.len()];
        for part in &self.parts {
            let bias = part.bias.map(|b| run.vector(b));
            for j in 0..part.n as usize {
                let w = run.weight_row(part.weight, j);
                for (x, y) in x.iter().zip(&mut y) {
                    let dot: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
                    y.push(dot + bias.as_ref().map_or(0.0, |b| b[j]));
                }
            }
        }
        match &self.epi {
            Epi::None => run.set(self.out, y),
            Epi::Act(act) => {
                y.iter_mut().flatten().for_each(|y| *y = act.f64(*y));
                run.set(self.out, y);
            }
            Epi::Add(residual) => {
                let residual = run.value(*residual).iter().flatten();
                y.iter_mut().flatten().zip(residual).for_each(|(y, r)| *y += r);
                run.set(self.out, y);
            }
            Epi::Gated(act) => {
                let gated = |row: &Vec<f64>| {
                    let (gate, up) = row.split_at(row.len() / 2);
                    gate.iter().zip(up).map(|(gate, up)| act.f64(*gate) * up).collect()
                };
                let out = y.iter().map(gated).collect();
                run.set(self.out, out);
            }
            Epi::RopeKv(rope_kv) => {
                let out = rope_kv.oracle_of(run, &y);
                run.set(self.out, out);
            }
        }
    }
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    n: u32,
    k: u32,
    row0: u32,
    up: u32,
    out0: u32,
    rows_at: u32,
    out_stride: u32,
    bias_at: u32,
    norm_w: u32,
    norm_b: u32,
    eps: f32,
    bias_up: u32,
}

/// Consecutive rows of the stacked matrix that lie in one buffer, in one block format.
#[derive(Debug)]
struct Segment {
    format: BlockFormat,
    buffer: usize,
    at: u32,
    out0: u32,
    n: u32,
}

/// Rows of x that a workgroup of the matrix-times-vector kernels takes.
const COLS: u32 = 8;

impl Linear {
    /// Rows of the result that a workgroup of the matrix-times-matrix kernel makes, for how many rows of x.
    const TILE: (u32, u32) = (64, 32);

    fn segments(&self, l: &Lower<'_>) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut out0 = 0;
        for part in &self.parts {
            let matrix = l.matrix(part.weight);
            for piece in &matrix.pieces {
                match segments.last_mut() {
                    Some(s) if s.format == matrix.format && s.buffer == piece.buffer && s.at + s.n == piece.at => {
                        s.n += piece.n;
                    }
                    _ => segments.push(Segment {
                        format: matrix.format,
                        buffer: piece.buffer,
                        at: piece.at,
                        out0,
                        n: piece.n,
                    }),
                }
                out0 += piece.n;
            }
        }
        segments
    }

    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let vectors = l.generated || l.value(self.x).rows != Rows::Step;
        let mut segments = self.segments(l);
        let mut params = Params::default();
        if let Epi::Gated(_) = self.epi {
            let (gate, up) = (l.matrix(self.parts[0].weight), l.matrix(self.parts[1].weight));
            let ([gate_piece], [up_piece]) = (&gate.pieces[..], &up.pieces[..]) else {
                return Err(lower::no_kernel("a gated pair of matrices in several buffers"));
            };
            if gate.format != up.format || gate_piece.buffer != up_piece.buffer || up_piece.at < gate_piece.at {
                return Err(lower::no_kernel("a gated pair of matrices in two block formats"));
            }
            params.up = up_piece.at - gate_piece.at;
            segments.truncate(1);
            segments[0].n = gate_piece.n;
        }
        for segment in &segments {
            match (&self.epi, vectors) {
                (Epi::RopeKv(rope_kv), true) => self.lower_qkv(l, segment, rope_kv)?,
                (Epi::RopeKv(_), false) => return Err(lower::no_kernel("rope_kv in a matrix product")),
                _ => self.lower_segment(l, segment, params, vectors)?,
            }
        }
        Ok(())
    }

    /// What all kernels of a linear have in common: their roles, overrides and parameters for a segment.
    fn common(&self, l: &Lower<'_>, kernel: &mut Kernel, segment: &Segment, mut params: Params) -> Params {
        let (x, out) = (l.value(self.x), l.value(self.out));
        lower::weights(kernel, segment.format);
        if let Pre::Norm(norm) = self.pre {
            (params.norm_w, params.norm_b) = norm.lower(l, kernel);
            params.eps = norm.eps;
        }
        if let Some(bias) = (l.bias_at)(&self.parts) {
            kernel.overrides.push(("HAS_BIAS", 1.0));
            params.bias_at = bias + segment.out0;
            params.bias_up = bias + self.parts[0].n;
        }
        Params {
            n: segment.n,
            k: self.k,
            row0: segment.at,
            out0: segment.out0,
            rows_at: x.rows_at(),
            out_stride: out.stride(),
            ..params
        }
    }

    fn lower_segment(&self, l: &mut Lower<'_>, segment: &Segment, params: Params, vectors: bool) -> Lowered {
        let mut kernel = if vectors { l.kernel("matvec") } else { l.kernel("matmul") };
        let params = self.common(l, &mut kernel, segment, params);
        let (epi, act, residual) = match self.epi {
            Epi::Add(residual) => (1.0, None, Some(residual)),
            Epi::Act(act) => (2.0, Some(act), None),
            Epi::Gated(act) => (3.0, Some(act), None),
            Epi::None | Epi::RopeKv(_) => (0.0, None, None),
        };
        kernel.overrides.push(("EPI", epi));
        if let Some(act) = act {
            act.lower(&mut kernel);
        }
        let (x, out) = (l.value(self.x), l.value(self.out));
        let gated = matches!(self.epi, Epi::Gated(_));
        let grid = if vectors {
            l.reduce(&mut kernel, l.layout.reduce);
            [Dim::Fixed(segment.n.div_ceil(if gated { 2 } else { 4 })), x.rows(COLS), Dim::Fixed(1)]
        } else {
            let (n, rows) = Self::TILE;
            [Dim::Fixed(segment.n.div_ceil(if gated { n / 2 } else { n })), x.rows(rows), Dim::Fixed(1)]
        };
        // A binding must be bound even where the kernel does not use it.
        let residual = residual.map_or(l.vectors, |r| &l.value(r).buffer);
        let w = Arg::read(&l.weights[segment.buffer]);
        let (x, out) = (Arg::read(&x.buffer), Arg::Write(&out.buffer));
        let args = [Arg::read(l.step), x, Arg::read(l.vectors), w, Arg::read(residual), out];
        l.plan.dispatch(&kernel, &params, &args, grid)
    }

    fn lower_qkv(&self, l: &mut Lower<'_>, segment: &Segment, rope_kv: &RopeKv) -> Lowered {
        if !segment.out0.is_multiple_of(rope_kv.head_dim) || !segment.n.is_multiple_of(rope_kv.head_dim) {
            return Err(lower::no_kernel("a fused q, k, v matrix that is split inside a head"));
        }
        let (x, out, cache) = (l.value(self.x), l.value(self.out), l.cache(rope_kv.cache));
        let mut kernel = l.kernel("matvec_qkv");
        let params = self.common(l, &mut kernel, segment, Params::default());
        l.reduce(&mut kernel, l.layout.reduce);
        l.paged(&mut kernel, cache)?;
        l.kv_store(&mut kernel, cache)?;
        l.rope(&mut kernel, rope_kv.rope.as_ref());
        kernel.overrides.push(("HEADS", f64::from(rope_kv.heads)));
        kernel.overrides.push(("HEAD_DIM", f64::from(rope_kv.head_dim)));
        let (w, angles) = (Arg::read(&l.weights[segment.buffer]), l.angles(rope_kv.rope.map(|r| r.table)));
        let (x_arg, out, kv) = (Arg::read(&x.buffer), Arg::Write(&out.buffer), Arg::Write(&cache.buffer));
        let args = [Arg::read(l.step), x_arg, Arg::read(l.vectors), w, angles, out, kv];
        let grid = [Dim::Fixed(segment.n / 4), x.rows(COLS), Dim::Fixed(1)];
        l.plan.dispatch(&kernel, &params, &args, grid)
    }
}
