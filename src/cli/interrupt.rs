//! Ctrl-C, and signals that ask for the end: they end an answer in flight, or the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether something polls `PRESSED`.
static LISTENING: AtomicBool = AtomicBool::new(false);
static PRESSED: AtomicBool = AtomicBool::new(false);

/// Handles Ctrl-C, SIGTERM and SIGHUP. Where nothing listens, or at the second press, the program ends with 130.
pub(super) fn install() {
    let handler = || {
        if !LISTENING.load(Ordering::Acquire) || PRESSED.swap(true, Ordering::AcqRel) {
            super::echo::restore();
            std::process::exit(130);
        }
    };
    // Fails only if there is a handler already; then that one decides.
    let _ = ctrlc::set_handler(handler);
}

/// While it lives, the first Ctrl-C is only remembered.
pub(super) struct Listener(());

impl Listener {
    pub(super) fn new() -> Self {
        PRESSED.store(false, Ordering::Release);
        LISTENING.store(true, Ordering::Release);
        Self(())
    }

    /// Forgets a Ctrl-C that has been answered.
    pub(super) fn reset(&self) {
        PRESSED.store(false, Ordering::Release);
    }

    pub(super) fn pressed(&self) -> bool {
        PRESSED.load(Ordering::Acquire)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        LISTENING.store(false, Ordering::Release);
    }
}
