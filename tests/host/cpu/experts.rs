//! The ops of experts and of latent attention against the oracle, and that no bit depends on threads or chunks.

use std::sync::Arc;

use super::{EXACT, bits, exact, executor, one_op, run};
use wgslm::exec::{CpuOptions, Numerics, Oracle, Outs, Phase, SeqStep, Step};
use wgslm::model::CacheSpec;
use wgslm::ops::{CpuWeights, Divide, GroupScore, Groups, Mask, RouteSpec, Score};
use wgslm::quant::BlockFormat::{self, F16, F32, Q4_1, Q8_0};
use wgslm_test::programs::*;

#[test]
fn routes_choose_as_the_oracle_does() {
    for (i, spec) in route_specs().into_iter().enumerate() {
        for biased in [false, true] {
            let op = OneOp::new(&[spec.experts], |b, x| {
                let bias = biased.then(|| b.vector("bias", spec.experts));
                b.route("y", x[0], bias, spec)
            });
            let (result, distance) = one_op(&op, &[F32], 37, 2.0, i as u64);
            assert!(distance < EXACT, "{spec:?}, biased {biased}: {distance:e}");
            for row in result.chunks(2 * spec.used as usize) {
                let mut chosen: Vec<_> = row[..spec.used as usize].iter().map(|e| *e as u32).collect();
                chosen.sort();
                chosen.dedup();
                assert_eq!(chosen.len(), spec.used as usize, "{spec:?}: an expert is chosen twice");
                assert!(chosen.iter().all(|e| *e < spec.experts));
            }
        }
    }
}

/// Runs some rows of the inputs on the CPU executor; gives the op's result.
fn on_cpu(
    op: &OneOp,
    weights: &Arc<CpuWeights>,
    inputs: &[Vec<f32>],
    rows: std::ops::Range<usize>,
    (threads, numerics): (usize, Numerics),
) -> Vec<f32> {
    let options = CpuOptions { keep_values: true, fuse: false, numerics, ..exact(threads) };
    let mut cpu = executor(&op.program, weights, options);
    for (&id, values) in op.inputs.iter().zip(inputs) {
        let width = op.program.value(id).width as usize;
        cpu.set_value(id, &values[rows.start * width..rows.end * width]).unwrap();
    }
    let (tokens, table) = (host(&vec![0; rows.len()]), (0..8).collect::<Vec<u32>>());
    let tables = vec![table.as_slice(); op.program.groups as usize];
    let seq = programs_rows(&tokens, &tables);
    run(&mut cpu, &[seq]);
    cpu.value(op.out).unwrap().to_vec()
}

fn programs_rows<'a>(tokens: &'a [wgslm::exec::Token], tables: &'a [&'a [u32]]) -> SeqStep<'a> {
    SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Phase::Prefill, tokens, 0, tables) }
}

fn route(logits: &[f32], spec: RouteSpec) -> Vec<f32> {
    let op = OneOp::new(&[spec.experts], |b, x| b.route("y", x[0], None, spec));
    let rows = logits.len() / spec.experts as usize;
    on_cpu(&op, &Arc::default(), &[logits.to_vec()], 0..rows, (1, Numerics::Exact))
}

#[test]
fn of_equals_the_lower_number_comes_first() {
    assert_eq!(route(&[1.0; 6], plain(6, 3))[..3], [0.0, 1.0, 2.0]);
    assert_eq!(route(&[0.0, 2.0, 1.0, 2.0, 1.0], plain(5, 4))[..4], [1.0, 3.0, 2.0, 4.0]);
    let groups = Some(Groups { count: 3, kept: 1, score: GroupScore::TwoBest });
    let spec = RouteSpec { groups, score: Score::Sigmoid, ..plain(6, 2) };
    // The groups' scores are equal: the first is kept, though the others have an expert as good.
    assert_eq!(route(&[1.0, 0.0, 0.0, 1.0, 1.0, 0.0], spec)[..2], [0.0, 1.0]);
}

