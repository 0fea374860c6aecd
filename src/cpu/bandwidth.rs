//! How much memory a thread pool reads in a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Job, Share, ThreadPool};

/// Bytes a second that so many threads read together, each a part of a buffer that no cache holds: the median of a few rounds.
pub(crate) fn bandwidth(thread_pool: &ThreadPool, threads: usize) -> f64 {
    const WORDS: usize = 64 << 20; // 512 MiB
    let buffer: Vec<u64> = (0..WORDS as u64).collect(); // zeros might all be the same page
    let sum = AtomicU64::new(0);
    let round = || {
        let started = Instant::now();
        let work = |_: usize, share: &Share| {
            // Several sums, so that none waits for another.
            let mut sums = [0u64; 32];
            for words in buffer[share.of(WORDS, 1 << 10)].as_chunks::<32>().0 {
                sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            }
            sum.fetch_add(sums.iter().fold(0, |all: u64, one| all.wrapping_add(*one)), Ordering::Relaxed);
        };
        thread_pool.run(threads, &Job { regions: 1, shares: &|_, threads| 16 * threads, work: &work });
        (WORDS * 8) as f64 / started.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..7).map(|_| round()).collect();
    std::hint::black_box(sum.into_inner());
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
