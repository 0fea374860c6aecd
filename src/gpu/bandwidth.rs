//! How much memory a device moves in a second.

use std::time::Instant;

use super::{Buffer, Device};
use crate::Result;

impl Device {
    /// Bytes a second, read and written, of a copy between buffers: the median of a few.
    pub(crate) async fn bandwidth(&self) -> Result<f64> {
        const BYTES: u64 = 256 << 20;
        const COPIES: u32 = 4;
        let bytes = BYTES.min(self.caps().max_buffer / 16 * 16);
        let [from, to] = [Buffer::new(self, "from", bytes)?, Buffer::new(self, "to", bytes)?];
        let mut rates = Vec::new();
        for _ in 0..6 {
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for _ in 0..COPIES {
                encoder.copy_buffer_to_buffer(from.raw(), 0, to.raw(), 0, bytes);
            }
            let started = Instant::now();
            self.queue.submit([encoder.finish()]);
            self.finish()?;
            rates.push(2.0 * bytes as f64 * f64::from(COPIES) / started.elapsed().as_secs_f64());
        }
        // The first one clears the buffers, too.
        rates.remove(0);
        rates.sort_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    }
}
