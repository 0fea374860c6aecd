//! What tests let go wrong on a device.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{Device, wgpu};
use crate::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Polling panics, as wgpu does where a driver reports that the device is gone.
    pub(crate) gone: AtomicBool,
    /// How many times there is no memory.
    pub(crate) no_memory: AtomicU32,
}

impl Faults {
    pub(super) fn poll(&self) {
        if self.gone.load(Ordering::Relaxed) {
            panic!("{}", "Error in Device::poll: Validation Error\n\nCaused by:\n  Parent device is lost\n");
        }
    }

    pub(super) fn memory(&self, what: &str) -> Result<()> {
        let less = |times: u32| times.checked_sub(1);
        match self.no_memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Err(_) => Ok(()),
            Ok(_) => Err(Error::Limit {
                what: what.to_owned(),
                needed: "more memory".to_owned(),
                available: "none".to_owned(),
                instead: "less".to_owned(),
            }),
        }
    }
}

impl Device {
    /// Something that wgpu refuses, and nothing catches: a buffer that is mapped for two ends at once.
    pub(crate) fn blunder(&self) {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
        let desc = wgpu::BufferDescriptor { label: Some("wrong"), size: 4, usage, mapped_at_creation: false };
        drop(self.device.create_buffer(&desc));
    }

    /// Bytes that are allocated on it.
    pub(crate) fn allocated(&self) -> u64 {
        self.device.generate_allocator_report().expect("Vulkan has one").total_allocated_bytes
    }
}
