//! Encoding many rows at once.

use super::BlockFormat;
use crate::Result;

impl BlockFormat {
    /// Encodes whole rows of `k` weights each, on several threads where there are some.
    pub fn encode_rows(self, rows: &[f32], k: usize, threads: usize) -> Result<Vec<u8>> {
        let row_bytes = self.row_bytes(k as u64)? as usize;
        let count = rows.len() / k.max(1);
        let mut out = vec![0; count * row_bytes];
        let share = count.div_ceil(threads.max(1)).max(1);
        let parts = rows.chunks((share * k).max(1)).zip(out.chunks_mut((share * row_bytes).max(1)));
        #[cfg(target_arch = "wasm32")]
        let results: Vec<Result<()>> = parts.map(|(rows, out)| self.encode(rows, out)).collect();
        #[cfg(not(target_arch = "wasm32"))]
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let workers: Vec<_> = parts.map(|(rows, out)| scope.spawn(move || self.encode(rows, out))).collect();
            let done = workers.into_iter().map(|worker| worker.join());
            done.map(|r| r.unwrap_or_else(|_| Err(crate::Error::argument(self.name(), "the encoder panicked"))))
                .collect()
        });
        results.into_iter().collect::<Result<()>>()?;
        Ok(out)
    }
}
