//! How much the KV cache holds: one budget for the pools of all cache groups and for checkpoints.

use super::{Limits, Options};
use crate::model::{CacheSpec, Program};
use crate::ops::{CacheId, CacheShape, KvLayout, KvStorage};
use crate::{Error, Result};

/// How much the KV cache holds of all sequences together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSize {
    /// As much as all sequences need that fill their contexts.
    #[default]
    Full,
    /// So many positions; at least a context. What sequences have in common they share; where they need more, some wait. What
    /// is more than they need keeps what was computed for requests to come.
    Positions(u32),
    /// As many positions as fit into so many bytes, with the states of recurrent layers and their checkpoints. A context must
    /// fit.
    Bytes(u64),
}

/// `full`, a number of positions, or a number of bytes with a unit: `512MB`, `1.5GiB`.
impl std::str::FromStr for CacheSize {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        const UNITS: [(&str, f64); 7] = [
            ("kib", 1024.0),
            ("mib", 1048576.0),
            ("gib", 1073741824.0),
            ("kb", 1e3),
            ("mb", 1e6),
            ("gb", 1e9),
            ("b", 1.0),
        ];
        let lower = s.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((lower.strip_suffix(unit)?, bytes)));
        let size = match unit {
            _ if lower == "full" => Some(Self::Full),
            Some((number, unit)) => {
                let number = number.trim_end().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
                number.map(|number| Self::Bytes((number * unit) as u64))
            }
            None => lower.parse().ok().map(Self::Positions),
        };
        size.ok_or_else(|| {
            let problem = format!("{s:?}; \"full\", a number of positions and a size such as 512MB or 2GiB work");
            Error::argument("cache", problem)
        })
    }
}

impl Limits {
    /// Bytes of all caches of a program with these limits: the blocks of every group, and states with their checkpoints, which
    /// are counted as they are kept where they take more: kernels lay them out for their threads.
    pub fn cache_bytes(&self, program: &Program, storage: KvStorage) -> u64 {
        /// Buffers of a device are made of so many bytes.
        const BUFFER: u64 = 16;
        let on_gpu = |id| {
            let op = program.nodes.iter().find(|node| node.op.state() == Some(CacheId(id)));
            op.map_or(0, |node| node.op.gpu_needs().state)
        };
        let bytes = |(id, cache): (u32, &CacheSpec)| match *cache {
            CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k, .. } => {
                let v_dim = if v_in_k { 0 } else { v_dim };
                let blocks = self.blocks_of(program.window(group));
                let layout = KvLayout::Paged;
                CacheShape { kv_heads, k_dim, v_dim, slots: self.block, blocks, storage, layout }.bytes()
            }
            CacheSpec::State { len } => {
                let states = u64::from(self.seqs) + u64::from(self.checkpoints);
                u64::from(len).max(on_gpu(id)).saturating_mul(4 * states)
            }
        };
        let buffer = |bytes: u64| bytes.max(BUFFER).checked_next_multiple_of(BUFFER).unwrap_or(u64::MAX);
        (0..).zip(&program.caches).map(bytes).map(buffer).fold(0, u64::saturating_add)
    }

    /// The fewest blocks that let one sequence fill its context while each of the others has begun.
    pub(super) fn least_blocks(&self) -> u32 {
        self.context.div_ceil(self.block).saturating_add(self.seqs)
    }

    /// The same with as many blocks and checkpoints as fit: of checkpoints those that there are at most, half of what the smallest
    /// cache leaves, and no more than there are blocks, since others would never be of use.
    pub(super) fn within(self, bytes: u64, program: &Program, storage: KvStorage) -> Result<Self> {
        let with = |blocks, checkpoints| Self { blocks, checkpoints, ..self };
        let size = |limits: Self| limits.cache_bytes(program, storage);
        let least = self.least_blocks().min(self.blocks);
        let smallest = size(with(least, 0));
        let Some(rest) = bytes.checked_sub(smallest) else {
            return Err(Error::Limit {
                what: "KV cache".into(),
                needed: format!("{smallest} bytes for one context of {} positions", self.context),
                available: format!("{bytes} bytes"),
                instead: "a shorter context, fewer sequences, or a larger cache works".into(),
            });
        };
        let paged = program.caches.iter().any(|cache| matches!(cache, CacheSpec::Pages { .. }));
        let share = if paged { rest / 2 } else { rest };
        let checkpoints = largest(0, self.checkpoints, |n| size(with(least, n)) - smallest <= share);
        let most = if paged { u32::MAX / self.block } else { self.blocks };
        let blocks = largest(least, most, |n| size(with(n, checkpoints.min(n))) <= bytes);
        Ok(with(blocks, checkpoints.min(blocks)))
    }
}

