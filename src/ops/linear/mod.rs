//! `linear`: y = W x, the op that nine tenths of the time goes to, with what `fuse` folds into it.

pub(crate) mod matmul;
pub(crate) mod product;

use crate::Result;
use crate::gpu::compose::lib;
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim, Kernel, KernelSource, Matmul, MatmulTuning, Matvec, Small};
use crate::ops::check::{Shapes, holds, same};
use crate::ops::cost::row_bytes;
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, KernelTuning, Lower, Lowered};
use crate::ops::matmul::{Tile, int8_row_bytes};
use crate::ops::operation::{Access, CpuForm, GpuForm, GpuNeeds, Operation, OracleForm, PageHeads, operands};
use crate::ops::oracle::{OracleRun, Rows64};
use crate::ops::product::{X, product, product_scratch, q8_scratch};
use crate::ops::{Act, Cost, Load, NormKind, NormSpec, RopeKvSpec, RopeSpec, Rows, Stack, ValueId, VectorId, WeightId};
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
    RopeKv(RopeKvSpec),
}

impl Linear {
    /// Whether nothing was folded into the op.
    pub(crate) fn is_canonical(&self) -> bool {
        self.parts.len() == 1 && self.pre == Pre::None && self.epi == Epi::None
    }

    /// Rows of the stacked matrix.
    pub fn n(&self) -> u32 {
        self.parts.iter().map(|p| p.n).sum()
    }
}

operands!(Linear, f, Linear { x, parts, pre, epi, out, .. } => {
    f(Access::Read, x.into());
    for Part { weight, bias, .. } in parts {
        f(Access::Read, weight.into());
        if let Some(bias) = bias {
            f(Access::Read, bias.into());
        }
    }
    if let Pre::Norm(spec) = pre {
        spec.operands(f);
    }
    match epi {
        Epi::Add(residual) => f(Access::Read, residual.into()),
        Epi::RopeKv(RopeKvSpec { rope, cache, .. }) => {
            if let Some(RopeSpec { table, .. }) = rope {
                f(Access::Read, table.into());
            }
            f(Access::Write, cache.into());
        }
        Epi::None | Epi::Act(_) | Epi::Gated(_) => {}
    }
    f(Access::Write, out.into());
});

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn shape(&self, formats: &dyn Fn(&[WeightId]) -> String) -> String {
        let weights: Vec<_> = self.parts.iter().map(|part| part.weight).collect();
        format!("{}x{} {}", self.n(), self.k, formats(&weights))
    }

    fn pages(&self) -> Option<PageHeads> {
        let Epi::RopeKv(rope_kv) = &self.epi else { return None };
        Some(rope_kv.pages())
    }

    fn check(&self, s: &Shapes<'_>) -> Result<()> {
        let name = self.name();
        same(name, "x", (s.width)(self.x), self.k)?;
        for part in &self.parts {
            let (n, k) = (s.matrix)(part.weight);
            holds(name, (n, k) == (part.n, self.k), || {
                format!("w is ({n}, {k}), but ({}, {}) is needed", part.n, self.k)
            })?;
            if let Some(bias) = part.bias {
                same(name, "a bias", (s.vector)(bias), part.n)?;
            }
        }
        if let Pre::Norm(norm) = &self.pre {
            norm.check(name, 1, s)?;
            same(name, "the norm of x", norm.n, self.k)?;
        }
        let out = match &self.epi {
            Epi::Gated(_) => {
                let gated = self.parts.len() == 2 && self.parts[0].n == self.parts[1].n;
                holds(name, gated, || "a gated pair needs two parts of one size".to_owned())?;
                self.parts[0].n
            }
            Epi::RopeKv(op) => {
                let qkv = (op.heads + 2 * op.kv_heads) * op.head_dim;
                same(name, "q, k, v together", self.n(), qkv)?;
                op.heads * op.head_dim
            }
            Epi::Add(residual) => {
                same(name, "the residual", (s.width)(*residual), self.n())?;
                self.n()
            }
            Epi::None | Epi::Act(_) => self.n(),
        };
        same(name, "out", (s.width)(self.out), out)
    }

    fn cost(&self, _load: &Load, rows: u32, format: &dyn Fn(WeightId) -> BlockFormat) -> Cost {
        let cost = |part: &Part| Cost {
            bytes: f64::from(part.n) * row_bytes(format(part.weight), self.k),
            flops: 2.0 * f64::from(rows) * f64::from(part.n) * f64::from(self.k),
        };
        self.parts.iter().map(cost).sum()
    }

    /// A head of q, k and v must lie in one buffer: a workgroup rotates it.
    fn stack(&self) -> Option<Stack> {
        let unit = if let Epi::RopeKv(rope_kv) = &self.epi { rope_kv.head_dim } else { Stack::UNIT };
        Some(Stack { parts: self.parts.clone(), unit })
    }
}