#[test]
fn logits_that_are_no_numbers_give_experts_that_exist_and_show() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for score in [Score::Softmax, Score::Sigmoid, Score::SoftmaxOfChosen] {
            let groups = Some(Groups { count: 2, kept: 1, score: GroupScore::TwoBest });
            let result = route(&[bad; 4], RouteSpec { score, groups, ..plain(4, 2) });
            assert!(result[..2].iter().all(|e| (0.0..4.0).contains(e)), "{result:?}");
            let hidden = bad.is_nan() && result[2..].iter().any(|w| !w.is_nan());
            assert!(!hidden, "{score:?}: {result:?}");
        }
    }
    // Whatever is given as a number of an expert is one.
    for number in [f32::NAN, f32::INFINITY, -1.0, 1e9] {
        let op = OneOp::new(&[4, 2], |b, x| {
            let experts = (0..3).map(|e| b.weight(&format!("e.{e}"), 5, 4)).collect();
            b.expert_linear("y", x[0], x[1], experts, Vec::new())
        });
        let weights = random_weights(&op.program, &[F32], &mut Rng(1));
        let inputs = [vec![1.0; 4], vec![number, 1.0]];
        assert!(on_cpu(&op, &weights, &inputs, 0..1, (1, Numerics::Exact)).iter().all(|y| y.is_finite()));
    }
}

#[test]
fn experts_over_formats_and_odd_shapes() {
    for (count, used) in [(1, 1), (3, 2), (5, 5), (17, 4)] {
        for shape in [[1, 1, 1], [65, 63, 5], [64, 96, 33]] {
            for formats in [&[F32][..], &[Q8_0, F16, Q4_1]] {
                for rows in [1, 2, 63] {
                    let biased = rows != 2;
                    let op = OneOp::new(&[count, shape[0]], |b, x| experts(b, x, plain(count, used), shape, biased));
                    let (_, distance) = one_op(&op, formats, rows, 1.0, u64::from(count));
                    assert!(distance < EXACT, "{used} of {count}, {shape:?}, {formats:?}, {rows} rows: {distance:e}");
                }
            }
        }
    }
}

/// All rows at once, in chunks, one by one; on one thread, two and three: the same bits, also where experts see very
/// different numbers of rows.
#[test]
fn threads_and_chunks_do_not_change_a_bit_of_experts() {
    let cases: [(&[BlockFormat], _); 3] =
        [(&[F32], Numerics::Exact), (&[Q8_0, F16], Numerics::Exact), (&[Q8_0, Q4_1], Numerics::Fast)];
    for (formats, numerics) in cases {
        let spec = RouteSpec { divide: Divide::SumPlus(0.0), ..plain(7, 3) };
        let op = OneOp::new(&[7, 64], |b, x| experts(b, x, spec, [64, 96, 65], true));
        let mut rng = Rng(3);
        let weights = random_weights(&op.program, formats, &mut rng);
        let mut logits = rng.normals(50 * 7, 1.0);
        logits.chunks_mut(7).for_each(|row| row[2] += 3.0); // a favourite
        let inputs = [logits, rng.normals(50 * 64, 1.0)];
        let expected = bits(&on_cpu(&op, &weights, &inputs, 0..50, (1, numerics)));
        for (chunk, threads) in [(50, 2), (50, 3), (7, 2), (1, 1), (1, 3)] {
            let chunks = (0..50).step_by(chunk).map(|first| first..50.min(first + chunk));
            let parts = chunks.flat_map(|rows| on_cpu(&op, &weights, &inputs, rows, (threads, numerics)));
            assert!(bits(&parts.collect::<Vec<_>>()) == expected, "{formats:?}, chunks of {chunk}, {threads} threads");
        }
    }
}

/// Int8 activations are near the oracle, but not equal to it.
#[test]
fn experts_in_int8_are_close() {
    let op = OneOp::new(&[7, 64], |b, x| experts(b, x, plain(7, 3), [64, 96, 65], false));
    let mut rng = Rng(4);
    let weights = random_weights(&op.program, &[Q8_0], &mut rng);
    let inputs = [rng.normals(20 * 7, 1.0), rng.normals(20 * 64, 1.0)];
    let result = on_cpu(&op, &weights, &inputs, 0..20, (2, Numerics::Fast));
    let mut oracle = Oracle::new(&op.program, weights, limits());
    for (&id, values) in op.inputs.iter().zip(&inputs) {
        let width = op.program.value(id).width as usize;
        oracle.set_value(id, values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect()).collect());
    }
    let tokens = host(&[0; 20]);
    oracle.step(&Step { seqs: &[programs_rows(&tokens, &[])] }).unwrap();
    let distance = nmse(&result, &oracle.value(op.out).concat());
    assert!(distance < 1e-3 && distance > 1e-7, "{distance:e}");
}

