//! The CPU executor against the f64 oracle: op by op over odd shapes, whole programs, and what must not change a bit.

mod experts;
mod recurrent;

use std::sync::Arc;

use wgslm::exec::{
    CacheOp, CpuExecutor, CpuOptions, Executor, Limits, Numerics, Oracle, Outs, PerPhase, Phase, Sampled, SeqStep,
    Step, Token,
};
use wgslm::model::{Builder, FuseFor, Out, Program, fuse};
use wgslm::ops::{
    Act, Attend, CpuWeights, GroupId, Index, Kv, KvStorage, Mask, NormKind, NormSpec, Op, Pairing, Pooling, RopeSpec,
    SampleSpec,
};
use wgslm::quant::BlockFormat::{self, BF16, F16, F32, Q4_1, Q8_0};
use wgslm_test::programs::{self, *};

/// f32 sums against f64 ones, over rows of a few hundred.
const EXACT: f64 = 1e-11;

fn exact(threads: usize) -> CpuOptions {
    CpuOptions { threads: Some(threads), numerics: Numerics::Exact, ..CpuOptions::new(limits()) }
}

fn executor(program: &Program, weights: &Arc<CpuWeights>, options: CpuOptions) -> CpuExecutor {
    let mut executor = CpuExecutor::new(program, weights.clone(), options).unwrap();
    executor.fill_caches(f32::NAN);
    executor
}

