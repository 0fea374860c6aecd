//! `attend` on the CPU: online softmax (Milakov & Gimelshein 2018) over tiles of positions, for several rows and for all heads
//! that share keys and values together.

use std::ops::Range;

use super::{Attend, Kv, Mask};
use crate::cpu::{FloatRows, Kind, Pages, Shared, simd};
use crate::ops::cpu::CpuRun;
use crate::ops::operation::CpuForm;
use crate::quant::Simd;

/// Positions whose scores are computed together: tile i holds positions `64 i .. 64 (i + 1)` of the sequence, whatever the
/// row, the block size or the split into steps, so that a row's result depends on none of these.
const TILE: usize = 64;
/// Positions whose keys or values are taken at once; as many as a vector has lanes at most.
const RUN: usize = 16;
/// Queries, of several rows and heads, that go over keys and values together: as many as fit a cache beside these.
const QUERIES: usize = 48;
/// No finite score lies below it: the kernels' `MASK_VALUE`.
const LOWEST: f32 = f32::MIN;

impl CpuForm for Attend {
    /// Splits rows of a sequence, and heads, round-robin, since later rows see more.
    fn cpu(&self, run: &CpuRun<'_>) {
        let per_kv_head = (self.heads / self.kv_heads) as usize;
        // All heads of a KV head share what is loaded; they are divided where threads would have nothing to do.
        let tiles = |heads: usize| {
            let most = QUERIES / heads;
            run.step.seqs.iter().flat_map(move |seq| {
                let (row0, end) = (seq.row0 as usize, (seq.row0 + seq.rows) as usize);
                (row0..end).step_by(most).map(move |first| first..end.min(first + most))
            })
        };
        let mut heads = per_kv_head.min(QUERIES);
        let items = tiles(heads).count() * self.kv_heads as usize * per_kv_head.div_ceil(heads);
        let threads = run.share.threads;
        if items < 8 * threads && !items.is_multiple_of(threads) {
            heads = heads.div_ceil(threads);
        }
        let parts = per_kv_head.div_ceil(heads);
        let per_tile = self.kv_heads as usize * parts;
        for (i, rows) in tiles(heads).enumerate() {
            // Item by item in turns: those of one tile cost the same.
            for item in (i * per_tile..(i + 1) * per_tile).filter(|item| item % run.share.count == run.share.index) {
                let (kv_head, part) = (item % per_tile / parts, item % per_tile % parts);
                let first = part * heads;
                let heads = first..per_kv_head.min(first + heads);
                self.tile(
                    run,
                    rows.clone(),
                    kv_head,
                    kv_head * per_kv_head + heads.start..kv_head * per_kv_head + heads.end,
                );
            }
        }
    }

    fn cpu_scratch(&self, _rows: usize) -> usize {
        Parts::len(self)
    }
}

/// Parts of the scratch memory.
struct Parts<'a> {
    /// [query][k_dim]
    queries: &'a mut [f32],
    /// [k_dim][TILE]: the keys of a tile.
    keys: &'a mut [f32],
    /// [query][TILE]
    scores: &'a mut [f32],
    /// [query][v_dim]
    sums: &'a mut [f32],
    /// [RUN][k_dim or v_dim]: for integers.
    floats: &'a mut [f32],
}

impl<'a> Parts<'a> {
    fn sizes(op: &Attend) -> [usize; 5] {
        let (k_dim, v_dim) = (op.k_dim as usize, op.v_dim as usize);
        [QUERIES * k_dim, k_dim * TILE, QUERIES * TILE, QUERIES * v_dim, RUN * k_dim.max(v_dim)]
    }

    fn len(op: &Attend) -> usize {
        Self::sizes(op).iter().sum()
    }

    fn new(op: &Attend, scratch: &'a mut [f32]) -> Self {
        let [queries, keys, scores, sums, _] = Self::sizes(op);
        let (queries, rest) = scratch.split_at_mut(queries);
        let (keys, rest) = rest.split_at_mut(keys);
        let (scores, rest) = rest.split_at_mut(scores);
        let (sums, floats) = rest.split_at_mut(sums);
        Self { queries, keys, scores, sums, floats }
    }
}