#[test]
fn heads_are_multiplied_cut_and_joined() {
    for (heads, n, k) in [(1, 1, 1), (3, 65, 63), (5, 32, 64), (16, 7, 96)] {
        for rows in [1, 7, 63] {
            for format in [F32, Q8_0] {
                let op = OneOp::new(&[heads * k], |b, x| {
                    let matrices = (0..heads).map(|h| b.weight(&format!("w.{h}"), n, k)).collect();
                    b.head_linear("y", x[0], matrices)
                });
                let (_, distance) = one_op(&op, &[format], rows, 1.0, u64::from(n));
                assert!(distance < EXACT, "{heads} heads of ({n}, {k}), {rows} rows: {distance:e}");
            }
            let op = OneOp::new(&[heads * n, heads * k], |b, x| b.concat("y", x[0], x[1], heads));
            assert_eq!(one_op(&op, &[F32], rows, 1.0, 1).1, 0.0);
            let op = OneOp::new(&[heads * (n + k)], |b, x| b.slice_heads("y", x[0], heads, n / 2, k));
            assert_eq!(one_op(&op, &[F32], rows, 1.0, 2).1, 0.0);
            let op = OneOp::new(&[heads * n, 5], |b, x| b.combine("y", x[0], x[1], 2, 1));
            assert!(one_op(&op, &[F32], rows, 1.0, 3).1 < EXACT);
        }
    }
}

#[test]
fn clamps_keep_nan() {
    let op = OneOp::new(&[65], |b, x| b.clamp("y", x[0], -0.5, 0.75));
    assert_eq!(one_op(&op, &[F32], 5, 1.0, 1).1, 0.0);
    let op = OneOp::new(&[3], |b, x| b.clamp("y", x[0], f32::NEG_INFINITY, 2.0));
    let result = on_cpu(&op, &Arc::default(), &[vec![f32::NAN, -1e30, 5.0]], 0..1, (1, Numerics::Exact));
    assert!(result[0].is_nan());
    assert_eq!(result[1..], [-1e30, 2.0]);
}

/// Latent attention: one key for all heads, and its first elements are the value.
#[test]
fn values_may_lie_within_keys() {
    for (heads, k_dim, v_dim) in [(1, 1, 1), (4, 24, 16), (3, 65, 65)] {
        let op = OneOp::new(&[heads * k_dim, k_dim], |b, x| {
            let group = b.group();
            let cache = b.cache(CacheSpec::Pages { group, kv_heads: 1, k_dim, v_dim, v_in_k: true, window: None });
            b.kv_write(cache, x[1], None);
            b.attend(x[0], cache, Mask::Causal, 0.3)
        });
        for rows in [1, 7, 95] {
            let (_, distance) = one_op(&op, &[F32], rows, 1.5, 1);
            assert!(distance < EXACT, "{heads} heads of {k_dim}, values of {v_dim}, {rows} rows: {distance:e}");
        }
    }
}

#[test]
fn what_is_no_routing_is_refused() {
    let groups = |count, kept| Some(Groups { count, kept, score: GroupScore::Best });
    let specs = [
        plain(4, 0),
        plain(4, 5),
        RouteSpec { groups: groups(3, 1), ..plain(4, 1) },
        RouteSpec { groups: groups(2, 1), ..plain(4, 3) },
        RouteSpec { groups: groups(0, 0), ..plain(4, 1) },
        RouteSpec { groups: groups(2, 3), ..plain(4, 1) },
    ];
    for spec in specs {
        let op = OneOp::new(&[4], |b, x| b.route("y", x[0], None, spec));
        assert!(op.program.check(&op.inputs).is_err(), "{spec:?}");
    }
    let op = OneOp::new(&[4, 2], |b, x| b.expert_linear("y", x[0], x[1], Vec::new(), Vec::new()));
    assert!(op.program.check(&op.inputs).is_err());
}