/// Runs a step; gives its logits and samples.
fn run(executor: &mut CpuExecutor, seqs: &[SeqStep<'_>]) -> (Vec<f32>, Vec<Sampled>) {
    executor.enqueue(&Step { seqs }).unwrap();
    let mut result = None;
    assert_eq!(executor.poll(&mut |_, out| result = out.ok().map(|out| (out.logits.clone(), out.sampled.clone()))), 1);
    result.unwrap()
}

fn flat(rows: &[Vec<f64>]) -> Vec<f64> {
    rows.concat()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Runs a program of one op on both, with two sequences of `rows` rows in all; gives the CPU's result and the distance.
fn one_op(op: &OneOp, formats: &[BlockFormat], rows: usize, deviation: f32, seed: u64) -> (Vec<f32>, f64) {
    let mut rng = Rng(seed);
    let weights = random_weights(&op.program, formats, &mut rng);
    let options = CpuOptions { keep_values: true, fuse: false, ..exact(2) };
    let mut cpu = executor(&op.program, &weights, options);
    let mut oracle = Oracle::new(&op.program, weights, limits());
    for &id in &op.inputs {
        let width = op.program.value(id).width as usize;
        let values = rng.normals(rows * width, deviation);
        cpu.set_value(id, &values).unwrap();
        oracle.set_value(id, values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect()).collect());
    }
    let first = rows.div_ceil(3);
    let tokens: Vec<_> = (0..rows).map(|_| Token::Host(rng.below(64) as u32)).collect();
    let mut pool = Pool::new(&limits(), &mut rng);
    let tables = [pool.table(256, &limits()), pool.table(256, &limits())];
    let tables: Vec<Vec<&[u32]>> = tables.iter().map(|t| vec![t.as_slice(); op.program.groups as usize]).collect();
    let seq = |slot: u32, tokens, table| SeqStep {
        outs: Outs::Last,
        read_logits: false,
        ..programs::rows(slot, Phase::Prefill, tokens, 0, table)
    };
    let mut seqs = vec![seq(0, &tokens[..first], &tables[0])];
    if rows > first {
        seqs.push(seq(1, &tokens[first..], &tables[1]));
    }
    run(&mut cpu, &seqs);
    oracle.step(&Step { seqs: &seqs }).unwrap();
    let result = cpu.value(op.out).unwrap().to_vec();
    let distance = nmse(&result, &flat(oracle.value(op.out)));
    (result, distance)
}

#[test]
fn linear_over_formats_and_odd_shapes() {
    for (n, k) in [(1, 1), (63, 65), (65, 257), (257, 63), (33, 32), (5, 1024), (130, 288)] {
        for format in [F32, F16, BF16, Q8_0, Q4_1] {
            if format.row_bytes(u64::from(k)).is_err() {
                continue;
            }
            for rows in [1, 2, 63] {
                let op = OneOp::new(&[k], |b, x| {
                    let w = b.weight("w", n, k);
                    let bias = b.vector("b", n);
                    b.linear("y", x[0], w, (n % 2 == 1).then_some(bias))
                });
                let (_, distance) = one_op(&op, &[format], rows, 1.0, u64::from(n * k));
                assert!(distance < EXACT, "({n}, {k}) {format:?}, {rows} rows: {distance:e}");
            }
        }
    }
}

#[test]
fn norms() {
    for kind in [NormKind::Rms, NormKind::Layer] {
        for (n, groups) in [(1, 1), (63, 1), (65, 3), (257, 2)] {
            let op = OneOp::new(&[n * groups], |b, x| {
                let weight = Some(norm_weight(b, n));
                let bias = (n % 2 == 1).then(|| b.vector("bias", n));
                b.norm("y", x[0], NormSpec { kind, n, weight, bias, eps: 1e-5 })
            });
            // One element has no variance: its result is the bias, or x / |x|.
            let (_, distance) = one_op(&op, &[F32], 7, 3.0, u64::from(n));
            let own = OneOp::new(&[n * groups], |b, x| {
                let weight = Some(norm_weight(b, n * groups));
                b.norm_of_groups("y", x[0], NormSpec { kind, n, weight, bias: None, eps: 1e-5 })
            });
            let (_, with_own) = one_op(&own, &[F32], 7, 3.0, u64::from(n));
            assert!(with_own < EXACT || n == 1, "{kind:?}, own weights of {groups} groups of {n}: {with_own:e}");
            assert!(distance < EXACT, "{kind:?} of {groups} groups of {n}: {distance:e}");
        }
    }
}

#[test]
fn pointwise_ops_and_activations() {
    for n in [1, 63, 65, 257] {
        for act in [Act::Silu, Act::GeluErf, Act::GeluTanh, Act::Relu, Act::Relu2, Act::Tanh] {
            for deviation in [0.1, 1.0, 10.0] {
                let op = OneOp::new(&[n], |b, x| b.act("y", x[0], act));
                let (_, distance) = one_op(&op, &[F32], 5, deviation, 3);
                assert!(distance < EXACT, "{act:?} of {n}, deviation {deviation}: {distance:e}");
            }
        }
        let ops = [
            OneOp::new(&[n, n], |b, x| b.add("y", x[0], x[1])),
            OneOp::new(&[n, n], |b, x| b.mul("y", x[0], x[1])),
            OneOp::new(&[n], |b, x| b.scale("y", x[0], 0.37)),
        ];
        for op in ops {
            let (_, distance) = one_op(&op, &[F32], 5, 1.0, 4);
            assert!(distance < EXACT, "{}: {distance:e}", op.program.listing());
        }
    }
}

#[test]
fn ops_on_whole_rows() {
    for n in [1, 63, 65, 257] {
        for deviation in [1e-4, 1.0, 30.0] {
            let ops = [
                OneOp::new(&[n, n], |b, x| b.magnitude("y", x[0], x[1], 1e-5)),
                OneOp::new(&[n], |b, x| b.sparsify("y", x[0], 0.25)),
                OneOp::new(&[n], |b, x| b.sparsify("y", x[0], -1.6)),
                OneOp::new(&[n], |b, x| {
                    let weight = b.vector("weight", n);
                    b.weigh("y", x[0], weight)
                }),
                OneOp::new(&[n], |b, x| {
                    let weight = b.vector("weight", 1);
                    b.weigh("y", x[0], weight)
                }),
            ];
            for op in &ops {
                // A single element does not exceed its own mean.
                let (y, distance) = one_op(op, &[F32], 7, deviation, u64::from(n));
                let nothing = y.iter().all(|y| y.abs() < 1e-6 * deviation);
                assert!(distance < EXACT || nothing, "{} of {n}, {deviation}: {distance:e}", op.program.listing());
            }
        }
    }
}

/// The relative error of an activation far out, where NMSE over many values would not see it.
#[test]
fn activations_keep_their_tails() {
    for act in [Act::Silu, Act::GeluErf, Act::GeluTanh, Act::Tanh] {
        for x in [-12.0f32, -8.0, -5.0, -2.5, -0.5, -1e-3, -1e-20, 1e-20, 0.7, 3.0, 9.0, 1e4] {
            let op = OneOp::new(&[1], |b, v| b.act("y", v[0], act));
            let weights = random_weights(&op.program, &[F32], &mut Rng(1));
            let mut cpu = executor(&op.program, &weights, CpuOptions { keep_values: true, fuse: false, ..exact(1) });
            let mut oracle = Oracle::new(&op.program, weights, limits());
            cpu.set_value(op.inputs[0], &[x]).unwrap();
            oracle.set_value(op.inputs[0], vec![vec![f64::from(x)]]);
            let tokens = host(&[0]);
            let seqs = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Phase::Decode, &tokens, 0, &[]) }];
            run(&mut cpu, &seqs);
            oracle.step(&Step { seqs: &seqs }).unwrap();
            let (got, want) = (f64::from(cpu.value(op.out).unwrap()[0]), oracle.value(op.out)[0][0]);
            assert!((got - want).abs() <= 1e-5 * want.abs() + 1e-37, "{act:?}({x}): {got:e}, not {want:e}");
        }
    }
}

