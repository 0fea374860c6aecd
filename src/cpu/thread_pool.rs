//! A thread pool that walks a program together.
//!
//! [`ThreadPool::run`] calls one closure on every thread at once (the caller is thread 0), [`PoolThread::barrier`] brings them
//! together in between. A token of a small model crosses a hundred barriers, so a barrier is two atomic operations and a
//! spin; and neither allocates. That is why this is not rayon: its jobs are boxed, and it has no barrier.
#![allow(unsafe_code, reason = "a closure that borrows is lent to threads that outlive it")]

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// What every thread runs.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) type Job<'a> = dyn Fn(&PoolThread<'_>) + Sync + 'a;
/// What every thread runs. There is one thread here, so that nothing need be shared.
#[cfg(target_arch = "wasm32")]
pub(crate) type Job<'a> = dyn Fn(&PoolThread<'_>) + 'a;

/// Iterations of a spin before a worker sleeps (some 50 µs: the next step of a decoding loop comes sooner), or before a
/// barrier starts to yield its core (somebody else may need it to arrive).
const SPINS: u32 = 1500;

/// Threads that run a closure together. Dropping it ends them.
pub(crate) struct ThreadPool {
    state: Arc<State>,
    workers: Vec<JoinHandle<()>>,
}

/// A thread of a thread pool while it runs a closure.
pub(crate) struct PoolThread<'a> {
    /// From 0 to `count - 1`.
    pub(crate) index: usize,
    /// Threads of the pool.
    pub(crate) count: usize,
    state: &'a State,
}

struct State {
    count: usize,
    post: Mutex<Post>,
    wake: Condvar,
    /// Number of the job on the post; workers spin on it.
    epoch: AtomicUsize,
    /// Workers that have not finished the job.
    working: AtomicUsize,
    /// Threads that wait at the barrier, and how often it opened.
    arrived: AtomicUsize,
    opened: AtomicUsize,
    /// A thread panicked: nobody may wait for it.
    panicked: AtomicBool,
}

/// Where jobs are handed over.
struct Post {
    job: Option<Lent>,
    sleepers: usize,
    stop: bool,
}

