//! What `scan` and `delta` share: each head keeps a matrix S (v, k) that decays and is updated, row after row:
//!
//! `S ← e^g S + u kᵀ`, `out = S q`, where `u = gain * (x - e^g S k)` by the delta rule and `u = gain * x` without it.
//!
//! Two forms compute it. Decode rows take the **step form**, the lines above. Prefill rows take the **chunked form** (Yang et
//! al. 2024; Dao & Gu 2024): inside a tile of [`TILE`] positions, S stays as it was at the tile's beginning. A row adds the
//! updates of the tile's rows before it: `out = e^b S q + Σ_s e^(b - b_s) (k_s · q) u_s`, with b the sum of g since the tile's
//! beginning, and u alike. S is read once for all rows of a tile that a step has, and written once a tile.
//!
//! Tiles begin at multiples of [`TILE`], and a state holds the rows of the tile that is not full. So a row is computed from the
//! same numbers in the same order, however a prompt was split into steps.

pub(in crate::ops) mod conv;
pub(in crate::ops) mod delta;
pub(in crate::ops) mod scan;

use crate::Result;
use crate::cpu::simd::{self, Strides};
use crate::gpu::params::params;
use crate::gpu::{Arg, Dim};
use crate::ops::check::{Shapes, same};
use crate::ops::cpu::CpuRun;
use crate::ops::kernels;
use crate::ops::lower::{self, Lower, Lowered};
use crate::ops::operation::{Access, GpuNeeds, operands};
use crate::ops::oracle::{OracleRun, Rows64};
use crate::ops::{CacheId, ValueId, VectorId};

/// How much a row makes a head forget: `g = a * Δ` with `Δ = clamp(softplus(x + bias), min, max)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    /// (rows, heads)
    pub x: ValueId,
    /// (heads)
    pub bias: VectorId,
    /// (heads), negative
    pub a: VectorId,
    /// The least Δ.
    pub min: f32,
    /// The largest Δ.
    pub max: f32,
}

operands!(Decay, f, Decay { x, bias, a, .. } => {
    f(Access::Read, x.into());
    f(Access::Read, bias.into());
    f(Access::Read, a.into());
});

impl Decay {
    pub(in crate::ops) fn check(&self, op: &str, heads: u32, s: &Shapes<'_>) -> Result<()> {
        same(op, "its decay", (s.width)(self.x), heads)?;
        same(op, "the bias of its decay", (s.vector)(self.bias), heads)?;
        same(op, "the factor of its decay", (s.vector)(self.a), heads)
    }

    /// Δ and g of a row and head.
    pub(in crate::ops) fn cpu(&self, run: &CpuRun<'_>, heads: usize, row: usize, head: usize) -> (f32, f32) {
        let x = run.value(self.x).get(row * heads + head) + run.vector(self.bias)[head];
        // Above 20, softplus(x) and x agree in every bit of f32.
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        let delta = softplus.max(self.min).min(self.max);
        (delta, run.vector(self.a)[head] * delta)
    }

    pub(in crate::ops) fn oracle(&self, run: &OracleRun<'_>, row: usize, head: usize) -> (f64, f64) {
        let x = run.value(self.x)[row][head] + run.vector(self.bias)[head];
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        let delta = softplus.max(self.min.into()).min(self.max.into());
        (delta, delta * run.vector(self.a)[head])
    }
}

/// Positions of a tile: at 16, the products within a tile cost less than those with S, and a state grows little.
pub(in crate::ops) const TILE: usize = 16;

/// The sizes of a head, and its rule.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Head {
    pub(in crate::ops) k: usize,
    pub(in crate::ops) v: usize,
    /// Learns the difference between x and what S predicts: the delta rule.
    pub(in crate::ops) corrects: bool,
}

/// One row of a head.
#[derive(Clone, Copy, Default)]
pub(in crate::ops) struct Input<'a> {
    pub(in crate::ops) q: &'a [f32],
    pub(in crate::ops) k: &'a [f32],
    pub(in crate::ops) x: &'a [f32],
    pub(in crate::ops) gain: f32,
    pub(in crate::ops) g: f32,
}

/// The parts of a head's state.
struct State<'a> {
    /// Rows of the tile that are not in S.
    count: &'a mut f32,
    /// (k, v): S transposed, so that products with rows of k are sums of its rows.
    s: &'a mut [f32],
    /// (TILE, k)
    keys: &'a mut [f32],
    /// (TILE, v): u
    updates: &'a mut [f32],
    /// (TILE): b
    decays: &'a mut [f32],
}

