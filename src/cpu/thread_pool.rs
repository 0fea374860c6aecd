//! A thread pool that works through a job together: regions one after another, each divided into shares.
//!
//! A share belongs to whoever claims it, by one compare-and-swap; a thread begins with shares that lie side by side, and helps
//! the others when it has none left. The thread that completes the last share of a region opens the next. So nobody waits for a
//! thread that holds no share: one that another process keeps from running, or that sleeps, is late for nothing, and finds its
//! shares done. Whoever has nothing to claim spins briefly, then sleeps, which leaves the core to those that have.
//!
//! A token of a small model takes a hundred regions, and nothing here allocates. That is why this is not rayon: its jobs are
//! boxed, and it has no barrier.
#![allow(unsafe_code, reason = "a job that borrows is lent to threads that outlive it")]

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, TryLockError, Weak};
use std::thread::JoinHandle;

/// Work for a thread pool.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    /// A region begins when all shares of the one before are complete; what they wrote, it can read.
    pub(crate) regions: usize,
    /// Shares of a region, from 1 to [`MOST_SHARES`], for so many threads. Called once, when the region begins.
    pub(crate) shares: &'a Shares<'a>,
    /// Does a share of a region.
    pub(crate) work: &'a Work<'a>,
}

#[cfg(any(not(target_arch = "wasm32"), target_feature = "atomics"))]
type Shares<'a> = dyn Fn(usize, usize) -> usize + Sync + 'a;
#[cfg(any(not(target_arch = "wasm32"), target_feature = "atomics"))]
type Work<'a> = dyn Fn(usize, &Share) + Sync + 'a;
// WebAssembly whose memory is not shared has one thread, so that nothing need be shared.
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
type Shares<'a> = dyn Fn(usize, usize) -> usize + 'a;
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
type Work<'a> = dyn Fn(usize, &Share) + 'a;

/// A share of a region, and who does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// From 0 to `count - 1`.
    pub(crate) index: usize,
    /// Shares of the region.
    pub(crate) count: usize,
    /// The thread that does it: no other does anything under this number at the same time.
    pub(crate) thread: usize,
    /// Threads that may take part.
    pub(crate) threads: usize,
    /// The thread has done another share of the region: what it keeps to itself may still be there.
    pub(crate) again: bool,
}

impl Share {
    /// The part of `0..n` that is this share's: consecutive, the same for the same n, disjoint from the others', split at
    /// multiples of `unit`.
    pub(crate) fn of(&self, n: usize, unit: usize) -> Range<usize> {
        let units = n.div_ceil(unit);
        let cut = |i: usize| (units * i / self.count * unit).min(n);
        cut(self.index)..cut(self.index + 1)
    }

    /// Every `count`-th of `0..n`: where later items cost more.
    pub(crate) fn strided(&self, n: usize) -> impl Iterator<Item = usize> + use<> {
        (self.index..n).step_by(self.count)
    }
}

/// Iterations of a spin before a thread sleeps: some 50 µs. The next step of a decoding loop comes sooner. WebAssembly's spins
/// do not pause.
const SPINS: u32 = if cfg!(target_arch = "wasm32") { 30_000 } else { 1500 };
/// Bits of a share's number.
const BITS: u32 = 12;
/// The most shares of a region.
pub(crate) const MOST_SHARES: usize = (1 << BITS) - 1;
/// The most threads of a pool.
const MOST_THREADS: usize = 1024;

/// Threads that computations may use here: cores of this process, or workers of the page that were promised.
pub(crate) fn offered() -> usize {
    #[cfg(not(target_arch = "wasm32"))]
    return std::thread::available_parallelism().map_or(1, usize::from);
    #[cfg(all(target_arch = "wasm32", target_feature = "atomics"))]
    return lent::pool().map_or(1, |pool| pool.count());
    #[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
    1
}

/// WebAssembly cannot start threads. A page's workers, which run the same module on the same memory, lend theirs.
#[cfg(all(target_arch = "wasm32", target_feature = "atomics"))]
pub(crate) mod lent {
    use std::sync::{Arc, OnceLock};

    use super::{SHARED, ThreadPool, locked};