/// A job without its lifetime: [`ThreadPool::run`] waits until nobody uses it any more.
#[derive(Clone, Copy)]
struct Lent(*const Job<'static>);

// SAFETY: the closure behind the pointer is `Sync` (or there is only one thread), and `run` keeps it alive.
unsafe impl Send for Lent {}

impl ThreadPool {
    /// A thread pool of `count` threads, the caller among them; always of one where there are no threads, and of fewer
    /// where the system gives no more.
    pub(crate) fn new(count: usize) -> Self {
        let wanted = if cfg!(target_arch = "wasm32") { 1 } else { count.max(1) };
        let (mut workers, mut gates) = (Vec::new(), Vec::new());
        for index in 1..wanted {
            // A worker learns of its pool when it is complete: how many threads it has is known only then.
            let (gate, state) = std::sync::mpsc::channel::<Arc<State>>();
            let body = move || {
                if let Ok(state) = state.recv() {
                    state.work(index);
                }
            };
            let Ok(worker) = std::thread::Builder::new().name(format!("wgslm cpu {index}")).spawn(body) else { break };
            workers.push(worker);
            gates.push(gate);
        }
        let state = Arc::new(State {
            count: workers.len() + 1,
            post: Mutex::new(Post { job: None, sleepers: 0, stop: false }),
            wake: Condvar::new(),
            epoch: AtomicUsize::new(0),
            working: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        for gate in gates {
            let _ = gate.send(state.clone()); // a worker waits for it: it cannot be gone
        }
        Self { state, workers }
    }

    /// Threads.
    pub(crate) fn count(&self) -> usize {
        self.state.count
    }

    /// Runs `job` on every thread and returns when all have finished. Allocates nothing.
    ///
    /// # Panics
    /// If the job panicked on any thread; the thread pool can be used again.
    pub(crate) fn run(&mut self, job: &Job<'_>) {
        let state = &*self.state;
        let thread = PoolThread { index: 0, count: state.count, state };
        if state.count == 1 {
            return job(&thread);
        }
        state.working.store(state.count - 1, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. Workers use the job before they count themselves out of `working`, and this
        // function does not return, nor unwind, before that is 0: `own` catches a panic of this thread.
        let lent = Lent(unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) });
        let mut post = state.lock();
        post.job = Some(lent);
        state.epoch.fetch_add(1, Ordering::Release);
        let sleepers = post.sleepers;
        drop(post);
        if sleepers > 0 {
            state.wake.notify_all();
        }
        let own = state.caught(|| job(&thread));
        wait_until(|| state.working.load(Ordering::Acquire) == 0);
        state.lock().job = None;
        if state.panicked.swap(false, Ordering::Relaxed) {
            state.arrived.store(0, Ordering::Relaxed);
            match own {
                Err(panic) => resume_unwind(panic),
                Ok(()) => panic!("a thread of the pool panicked"),
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let mut post = self.state.lock();
        post.stop = true;
        self.state.epoch.fetch_add(1, Ordering::Release);
        drop(post);
        self.state.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a worker's panics were caught and reported by `run`
        }
    }
}

impl PoolThread<'_> {
    /// Waits until every thread has come here. What any wrote before, all can read after.
    pub(crate) fn barrier(&self) {
        let state = self.state;
        if self.count == 1 {
            return;
        }
        let opened = state.opened.load(Ordering::Acquire);
        if state.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            state.arrived.store(0, Ordering::Relaxed);
            state.opened.fetch_add(1, Ordering::Release);
            return;
        }
        wait_until(|| {
            let open = state.opened.load(Ordering::Acquire) != opened;
            assert!(open || !state.panicked.load(Ordering::Relaxed), "another thread of the pool panicked");
            open
        });
    }

    /// The part of `0..n` that is this thread's: consecutive, the same for the same n, disjoint from the others', split at
    /// multiples of `unit`.
    pub(crate) fn share(&self, n: usize, unit: usize) -> Range<usize> {
        let units = n.div_ceil(unit);
        let cut = |i: usize| (units * i / self.count * unit).min(n);
        cut(self.index)..cut(self.index + 1)
    }

    /// Every `count`-th of `0..n`: where later items cost more.
    pub(crate) fn strided(&self, n: usize) -> impl Iterator<Item = usize> + use<> {
        (self.index..n).step_by(self.count)
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Post> {
        // Nothing panics while it holds the lock.
        self.post.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn caught(&self, body: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
        let result = catch_unwind(AssertUnwindSafe(body));
        if result.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        result
    }

    /// A worker's life.
    fn work(&self, index: usize) {
        let thread = PoolThread { index, count: self.count, state: self };
        let mut seen = 0;
        loop {
            let mut spins = 0;
            while self.epoch.load(Ordering::Acquire) == seen && spins < SPINS {
                std::hint::spin_loop();
                spins += 1;
            }
            let mut post = self.lock();
            while self.epoch.load(Ordering::Relaxed) == seen {
                post.sleepers += 1;
                post = self.wake.wait(post).unwrap_or_else(|poisoned| poisoned.into_inner());
                post.sleepers -= 1;
            }
            seen = self.epoch.load(Ordering::Relaxed);
            let (job, stop) = (post.job, post.stop);
            drop(post);
            if stop {
                return;
            }
            let Some(Lent(job)) = job else { continue };
            // SAFETY: `run` waits until `working` is 0, which is not before the line after the next.
            let job = unsafe { &*job };
            let _ = self.caught(|| job(&thread));
            self.working.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Spins, then yields, until `done`.
fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0;
    while !done() {
        if spins < SPINS {
            std::hint::spin_loop();
            spins += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_runs_every_job_and_barriers_order_them() {
        let mut thread_pool = ThreadPool::new(3);
        let slots: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..200 {
            thread_pool.run(&|thread| {
                for step in 0..5 {
                    slots[thread.index].store(round * 10 + step, Ordering::Relaxed);
                    thread.barrier();
                    let seen = slots[(thread.index + 1) % 3].load(Ordering::Relaxed);
                    assert_eq!(seen, round * 10 + step);
                    thread.barrier();
                }
            });
        }
    }

    #[test]
    fn a_sleeping_thread_pool_wakes() {
        let mut thread_pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            thread_pool.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut thread_pool = ThreadPool::new(3);
        for bad in 0..3 {
            let run = AssertUnwindSafe(|| {
                thread_pool.run(&|thread| {
                    assert!(thread.index != bad, "on purpose");
                    thread.barrier();
                });
            });
            assert!(catch_unwind(run).is_err());
            thread_pool.run(&|thread| thread.barrier());
        }
    }

    #[test]
    fn shares_are_disjoint_and_whole() {
        for (n, unit, count) in [(0, 1, 3), (1, 1, 3), (65, 8, 2), (257, 4, 7), (6, 64, 4)] {
            let state = ThreadPool::new(1).state.clone();
            let mut next = 0;
            for index in 0..count {
                let share = PoolThread { index, count, state: &state }.share(n, unit);
                assert_eq!(share.start, next);
                assert!(share.end == n || share.end.is_multiple_of(unit));
                next = share.end;
            }
            assert_eq!(next, n);
        }
    }
}