impl Head {
    /// Elements of a head's state.
    pub(in crate::ops) fn state_len(self) -> usize {
        1 + self.v * self.k + TILE * (self.k + self.v + 1)
    }

    /// Numbers of scratch memory.
    pub(in crate::ops) fn scratch(self) -> usize {
        TILE * (2 * self.v + 2 * self.k + 2 * TILE)
    }

    fn split(self, state: &mut [f32]) -> State<'_> {
        let (count, rest) = state.split_at_mut(1);
        let (s, rest) = rest.split_at_mut(self.v * self.k);
        let (keys, rest) = rest.split_at_mut(TILE * self.k);
        let (updates, decays) = rest.split_at_mut(TILE * self.v);
        State { count: &mut count[0], s, keys, updates, decays }
    }

    /// Takes rows at consecutive positions, the first at `pos`, and passes each one's result to `out`.
    pub(in crate::ops) fn rows<'i>(
        self,
        state: &mut [f32],
        scratch: &mut [f32],
        (pos, rows, decode): (usize, usize, bool),
        input: impl Fn(usize) -> Input<'i>,
        out: impl Fn(usize) -> &'i mut [f32],
    ) {
        let mut state = self.split(state);
        if pos == 0 {
            *state.count = 0.0;
            state.s.fill(0.0);
        }
        if decode {
            self.fold(&mut state);
            return (0..rows).for_each(|r| self.step(&mut state, scratch, &input(r), out(r)));
        }
        let mut first = 0;
        while first < rows {
            let end = rows.min(first + TILE - (pos + first) % TILE);
            let mut tile = [Input::default(); TILE];
            let tile = &mut tile[..end - first];
            tile.iter_mut().enumerate().for_each(|(i, row)| *row = input(first + i));
            self.tile(&mut state, scratch, tile, |i| out(first + i));
            if (pos + end).is_multiple_of(TILE) {
                self.fold(&mut state);
            }
            first = end;
        }
    }

    /// The step form.
    fn step(self, state: &mut State<'_>, scratch: &mut [f32], row: &Input<'_>, out: &mut [f32]) {
        let keep = row.g.exp();
        let u = &mut scratch[..self.v];
        u.fill(0.0);
        if self.corrects {
            add_rows(u, 1.0, row.k, state.s);
        }
        for (u, x) in u.iter_mut().zip(row.x) {
            *u = row.gain * (x - keep * *u);
        }
        simd::recur(state.s, keep, row.k, row.q, u, out);
    }

    /// The chunked form of rows within a tile.
    fn tile<'i>(
        self,
        state: &mut State<'_>,
        scratch: &mut [f32],
        rows: &[Input<'_>],
        out: impl Fn(usize) -> &'i mut [f32],
    ) {
        let (k, v, first) = (self.k, self.v, *state.count as usize);
        let keys = &mut state.keys[..(first + rows.len()) * k];
        for (row, key) in rows.iter().zip(keys[first * k..].chunks_exact_mut(k)) {
            key.copy_from_slice(row.k);
        }
        // Queries side by side, and by the delta rule the rows' keys beside them: (k, width).
        let width = if self.corrects { 2 * TILE } else { TILE };
        let (columns, rest) = scratch.split_at_mut(k * width);
        for (i, row) in rows.iter().enumerate() {
            columns.chunks_exact_mut(width).zip(row.q).for_each(|(line, q)| line[i] = *q);
            if self.corrects {
                columns.chunks_exact_mut(width).zip(row.k).for_each(|(line, k)| line[TILE + i] = *k);
            }
        }
        // Their products with S, (rows, v) each.
        let (from_q, rest) = rest.split_at_mut(rows.len() * v);
        let (from_k, rest) = rest.split_at_mut(rows.len() * v);
        let strides = Strides { row: 1, inner: width };
        from_q.fill(0.0);
        simd::add_matmul(from_q, 1.0, columns, strides, state.s, v);
        if self.corrects {
            from_k.fill(0.0);
            simd::add_matmul(from_k, 1.0, &columns[TILE..], strides, state.s, v);
        }
        // And with the tile's keys, those before and their own: (first + rows, width).
        let with_keys = &mut rest[..(first + rows.len()) * width];
        with_keys.fill(0.0);
        simd::add_matmul(with_keys, 1.0, keys, Strides { row: k, inner: 1 }, columns, width);
        for (i, row) in rows.iter().enumerate() {
            let m = first + i;
            let b = row.g + if m > 0 { state.decays[m - 1] } else { 0.0 };
            state.decays[m] = b;
            let (all, left) = (b.exp(), left_at(b, &state.decays[..=m]));
            // What is left of the rows up to this one, times the products of their keys with a column.
            let weights = |column: usize, sign: f32| {
                let mut weights = left;
                let products = with_keys.chunks_exact(width).map(|line| sign * line[column]);
                weights[..=m].iter_mut().zip(products).for_each(|(weight, product)| *weight *= product);
                weights
            };
            let (before, u) = state.updates[..(m + 1) * v].split_at_mut(m * v);
            u.copy_from_slice(row.x);
            if self.corrects {
                simd::add_scaled(u, -all, &from_k[i * v..(i + 1) * v]);
                add_rows(u, 1.0, &weights(TILE + i, -1.0)[..m], before);
            }
            simd::scale(u, row.gain);
            let out = out(i);
            out.copy_from_slice(&from_q[i * v..(i + 1) * v]);
            add_rows(out, all, &weights(i, 1.0)[..=m], &state.updates[..(m + 1) * v]);
        }
        *state.count += rows.len() as f32;
    }

    /// Adds the updates of the tile's rows to S.
    fn fold(self, state: &mut State<'_>) {
        let m = *state.count as usize;
        let Some(&b) = state.decays[..m].last() else { return };
        let updates = &mut state.updates[..m * self.v];
        for (u, left) in updates.chunks_exact_mut(self.v).zip(left_at(b, &state.decays[..m])) {
            simd::scale(u, left);
        }
        simd::add_matmul(state.s, b.exp(), state.keys, Strides { row: 1, inner: self.k }, updates, self.v);
        *state.count = 0.0;
    }

    /// The recurrence in f64, on a state of v rows of k.
    pub(in crate::ops) fn oracle(
        self,
        s: &mut [Vec<f64>],
        q: &[f64],
        k: &[f64],
        x: &[f64],
        gain: f64,
        g: f64,
    ) -> Vec<f64> {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut out = Vec::new();
        for (s, x) in s.iter_mut().zip(x) {
            s.iter_mut().for_each(|s| *s *= g.exp());
            let u = gain * (x - if self.corrects { dot(s, k) } else { 0.0 });
            s.iter_mut().zip(k).for_each(|(s, k)| *s += u * k);
            out.push(dot(s, q));
        }
        out
    }
}