/// What the cache holds where a device has no memory for all that was asked for, or binds no buffer so large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallerCache {
    /// Positions that it holds, and those that were asked for.
    pub positions: [u64; 2],
    /// Checkpoints of the states of recurrent layers, likewise.
    pub checkpoints: [u32; 2],
}

impl SmallerCache {
    /// None if all fits.
    pub(super) fn of(limits: &Limits, wanted: &Limits) -> Option<Self> {
        let positions = |limits: &Limits| u64::from(limits.blocks) * u64::from(limits.block);
        let pair = [limits, wanted];
        let smaller = Self { positions: pair.map(positions), checkpoints: pair.map(|limits| limits.checkpoints) };
        (limits.blocks < wanted.blocks || limits.checkpoints < wanted.checkpoints).then_some(smaller)
    }
}

impl std::fmt::Display for SmallerCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [[holds, wanted], [states, wanted_states]] = [self.positions, self.checkpoints.map(u64::from)];
        match (holds < wanted, states < wanted_states) {
            (_, false) => write!(f, "the KV cache holds {holds} positions: {wanted} do not fit on this device"),
            (false, _) => {
                write!(
                    f,
                    "the KV cache holds {states} checkpoints of states: {wanted_states} do not fit on this device"
                )
            }
            _ => write!(
                f,
                "the KV cache holds {holds} positions and {states} checkpoints of states: {wanted} and \
                 {wanted_states} do not fit on this device"
            ),
        }
    }
}