impl Attend {
    /// Some rows of one sequence, and some heads of a KV head: query `row * heads + head`.
    fn tile(&self, run: &CpuRun<'_>, rows: Range<usize>, kv_head: usize, heads: Range<usize>) {
        let simd = Simd::best();
        let [all_heads, k_dim, v_dim] = [self.heads, self.k_dim, self.v_dim].map(|d| d as usize);
        let (q, out) = (run.value(self.q), run.value(self.out));
        let count = rows.len() * heads.len();
        let parts = Parts::new(self, run.scratch());
        let (queries, sums) = (&mut parts.queries[..count * k_dim], &mut parts.sums[..count * v_dim]);
        let scores = &mut parts.scores[..count * TILE];
        let place = |i: usize, dim: usize| {
            let (row, head) = (rows.start + i / heads.len(), heads.start + i % heads.len());
            (row * all_heads + head) * dim..(row * all_heads + head + 1) * dim
        };
        for (i, query) in queries.chunks_exact_mut(k_dim).enumerate() {
            query.copy_from_slice(q.slice(place(i, k_dim)));
        }
        sums.fill(0.0);
        let keys = Keys::new(self, run, rows.start);
        // Of each row.
        let (mut owns, mut seen) = ([0; QUERIES], [const { 0..0 }; QUERIES]);
        for (i, (own, seen)) in owns.iter_mut().zip(&mut seen).enumerate().take(rows.len()) {
            *own = keys.own(rows.start + i);
            *seen = self.mask.sees(*own, keys.count);
        }
        let seen = &seen[..rows.len()];
        let (mut maxima, mut totals) = ([LOWEST; QUERIES], [0f32; QUERIES]);
        let start = seen.iter().map(|seen| seen.start).min().unwrap_or(0);
        let end = seen.iter().map(|seen| seen.end).max().unwrap_or(0);
        let mut first = start / TILE * TILE;
        while first < end {
            let tile = first.max(start)..end.min(first + TILE);
            let of_tile =
                |row: usize| seen[row].start.clamp(tile.start, tile.end)..seen[row].end.clamp(tile.start, tile.end);
            let mut t = tile.start;
            while t < tile.end {
                let (loaded, n) = keys.load(Kind::K, t..tile.end, kv_head, k_dim, parts.floats);
                loaded.transpose(simd, n, k_dim, (&mut parts.keys[t - first..], TILE));
                t += n;
            }
            // Whole vectors: positions that the tile does not have get scores that nothing reads.
            let columns = (tile.end - first).next_multiple_of(RUN);
            scores.fill(0.0);
            let all_keys = FloatRows::F32(parts.keys, TILE);
            all_keys.weighted_sums(simd, (queries, k_dim), k_dim, columns, (scores, TILE));
            for (i, scores) in scores.chunks_exact_mut(TILE).enumerate() {
                let (row, head) = (i / heads.len(), heads.start + i % heads.len());
                let seen = of_tile(row);
                if seen.is_empty() {
                    continue;
                }
                let scores = &mut scores[seen.start - first..seen.end - first];
                if self.softcap == 0.0 {
                    simd::scale(scores, self.scale);
                } else {
                    simd::scale(scores, self.scale / self.softcap);
                    simd::tanh(scores);
                    simd::scale(scores, self.softcap);
                }
                if let Some(slopes) = self.slopes {
                    let slope = run.vector(slopes)[head];
                    for (score, t) in scores.iter_mut().zip(seen) {
                        *score -= slope * owns[row].abs_diff(t) as f32;
                    }
                }
                let max = simd::maximum(scores, maxima[i]);
                if max > maxima[i] {
                    let rescale = (maxima[i] - max).exp();
                    sums[i * v_dim..(i + 1) * v_dim].iter_mut().for_each(|sum| *sum *= rescale);
                    totals[i] *= rescale;
                    maxima[i] = max;
                }
                simd::exp_below(scores, max);
                totals[i] += simd::sum(scores, |weight| weight);
            }
            let mut t = tile.start;
            while t < tile.end {
                let (values, n) = keys.load(Kind::V, t..tile.end, kv_head, v_dim, parts.floats);
                // Rows that see the same of these positions go over them together. What a row does not see is not even multiplied
                // by zero: it may be infinite.
                let of_run = |row: usize| {
                    let seen = of_tile(row);
                    seen.start.clamp(t, t + n) - t..seen.end.clamp(t, t + n) - t
                };
                let mut row = 0;
                while row < rows.len() {
                    let sees = of_run(row);
                    let same = (row..rows.len()).take_while(|&row| of_run(row) == sees).count();
                    let (from, to) = (row * heads.len(), (row + same) * heads.len());
                    if !sees.is_empty() {
                        let weights = &scores[from * TILE..to * TILE][t - first + sees.start..];
                        let sums = &mut sums[from * v_dim..to * v_dim];
                        values.after(sees.start).weighted_sums(simd, (weights, TILE), sees.len(), v_dim, (sums, v_dim));
                    }
                    row += same;
                }
                t += n;
            }
            first += TILE;
        }
        for (i, sums) in sums.chunks_exact_mut(v_dim).enumerate() {
            let mut total = totals[i];
            if let Some(sinks) = self.sinks {
                let sink = run.vector(sinks)[heads.start + i % heads.len()];
                let both = maxima[i].max(sink);
                let rescale = (maxima[i] - both).exp();
                sums.iter_mut().for_each(|sum| *sum *= rescale);
                total = total * rescale + (sink - both).exp();
            }
            // 0: no score was finite.
            if total != 0.0 {
                sums.iter_mut().for_each(|sum| *sum /= total);
            }
            out.slice_mut(place(i, v_dim)).copy_from_slice(sums);
        }
    }
}

