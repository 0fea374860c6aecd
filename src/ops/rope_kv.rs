//! `rope_kv`: rotates Q and K and writes K and V to the cache, in one pass over a fused Q|K|V row.

use super::cpu::CpuRun;
use super::lower::{self, Lower, Lowered};
use super::oracle::{OracleRun, Rows64, heads};
use super::{CacheId, RopeSpec, ValueId};
use crate::cpu::Kind;
use crate::gpu::{Arg, Dim};

/// The fused form of two [`Rope`](super::Rope)s and a [`KvWrite`](super::KvWrite). *Made by fuse only.*
///
/// qkv (rows, (heads + 2 kv_heads) * head_dim) f32 | out: q, rotated, (rows, heads * head_dim) f32.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeKv {
    /// (rows, (heads + 2 kv_heads) * head_dim): q, then k, then v
    pub qkv: ValueId,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head, the same for q, k and v.
    pub head_dim: u32,
    /// None: learned positions or none at all; q and k pass through.
    pub rope: Option<RopeSpec>,
    /// Where k and v go.
    pub cache: CacheId,
    /// (rows, heads * head_dim)
    pub out: ValueId,
}

// CPU

impl RopeKv {
    /// Splits heads.
    pub(super) fn cpu(&self, run: &CpuRun<'_>) {
        let (qkv, dim, units) = (run.value(self.qkv), self.head_dim as usize, self.units());
        for item in run.member.share(run.step.rows.len() * units, 1) {
            let head = &mut run.scratch()[..dim];
            head.copy_from_slice(qkv.slice(item * dim..(item + 1) * dim));
            self.finish(run, item % units, item / units, head);
        }
    }

    pub(super) fn cpu_scratch(&self) -> usize {
        self.head_dim as usize
    }

    /// Heads of q, k and v together.
    pub(super) fn units(&self) -> usize {
        (self.heads + 2 * self.kv_heads) as usize
    }

    /// What a head of q, k and v in a row is: which of the three, and which of its heads.
    pub(super) fn unit(&self, unit: usize) -> (Qkv, usize) {
        let (heads, kv_heads) = (self.heads as usize, self.kv_heads as usize);
        match unit {
            u if u < heads => (Qkv::Q, u),
            u if u < heads + kv_heads => (Qkv::K, u - heads),
            u => (Qkv::V, u - heads - kv_heads),
        }
    }

    /// Rotates a head of a row, if it is one of q or k, and stores it where it belongs.
    pub(super) fn finish(&self, run: &CpuRun<'_>, unit: usize, row: usize, head: &mut [f32]) {
        let (part, index) = self.unit(unit);
        if let (Some(spec), Qkv::Q | Qkv::K) = (self.rope, part) {
            spec.cpu(run, row, head);
        }
        let pages = run.cache(self.cache);
        let store = |kind| {
            let entry = run.step.rows[row];
            pages.store(kind, run.step.kv_slot(pages.group, entry.seq as usize, entry.pos as usize), index, head);
        };
        match part {
            Qkv::Q => {
                let start = (row * self.heads as usize + index) * head.len();
                run.value(self.out).slice_mut(start..start + head.len()).copy_from_slice(head);
            }
            Qkv::K => store(Kind::K),
            Qkv::V => store(Kind::V),
        }
    }
}

/// The three parts of a row, in their order.
#[derive(Clone, Copy)]
pub(super) enum Qkv {
    Q,
    K,
    V,
}

// Oracle

impl RopeKv {
    pub(super) fn oracle(&self, run: &mut OracleRun<'_>) {
        let out = self.oracle_of(run, &run.value(self.qkv).clone());
        run.set(self.out, out);
    }

    /// Keeps k and v of the rows and gives q.
    pub(super) fn oracle_of(&self, run: &mut OracleRun<'_>, qkv: &Rows64) -> Rows64 {
        let mut out = Vec::new();
        for (row, qkv) in qkv.iter().enumerate() {
            let all = heads(qkv, self.head_dim);
            let (q, kv) = all.split_at(self.heads as usize);
            let (k, v) = kv.split_at(self.kv_heads as usize);
            let rotated = |heads: &[Vec<f64>]| -> Rows64 {
                let rotate = |head: &Vec<f64>| self.rope.map_or(head.clone(), |spec| spec.oracle(run, row, head));
                heads.iter().map(rotate).collect()
            };
            let (q, k) = (rotated(q), rotated(k));
            out.push(q.concat());
            run.keep(self.cache, row, k, v.to_vec());
        }
        out
    }
}

// GPU

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    heads: u32,
    head_dim: u32,
    stride: u32,
    out_stride: u32,
}

impl RopeKv {
    pub(crate) fn lower(&self, l: &mut Lower<'_>) -> Lowered {
        let (qkv, out, cache) = (l.value(self.qkv), l.value(self.out), l.cache(self.cache));
        let mut kernel = l.kernel("rope_kv");
        l.paged(&mut kernel, cache);
        l.kv_store(&mut kernel);
        RopeSpec::lower(self.rope.as_ref(), &mut kernel);
        let (heads, head_dim) = (self.heads, self.head_dim);
        let params = Params { heads, head_dim, stride: qkv.stride(), out_stride: out.stride() };
        let angles = l.angles(self.rope.map(|r| r.table));
        let write = [Arg::Write(&out.buffer), Arg::Write(&cache.buffer)];
        let args = [Arg::read(l.step), angles, Arg::read(&qkv.buffer), write[0], write[1]];
        let threads = (heads + 2 * self.kv_heads) * head_dim / 4;
        l.plan.dispatch(&kernel, &params, &args, [lower::wide(threads), Dim::Rows(1), Dim::Fixed(1)])
    }
}
