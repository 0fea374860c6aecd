//! What is the whole process's: what must be settled before it has threads, and its memory.
#![allow(unsafe_code, reason = "memory, the environment and what becomes of signals are the whole process's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Write, stderr};

use super::exit::TOO_LITTLE_MEMORY;
use crate::cpu::is_answered;

/// The system's allocator, for a program that must not abort: without memory it ends with the exit code that says so. What the
/// library makes an error of ([`cpu::zeros`](crate::cpu::zeros) and what is like it) is left to it.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: all is passed on to the system's allocator, whose results are returned as they are.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        answered(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        answered(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        answered(unsafe { System.realloc(at, layout, size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Ends the program where an allocation failed that nobody answers for.
fn answered(at: *mut u8) -> *mut u8 {
    if at.is_null() && !is_answered() {
        // Nothing here allocates: stderr has no buffer, and no code that runs at exit is run.
        let _ = stderr().write_all(
            b"error: there is too little memory; a smaller model or a shorter context (--context) may fit\n",
        );
        end();
    }
    at
}

#[cfg(unix)]
fn end() -> ! {
    // SAFETY: it does not return.
    unsafe { nix::libc::_exit(i32::from(TOO_LITTLE_MEMORY)) }
}

#[cfg(not(unix))]
fn end() -> ! {
    std::process::exit(i32::from(TOO_LITTLE_MEMORY))
}

/// Gives Vulkan's drivers a folder for their sockets where the environment names none: in containers, by ssh, in services.
/// Without it they complain on stderr, in words that a user takes for ours.
#[cfg(unix)]
pub(super) fn quiet_drivers() {
    const NAME: &str = "XDG_RUNTIME_DIR";
    if !std::env::var_os(NAME).is_some_and(|folder| std::path::Path::new(&folder).is_absolute()) {
        // SAFETY: the first call of `main`, which has started no thread yet.
        unsafe { std::env::set_var(NAME, std::env::temp_dir()) }
    }
}

/// Says what is the matter, and what helps, where a mapped file has become shorter than it was. The system ends a program that
/// reads past its end, and would do so without a word.
#[cfg(unix)]
pub(super) fn explain_shrunk_files() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn shrunk(_: nix::libc::c_int) {
        const MESSAGE: &[u8] =
            b"error: a file that is mapped can no longer be read, as if it had become shorter; --no-mmap \
            makes an error of that alone\n";
        // SAFETY: both calls may be made in a signal handler; the message lives for ever.
        unsafe {
            nix::libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
            nix::libc::_exit(i32::from(super::exit::DAMAGED));
        }
    }
    let explain = SigAction::new(SigHandler::Handler(shrunk), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler calls nothing that a signal handler must not call.
    let _ = unsafe { sigaction(Signal::SIGBUS, &explain) };
}

/// Elsewhere files cannot become shorter while they are mapped.
#[cfg(not(unix))]
pub(super) fn explain_shrunk_files() {}

/// Elsewhere drivers have nothing to say.
#[cfg(not(unix))]
pub(super) fn quiet_drivers() {}

/// Lets the program have so many files open, as far as the system allows it: the usual limit is far below what it allows.
#[cfg(unix)]
pub(super) fn allow_files(needed: u64) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE)
        && now < needed
    {
        // Where it fails, connections wait for those before them.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, needed.min(most).max(now), most);
    }
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub(super) fn allow_files(_: u64) {}

/// Runs `install`, which handles signals; a SIGHUP that was ignored before, as `nohup` has it, still is.
#[cfg(unix)]
pub(super) fn handle_signals(install: impl FnOnce()) {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring a signal runs no code of ours.
    let before = unsafe { sigaction(Signal::SIGHUP, &ignore) };
    if !before.is_ok_and(|before| matches!(before.handler(), SigHandler::SigIgn)) {
        return install();
    }
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    // One that comes meanwhile waits, and is forgotten when it is ignored again.
    let _ = hangup.thread_block();
    install();
    // SAFETY: as above.
    let _ = unsafe { sigaction(Signal::SIGHUP, &ignore) };
    let _ = hangup.thread_unblock();
}

/// Elsewhere there is no such signal.
#[cfg(not(unix))]
pub(super) fn handle_signals(install: impl FnOnce()) {
    install();
}
