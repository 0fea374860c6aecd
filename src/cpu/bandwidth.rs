//! How much memory a thread pool reads in a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::ThreadPool;

/// Bytes a second that all threads read together, each a part of a buffer that no cache holds: the median of a few rounds.
pub(crate) fn bandwidth(thread_pool: &mut ThreadPool) -> f64 {
    const WORDS: usize = 64 << 20; // 512 MiB
    let buffer: Vec<u64> = (0..WORDS as u64).collect(); // zeros might all be the same page
    let sum = AtomicU64::new(0);
    let mut round = || {
        let started = Instant::now();
        thread_pool.run(&|thread| {
            // Several sums, so that none waits for another.
            let mut sums = [0u64; 32];
            for words in buffer[thread.share(WORDS, 1 << 10)].as_chunks::<32>().0 {
                sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            }
            sum.fetch_add(sums.iter().fold(0, |all: u64, one| all.wrapping_add(*one)), Ordering::Relaxed);
        });
        (WORDS * 8) as f64 / started.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..7).map(|_| round()).collect();
    std::hint::black_box(sum.into_inner());
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
