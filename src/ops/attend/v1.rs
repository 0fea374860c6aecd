//! `attend` with all scores of a row in workgroup memory: the V1 of vLLM's paged attention, for comparison with the kernels of
//! `gpu.rs`, which take its place (V2) wherever an engine runs.

use super::{Attend, Kv, Mask};
use crate::gpu::{Caps, Dim};
use crate::ops::kernels;
use crate::ops::lower::{KernelTuning, Lower, Lowered};
use crate::ops::{CacheShape, KvLayout};
use crate::{Error, Result};

/// Threads per element of the result.
const COLUMNS: u32 = 4;

/// Threads of a workgroup.
fn threads(tuning: &KernelTuning) -> u32 {
    2 * tuning.table.attend
}

impl Attend {
    /// Positions that scores are kept of, if a sequence's table has so many blocks.
    ///
    /// Fails on what the kernel cannot do: another layout, more positions than workgroup memory holds scores of.
    pub(crate) fn v1_scores(&self, cache: &CacheShape, blocks: u32, tuning: &KernelTuning, caps: &Caps) -> Result<u32> {
        if cache.layout != KvLayout::Vectorised || cache.v_dim == 0 {
            let what = "attention with its scores in workgroup memory, over a cache that is not vectorised";
            return Err(Error::unsupported(what, "`Single::by_rows` takes every layout"));
        }
        let context = blocks.saturating_mul(cache.slots);
        let seen = match self.mask {
            Mask::Window(n) => context.min(n.saturating_add(3)),
            _ => context,
        };
        let scores = seen.checked_next_multiple_of(4).unwrap_or(u32::MAX);
        // In f32: the query, the result by columns, the products of two tiles, and four a thread to reduce with.
        let rest = self.k_dim.next_multiple_of(4) + self.v_dim.next_multiple_of(4) * COLUMNS + 8 * threads(tuning);
        let most = (caps.workgroup_memory / 4).saturating_sub(rest);
        match scores <= most {
            true => Ok(scores.max(4)),
            false => Err(Error::Limit {
                what: "attention with its scores in workgroup memory (V1)".to_owned(),
                needed: format!("scores of {scores} positions"),
                available: format!("capacity for {most} in {} bytes on this device", caps.workgroup_memory),
                instead: "attention by KV splits (V2): `Single::by_rows`".to_owned(),
            }),
        }
    }

    pub(super) fn lower_v1(&self, l: &mut Lower<'_>, blocks: u32) -> Lowered {
        let Kv::Cache(id) = self.kv else {
            return Err(Error::unsupported("V1 attention over a step's rows", "the tiled kernel takes them"));
        };
        let cache = l.cache(id);
        let scores = self.v1_scores(&cache.shape, blocks, &l.tuning, l.plan.device().caps())?;
        let mut kernel = l.kernel(kernels::ATTEND_V1);
        kernel.set("COLUMNS", COLUMNS);
        kernel.set("SCORES", scores);
        let mut args = self.bind(l, &mut kernel, &(0..self.v_dim.div_ceil(4)));
        self.bind_kv(l, &mut kernel, &mut args)?;
        l.reduce(&mut kernel, threads(&l.tuning));
        l.plan.dispatch(&kernel, &self.params(l), &args, [Dim::Fixed(self.heads), Dim::Rows(1), Dim::Fixed(1)])
    }
}
