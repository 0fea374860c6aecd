//! What tests let go wrong on a device.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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