    /// The module's thread pool, which lasts as long as the page's workers.
    static POOL: OnceLock<Arc<ThreadPool>> = OnceLock::new();

    pub(super) fn pool() -> Option<&'static Arc<ThreadPool>> {
        POOL.get()
    }

    /// Promises so many threads, the caller's among them; once, before anything is computed.
    pub(crate) fn promise(threads: usize) {
        let pool = POOL.get_or_init(|| Arc::new(ThreadPool::new(threads)));
        *locked(&SHARED) = Arc::downgrade(pool);
    }

    /// Lends the calling thread to the pool, for good. The caller's own has index 0, and each index is lent once.
    pub(crate) fn lend(index: usize) {
        if let Some(pool) = pool().filter(|pool| index > 0 && index < pool.state.places.len()) {
            pool.state.live(index);
        }
    }
}

/// Threads that do jobs together. They end when nobody has the pool any more.
pub(crate) struct ThreadPool {
    state: Arc<State>,
    /// Held while a job runs.
    busy: Mutex<()>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// The pool of the process, as long as anybody has it: executors share one, so that no two sets of threads compete.
static SHARED: Mutex<Weak<ThreadPool>> = Mutex::new(Weak::new());

struct State {
    /// The job. Only whoever holds a share of it, or is about to open its next region, may read it: it is gone after the last.
    job: AtomicPtr<Job<'static>>,
    /// Threads that take part in the job.
    active: AtomicUsize,
    /// The number of the job's first region. Regions are numbered through all jobs.
    first: AtomicU64,
    /// The number of the last region that was opened; threads without a share wait for the next.
    opened: AtomicU64,
    /// All regions before this one belong to jobs that are over.
    over: AtomicU64,
    /// Shares of the region, and how many are complete.
    count: AtomicUsize,
    done: AtomicUsize,
    /// A share panicked: those that are left are not done.
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    /// One a thread.
    places: Box<[Place]>,
}

/// What belongs to a thread, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Place {
    /// The shares that it begins with: [`Claims`].
    claims: AtomicU64,
    asleep: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

/// Shares from `next` to before `end` of the region of a number can be claimed. The number makes a claim fail that comes late.
#[derive(Clone, Copy)]
struct Claims {
    /// Modulo 2^40: none is old enough to meet its like.
    region: u64,
    next: u64,
    end: u64,
}

impl Claims {
    fn bits(self) -> u64 {
        self.region << (2 * BITS) | self.next << BITS | self.end
    }

    fn new(bits: u64) -> Self {
        let mask = (1 << BITS) - 1;
        Self { region: bits >> (2 * BITS), next: bits >> BITS & mask, end: bits & mask }
    }
}

impl ThreadPool {
    /// A thread pool for up to `count` threads, callers among them; of fewer where the system gives no more.
    fn new(count: usize) -> Self {
        let count = count.clamp(1, MOST_THREADS);
        let state = State {
            job: AtomicPtr::new(std::ptr::null_mut()),
            active: AtomicUsize::new(0),
            first: AtomicU64::new(1),
            opened: AtomicU64::new(0),
            over: AtomicU64::new(1),
            count: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            places: (0..count).map(|_| Place::default()).collect(),
        };
        Self { state: Arc::new(state), busy: Mutex::new(()), workers: Mutex::new(Vec::new()) }
    }

    /// The process's thread pool, with at least `count` threads if the system gives them.
    pub(crate) fn shared(count: usize) -> Arc<Self> {
        let mut shared = locked(&SHARED);
        let pool = shared.upgrade().filter(|pool| count <= pool.state.places.len()).unwrap_or_else(|| {
            let pool = Arc::new(Self::new(count.max(offered())));
            *shared = Arc::downgrade(&pool);
            pool
        });
        drop(shared);
        pool.grow(count);
        pool
    }

