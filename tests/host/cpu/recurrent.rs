//! Recurrent ops: both forms against the f64 recurrence, over odd shapes and long texts; the same bits for every size of chunks
//! and whatever the number of threads; states that are copied, and begun again.

use std::sync::Arc;

use wgslm::exec::{CacheOp, CpuExecutor, CpuOptions, Executor, Limits, Oracle, Outs, Phase, SeqStep, Step};
use wgslm::model::Program;
use wgslm::ops::{CpuWeights, ValueId};
use wgslm::quant::BlockFormat::F32;

use super::{bits, exact, flat, run};
use wgslm_test::programs::{self, OneOp, Rng, conv, delta, host, nmse, random_weights, recurrent as cases, scan};

/// f32 states against f64 ones.
const BOUND: f64 = 1e-8;

struct Bench {
    cpu: CpuExecutor,
    oracle: Oracle,
}

impl Bench {
    fn new(program: &Program, weights: &Arc<CpuWeights>, threads: usize, limits: Limits) -> Self {
        let options = CpuOptions { limits, keep_values: true, fuse: false, ..exact(threads) };
        Self { cpu: super::executor(program, weights, options), oracle: Oracle::new(program, weights.clone(), limits) }
    }
}

/// Random inputs of an op, (positions, width) each.
fn inputs(op: &OneOp, positions: usize, rng: &mut Rng) -> Vec<Vec<f32>> {
    let width = |id: &ValueId| op.program.value(*id).width as usize;
    op.inputs.iter().map(|id| rng.normals(positions * width(id), 1.0)).collect()
}

/// Runs positions `pos..pos + rows` of a sequence in a slot; gives the CPU's result, and the oracle's if it runs, too.
fn part(
    bench: &mut Bench,
    op: &OneOp,
    inputs: &[Vec<f32>],
    (slot, phase): (u32, Phase),
    (pos, rows): (usize, usize),
    with_oracle: bool,
) -> (Vec<f32>, Vec<f64>) {
    for (&id, values) in op.inputs.iter().zip(inputs) {
        let width = op.program.value(id).width as usize;
        let values = &values[pos * width..(pos + rows) * width];
        bench.cpu.set_value(id, values).unwrap();
        let wide = values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect()).collect();
        bench.oracle.set_value(id, wide);
    }
    let tokens = host(&vec![0; rows]);
    let seq = SeqStep { outs: Outs::Last, read_logits: false, ..programs::rows(slot, phase, &tokens, pos as u32, &[]) };
    run(&mut bench.cpu, &[seq]);
    let mut expected = Vec::new();
    if with_oracle {
        bench.oracle.step(&Step { seqs: &[seq] }).unwrap();
        expected = flat(bench.oracle.value(op.out));
    }
    (bench.cpu.value(op.out).unwrap().to_vec(), expected)
}

fn long(positions: usize) -> Limits {
    Limits { rows: 96, context: positions as u32, ..programs::limits() }
}

/// Ways to split a text: chunks of 96, 1, 3 and 16 rows, and of changing size.
fn chunks(positions: usize, kind: usize) -> Vec<(usize, usize)> {
    let mut chunks = Vec::new();
    let mut pos = 0;
    while pos < positions {
        let rows = [96, 1, 3, 16, 1 + (pos * 7 + 5) % 23][kind].min(positions - pos);
        chunks.push((pos, rows));
        pos += rows;
    }
    chunks
}

#[test]
fn both_forms_agree_with_the_recurrence() {
    for (name, op) in cases() {
        let mut rng = Rng(5);
        let weights = random_weights(&op.program, &[F32], &mut rng);
        let inputs = inputs(&op, 90, &mut rng);
        let mut whole = None;
        for threads in [1, 2, 3] {
            let mut bench = Bench::new(&op.program, &weights, threads, long(90));
            for kind in 0..5 {
                let (mut result, mut expected) = (Vec::new(), Vec::new());
                for at in chunks(90, kind) {
                    let (y, exact) = part(&mut bench, &op, &inputs, (1, Phase::Prefill), at, threads == 1);
                    result.extend(y);
                    expected.extend(exact);
                }
                if threads == 1 {
                    let distance = nmse(&result, &expected);
                    assert!(distance < 1e-10, "{name}, chunks {kind}: {distance:e}");
                }
                let whole = whole.get_or_insert_with(|| bits(&result));
                assert_eq!(*whole, bits(&result), "{name}: other bits with {threads} threads, chunks {kind}");
            }
        }
    }
}

