//! Encoding many rows at once.

use std::sync::Mutex;

use super::BlockFormat;
use crate::Result;
use crate::cpu::zeros;

impl BlockFormat {
    /// Encodes whole rows of `k` weights each, on several threads where there are some.
    pub fn encode_rows(self, rows: &[f32], k: usize, threads: usize) -> Result<Vec<u8>> {
        let row_bytes = self.row_bytes(k as u64)? as usize;
        let count = rows.len() / k.max(1);
        let mut out = zeros("the rows of a tensor", count * row_bytes)?;
        let share = count.div_ceil(threads.max(1)).max(1);
        let parts = rows.chunks((share * k).max(1)).zip(out.chunks_mut((share * row_bytes).max(1)));
        let parts = Mutex::new(parts);
        // A thread takes a part after the other, so that all is done even where the system has no more threads.
        let work = || loop {
            let next = parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some((rows, out)) = next else { return Ok(()) };
            self.encode(rows, out)?;
        };
        #[cfg(target_arch = "wasm32")]
        work()?;
        #[cfg(not(target_arch = "wasm32"))]
        std::thread::scope(|scope| {
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let workers: Vec<_> = (1..threads).map_while(spawn).collect();
            let panicked = |_| Err(crate::Error::argument(self.name(), "the encoder panicked"));
            let own = work();
            workers.into_iter().fold(own, |done, worker| done.and(worker.join().unwrap_or_else(panicked)))
        })?;
        Ok(out)
    }
}