/// The largest number from `least` to `most` that fits, where `least` does and smaller ones fit if larger ones do.
fn largest(least: u32, most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (least, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

impl Options {
    /// Limits for a program, within the size of the cache.
    pub(super) fn limits(&self, program: &Program, in_flight: u32) -> Result<Limits> {
        /// Positions of a block.
        const BLOCK: u32 = 16;
        let context = self.context.min(program.context);
        // A program that needs full sequences gets each in one step: nothing is kept for another, and a sequence begins a
        // block.
        let full_sequence = program.needs_full_sequence();
        let (rows, blocks) = match full_sequence {
            true => {
                let rows = self.prefill_tokens.max(context).max(self.seqs);
                (rows, rows.div_ceil(BLOCK) + self.seqs)
            }
            false => {
                let rows = self.prefill_tokens.min(context).max(self.seqs);
                (rows, context.div_ceil(BLOCK).saturating_mul(self.seqs))
            }
        };
        let outs = self.outs.max(self.seqs);
        let full = Limits { rows, seqs: self.seqs, outs, block: BLOCK, blocks, context, in_flight, checkpoints: 0 };
        let blocks = match self.cache {
            CacheSize::Positions(positions) if !full_sequence => {
                positions.div_ceil(BLOCK).max(full.least_blocks().min(blocks))
            }
            _ => blocks,
        };
        // More checkpoints than there are blocks would never be of use.
        let fit = self.state_bytes.checked_div(program.state_bytes()).unwrap_or(0);
        let checkpoints = u32::try_from(fit).unwrap_or(u32::MAX).min(blocks);
        let limits = Limits { blocks, checkpoints, ..full };
        match self.cache {
            CacheSize::Bytes(bytes) if !full_sequence => {
                // The budget is one for blocks and checkpoints.
                let checkpoints = if program.state_bytes() > 0 { u32::MAX } else { 0 };
                Limits { checkpoints, ..full }.within(bytes, program, self.storage())
            }
            _ => Ok(limits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::GroupId;

    #[test]
    fn what_does_not_fit_is_said() {
        let wanted =
            Limits { rows: 8, seqs: 2, outs: 2, block: 16, blocks: 40, context: 320, in_flight: 2, checkpoints: 9 };
        let said = |limits: Limits| SmallerCache::of(&limits, &wanted).map(|smaller| smaller.to_string());
        assert_eq!(said(wanted), None);
        let ends = |limits, end: &str| assert!(said(limits).unwrap().ends_with(end), "{:?}", said(limits));
        ends(Limits { blocks: 30, ..wanted }, "480 positions: 640 do not fit on this device");
        ends(Limits { checkpoints: 6, ..wanted }, "6 checkpoints of states: 9 do not fit on this device");
        let both = Limits { blocks: 30, checkpoints: 6, ..wanted };
        ends(both, "480 positions and 6 checkpoints of states: 640 and 9 do not fit on this device");
    }

    #[test]
    fn sizes_are_read() {
        let read = |s: &str| s.parse::<CacheSize>().ok();
        assert_eq!(read("4096"), Some(CacheSize::Positions(4096)));
        assert_eq!(read("full"), Some(CacheSize::Full));
        assert_eq!(read("512MB"), Some(CacheSize::Bytes(512_000_000)));
        assert_eq!(read("1.5 GiB"), Some(CacheSize::Bytes(3 << 29)));
        assert_eq!(read("7b"), Some(CacheSize::Bytes(7)));
        for bad in ["", "MB", "-1", "-1MB", "nanGB", "infKB", "1e3", "4294967296", "12 parsecs"] {
            let error = bad.parse::<CacheSize>().unwrap_err().to_string();
            assert!(error.contains("512MB"), "{bad}: {error}");
        }
    }

    /// A program with a group that sees everything, one with a window, and perhaps a recurrent layer.
    fn program(state: bool) -> Program {
        let pages = |group, window| CacheSpec::Pages {
            group: GroupId(group),
            kv_heads: 2,
            k_dim: 64,
            v_dim: 64,
            v_in_k: false,
            window,
        };
        let mut caches = vec![pages(0, None), pages(1, Some(100)), pages(1, Some(100))];
        caches.extend(state.then_some(CacheSpec::State { len: 10_000 }));
        Program { groups: 2, context: 1 << 16, caches, ..Program::default() }
    }

    /// Gemma 3 270M: 18 layers, of which every sixth sees everything and the others 512 positions.
    #[test]
    fn windows_take_the_memory_that_they_see() {
        let pages = |layer: u32, windows: bool| {
            let window = (windows && layer % 6 != 5).then_some(512);
            let group = GroupId(u32::from(window.is_some()));
            CacheSpec::Pages { group, kv_heads: 1, k_dim: 256, v_dim: 256, v_in_k: false, window }
        };
        let bytes = [true, false].map(|windows| {
            let caches = (0..18).map(|layer| pages(layer, windows)).collect();
            let groups = if windows { 2 } else { 1 };
            let program = Program { groups, context: 32_768, caches, ..Program::default() };
            let options = Options { context: 8192, seqs: 8, ..Options::default() };
            options.limits(&program, 1).unwrap().cache_bytes(&program, KvStorage::F16)
        });
        let [with, without] = bytes;
        assert_eq!(without, 8 * 8192 * 18 * 2 * 256 * 2, "all positions of all layers");
        assert!(with as f64 <= 0.35 * without as f64, "{with} of {without} bytes");
        println!("{:.3} of the bytes", with as f64 / without as f64);
    }

    #[test]
    fn a_budget_is_used_and_kept() {
        for state in [false, true] {
            let program = program(state);
            let limits = |cache, seqs| {
                let options = Options { context: 4096, seqs, cache, ..Options::default() };
                options.limits(&program, 1)
            };
            let bytes = |limits: &Limits| limits.cache_bytes(&program, KvStorage::F16);
            for seqs in [1, 3, 16] {
                let full = limits(CacheSize::Full, seqs).unwrap();
                let least = limits(CacheSize::Positions(0), seqs).unwrap();
                let least = bytes(&Limits { checkpoints: 0, ..least });
                let twice = limits(CacheSize::Positions(4096 * 2 * seqs), seqs).unwrap();
                assert_eq!(twice.blocks, 2 * full.blocks, "more than running sequences need is kept");
                assert!(twice.blocks_of(Some(100)) > full.blocks_of(Some(100)), "with its windows");
                assert!(matches!(limits(CacheSize::Bytes(least - 1), seqs), Err(Error::Limit { .. })));
                let mut before = 0;
                for budget in (least..=bytes(&twice)).step_by(500_000) {
                    let limits = limits(CacheSize::Bytes(budget), seqs).unwrap();
                    let one_more = Limits { blocks: limits.blocks + 1, ..limits };
                    assert!(bytes(&limits) <= budget, "{limits:?}");
                    assert!(bytes(&one_more) > budget, "{limits:?} leaves memory");
                    assert!(limits.blocks >= before, "a larger budget holds less");
                    before = limits.blocks;
                }
            }
        }
    }
}
