//! A decoding loop of the CPU executor allocates nothing: counted by the global allocator, in a binary of its own.
#![allow(unsafe_code, reason = "a global allocator is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use wgslm::exec::{CpuExecutor, CpuOptions, Executor, Numerics, Phase, Step, Token};
use wgslm::ops::SampleSpec;
use wgslm::quant::BlockFormat::{F16, Q8_0};
use wgslm_test::programs::*;

static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_allocates_nothing() {
    for (program, numerics) in [(llama(Shape::SMALL), Numerics::Fast), (gpt2(Shape::SMALL), Numerics::Exact)] {
        let weights = random_weights(&program, &[Q8_0, F16], &mut Rng(1));
        let options = CpuOptions { threads: Some(2), numerics, ..CpuOptions::new(limits()) };
        let mut cpu = CpuExecutor::new(&program, weights, options).unwrap();
        let table: Vec<u32> = (0..16).collect();
        let tables = [table.as_slice()];
        let prompt = host(&[1, 2, 3]);
        let sample = SampleSpec { temperature: 0.5, seed: 4, ..SampleSpec::GREEDY };
        cpu.enqueue(&Step { seqs: &[sampling(rows(0, Phase::Prefill, &prompt, 0, &tables), sample)] }).unwrap();
        let mut decode = |pos: u32| {
            let sample = if pos.is_multiple_of(2) { SampleSpec::GREEDY } else { sample };
            let seqs = [sampling(rows(0, Phase::Decode, &[Token::Sampled], pos, &tables), sample)];
            cpu.enqueue(&Step { seqs: &seqs }).unwrap();
            let mut tokens = 0;
            cpu.poll(&mut |_, out| tokens = out.unwrap().sampled.len());
            assert_eq!(tokens, 1);
        };
        decode(3);
        let before = COUNT.load(Ordering::Relaxed);
        (4..250).for_each(&mut decode); // over many pages
        assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0, "allocations in 246 steps");
    }
}
