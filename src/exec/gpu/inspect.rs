//! What tests, self-tests and benches look at and set in a GPU executor; an engine needs none of it.

use super::GpuExecutor;
use crate::Result;
use crate::exec::{Phase, SmallerCache, Timing, seeded};
use crate::gpu::Timer;
use crate::model::Program;
use crate::ops::{KvStorage, ValueId};

impl GpuExecutor {
    /// Reads a value after the last step has finished: `rows` rows of its width. Only with `keep_values`.
    pub async fn value(&self, phase: Phase, id: ValueId, rows: u32) -> Result<Vec<f32>> {
        let value = &self.phases[phase].values.buffers[id.index()];
        let stride = u64::from(value.stride());
        let padded: Vec<f32> = value.buffer.read(&self.device, 0..stride * u64::from(rows)).await?;
        let rows = padded.chunks_exact(stride as usize);
        Ok(rows.flat_map(|row| &row[..value.width as usize]).copied().collect())
    }

    /// Sets a value that no op writes: the input of a program that is not a model's. Rows are as wide as the value.
    pub fn set_value(&self, phase: Phase, id: ValueId, rows: &[f32]) {
        let value = &self.phases[phase].values.buffers[id.index()];
        let stride = value.stride() as usize;
        let mut padded = vec![f32::NAN; rows.len() / value.width as usize * stride];
        for (row, to) in rows.chunks_exact(value.width as usize).zip(padded.chunks_exact_mut(stride)) {
            to[..row.len()].copy_from_slice(row);
        }
        value.buffer.write(&self.device, 0, &padded);
    }

    /// Lets kernels find the sequence of a row, or of a tile of prefill rows, by a search on the device instead of in the
    /// host's list. The bits are the same. Only before the first step.
    pub fn search_for_tiles(&mut self) {
        self.switches.search = true;
    }

    /// The program that steps of a phase run.
    pub fn program(&self, phase: Phase) -> &Program {
        &self.phases[phase].program
    }

    /// Fills all caches with a bit pattern: tests put NaN into pages and states that no sequence owns.
    pub fn fill_cache(&self, word: u32) {
        for cache in &self.buffers.caches {
            let words = vec![word; (cache.buffer.size() / 4) as usize];
            cache.buffer.write(&self.device, 0, &words);
        }
    }

    /// Fills all pages with seeded random numbers, the same as a CPU executor of the same limits. Elements are numbered
    /// without the padding of keys and values.
    pub fn seed_caches(&self, seed: u64) {
        for (cache, number) in self.buffers.caches.iter().zip(0..).filter(|(cache, _)| cache.shape.kv_heads > 0) {
            let storage = cache.shape.storage;
            let mut words = vec![0u32; (cache.buffer.size() / 4) as usize];
            if storage == KvStorage::Q8 {
                words.fill((1.0f32 / 127.0).to_bits()); // the scales, which follow a block's elements
                let elements = cache.shape.scale_word(0, 0, 0, false) as usize;
                words.chunks_exact_mut(cache.shape.block_words() as usize).for_each(|block| block[..elements].fill(0));
            }
            for (i, place) in cache.shape.elements().enumerate() {
                let x = seeded(seed, number, i);
                let bits = match storage {
                    KvStorage::F32 => x.to_bits(),
                    KvStorage::F16 => half::f16::from_f32(x).to_bits().into(),
                    KvStorage::Q8 => ((x * 127.0).round_ties_even() as i8 as u8).into(),
                };
                let lanes = u64::from(storage.lanes());
                words[(place / lanes) as usize] |= bits << (place % lanes * u64::from(storage.bits()));
            }
            cache.buffer.write(&self.device, 0, &words);
        }
    }

    /// Dispatches of a phase's plan, sampling not counted; the most storage bindings of one; pipelines made so far.
    pub fn counts(&self, phase: Phase) -> (usize, usize, usize) {
        let plan = self.phases[phase].plan.as_ref();
        let (dispatches, bindings) = plan.map_or((0, 0), |(p, _)| (p.dispatches.len(), p.bindings));
        (dispatches, bindings, self.pipelines.count())
    }

    /// The labels of a phase's dispatches with their layers, in order.
    pub fn labels(&self, phase: Phase) -> Vec<(&'static str, Option<u32>)> {
        let plan = self.phases[phase].plan.iter();
        plan.flat_map(|(p, _)| &p.dispatches).map(|d| (d.label, d.layer)).collect()
    }

    /// The kernels that work for a node of a phase's program, in order.
    pub(crate) fn kernels(&self, phase: Phase, node: usize) -> Vec<&'static str> {
        let plan = self.phases[phase].plan.iter();
        plan.flat_map(|(p, _)| &p.dispatches).filter(|d| d.node == Some(node)).map(|d| d.label).collect()
    }

    /// The shader modules made so far: each a kernel and its fragments, `matvec Q8_0 lib/reduce`.
    pub fn modules(&self) -> Vec<String> {
        self.pipelines.modules().collect()
    }

    /// Whether [`GpuExecutor::timings`] reports where the time of a step goes, which slows it. Fails where the device has no
    /// timestamps.
    pub fn profile(&mut self, on: bool) -> Result<()> {
        self.timer = if on { Some(Timer::new(&self.device)?) } else { None };
        Ok(())
    }

    /// How long each dispatch of the last step took, which must have been of one phase; empty without
    /// [`profile`](Self::profile).
    pub async fn timings(&self, phase: Phase) -> Result<Vec<Timing>> {
        let (Some(timer), Some((forward, sample))) = (&self.timer, &self.phases[phase].plan) else {
            return Ok(Vec::new());
        };
        let times = timer.read(&self.device).await?;
        let dispatches = forward.dispatches.iter().chain(&sample.dispatches);
        Ok(dispatches.zip(times).map(|(d, time)| Timing { node: d.node, kernel: d.label, time }).collect())
    }

    /// Bytes a second that the device reads and writes.
    pub async fn bandwidth(&self) -> Result<f64> {
        self.device.bandwidth().await
    }

    /// What the cache holds, if all that was asked for does not fit.
    pub fn smaller_cache(&self) -> Option<SmallerCache> {
        self.smaller_cache
    }

    /// What the device can do.
    pub fn caps(&self) -> &crate::gpu::Caps {
        self.device.caps()
    }

    /// Submissions so far.
    pub fn submissions(&self) -> u64 {
        self.markers.count()
    }
}