// CPU

impl CpuForm for Linear {
    /// Splits the rows of W. A folded norm is computed by every thread for itself, once: cheaper than a region of its own.
    fn cpu(&self, run: &CpuRun<'_>) {
        let (k, rows) = (self.k as usize, run.rows(self.x));
        let (own, rest) = run.scratch().split_at_mut(if self.pre == Pre::None { 0 } else { rows * k });
        let stored = run.value(self.x);
        let x: &[f32] = match self.pre {
            Pre::None => stored.slice(0..rows * k),
            Pre::Norm(spec) => {
                for r in if run.share.again { 0..0 } else { 0..rows } {
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
            Epi::None => self.each(run, x, rest, |at, y| out.slice_mut(at..at + y.len()).copy_from_slice(y)),
            Epi::Act(act) => self.each(run, x, rest, |at, y| {
                act.f32(y);
                out.slice_mut(at..at + y.len()).copy_from_slice(y);
            }),
            Epi::Add(residual) => {
                let residual = run.value(*residual);
                self.each(run, x, rest, |at, y| {
                    let residual = residual.slice(at..at + y.len());
                    y.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
                    out.slice_mut(at..at + y.len()).copy_from_slice(y);
                });
            }
            Epi::Gated(act) => {
                let [gate, up] = [&self.parts[0], &self.parts[1]];
                let n = gate.n as usize;
                let columns = run.share.of(n, LANES);
                let place = |r: usize, j: usize, len: usize| r * n + j..r * n + j + len;
                product(run, gate, columns.clone(), x, 0..rows, rest, |r, j, y| {
                    act.f32(y);
                    out.slice_mut(place(r, j, y.len())).copy_from_slice(y);
                });
                product(run, up, columns, x, 0..rows, rest, |r, j, y| {
                    let gated = out.slice_mut(place(r, j, y.len()));
                    gated.iter_mut().zip(y).for_each(|(gated, y)| *gated *= *y);
                });
            }
            Epi::RopeKv(rope_kv) => {
                let dim = rope_kv.head_dim as usize;
                let (heads, rest) = rest.split_at_mut(rows * dim);
                for unit in run.share.of(rope_kv.units(), 1) {
                    let (part, head) = rope_kv.unit(unit);
                    let columns = head * dim..(head + 1) * dim;
                    let store = |r: usize, j: usize, y: &mut [f32]| {
                        heads[r * dim + j - head * dim..][..y.len()].copy_from_slice(y);
                    };
                    product(run, &self.parts[part as usize], columns, x, 0..rows, rest, store);
                    for (r, head) in heads.chunks_exact_mut(dim).enumerate() {
                        rope_kv.finish(run, unit, r, head, self.out);
                    }
                }
            }
        }
    }

    fn cpu_scratch(&self, rows: usize) -> usize {
        let norm = if self.pre == Pre::None { 0 } else { rows * self.k as usize };
        let heads = if let Epi::RopeKv(rope_kv) = &self.epi { rows * rope_kv.head_dim as usize } else { 0 };
        norm + heads + q8_scratch(rows, self.k) + product_scratch(self.k)
    }
}

impl Linear {
    /// Calls `store` with the elements that are this share's, a few at a time, and the place in `out` of the first.
    fn each(&self, run: &CpuRun<'_>, x: &X<'_>, scratch: &mut [f32], mut store: impl FnMut(usize, &mut [f32])) {
        let n = self.n() as usize;
        let (own, rows) = (run.share.of(n, LANES), run.rows(self.x));
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.n as usize;
            let columns = own.start.clamp(start, end) - start..own.end.clamp(start, end) - start;
            product(run, part, columns, x, 0..rows, scratch, |r, j, y| store(r * n + start + j, y));
            start = end;
        }
    }
}

// Oracle

impl OracleForm for Linear {
    fn oracle(&self, run: &mut OracleRun<'_>) {
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
                let out = rope_kv.oracle(run, &y);
                run.set(self.out, out);
            }
        }
    }
}

