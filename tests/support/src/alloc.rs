//! An allocator that counts what the current thread holds, for limits on memory and for loops that must not allocate.
//! A test binary installs it: `#[global_allocator] static ALLOC: Counting = Counting;`.
#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted.
pub struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends frees after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        if bytes > 0 {
            PEAK.set(PEAK.get().max(held.get()));
            CALLS.set(CALLS.get() + 1);
        }
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize); // both exist while it is copied
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// What `f` returns, the bytes it held at most on this thread, and how often it allocated.
pub fn counted<T>(f: impl FnOnce() -> T) -> (T, usize, usize) {
    let held = HELD.get();
    PEAK.set(held);
    let calls = CALLS.get();
    let result = f();
    (result, (PEAK.get() - held) as usize, CALLS.get() - calls)
}