    /// Starts threads until there are `count`, or the system gives no more.
    fn grow(&self, count: usize) {
        let mut workers = locked(&self.workers);
        while workers.len() + 1 < count.min(self.state.places.len()) {
            let (state, index) = (self.state.clone(), workers.len() + 1);
            let begun = Arc::new(Barrier::new(2));
            let begins = begun.clone();
            let body = move || {
                begins.wait();
                drop(begins);
                state.live(index);
            };
            let Ok(worker) = std::thread::Builder::new().name(format!("wgslm cpu {index}")).spawn(body) else { break };
            // A thread allocates while it starts, which no step should see.
            begun.wait();
            workers.push(worker);
        }
    }

    /// Threads, the caller among them.
    pub(crate) fn count(&self) -> usize {
        // Those that were lent are not the pool's to end.
        if cfg!(target_arch = "wasm32") { self.state.places.len() } else { locked(&self.workers).len() + 1 }
    }

    /// Does a job with up to `threads` threads, the caller among them, and returns when it is complete. Allocates nothing. The
    /// caller does it alone while the pool has another job.
    ///
    /// # Panics
    /// If a share panicked; the thread pool can be used again.
    pub(crate) fn run(&self, threads: usize, job: &Job<'_>) {
        if job.regions == 0 {
            return;
        }
        let state = &*self.state;
        let threads = threads.min(state.places.len());
        let free = match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if threads <= 1 || free.is_none() {
            for region in 0..job.regions {
                let count = (job.shares)(region, 1);
                for index in 0..count {
                    (job.work)(region, &Share { index, count, thread: 0, threads: 1, again: index > 0 });
                }
            }
            return;
        }
        // SAFETY: only the lifetime changes. Whoever reads the job holds a share of it or opens its next region, and this
        // function does not return before the last share is complete; nothing between here and there unwinds.
        let lent = unsafe { std::mem::transmute::<&Job<'_>, &Job<'static>>(job) };
        state.job.store(std::ptr::from_ref(lent).cast_mut(), Ordering::Relaxed);
        state.active.store(threads, Ordering::Relaxed);
        state.panicked.store(false, Ordering::Relaxed);
        let first = state.opened.load(Ordering::Relaxed) + 1;
        state.first.store(first, Ordering::Relaxed);
        state.open(first);
        let mut region = first;
        while state.over.load(Ordering::Acquire) <= first {
            state.take_part(0, region);
            state
                .wait(0, || state.opened.load(Ordering::SeqCst) != region || state.over.load(Ordering::SeqCst) > first);
            region = state.opened.load(Ordering::Acquire);
        }
        drop(free);
        if state.panicked.load(Ordering::Relaxed) {
            let panic = locked(&state.panic).take();
            resume_unwind(panic.unwrap_or_else(|| Box::new("a thread of the pool panicked")));
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.state.places.iter().for_each(Place::wake);
        let this = std::thread::current().id();
        for worker in locked(&self.workers).drain(..) {
            // A share may hold the last handle; its thread ends by itself then.
            if worker.thread().id() != this {
                let _ = worker.join(); // a worker's panics were caught and reported by `run`
            }
        }
    }
}

impl State {
    /// A worker's life.
    fn live(&self, index: usize) {
        let mut seen = self.opened.load(Ordering::Acquire);
        // A job may have begun before this thread did.
        self.take_part(index, seen);
        loop {
            self.wait(index, || self.opened.load(Ordering::SeqCst) != seen || self.stop.load(Ordering::SeqCst));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            seen = self.opened.load(Ordering::Acquire);
            self.take_part(index, seen);
        }
    }

    /// Does shares of a region while there are any.
    fn take_part(&self, thread: usize, region: u64) {
        // Of this region's job, or of a later one: then nothing can be claimed.
        let threads = self.active.load(Ordering::Relaxed);
        let mut again = false;
        while thread < threads
            && let Some(index) = self.claim(thread, threads, region)
        {
            // SAFETY: the share is not complete before `complete` below, and `run` keeps the job until all are.
            let job = unsafe { &*self.job.load(Ordering::Relaxed) };
            let count = self.count.load(Ordering::Relaxed);
            if !self.panicked.load(Ordering::Relaxed) {
                let share = Share { index, count, thread, threads, again };
                let own = (region - self.first.load(Ordering::Relaxed)) as usize;
                self.caught(|| (job.work)(own, &share));
            }
            again = true;
            if self.done.fetch_add(1, Ordering::AcqRel) + 1 == count {
                self.open(region + 1);
            }
        }
    }