#[test]
fn roles_change_in_the_middle() {
    for (name, op) in cases() {
        let mut rng = Rng(6);
        let weights = random_weights(&op.program, &[F32], &mut rng);
        let inputs = inputs(&op, 90, &mut rng);
        let mut bench = Bench::new(&op.program, &weights, 2, long(90));
        // Prompt, decode rows, a second prompt that begins within a tile.
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for (pos, rows, phase) in [
            (0, 21, Phase::Prefill),
            (21, 1, Phase::Decode),
            (22, 1, Phase::Decode),
            (23, 30, Phase::Prefill),
            (53, 1, Phase::Decode),
            (54, 36, Phase::Prefill),
        ] {
            let (y, exact) = part(&mut bench, &op, &inputs, (0, phase), (pos, rows), true);
            result.extend(y);
            expected.extend(exact);
        }
        let distance = nmse(&result, &expected);
        assert!(distance < 1e-10, "{name}: {distance:e}");
    }
}

/// A state in a slot survives 4,096 positions, in either form.
#[test]
fn long_texts_stay_exact() {
    const POSITIONS: usize = 4096;
    for (name, op) in [conv(17, 4), scan(4, 16, 2, 32), delta(4, 2, 32, 24, false)] {
        let mut rng = Rng(7);
        let weights = random_weights(&op.program, &[F32], &mut rng);
        let inputs = inputs(&op, POSITIONS, &mut rng);
        for (kind, phase) in [(0, Phase::Prefill), (4, Phase::Prefill), (1, Phase::Decode)] {
            let mut bench = Bench::new(&op.program, &weights, 2, long(POSITIONS));
            let (mut result, mut expected) = (Vec::new(), Vec::new());
            for at in chunks(POSITIONS, kind) {
                let (y, exact) = part(&mut bench, &op, &inputs, (3, phase), at, true);
                result.extend(y);
                expected.extend(exact);
            }
            let distance = nmse(&result, &expected);
            let tail = result.len() * 15 / 16;
            let last = nmse(&result[tail..], &expected[tail..]);
            println!("{name}, {phase:?}, chunks {kind}: NMSE {distance:.1e}, of the last 256 positions {last:.1e}");
            assert!(distance < BOUND && last < BOUND, "{name}, {phase:?}: {distance:e}, {last:e}");
        }
    }
}

/// A copy of a state goes on as the state itself; slots do not affect each other, and position 0 resets.
#[test]
fn states_are_copied_and_begun_again() {
    for (name, op) in cases() {
        let mut rng = Rng(8);
        let weights = random_weights(&op.program, &[F32], &mut rng);
        let (ours, theirs) = (inputs(&op, 60, &mut rng), inputs(&op, 60, &mut rng));
        let mut bench = Bench::new(&op.program, &weights, 2, long(90));
        let at = |bench: &mut Bench, inputs: &[Vec<f32>], slot, pos, rows| {
            let (y, exact) = part(bench, &op, inputs, (slot, Phase::Prefill), (pos, rows), true);
            assert!(nmse(&y, &exact) < 1e-10, "{name}");
            bits(&y)
        };
        at(&mut bench, &ours, 2, 0, 21);
        let checkpoint = programs::limits().seqs + 1;
        let copy = |bench: &mut Bench, from, to| {
            let ops = [CacheOp::CopyState { from, to }];
            bench.cpu.cache(&ops).unwrap();
            bench.oracle.cache(&ops);
        };
        copy(&mut bench, 2, checkpoint);
        let first = at(&mut bench, &ours, 2, 21, 20);
        at(&mut bench, &theirs, 2, 0, 33);
        copy(&mut bench, checkpoint, 0);
        at(&mut bench, &theirs, 2, 33, 5);
        assert_eq!(first, at(&mut bench, &ours, 0, 21, 20), "{name}: other bits from the checkpoint");
        assert!(bench.cpu.cache(&[CacheOp::CopyState { from: 0, to: checkpoint + 1 }]).is_err());
    }
}