// GPU

params! {
    pub(crate) struct Params {
        n: u32,
        k: u32,
        row0: u32,
        up: u32,
        out0: u32,
        rows_at: u32,
        out_stride: u32,
        bias_at: u32,
        norm_w: u32,
        bias_up: u32,
        eps: f32,
    }
}

/// Consecutive rows of a matrix, or of a stack of them, that lie in one buffer, in one block format.
#[derive(Clone, Copy, Debug)]
struct Segment {
    format: BlockFormat,
    buffer: usize,
    /// The first row's place in the buffer.
    at: u32,
    /// The first row's number in the stack.
    row: u32,
    n: u32,
}

/// What a dispatch does with its results, by the override EPI of the kernels.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Alone,
    Plus(ValueId),
    Act(Act),
    /// `act(gate) * up`: the segment holds the gates; the up of each lies so many rows after it.
    Gated(Act, u32),
    /// Multiplied by what `out` holds: these are the ups of gates that another dispatch computed.
    Times,
}

impl GpuForm for Linear {
    fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let bias = (l.bias_at)(&self.parts);
        let stored = match &self.epi {
            Epi::RopeKv(rope_kv) => {
                return self.segments(l, &self.parts).iter().try_for_each(|s| self.lower_qkv(l, s, bias, rope_kv));
            }
            Epi::Gated(act) => return self.lower_gated(l, bias, *act),
            Epi::None => Stored::Alone,
            Epi::Add(residual) => Stored::Plus(*residual),
            Epi::Act(act) => Stored::Act(*act),
        };
        self.segments(l, &self.parts).iter().try_for_each(|s| self.lower_segment(l, s, bias, stored))
    }

    fn gpu_needs(&self) -> GpuNeeds {
        GpuNeeds { int8_row: int8_row_bytes(self.k), ..GpuNeeds::default() }
    }

    fn tile(&self, tuning: &KernelTuning, format: &dyn Fn(WeightId) -> BlockFormat) -> Option<Tile> {
        Some(tuning.tile(format(self.parts[0].weight)))
    }
}

impl Linear {
    /// Whether the kernels of W x can fold a norm in: an RMS norm needs only the sum of squares, and only after the dot
    /// products.
    pub(crate) fn folds_on_gpu(norm: &NormSpec) -> bool {
        norm.kind == NormKind::Rms && norm.bias.is_none()
    }

    fn segments(&self, l: &Lower<'_>, parts: &[Part]) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut row = 0;
        for part in parts {
            let matrix = l.matrix(part.weight);
            for piece in &matrix.pieces {
                let (format, buffer, at, n) = (matrix.format, piece.buffer, piece.at, piece.n);
                match segments.last_mut() {
                    Some(s) if s.format == format && s.buffer == buffer && s.at + s.n == at => s.n += n,
                    _ => segments.push(Segment { format, buffer, at, row, n }),
                }
                row += n;
            }
        }
        segments
    }