    /// The number of a share of the region that nobody else has: of the thread's own, or else of another's, from their end.
    fn claim(&self, thread: usize, threads: usize, region: u64) -> Option<usize> {
        let others = (thread + 1..threads).chain(0..thread);
        for of in std::iter::once(thread).chain(others) {
            let place = &self.places[of].claims;
            let mut bits = place.load(Ordering::Acquire);
            loop {
                let claims = Claims::new(bits);
                if claims.region != Claims::new(region << (2 * BITS)).region || claims.next >= claims.end {
                    break;
                }
                let (index, left) = if of == thread {
                    (claims.next, Claims { next: claims.next + 1, ..claims })
                } else {
                    (claims.end - 1, Claims { end: claims.end - 1, ..claims })
                };
                match place.compare_exchange_weak(bits, left.bits(), Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Some(index as usize),
                    Err(changed) => bits = changed,
                }
            }
        }
        None
    }

    /// Opens a region of the job whose shares before it are all complete, or ends the job. Only one thread can be here.
    fn open(&self, region: u64) {
        // SAFETY: `run` waits for `over`, which is set below.
        let job = unsafe { &*self.job.load(Ordering::Relaxed) };
        let own = (region - self.first.load(Ordering::Relaxed)) as usize;
        if own >= job.regions {
            self.over.store(region, Ordering::SeqCst);
            return self.places[0].wake();
        }
        let threads = self.active.load(Ordering::Relaxed);
        let mut count = 1;
        if !self.panicked.load(Ordering::Relaxed) {
            self.caught(|| count = (job.shares)(own, threads).clamp(1, MOST_SHARES));
        }
        self.count.store(count, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let cut = |i: usize| (count * i / threads) as u64;
        for (i, place) in self.places[..threads].iter().enumerate() {
            place.claims.store(Claims { region, next: cut(i), end: cut(i + 1) }.bits(), Ordering::Release);
        }
        self.opened.store(region, Ordering::SeqCst);
        self.places[..threads].iter().for_each(Place::wake);
    }

    /// Keeps a panic for [`ThreadPool::run`].
    fn caught(&self, body: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            locked(&self.panic).get_or_insert(panic);
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Spins, then sleeps, until `done`; whoever makes it so wakes the thread's place.
    fn wait(&self, thread: usize, done: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        let place = &self.places[thread];
        let mut guard = locked(&place.lock);
        loop {
            place.asleep.store(true, Ordering::SeqCst);
            if done() {
                break;
            }
            guard = place.wake.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        place.asleep.store(false, Ordering::Relaxed);
    }
}

impl Place {
    /// Wakes its thread, if it sleeps. What the thread waits for was stored, sequentially consistent, before.
    fn wake(&self) {
        // Once for each sleep: a thread that was woken may not run for long.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // The thread is either about to look again, or within the condition variable's `wait`.
            drop(locked(&self.lock));
            self.wake.notify_one();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A pool of its own with `count` threads, of which only `started` exist: the others never come, as if they were stopped.
    fn pool(count: usize, started: usize) -> ThreadPool {
        let pool = ThreadPool::new(count);
        pool.grow(started);
        pool
    }

    /// Runs a job whose every share adds to its cell of `slots` in each region, after it saw that the region before is complete.
    fn counted(pool: &ThreadPool, threads: usize, regions: usize, shares: usize) {
        let slots: Vec<AtomicUsize> = (0..shares).map(|_| AtomicUsize::new(0)).collect();
        let begun = AtomicUsize::new(0);
        pool.run(
            threads,
            &Job {
                regions,
                shares: &|region, _| {
                    assert_eq!(begun.fetch_add(1, Ordering::Relaxed), region, "regions begin once each, in order");
                    shares
                },
                work: &|region, share| {
                    assert!(share.thread < share.threads);
                    let before = slots[share.index].fetch_add(1, Ordering::Relaxed);
                    assert_eq!(before, region, "each share is done once");
                    let next = slots[(share.index + 1) % shares].load(Ordering::Relaxed);
                    assert!(next >= region, "all of the region before is complete");
                },
            },
        );
        assert!(slots.iter().all(|slot| slot.load(Ordering::Relaxed) == regions));
    }

    #[test]
    fn every_share_is_done_once_and_regions_follow_one_another() {
        for (count, threads) in [(1, 1), (2, 2), (3, 3), (3, 2), (8, 8)] {
            let pool = pool(count, count);
            for round in 0..100 {
                counted(&pool, threads, 1 + round % 7, 1 + round % 11);
            }
            counted(&pool, threads, 20, MOST_SHARES);
        }
    }

    #[test]
    fn a_sleeping_thread_pool_wakes() {
        let pool = pool(2, 2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            counted(&pool, 2, 3, 4);
        }
    }

    #[test]
    fn threads_that_never_come_are_not_waited_for() {
        for started in [1, 2] {
            let pool = pool(4, started);
            for _ in 0..50 {
                counted(&pool, 4, 5, 9);
            }
        }
    }

    /// A thread stops within a share: the others do everything else of the region, and go on when it is back.
    #[test]
    fn a_thread_that_stops_keeps_its_share_alone() {
        let pool = pool(2, 2);
        let done = AtomicUsize::new(0);
        let stopped = AtomicBool::new(false);
        let work = |region: usize, share: &Share| {
            if region == 0 && share.thread == 1 && !stopped.swap(true, Ordering::Relaxed) {
                let started = Instant::now();
                while done.load(Ordering::Relaxed) < 15 && started.elapsed() < Duration::from_secs(20) {
                    std::thread::yield_now();
                }
            }
            if region == 0 && share.thread == 0 {
                // So that the other thread gets a share.
                while !stopped.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        };
        pool.run(2, &Job { regions: 2, shares: &|_, _| 16, work: &work });
        assert_eq!(done.into_inner(), 32);
    }

    #[test]
    fn far_more_threads_than_cores_end_beside_busy_ones() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from).min(8);
            for _ in 0..cores {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let pool = pool(4 * cores, 4 * cores);
            for _ in 0..20 {
                counted(&pool, 4 * cores, 10, 100);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn two_callers_share_a_pool_and_neither_waits() {
        let pool = pool(2, 2);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| counted(&pool, 2, 5, 6)));
            }
        });
        // A job within a job is done by its thread alone.
        pool.run(2, &Job { regions: 1, shares: &|_, _| 2, work: &|_, _| counted(&pool, 2, 2, 3) });
    }

    #[test]
    fn executors_share_one_pool_that_ends_with_the_last() {
        let first = ThreadPool::shared(2);
        let second = ThreadPool::shared(1);
        assert!(Arc::ptr_eq(&first, &second) || first.state.places.len() < second.state.places.len());
        let state = Arc::downgrade(&first.state);
        drop((first, second));
        // Another test may have it at the same time; else its threads are gone.
        assert!(locked(&SHARED).upgrade().is_some() || state.upgrade().is_none());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = pool(3, 3);
        for bad in 0..6 {
            let work = |_: usize, share: &Share| assert!(share.index != bad, "on purpose");
            let run = || pool.run(3, &Job { regions: 3, shares: &|_, _| 6, work: &work });
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.contains("on purpose")));
            counted(&pool, 3, 4, 5);
        }
        let shares = |region: usize, _: usize| if region == 1 { panic!("on purpose") } else { 3 };
        let run = || pool.run(3, &Job { regions: 3, shares: &shares, work: &|_, _| {} });
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        counted(&pool, 3, 4, 5);
    }

    #[test]
    fn shares_are_disjoint_and_whole() {
        for (n, unit, count) in [(0, 1, 3), (1, 1, 3), (65, 8, 2), (257, 4, 7), (6, 64, 4)] {
            let mut next = 0;
            for index in 0..count {
                let share = Share { index, count, thread: 0, threads: 1, again: false }.of(n, unit);
                assert_eq!(share.start, next);
                assert!(share.end == n || share.end.is_multiple_of(unit));
                next = share.end;
            }
            assert_eq!(next, n);
        }
    }
}