/// `e^(b - b_s)`: what is left of rows whose sums of g are `decays` when the sum is b.
fn left_at(b: f32, decays: &[f32]) -> [f32; TILE] {
    let mut left = [0.0; TILE];
    let left_of = &mut left[..decays.len()];
    left_of.iter_mut().zip(decays).for_each(|(left, decay)| *left = -decay);
    simd::exp_below(left_of, -b);
    left
}

/// `out = keep * out + Σ weights[i] rows[i]`, with rows as long as `out`.
fn add_rows(out: &mut [f32], keep: f32, weights: &[f32], rows: &[f32]) {
    let width = out.len();
    simd::add_matmul(out, keep, weights, Strides { row: weights.len(), inner: 1 }, rows, width);
}

/// Calls `each` with the number of every sequence, its rows, and its state of `rows` vectors of `n`, which is kept.
pub(in crate::ops) fn oracle_sequences(
    run: &mut OracleRun<'_>,
    state: crate::ops::CacheId,
    (rows, n): (usize, usize),
    mut each: impl FnMut(&OracleRun<'_>, std::ops::Range<usize>, &mut Rows64) -> Rows64,
) -> Rows64 {
    let mut out = Rows64::new();
    for seq in 0..run.step.seqs.len() {
        let span = run.step.seqs[seq];
        let mut kept = run.take_state(state, seq, rows, n);
        out.extend(each(run, span.row0 as usize..(span.row0 + span.rows) as usize, &mut kept));
        run.put_state(state, seq, kept);
    }
    out
}

// GPU

/// Elements of a head's values that a workgroup has, at most.
const BLOCK: u32 = 64;

/// The operands of `scan` and `delta`, as the kernels name them.
pub(in crate::ops) struct Recurrence<'a> {
    /// (rows, key_heads * k)
    pub(in crate::ops) q: ValueId,
    /// (rows, key_heads * k)
    pub(in crate::ops) keys: ValueId,
    /// (rows, heads * v)
    pub(in crate::ops) x: ValueId,
    pub(in crate::ops) heads: u32,
    pub(in crate::ops) key_heads: u32,
    /// Head h has key head `h mod key_heads`.
    pub(in crate::ops) tiled: bool,
    pub(in crate::ops) head: Head,
    pub(in crate::ops) decay: &'a Decay,
    /// (rows, heads): the gains, if they are not the decay's Δ.
    pub(in crate::ops) beta: Option<ValueId>,
    /// (heads): the factor with which x is added to the result.
    pub(in crate::ops) skip: Option<VectorId>,
    pub(in crate::ops) state: CacheId,
    /// (rows, heads * v)
    pub(in crate::ops) out: ValueId,
}

