//! What benchmarks of single kernels share.

use std::time::Instant;

use wgslm::exec::{Executor, GpuExecutor, Phase, SeqStep, Step, Token};

/// Steps of each kind; the median counts.
const STEPS: usize = 7;

/// The least, median and greatest time of a step of rows from `pos` on, in seconds. Nothing is sampled or read.
pub(crate) fn times(gpu: &mut GpuExecutor, phase: Phase, rows: usize, pos: u32, tables: &[&[u32]]) -> [f64; 3] {
    let tokens = vec![Token::Host(0); rows];
    let seq = SeqStep::new(0, phase, &tokens, pos, tables);
    let mut times: Vec<f64> = (0..=STEPS)
        .map(|_| {
            let start = Instant::now();
            gpu.enqueue(&Step { seqs: &[seq] }).expect("a step");
            pollster::block_on(gpu.wait()).expect("its end");
            gpu.poll(&mut |_, _| {});
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.remove(0); // pipelines were compiled
    times.sort_by(f64::total_cmp);
    [times[0], times[STEPS / 2], times[STEPS - 1]]
}