#[test]
fn rotations() {
    for pairing in [Pairing::Interleaved, Pairing::Neox] {
        for (heads, head_dim, dims) in [(1, 2, 2), (3, 64, 64), (2, 65, 32), (5, 16, 6)] {
            let op = OneOp::new(&[heads * head_dim], |b, x| {
                let divisors = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
                let table = b.rope_table(divisors, 1.25);
                b.rope("y", x[0], head_dim, RopeSpec { table, pairing, dims })
            });
            let (_, distance) = one_op(&op, &[F32], 63, 1.0, 5);
            assert!(distance < EXACT, "{pairing:?} {heads} × {head_dim}, {dims} rotated: {distance:e}");
        }
    }
}

#[test]
fn rows_that_only_move_do_not_change() {
    let op = OneOp::new(&[65], |b, x| b.slice("y", x[0], 7, 33));
    assert_eq!(one_op(&op, &[F32], 9, 1.0, 6).1, 0.0);
    let op = OneOp::new(&[65], |b, x| b.gather(x[0]));
    assert_eq!(one_op(&op, &[F32], 9, 1.0, 7).1, 0.0);
    for (format, index) in [(F32, Index::Token), (Q8_0, Index::Token), (F16, Index::Position(2))] {
        let op = OneOp::new(&[], |b, _| b.embed("table", index, 60, 96, 1.0));
        assert_eq!(one_op(&op, &[format], 63, 1.0, 8).1, 0.0, "{format:?} {index:?}"); // some indices are clamped
    }
    let op = OneOp::new(&[], |b, _| b.embed("table", Index::Token, 64, 63, 8.5));
    assert!(one_op(&op, &[F32], 5, 1.0, 9).1 < EXACT);
}

/// Attention over a cache that this step fills, and over packed rows, with everything that an attend can have.
#[test]
fn pooling() {
    for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
        for n in [1, 63, 257] {
            let op = OneOp::new(&[n], |b, x| b.pool(x[0], pooling));
            for rows in [1, 2, 7, 95] {
                let (_, distance) = one_op(&op, &[F32], rows, 1.0, 5);
                assert!(distance < EXACT, "{pooling:?} of {rows} rows of {n}: {distance:e}");
            }
        }
    }
}