params! {
    pub(crate) struct DecayParams {
        heads: u32,
        x_stride: u32,
        beta_stride: u32,
        bias: u32,
        a: u32,
        low: f32,
        high: f32,
    }
}

params! {
    pub(crate) struct Params {
        heads: u32,
        key_heads: u32,
        tiled: u32,
        k: u32,
        v: u32,
        q_stride: u32,
        k_stride: u32,
        x_stride: u32,
        out_stride: u32,
        skip: u32,
        state_len: u32,
        part_len: u32,
    }
}

impl Head {
    /// Threads of a workgroup, each with a column of S.
    fn block(self) -> u32 {
        (self.v as u32).next_power_of_two().clamp(8, BLOCK)
    }

    /// Elements of a workgroup's part of a state. Each workgroup of a head keeps its own copy of a tile's keys, so that none
    /// waits for another.
    fn part_len(self) -> u64 {
        let (block, k, tile) = (u64::from(self.block()), self.k as u64, TILE as u64);
        ((k + tile + 1) * block + tile * (k + 1)).next_multiple_of(4)
    }

    /// Elements of a state of so many heads on the GPU.
    fn gpu_state_len(self, heads: u32) -> u64 {
        u64::from(heads) * u64::from((self.v as u32).div_ceil(self.block())) * self.part_len()
    }
}

/// What the kernels of so many heads need.
pub(in crate::ops) fn gpu_needs(head: Head, heads: u32) -> GpuNeeds {
    // Gains and decays.
    GpuNeeds { state: head.gpu_state_len(heads), scratch_of_row: u64::from(heads) * 8, ..GpuNeeds::default() }
}

impl Recurrence<'_> {
    pub(in crate::ops) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        self.lower_decay(l)?;
        let [q, keys, x, out] = [self.q, self.keys, self.x, self.out].map(|id| l.value(id));
        let state = l.cache(self.state);
        let mut kernel = l.kernel(if l.decode { kernels::RECUR_STEP } else { kernels::RECUR_TILE });
        let block = self.head.block();
        kernel.set("WG", block);
        kernel.set("CORRECTS", self.head.corrects);
        kernel.set("HAS_SKIP", self.skip.is_some());
        let (k, v) = (self.head.k as u32, self.head.v as u32);
        let params = Params {
            heads: self.heads,
            key_heads: self.key_heads,
            tiled: u32::from(self.tiled),
            k,
            v,
            q_stride: q.stride(),
            k_stride: keys.stride(),
            x_stride: x.stride(),
            out_stride: out.stride(),
            skip: self.skip.map_or(0, |skip| l.vector(skip)),
            state_len: state.state,
            part_len: self.head.part_len() as u32,
        };
        let [q, keys, x] = [q, keys, x].map(|value| Arg::read(&value.buffer));
        let (gates, vectors) = (Arg::read(l.scratch), Arg::read(l.vectors));
        let (state, out) = (Arg::Write(&state.buffer), Arg::Write(&out.buffer));
        let args = [Arg::read(l.step), q, keys, x, gates, vectors, state, out];
        let grid = [Dim::Fixed(v.div_ceil(block)), Dim::Fixed(self.heads), Dim::Seqs(1)];
        l.plan.dispatch(&kernel, &params, &args, grid)
    }

    /// Gains and decays of all rows and heads to the scratch memory.
    fn lower_decay(&self, l: &mut Lower<'_>) -> Lowered {
        l.sorted = None; // gains and decays overwrite it in the scratch memory
        let x = l.value(self.decay.x);
        let beta = self.beta.map_or(x, |beta| l.value(beta));
        let mut kernel = l.kernel(kernels::DECAY);
        kernel.set("HAS_BETA", self.beta.is_some());
        let params = DecayParams {
            heads: self.heads,
            x_stride: x.stride(),
            beta_stride: beta.stride(),
            bias: l.vector(self.decay.bias),
            a: l.vector(self.decay.a),
            low: self.decay.min.max(f32::MIN),
            high: self.decay.max.min(f32::MAX),
        };
        let (x, beta, vectors) = (Arg::read(&x.buffer), Arg::read(&beta.buffer), Arg::read(l.vectors));
        let args = [Arg::read(l.step), x, beta, vectors, Arg::Write(l.scratch)];
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(self.heads), Dim::Rows(1), Dim::Fixed(1)])
    }
}