    /// One dispatch, if gates and ups have one block format and lie in one buffer; else first the gates, then the ups.
    fn lower_gated(&self, l: &mut Lower<'_>, bias: Option<u32>, act: Act) -> Lowered {
        let [gates, ups] = [0, 1].map(|part| self.segments(l, &self.parts[part..=part]));
        if let ([gate], [up]) = (&gates[..], &ups[..])
            && (gate.format, gate.buffer) == (up.format, up.buffer)
            && let Some(apart) = up.at.checked_sub(gate.at)
        {
            return self.lower_segment(l, gate, bias, Stored::Gated(act, apart));
        }
        gates.iter().try_for_each(|s| self.lower_segment(l, s, bias, Stored::Act(act)))?;
        let bias = bias.map(|bias| bias + self.parts[0].n);
        ups.iter().try_for_each(|s| self.lower_segment(l, s, bias, Stored::Times))
    }

    /// What all kernels of a linear have in common: their slots, overrides and parameters for a segment.
    fn common(&self, l: &Lower<'_>, kernel: &mut Kernel, segment: &Segment, bias: Option<u32>) -> Params {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let mut params = Params {
            n: segment.n,
            k: self.k,
            row0: segment.at,
            out0: segment.row,
            rows_at: x.rows_at(),
            out_stride: out.stride(),
            ..Params::default()
        };
        lower::weights(kernel, segment.format);
        if let Pre::Norm(norm) = self.pre {
            kernel.set("NORM", true);
            params.eps = norm.eps;
            if let Some(weight) = norm.weight {
                kernel.set("HAS_NORM_W", true);
                params.norm_w = l.vector(weight) / 4;
            }
        }
        if let Some(bias) = bias {
            kernel.set("HAS_BIAS", true);
            params.bias_at = bias + segment.row;
            params.bias_up = bias + self.parts[0].n;
        }
        params
    }

    /// A mat-vec kernel for a segment, and the rows of x that it reads.
    fn vector_kernel<'a>(
        &self,
        l: &mut Lower<'a>,
        source: KernelSource,
        format: BlockFormat,
    ) -> Result<(Kernel, Arg<'a>)> {
        let mut kernel = l.kernel(source);
        let MatmulTuning { matvec, dot_k, .. } = *l.matmul(format);
        if matvec == Matvec::Dot && self.k >= dot_k {
            let norm = if let Pre::Norm(norm) = self.pre { norm.weight } else { None };
            kernel.fill("products", lib::MATVEC_INT8);
            return Ok((kernel, l.int8_rows(self.x, norm)?));
        }
        kernel.fill("products", lib::MATVEC);
        Ok((kernel, Arg::read(&l.value(self.x).buffer)))
    }

    fn lower_segment(&self, l: &mut Lower<'_>, segment: &Segment, bias: Option<u32>, stored: Stored) -> Lowered {
        let (x, out) = (l.value(self.x), l.value(self.out));
        let vectors = l.decode || x.rows != Rows::Step;
        let form = l.matmul(segment.format).matmul;
        let (mut kernel, x_rows) = match form {
            _ if vectors => self.vector_kernel(l, kernels::MATVEC, segment.format)?,
            Matmul::Dot => (l.matmul_kernel(form), l.int8_rows(self.x, None)?),
            _ => (l.matmul_kernel(form), Arg::read(&x.buffer)),
        };
        let mut params = self.common(l, &mut kernel, segment, bias);
        // Rows of W that a row of out takes.
        let mut rows = segment.n;
        let (epi, act, residual): (u32, _, _) = match stored {
            Stored::Alone => (0, None, None),
            Stored::Plus(residual) => (1, None, Some(residual)),
            Stored::Act(act) => (2, Some(act), None),
            Stored::Gated(act, apart) => {
                params.up = apart;
                rows *= 2;
                (3, Some(act), None)
            }
            Stored::Times => (4, None, None),
        };
        kernel.set("EPI", epi);
        if let Some(act) = act {
            act.lower(&mut kernel);
        }
        // Every binding needs a buffer, even one that the kernel does not use.
        let residual = residual.map_or(l.vectors, |r| &l.value(r).buffer);
        let w = Arg::read(&l.weights[segment.buffer]);
        let args = [Arg::read(l.step), x_rows, Arg::read(l.vectors), w, Arg::read(residual), Arg::Write(&out.buffer)];
        if vectors {
            return self.vectors(l, kernel, segment, &params, &args, rows);
        }
        let tile = l.tuning.tile(segment.format);
        let grid = |rows_of_x: u32| [Dim::Fixed(rows.div_ceil(tile.w)), x.rows(rows_of_x), Dim::Fixed(1)];
        match l.matmul_kernels(kernel, form, tile, l.matmul(segment.format).small_x) {
            (_, Some(small)) if l.layout.rows <= tile.most_few => {
                l.plan.dispatch(&small, &params, &args, grid(tile.few))
            }
            (kernel, small) => {
                let form = |kernel| Small { kernel, rows: x.rows(1), most: tile.most_few, grid: grid(tile.few) };
                l.plan.dispatch_forms(&kernel, &params, &args, grid(tile.x), small.as_ref().map(form))
            }
        }
    }

    fn lower_qkv(&self, l: &mut Lower<'_>, segment: &Segment, bias: Option<u32>, rope_kv: &RopeKvSpec) -> Lowered {
        let (out, cache) = (l.value(self.out), l.cache(rope_kv.cache));
        let (mut kernel, x_arg) = self.vector_kernel(l, kernels::MATVEC_QKV, segment.format)?;
        let params = self.common(l, &mut kernel, segment, bias);
        l.paged(&mut kernel, cache)?;
        l.kv_store(&mut kernel, cache)?;
        l.rope(&mut kernel, rope_kv.rope.as_ref());
        kernel.set("HEADS", rope_kv.heads);
        kernel.set("HEAD_DIM", rope_kv.head_dim);
        let (w, angles) = (Arg::read(&l.weights[segment.buffer]), l.angles(rope_kv.rope.map(|r| r.table)));
        let (out, kv) = (Arg::Write(&out.buffer), Arg::Write(&cache.buffer));
        let args = [Arg::read(l.step), x_arg, Arg::read(l.vectors), w, angles, out, kv];
        self.vectors(l, kernel, segment, &params, &args, segment.n)
    }

    /// A dispatch of a mat-vec kernel over so many rows of W, in two variants: for several rows of x, and for one. The latter
    /// must not pay for the others' registers, nor for their time where both sides of a branch are run.
    fn vectors(
        &self,
        l: &mut Lower<'_>,
        kernel: Kernel,
        segment: &Segment,
        params: &Params,
        args: &[Arg<'_>],
        rows: u32,
    ) -> Lowered {
        let x = l.value(self.x);
        let MatmulTuning { lanes, cols, row_vec4s: lone, row_vec4s_batch: many, .. } = *l.matmul(segment.format);
        // Sums of squares: one vec4 for four rows of x.
        let squares = |cols: u32| if matches!(self.pre, Pre::Norm(_)) { cols.div_ceil(4) } else { 0 };
        let form = |l: &Lower<'_>, cols: u32, row_vec4s: u32| {
            let mut kernel = kernel.clone();
            l.sums(&mut kernel, lanes, cols * row_vec4s + squares(cols));
            kernel.set("COLS", cols);
            kernel.set("ROW_VEC4S", row_vec4s);
            (kernel, [Dim::Fixed(rows.div_ceil(4 * row_vec4s)), x.rows(cols), Dim::Fixed(1)])
        };
        let (several, several_grid) = form(l, cols, many);
        let (one, grid) = form(l, 1, lone);
        let small = Small { kernel: &one, rows: x.rows(1), most: 1, grid };
        l.plan.dispatch_forms(&several, params, args, several_grid, Some(small))
    }
}