/// Two attention layers, one with a window, between embeddings of tokens and types and a pooled head.
fn encoder() -> Program {
    let mut b = Builder::new(64, 96);
    let tokens = b.embed("embed.weight", Index::Token, 64, 48, 1.0);
    let types = b.embed("embed_types.weight", Index::Type, 3, 48, 1.0);
    let mut x = b.add("embeddings", tokens, types);
    for (layer, mask) in (0..).zip([Mask::Full, Mask::BidirectionalWindow(4)]) {
        b.layer(layer, format!("layers.{layer}."));
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            let w = b.weight(name, 48, 48);
            b.linear(name, x, w, None)
        });
        let h = b.attend_packed([q, k, v], 16, mask, 0.25);
        x = b.add("residual", x, h);
    }
    b.end_layers();
    let pooled = b.pool(x, Pooling::Mean);
    let w = b.weight("dense", 24, 48);
    let pooled = b.linear("dense", pooled, w, None);
    let pooled = b.act("tanh", pooled, Act::Tanh);
    b.finish(vec![Out::Hidden(x), Out::Pooled(pooled)])
}

/// A sequence's vector is the oracle's, and its bits are the same alone and in any batch, on any number of threads.
#[test]
fn encoders_pool_packed_sequences() {
    let program = encoder();
    program.check(&[]).unwrap();
    let mut rng = Rng(9);
    let weights = random_weights(&program, &[F32], &mut rng);
    let texts: Vec<Vec<Token>> =
        [1, 31, 7, 50].map(|n| (0..n).map(|_| Token::Host(rng.below(64) as u32)).collect()).into();
    let types: Vec<Vec<u32>> = texts.iter().map(|t| (0..t.len()).map(|i| (2 * i / t.len()) as u32).collect()).collect();
    let seq = |i: usize, slot: u32| SeqStep {
        outs: Outs::None,
        read_logits: false,
        types: if i == 2 { &[] } else { &types[i] },
        ..rows(slot, Phase::Prefill, &texts[i], 0, &[])
    };
    let pooled = |cpu: &mut CpuExecutor, seqs: &[SeqStep<'_>]| {
        cpu.enqueue(&Step { seqs }).unwrap();
        let mut pooled = Vec::new();
        cpu.poll(&mut |_, out| pooled = out.unwrap().pooled.clone());
        pooled
    };
    let mut oracle = Oracle::new(&program, weights.clone(), limits());
    let mut expected = Vec::new();
    for i in 0..4 {
        oracle.step(&Step { seqs: &[seq(i, 0)] }).unwrap();
        expected.extend(flat(oracle.value(program.pooled().unwrap())));
    }
    for threads in [1, 3] {
        for fuse in [true, false] {
            let mut cpu = executor(&program, &weights, CpuOptions { fuse, ..exact(threads) });
            let alone: Vec<f32> = (0..4).flat_map(|i| pooled(&mut cpu, &[seq(i, 0)])).collect();
            let distance = nmse(&alone, &expected);
            assert!(distance < EXACT, "{threads} threads, fused {fuse}: {distance:e}");
            for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
                let seqs: Vec<_> = (0..).zip(order).map(|(slot, i)| seq(i, slot)).collect();
                let together = pooled(&mut cpu, &seqs);
                for (place, i) in order.into_iter().enumerate() {
                    assert_eq!(bits(&together[place * 24..][..24]), bits(&alone[i * 24..][..24]), "{order:?}, {i}");
                }
            }
            // Phases may be mixed; results keep the step's order.
            let seqs = [
                SeqStep { phase: Phase::Decode, ..seq(1, 0) },
                seq(0, 1),
                SeqStep { phase: Phase::Decode, ..seq(2, 2) },
            ];
            let together: Vec<f32> = pooled(&mut cpu, &seqs);
            let wanted = [&expected[24..48], &expected[..24], &expected[48..72]].concat();
            assert!(nmse(&together, &wanted) < EXACT, "phases are mixed up");
            for (wrong, words) in [
                (SeqStep { pos: 3, ..seq(0, 0) }, "whole sequences"),
                (SeqStep { read_logits: true, ..seq(0, 0) }, "gives none"),
                (SeqStep { types: &[0, 1], ..seq(1, 0) }, "2 token types for 31 tokens"),
            ] {
                let error = cpu.enqueue(&Step { seqs: &[wrong] }).unwrap_err().to_string();
                assert!(error.contains(words), "{error}");
            }
        }
    }
}

