//! Buffers, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Device;
use crate::{Error, Result};

static LIVE: AtomicU64 = AtomicU64::new(0);

/// A storage buffer; cheap to clone, freed with its last clone.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    buffer: wgpu::Buffer,
    /// Somebody else's buffer: it outlives its clones here.
    host: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.host {
            LIVE.fetch_sub(1, Ordering::Relaxed);
            self.buffer.destroy();
        }
    }
}

impl Buffer {
    /// A buffer of at least `bytes` bytes, zeroed by wgpu at first use.
    pub fn new(device: &Device, label: &str, bytes: u64) -> Result<Self> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        Self::with_usage(device, label, bytes, usage)
    }

    /// A buffer that somebody else made, with the usage STORAGE: it is neither counted nor freed here.
    pub fn from_host(buffer: wgpu::Buffer) -> Result<Self> {
        if !buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
            return Err(Error::argument("buffer", format!("its usage is {:?}, without STORAGE", buffer.usage())));
        }
        Ok(Self(Arc::new(Inner { buffer, host: true })))
    }

    /// A buffer that holds parameters: read as uniform.
    pub(crate) fn uniform(device: &Device, label: &str, bytes: u64) -> Result<Self> {
        Self::with_usage(device, label, bytes, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST)
    }

    /// A buffer that takes the results of queries.
    pub(crate) fn queries(device: &Device, label: &str, bytes: u64) -> Result<Self> {
        Self::with_usage(device, label, bytes, wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC)
    }

    /// A buffer that the host reads from.
    pub(crate) fn readback(device: &Device, label: &str, bytes: u64) -> Result<Self> {
        Self::with_usage(device, label, bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
    }

    fn with_usage(device: &Device, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Self> {
        let size = bytes.max(16).next_multiple_of(16);
        let most = device.caps().max_buffer;
        if size > most {
            return Err(Error::Limit {
                what: format!("buffer {label}"),
                needed: format!("{size} bytes"),
                available: format!("{most} in one buffer on this device"),
                instead: "a smaller model or context".to_owned(),
            });
        }
        let desc = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = device.device.create_buffer(&desc);
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Inner { buffer, host: false })))
    }

    /// Writes words at a word offset; seen by what is submitted after it.
    pub fn write<T: bytemuck::NoUninit>(&self, device: &Device, word: u64, data: &[T]) {
        if !data.is_empty() {
            device.queue.write_buffer(&self.0.buffer, word * 4, bytemuck::cast_slice(data));
        }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.0.buffer.size()
    }

    /// Buffers that are alive in this process: for tests of what is freed.
    pub fn live() -> u64 {
        LIVE.load(Ordering::Relaxed)
    }

    /// Whether the two are one buffer.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.buffer == other.0.buffer
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.0.buffer
    }

    /// Reads words back, waiting for all work before (natively) or for the browser. For tests, `verify` and tools.
    pub async fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        device: &Device,
        words: std::ops::Range<u64>,
    ) -> Result<Vec<T>> {
        let bytes = (words.end - words.start) * 4;
        let staging = Self::readback(device, "read", bytes)?;
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(self.raw(), words.start * 4, staging.raw(), 0, bytes);
        device.queue.submit([encoder.finish()]);
        let mapped = Signal::default();
        let signal = mapped.clone();
        staging.raw().map_async(wgpu::MapMode::Read, 0..bytes, move |r| signal.set(r.is_ok()));
        device.finish()?;
        if !mapped.wait().await {
            return Err(Error::DeviceLost("a read-back failed".to_owned()));
        }
        let view = staging.raw().get_mapped_range(0..bytes).map_err(|e| Error::DeviceLost(e.to_string()))?;
        Ok(bytemuck::pod_collect_to_vec(&view))
    }
}

/// Something that a callback sets once and a future waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signal(Arc<std::sync::Mutex<SignalState>>);

#[derive(Debug, Default)]
struct SignalState {
    outcome: Option<bool>,
    waker: Option<std::task::Waker>,
}

impl Signal {
    fn state(&self) -> std::sync::MutexGuard<'_, SignalState> {
        // A panic while it is held cannot leave the two fields in disagreement.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sets the outcome and wakes whoever waits.
    pub(crate) fn set(&self, ok: bool) {
        let mut state = self.state();
        state.outcome = Some(ok);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// The outcome, if it is there.
    pub(crate) fn get(&self) -> Option<bool> {
        self.state().outcome
    }

    /// The outcome, once it is there.
    pub(crate) async fn wait(&self) -> bool {
        std::future::poll_fn(|context| {
            let mut state = self.state();
            match state.outcome {
                Some(ok) => std::task::Poll::Ready(ok),
                None => {
                    state.waker = Some(context.waker().clone());
                    std::task::Poll::Pending
                }
            }
        })
        .await
    }
}