impl Mask {
    /// The positions of a sequence of `count` that the row at `own` sees.
    fn sees(self, own: usize, count: usize) -> Range<usize> {
        match self {
            Self::Causal => 0..own + 1,
            Self::Window(n) => (own + 1).saturating_sub(n as usize)..own + 1,
            Self::Full => 0..count,
            Self::BidirectionalWindow(n) => own.saturating_sub(n as usize)..(own + n as usize + 1).min(count),
        }
    }
}

/// The keys and values that a sequence's rows may see, by their number in it.
struct Keys<'a> {
    run: &'a CpuRun<'a>,
    seq: usize,
    /// How many there are.
    count: usize,
    kv: Held<'a>,
}

enum Held<'a> {
    Cache(&'a Pages),
    /// From the sequence's first row.
    Rows {
        k: &'a Shared<f32>,
        v: &'a Shared<f32>,
        row0: usize,
        kv_heads: usize,
    },
}

impl<'a> Keys<'a> {
    fn new(op: &Attend, run: &'a CpuRun<'a>, r: usize) -> Self {
        let row = run.step.rows[r];
        let span = run.step.seqs[row.seq as usize];
        let (count, kv) = match op.kv {
            Kv::Cache(id) => (span.context as usize, Held::Cache(run.cache(id))),
            Kv::Packed { k, v } => {
                let row0 = span.row0 as usize;
                let kv_heads = op.kv_heads as usize;
                (span.rows as usize, Held::Rows { k: run.value(k), v: run.value(v), row0, kv_heads })
            }
        };
        Self { run, seq: row.seq as usize, count, kv }
    }

    /// The number of a row of the sequence.
    fn own(&self, r: usize) -> usize {
        match self.kv {
            Held::Cache(_) => self.run.step.rows[r].pos as usize,
            Held::Rows { row0, .. } => r - row0,
        }
    }

    /// Keys or values, `n` elements each, of the first of some positions, and their count.
    #[inline]
    fn load<'b>(
        &'b self,
        kind: Kind,
        positions: Range<usize>,
        head: usize,
        n: usize,
        scratch: &'b mut [f32],
    ) -> (FloatRows<'b>, usize) {
        let t = positions.start;
        match &self.kv {
            Held::Cache(pages) => {
                let block = self.run.step.block;
                let count = positions.len().min(RUN).min(block - t % block);
                let at = self.run.step.kv_slot(pages.group, self.seq, t);
                (pages.load(kind, at, count, head, scratch), count)
            }
            Held::Rows { k, v, row0, kv_heads } => {
                let (start, stride) = (((row0 + t) * kv_heads + head) * n, kv_heads * n);
                let rows = if matches!(kind, Kind::K) { k } else { v };
                let rows = rows.slice(start..start + (positions.len() - 1) * stride + n);
                (FloatRows::F32(rows, stride), positions.len())
            }
        }
    }
}