const MASKS: [Mask; 7] = [
    Mask::Causal,
    Mask::Window(5),
    Mask::Window(70),
    Mask::Full,
    Mask::BidirectionalWindow(0),
    Mask::BidirectionalWindow(3),
    Mask::BidirectionalWindow(90),
];

#[test]
fn attention_in_all_forms() {
    for (case, mask) in MASKS.into_iter().enumerate() {
        for (heads, kv_heads, k_dim, v_dim) in [(1, 1, 1, 1), (4, 2, 16, 16), (6, 1, 65, 63), (3, 3, 32, 8)] {
            for packed in [false, true] {
                for (softcap, sink) in [(0.0, false), (2.0, true)] {
                    let op = OneOp::new(&[heads * k_dim, kv_heads * k_dim, kv_heads * v_dim], |b, x| {
                        let group = b.group();
                        let cache = b.pages(group, kv_heads, k_dim, v_dim, None);
                        if !packed {
                            b.kv_write(cache, x[1], x[2]);
                        }
                        let sinks = sink.then(|| b.vector("sinks", heads));
                        let out = b.attend(x[0], cache, mask, 1.3 / (k_dim as f32).sqrt());
                        let Op::Attend(attend) = last_op(b) else { unreachable!() };
                        let kv = if packed { Kv::Packed { k: x[1], v: x[2] } } else { attend.kv };
                        *attend = Attend { softcap, sinks, kv, ..attend.clone() };
                        out
                    });
                    for rows in [1, 7, 95] {
                        let (_, distance) = one_op(&op, &[F32], rows, 1.5, case as u64);
                        assert!(
                            distance < EXACT,
                            "{mask:?} {heads}/{kv_heads} {k_dim}/{v_dim} packed {packed}, cap {softcap}, {rows} rows: {distance:e}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_that_sees_nothing_gives_zeros() {
    for sink in [false, true] {
        let op = OneOp::new(&[32, 16, 16], |b, x| {
            let group = b.group();
            let cache = b.pages(group, 1, 16, 16, None);
            let sinks = sink.then(|| b.vector("sinks", 2));
            let out = b.attend(x[0], cache, Mask::Window(0), 0.25);
            let Op::Attend(attend) = last_op(b) else { unreachable!() };
            attend.sinks = sinks;
            out
        });
        let (result, _) = one_op(&op, &[F32], 5, 1.0, 1);
        assert!(result.iter().all(|x| *x == 0.0), "{result:?}");
    }
}

/// A whole model over shuffled pages: a prompt, a second sequence that joins late, then both generate in one step; every
/// logit against the oracle, fused and unfused, one thread and three.
#[test]
fn programs_agree_with_the_oracle() {
    let shape = Shape::SMALL;
    let odd = Shape { dim: 96, heads: 3, kv_heads: 1, head_dim: 40, hidden: 257, window: Some(20), ..shape };
    let cases = [
        (llama(shape), &[F32][..]),
        (llama(Shape { pairing: Pairing::Interleaved, ..shape }), &[Q8_0, F16]),
        (llama(odd), &[Q4_1, BF16, F32]),
        (gpt2(shape), &[F32, Q8_0]),
    ];
    for (index, (program, formats)) in cases.iter().enumerate() {
        let mut rng = Rng(index as u64 + 100);
        let weights = random_weights(program, formats, &mut rng);
        for (fused, threads) in [(false, 1), (true, 1), (true, 3)] {
            let mut cpu = executor(program, &weights, CpuOptions { fuse: fused, ..exact(threads) });
            let mut oracles = vec![Oracle::new(program, weights.clone(), limits())];
            if fused {
                let programs = PerPhase::by(|phase| fuse(program, phase, FuseFor::CPU));
                oracles.push(Oracle::of_phases(programs, weights.clone(), limits()));
            }
            let mut pool = Pool::new(&limits(), &mut rng);
            let tables = [pool.table(200, &limits()), pool.table(200, &limits())];
            let [a, b] = tables.each_ref().map(|table| [table.as_slice()]);
            let tokens: Vec<_> = (0..90).map(|_| Token::Host(rng.below(shape.vocab as usize) as u32)).collect();
            let (decode, prefill) = (Phase::Decode, Phase::Prefill);
            let steps: &[&[SeqStep<'_>]] = &[
                &[rows(0, prefill, &tokens[..70], 0, &a)],
                &[rows(0, decode, &tokens[70..71], 70, &a), rows(1, prefill, &tokens[10..43], 0, &b)],
                &[rows(0, decode, &tokens[71..72], 71, &a), rows(1, decode, &tokens[43..44], 33, &b)],
                &[rows(0, decode, &tokens[72..77], 72, &a), rows(1, prefill, &tokens[44..60], 34, &b)],
            ];
            for (i, seqs) in steps.iter().enumerate() {
                let (logits, _) = run(&mut cpu, seqs);
                for oracle in &mut oracles {
                    // In all steps decode rows come first, as in the oracle's result.
                    let distance = nmse(&logits, &flat(&oracle.step(&Step { seqs }).unwrap()));
                    assert!(distance < 1e-10, "case {index}, fused {fused}, step {i}: {distance:e}");
                }
            }
        }
    }
}

/// All of a prompt at once, in chunks, token by token; one thread, two or three; a small or a large block: the same bits.
#[test]
fn chunks_threads_and_pages_do_not_change_a_bit() {
    for (index, program) in [llama(Shape::SMALL), gpt2(Shape::SMALL)].iter().enumerate() {
        let mut rng = Rng(7 + index as u64);
        let weights = random_weights(program, &[Q8_0, F32], &mut rng);
        let tokens: Vec<_> = (0..90).map(|_| Token::Host(rng.below(193) as u32)).collect();
        for phase in [Phase::Prefill, Phase::Decode] {
            let mut expected: Option<Vec<u32>> = None;
            for (chunk, threads, block) in [(90, 1, 16), (90, 2, 8), (37, 3, 16), (16, 1, 16), (1, 2, 32)] {
                let limits = Limits { block, blocks: 256 / block + 3, ..limits() };
                let mut cpu = executor(program, &weights, CpuOptions { limits, ..exact(threads) });
                let table = Pool::new(&limits, &mut rng).table(90, &limits);
                let mut logits = Vec::new();
                for (i, chunk_tokens) in tokens.chunks(chunk).enumerate() {
                    let tables = [table.as_slice()];
                    logits.extend(run(&mut cpu, &[rows(0, phase, chunk_tokens, (i * chunk) as u32, &tables)]).0);
                }
                assert!(logits.iter().all(|x| x.is_finite()));
                let expected = expected.get_or_insert_with(|| bits(&logits));
                assert!(
                    *expected == bits(&logits),
                    "{phase:?}, chunks of {chunk}, {threads} threads, blocks of {block}"
                );
            }
        }
    }
}

#[test]
fn coarse_caches_are_close() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(5));
    let mut oracle = Oracle::new(&program, weights.clone(), limits());
    let tokens: Vec<_> = (0..60).map(|i| Token::Host(i * 3)).collect();
    let tables: [&[u32]; 1] = [&[7, 3, 11, 2]];
    let seqs = [rows(0, Phase::Prefill, &tokens, 0, &tables)];
    let wanted = flat(&oracle.step(&Step { seqs: &seqs }).unwrap());
    for (kv, fused, bounds) in [
        (KvStorage::F16, true, 1e-9..5e-4), // if it were exact, nothing would be in f16
        (KvStorage::Q8, true, 1e-7..5e-3),
        (KvStorage::Q8, false, 1e-7..5e-3),
    ] {
        let mut coarse = executor(&program, &weights, CpuOptions { kv: Some(kv), fuse: fused, ..exact(2) });
        let distance = nmse(&run(&mut coarse, &seqs).0, &wanted);
        assert!(bounds.contains(&distance), "{kv:?}: {distance:e}");
    }
}

/// Int8 activations: close to the oracle, and the same bits for a row alone and in a chunk, on any number of threads.
#[test]
fn int8_activations_are_close_and_do_not_change_with_chunks() {
    let program = llama(Shape { dim: 96, heads: 3, head_dim: 32, kv_heads: 1, ..Shape::SMALL });
    for format in [Q8_0, Q4_1] {
        let mut rng = Rng(21);
        let weights = random_weights(&program, &[format], &mut rng);
        let tokens: Vec<_> = (0..40).map(|_| Token::Host(rng.below(193) as u32)).collect();
        let tables: [&[u32]; 1] = [&[7, 3, 11]];
        let mut oracle = Oracle::new(&program, weights.clone(), limits());
        let all = [rows(0, Phase::Prefill, &tokens, 0, &tables)];
        let wanted = flat(&oracle.step(&Step { seqs: &all }).unwrap());
        let mut expected: Option<Vec<u32>> = None;
        for (chunk, threads) in [(40, 1), (40, 3), (7, 2), (1, 1)] {
            let options = CpuOptions { numerics: Numerics::Fast, ..exact(threads) };
            let mut cpu = executor(&program, &weights, options);
            let mut logits = Vec::new();
            for (i, tokens) in tokens.chunks(chunk).enumerate() {
                logits.extend(run(&mut cpu, &[rows(0, Phase::Prefill, tokens, (i * chunk) as u32, &tables)]).0);
            }
            let distance = nmse(&logits, &wanted);
            // Were it nearer, nothing would have been rounded to int8.
            assert!(distance < 1e-3 && distance > 1e-6, "{format:?}: {distance:e}");
            let expected = expected.get_or_insert_with(|| bits(&logits));
            assert!(*expected == bits(&logits), "{format:?}, chunks of {chunk}, {threads} threads");
        }
    }
}

#[test]
fn sampled_tokens_feed_the_next_step() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[Q8_0], &mut Rng(11));
    let table: Vec<u32> = (0..16).rev().collect();
    let tables = [table.as_slice()];
    let prompt = host(&[3, 1, 4, 1, 5]);
    for sample in [SampleSpec::GREEDY, SampleSpec { temperature: 0.8, seed: 99, ..SampleSpec::GREEDY }] {
        // With two steps in flight and the token never seen by the host …
        let mut cpu = executor(&program, &weights, exact(2));
        let mut chained = Vec::new();
        let first = [sampling(rows(2, Phase::Prefill, &prompt, 0, &tables), sample)];
        cpu.enqueue(&Step { seqs: &first }).unwrap();
        for pos in 5..25 {
            let next = [sampling(rows(2, Phase::Decode, &[Token::Sampled], pos, &tables), sample)];
            cpu.enqueue(&Step { seqs: &next }).unwrap();
            assert_eq!(cpu.poll(&mut |_, out| chained.push(out.unwrap().sampled[0])), 1);
        }
        // … and with every token given back by the host.
        let mut cpu = executor(&program, &weights, exact(1));
        let mut token = run(&mut cpu, &first).1[0];
        for (i, pos) in (5..25).enumerate() {
            assert_eq!(chained[i], token, "token {i}");
            let tokens = [Token::Host(token.token.unwrap())];
            token = run(&mut cpu, &[sampling(rows(2, Phase::Decode, &tokens, pos, &tables), sample)]).1[0];
        }
    }
}

#[test]
fn greedy_samples_are_the_largest_logit_whatever_the_order() {
    let program = gpt2(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(12));
    let mut cpu = executor(&program, &weights, exact(3));
    let tables: [[&[u32]; 1]; 3] = [[&[0, 1]], [&[5, 4]], [&[9, 8]]];
    let tokens = host(&[8, 6, 7, 5]);
    let seq = |slot: u32, phase, count: usize| SeqStep {
        outs: Outs::Last,
        sample: Some(SampleSpec::GREEDY),
        ..rows(slot, phase, &tokens[..count], 0, &tables[slot as usize])
    };
    // Prompt and decode rows mixed: results come in the step's order.
    let seqs = [seq(1, Phase::Prefill, 4), seq(0, Phase::Decode, 2), seq(2, Phase::Prefill, 3)];
    let (logits, sampled) = run(&mut cpu, &seqs);
    assert_eq!(sampled.iter().map(|d| d.slot).collect::<Vec<_>>(), [1, 0, 2]);
    for (row, sampled) in logits.chunks(193).zip(sampled) {
        let best = (0..193).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        assert_eq!(sampled.token, Some(best as u32));
    }
}

#[test]
fn logits_that_are_not_finite_sample_nothing() {
    let program = llama(Shape::SMALL);
    let mut weights = (*random_weights(&program, &[F32], &mut Rng(13))).clone();
    for broken in [f32::NAN, f32::INFINITY] {
        let last = weights.vectors.len() - 1;
        weights.vectors[last][5] = broken; // the last norm's
        let mut cpu = executor(&program, &Arc::new(weights.clone()), exact(2));
        let tokens = host(&[1, 2]);
        let (_, sampled) = run(&mut cpu, &[sampling(rows(0, Phase::Prefill, &tokens, 0, &[&[0]]), SampleSpec::GREEDY)]);
        assert_eq!(sampled, [Sampled { slot: 0, token: None }]);
    }
}

#[test]
fn cache_ops_run_in_order_with_steps() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(14));
    [KvStorage::F32, KvStorage::F16, KvStorage::Q8]
        .into_iter()
        .for_each(|kv| cache_ops_run_in_order(&program, &weights, kv));
}

fn cache_ops_run_in_order(program: &Program, weights: &Arc<CpuWeights>, kv: KvStorage) {
    let mut cpu = executor(program, weights, CpuOptions { kv: Some(kv), ..exact(1) });
    let tokens = host(&(0..17).collect::<Vec<_>>());
    let [old, new]: [[&[u32]; 1]; 2] = [[&[3, 4]], [&[9, 10]]];
    let prompt = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Phase::Prefill, &tokens[..16], 0, &old) }];
    let next = |tables| [rows(0, Phase::Decode, &tokens[16..], 16, tables)];
    run(&mut cpu, &prompt);
    let expected = run(&mut cpu, &next(&old)).0;
    // Enqueued, not yet run: the copy must come between the two steps, the zeros after both.
    cpu.fill_caches(f32::NAN);
    cpu.enqueue(&Step { seqs: &prompt }).unwrap();
    cpu.cache(&[CacheOp::Copy { group: GroupId(0), from: 3, to: 9 }]).unwrap();
    cpu.enqueue(&Step { seqs: &next(&new) }).unwrap();
    cpu.cache(&[CacheOp::Zero { group: GroupId(0), block: 9 }]).unwrap();
    let mut logits = Vec::new();
    while cpu.poll(&mut |_, out| logits.clone_from(&out.unwrap().logits)) > 0 {}
    assert_eq!(bits(&logits), bits(&expected));
    assert_ne!(bits(&run(&mut cpu, &next(&new)).0), bits(&expected));
    assert!(cpu.cache(&[CacheOp::Zero { group: GroupId(1), block: 0 }]).is_err());
    assert!(cpu.cache(&[CacheOp::Zero { group: GroupId(0), block: 40 }]).is_err());
}

#[test]
fn what_does_not_fit_is_refused() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(15));
    let mut cpu = executor(&program, &weights, exact(1));
    let tokens = host(&[1]);
    let seqs = [rows(0, Phase::Prefill, &tokens, 0, &[&[0]])];
    assert!(cpu.enqueue(&Step { seqs: &[rows(9, Phase::Prefill, &tokens, 0, &[&[0]])] }).is_err());
    cpu.enqueue(&Step { seqs: &seqs }).unwrap();
    cpu.enqueue(&Step { seqs: &seqs }).unwrap();
    assert!(cpu.enqueue(&Step { seqs: &seqs }).is_err());
    assert_eq!(cpu.poll(&mut |_, _| {}), 1);
    cpu.enqueue(&Step { seqs: &seqs }).unwrap();
    assert_eq!((cpu.blocked(), now(cpu.wait()).is_ok()), (0, true));
    let mut few = (*weights).clone();
    few.matrices.pop();
    assert!(CpuExecutor::new(&program, Arc::new(few), exact(1)).is_err());
    let mut wrong = (*weights).clone();
    wrong.vectors[0].pop();
    assert!(CpuExecutor::new(&program, Arc::new(wrong), exact(1)).is_err());
}
