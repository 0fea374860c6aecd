//! Every kernel against the f64 oracle, over odd shapes, in every form that an adapter has: both software adapters, with and
//! without subgroups, with wgpu's checks and without, the cache in f32 and f16, rows as prompt and as generated.

#[path = "support/programs.rs"]
mod programs;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use programs::*;
use wgslm::exec::{
    CacheOp, Drawn, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Role, SeqStep, Step, Token,
};
use wgslm::gpu::{Choice, Device, Kind};
use wgslm::model::Program;
use wgslm::ops::{
    Act, Attend, CpuWeights, GroupId, Index, Mask, NormKind, NormSpec, Op, Pairing, RopeSpec, SampleSpec,
};
use wgslm::quant::BlockFormat::{self, BF16, F16, F32, Q4_1, Q8_0};

/// NMSE of f32 arithmetic against f64: element by element, and where sums are long.
const EXACT: f64 = 1e-10;
/// NMSE with an f16 cache.
const HALF: f64 = 1e-6;

/// One way to run kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    adapter: &'static str,
    subgroups: bool,
    checked: bool,
}

const LAVAPIPE: Form = Form { adapter: "llvmpipe", subgroups: true, checked: false };
const SWIFTSHADER: Form = Form { adapter: "swiftshader", subgroups: true, checked: false };

/// All forms that matter, pair by pair: each adapter with each reduction, checks on once for each adapter.
const FORMS: [Form; 4] = [
    LAVAPIPE,
    Form { subgroups: false, checked: true, ..LAVAPIPE },
    SWIFTSHADER,
    Form { subgroups: false, checked: true, ..SWIFTSHADER },
];

/// A device, opened once for the tests of this process. It must be the adapter that was asked for.
fn device(form: Form) -> Device {
    static DEVICES: Mutex<Option<HashMap<Form, Device>>> = Mutex::new(None);
    let mut devices = DEVICES.lock().unwrap();
    let open = || {
        let choice = Choice {
            name: Some(form.adapter.to_owned()),
            no_subgroups: !form.subgroups,
            checked: form.checked,
            // Without features a device is what a host may hand us: WebGPU's defaults.
            default_limits: !form.subgroups,
            ..Choice::default()
        };
        let device =
            pollster::block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"));
        let caps = device.caps();
        assert!(caps.name.to_lowercase().contains(form.adapter), "{} is not {}", caps.name, form.adapter);
        assert_eq!(caps.kind, Kind::Software);
        assert_eq!(caps.subgroups.is_some(), form.subgroups, "{caps:?}");
        device
    };
    devices.get_or_insert_default().entry(form).or_insert_with(open).clone()
}

fn gpu(form: Form, program: &Program, weights: &Arc<CpuWeights>, options: GpuOptions) -> GpuExecutor {
    let gpu =
        pollster::block_on(GpuExecutor::load(&device(form), program, &**weights, options, &mut |_, _| {})).unwrap();
    gpu.fill_cache(0x7fc0_7e00); // NaN as f32, and as two f16
    gpu
}

fn options(numerics: Numerics) -> GpuOptions {
    GpuOptions { numerics, limits: limits(), unfused: false, keep_values: false }
}

/// Runs a step to its end; gives its logits and draws.
fn run(gpu: &mut GpuExecutor, seqs: &[SeqStep<'_>]) -> (Vec<f32>, Vec<Drawn>) {
    gpu.enqueue(&Step { seqs }).unwrap();
    let mut result = None;
    while result.is_none() {
        pollster::block_on(gpu.wait()).unwrap();
        gpu.poll(&mut |_, out| {
            let out = out.unwrap();
            result = Some((out.logits.clone(), out.drawn.clone()));
        });
    }
    result.unwrap()
}

/// Runs a program of one op on a device, with two sequences of `rows` rows in all; gives its result and the oracle's.
fn one_op(
    form: Form,
    numerics: Numerics,
    role: Role,
    op: &OneOp,
    formats: &[BlockFormat],
    rows: usize,
    deviation: f32,
) -> (Vec<f32>, Vec<f64>) {
    let mut rng = Rng(rows as u64 + 1);
    let weights = random_weights(&op.program, formats, &mut rng);
    let all = GpuOptions { unfused: true, keep_values: true, ..options(numerics) };
    let mut gpu = gpu(form, &op.program, &weights, all);
    let mut oracle = Oracle::new(&op.program, weights, limits());
    for &id in &op.inputs {
        let width = op.program.value(id).width as usize;
        let values = rng.normals(rows * width, deviation);
        gpu.set_value(role, id, &values);
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
        ..programs::rows(slot, role, tokens, 0, table)
    };
    let mut seqs = vec![seq(0, &tokens[..first], &tables[0])];
    if rows > first {
        seqs.push(seq(1, &tokens[first..], &tables[1]));
    }
    run(&mut gpu, &seqs);
    oracle.step(&Step { seqs: &seqs }).unwrap();
    let wanted = oracle.value(op.out).concat();
    let width = op.program.value(op.out).width as usize;
    let got = pollster::block_on(gpu.value(role, op.out, (wanted.len() / width) as u32)).unwrap();
    (got, wanted)
}

/// Runs an op in every form and role; its distance to the oracle must stay below the bound.
fn check(what: &str, op: &OneOp, formats: &[BlockFormat], rows: &[usize], deviation: f32, bound: f64) {
    for form in FORMS {
        for role in Role::ALL {
            for &rows in rows {
                let (got, wanted) = one_op(form, Numerics::Exact, role, op, formats, rows, deviation);
                assert_eq!(got.len(), wanted.len());
                let distance = nmse(&got, &wanted);
                assert!(distance <= bound, "{what}, {role:?}, {rows} rows, {form:?}: {distance:e}");
            }
        }
    }
}

#[test]
fn gpu_linear() {
    for (n, k, formats) in [
        (1, 1, &[F32][..]),
        (63, 65, &[F32, F16, BF16]),
        (65, 257, &[F32]),
        (257, 63, &[F16]),
        (33, 32, &[Q8_0, Q4_1]),
        (5, 1024, &[Q8_0, Q4_1, BF16]),
        (130, 288, &[Q8_0, Q4_1]),
    ] {
        for &format in formats {
            let op = OneOp::new(&[k], |b, x| {
                let w = b.weight("w", n, k);
                let bias = b.vector("b", n);
                b.linear("y", x[0], w, (n % 2 == 1).then_some(bias))
            });
            check(&format!("({n}, {k}) {format:?}"), &op, &[format], &[1, 9, 63], 1.0, EXACT);
        }
    }
}

/// Each format's decoder alone, and in the kernels of W x for few rows and for many.
#[test]
fn gpu_formats() {
    for &format in BlockFormat::ALL {
        for k in [format.info().weights as u32 * 3, 512] {
            let op = OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, k, 1.0));
            check(&format!("{format:?} of {k}"), &op, &[format], &[9], 1.0, 1e-12);
        }
        let op = OneOp::new(&[768], |b, x| {
            let w = b.weight("w", 33, 768);
            b.linear("y", x[0], w, None)
        });
        check(&format!("(33, 768) {format:?}"), &op, &[format], &[1, 9], 1.0, EXACT);
    }
}

#[test]
fn gpu_norm() {
    for kind in [NormKind::Rms, NormKind::Layer] {
        for (n, groups) in [(1, 1), (63, 1), (65, 3), (257, 2)] {
            let op = OneOp::new(&[n * groups], |b, x| {
                let weight = Some(norm_weight(b, n));
                let bias = (n % 2 == 1).then(|| b.vector("bias", n));
                b.norm("y", x[0], NormSpec { kind, n, weight, bias, eps: 1e-5 })
            });
            check(&format!("{kind:?} of {groups} groups of {n}"), &op, &[F32], &[7], 3.0, EXACT);
        }
    }
}

#[test]
fn gpu_pointwise() {
    for n in [1, 65, 257] {
        for act in [Act::Silu, Act::GeluErf, Act::GeluTanh, Act::Relu, Act::Relu2] {
            for deviation in [0.1, 1.0, 10.0] {
                let op = OneOp::new(&[n], |b, x| b.act("y", x[0], act));
                check(&format!("{act:?} of {n}, deviation {deviation}"), &op, &[F32], &[5], deviation, EXACT);
            }
        }
        let ops = [
            OneOp::new(&[n, n], |b, x| b.add("y", x[0], x[1])),
            OneOp::new(&[n, n], |b, x| b.mul("y", x[0], x[1])),
            OneOp::new(&[n], |b, x| b.scale("y", x[0], 0.37)),
        ];
        for op in ops {
            check(&op.program.listing(), &op, &[F32], &[5], 1.0, EXACT);
        }
    }
}

#[test]
fn gpu_rope() {
    for pairing in [Pairing::Interleaved, Pairing::Neox] {
        for (heads, head_dim, dims) in [(1, 2, 2), (3, 64, 64), (2, 65, 32), (5, 16, 6)] {
            let op = OneOp::new(&[heads * head_dim], |b, x| {
                let divisors = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
                let table = b.rope_table(divisors, 1.25);
                b.rope("y", x[0], head_dim, RopeSpec { table, pairing, dims })
            });
            check(&format!("{pairing:?} {heads} x {head_dim}, {dims} rotated"), &op, &[F32], &[63], 1.0, EXACT);
        }
    }
}

#[test]
fn gpu_moves_are_exact() {
    let ops = [
        OneOp::new(&[65], |b, x| b.slice("y", x[0], 7, 33)),
        OneOp::new(&[65], |b, x| b.pick(x[0])),
        OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, 96, 1.0)), // some ids are clamped
        OneOp::new(&[], |b, _| b.embed("table", Index::Position(2), 60, 63, 1.0)),
    ];
    for op in ops {
        for format in [F32, F16, Q8_0, Q4_1] {
            check(&op.program.listing(), &op, &[format], &[9], 1.0, 0.0);
        }
    }
}

/// Attention over pages that this step fills, with everything that an attend can have.
#[test]
fn gpu_attend() {
    for mask in [Mask::Causal, Mask::Window(5), Mask::Window(70), Mask::Full, Mask::Window(0)] {
        for (heads, kv_heads, k_dim, v_dim) in [(1, 1, 1, 1), (4, 2, 16, 16), (6, 1, 65, 63), (3, 3, 32, 8)] {
            for (softcap, sink) in [(0.0, false), (2.0, true)] {
                let op = OneOp::new(&[heads * k_dim, kv_heads * k_dim, kv_heads * v_dim], |b, x| {
                    let group = b.group();
                    let cache = b.pages(group, kv_heads, k_dim, v_dim, None);
                    b.kv_write(cache, x[1], x[2]);
                    let sinks = sink.then(|| b.vector("sinks", heads));
                    let out = b.attend(x[0], cache, mask, 1.3 / (k_dim as f32).sqrt());
                    let Op::Attend(attend) = last_op(b) else { unreachable!() };
                    *attend = Attend { softcap, sinks, ..attend.clone() };
                    out
                });
                let what = format!("{mask:?} {heads}/{kv_heads} {k_dim}/{v_dim}, cap {softcap}");
                for form in [LAVAPIPE, FORMS[3]] {
                    for rows in [1, 95] {
                        for (numerics, bound) in [(Numerics::Exact, EXACT), (Numerics::Fast, HALF)] {
                            let (got, wanted) = one_op(form, numerics, Role::Prompt, &op, &[F32], rows, 1.5);
                            let distance = nmse(&got, &wanted);
                            assert!(distance <= bound, "{what}, {rows} rows, {numerics:?}, {form:?}: {distance:e}");
                        }
                    }
                }
            }
        }
    }
}

/// Whole models over shuffled pages full of NaN: a prompt, a second sequence that joins late, then both generate in one step;
/// every logit against the oracle, fused and unfused.
#[test]
fn gpu_programs_agree_with_the_oracle() {
    let shape = Shape::SMALL;
    let odd = Shape { dim: 96, heads: 3, kv_heads: 1, head_dim: 40, hidden: 257, window: Some(20), ..shape };
    let cases = [
        (llama(shape), &[F32][..]),
        (llama(Shape { pairing: Pairing::Interleaved, ..shape }), &[Q8_0, F16]),
        (llama(odd), &[Q4_1, BF16, F32]),
        (gpt2(shape), &[F32, Q8_0]),
    ];
    for (index, (program, formats)) in cases.iter().enumerate() {
        for (form, numerics, unfused) in [
            (LAVAPIPE, Numerics::Exact, false),
            (LAVAPIPE, Numerics::Exact, true),
            (LAVAPIPE, Numerics::Fast, false),
            (FORMS[1], Numerics::Exact, false),
            (SWIFTSHADER, Numerics::Fast, false),
            (FORMS[3], Numerics::Exact, false),
        ] {
            let mut rng = Rng(index as u64 + 100);
            let weights = random_weights(program, formats, &mut rng);
            let mut gpu = gpu(form, program, &weights, GpuOptions { unfused, ..options(numerics) });
            let mut oracle = Oracle::new(program, weights, limits());
            let mut pool = Pool::new(&limits(), &mut rng);
            let tables = [pool.table(200, &limits()), pool.table(200, &limits())];
            let [a, b] = tables.each_ref().map(|table| [table.as_slice()]);
            let tokens: Vec<_> = (0..90).map(|_| Token::Host(rng.below(shape.vocab as usize) as u32)).collect();
            let (generated, prompt) = (Role::Generated, Role::Prompt);
            let steps: &[&[SeqStep<'_>]] = &[
                &[rows(0, prompt, &tokens[..70], 0, &a)],
                &[rows(0, generated, &tokens[70..71], 70, &a), rows(1, prompt, &tokens[10..43], 0, &b)],
                &[rows(0, generated, &tokens[71..72], 71, &a), rows(1, generated, &tokens[43..44], 33, &b)],
                &[rows(0, generated, &tokens[72..84], 72, &a), rows(1, prompt, &tokens[44..60], 34, &b)],
            ];
            let bound = if numerics == Numerics::Exact { EXACT } else { 1e-5 };
            for (i, seqs) in steps.iter().enumerate() {
                let (logits, _) = run(&mut gpu, seqs);
                let distance = nmse(&logits, &oracle.step(&Step { seqs }).unwrap().concat());
                assert!(
                    distance < bound,
                    "case {index}, {form:?}, {numerics:?}, unfused {unfused}, step {i}: {distance:e}"
                );
            }
            let (_, bindings, _) = gpu.counts(generated);
            assert!(bindings <= 8);
        }
    }
}

/// Alone or in company, in one chunk or in many, one column of a product or eight: the same bits.
#[test]
fn gpu_batches_and_chunks_do_not_change_a_bit() {
    for form in [LAVAPIPE, SWIFTSHADER] {
        let program = llama(Shape::SMALL);
        let mut rng = Rng(7);
        let weights = random_weights(&program, &[Q8_0, F32], &mut rng);
        let tokens: Vec<_> = (0..45).map(|_| Token::Host(rng.below(193) as u32)).collect();
        for role in Role::ALL {
            let mut expected: Option<Vec<u32>> = None;
            for (chunk, mate) in [(45, false), (1, false), (7, false), (16, true), (8, true)] {
                let mut gpu = gpu(form, &program, &weights, options(Numerics::Exact));
                let mut pool = Pool::new(&limits(), &mut rng);
                let [a, b] = [pool.table(90, &limits()), pool.table(90, &limits())];
                let [a, b] = [[a.as_slice()], [b.as_slice()]];
                let mut logits = Vec::new();
                for (i, part) in tokens.chunks(chunk).enumerate() {
                    let pos = (i * chunk) as u32;
                    let own = rows(0, role, part, pos, &a);
                    let other = SeqStep { read_logits: false, ..rows(1, role, &tokens[..3], 3 * i as u32, &b) };
                    let seqs = if mate { vec![other, own] } else { vec![own] };
                    logits.extend(run(&mut gpu, &seqs).0.iter().map(|x| x.to_bits()));
                }
                let expected = expected.get_or_insert_with(|| logits.clone());
                assert!(*expected == logits, "{role:?}, chunks of {chunk}, with another sequence: {mate}, {form:?}");
            }
        }
    }
}

#[test]
fn gpu_draws_feed_the_next_step_and_are_the_cpus() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[Q8_0], &mut Rng(11));
    let table: Vec<u32> = (0..16).rev().collect();
    let tables = [table.as_slice()];
    let prompt = host(&[3, 1, 4, 1, 5]);
    for form in [LAVAPIPE, SWIFTSHADER] {
        for sample in [SampleSpec::GREEDY, SampleSpec { temperature: 0.8, seed: 99 }] {
            // Two steps under way, the token never seen by the host.
            let mut gpu = gpu(form, &program, &weights, options(Numerics::Exact));
            let mut tokens = Vec::new();
            let mut take = |gpu: &mut GpuExecutor| {
                gpu.poll(&mut |_, out| tokens.extend(out.unwrap().drawn.iter().map(|d| d.token)));
            };
            gpu.enqueue(&Step { seqs: &[drawing(rows(2, Role::Prompt, &prompt, 0, &tables), sample)] }).unwrap();
            for pos in 5..25 {
                let next = [drawing(rows(2, Role::Generated, &[Token::Drawn], pos, &tables), sample)];
                gpu.enqueue(&Step { seqs: &next }).unwrap();
                pollster::block_on(gpu.wait()).unwrap();
                take(&mut gpu);
            }
            pollster::block_on(gpu.wait()).unwrap();
            take(&mut gpu);
            let cpu_options =
                wgslm::exec::CpuOptions { numerics: Numerics::Exact, ..wgslm::exec::CpuOptions::new(limits()) };
            let mut cpu = wgslm::exec::CpuExecutor::new(&program, weights.clone(), cpu_options).unwrap();
            let mut expected = Vec::new();
            cpu.enqueue(&Step { seqs: &[drawing(rows(2, Role::Prompt, &prompt, 0, &tables), sample)] }).unwrap();
            for pos in 5..25 {
                let next = [drawing(rows(2, Role::Generated, &[Token::Drawn], pos, &tables), sample)];
                cpu.enqueue(&Step { seqs: &next }).unwrap();
                cpu.poll(&mut |_, out| expected.extend(out.unwrap().drawn.iter().map(|d| d.token)));
            }
            cpu.poll(&mut |_, out| expected.extend(out.unwrap().drawn.iter().map(|d| d.token)));
            assert_eq!(tokens, expected, "{form:?} {sample:?}");
            assert_eq!(tokens.len(), 21);
        }
    }
}

#[test]
fn gpu_logits_that_are_not_finite_draw_nothing() {
    let program = llama(Shape::SMALL);
    let mut weights = (*random_weights(&program, &[F32], &mut Rng(13))).clone();
    for form in [LAVAPIPE, SWIFTSHADER] {
        for broken in [f32::NAN, f32::INFINITY] {
            let last = weights.vectors.len() - 1;
            weights.vectors[last][5] = broken; // the last norm's
            let mut gpu = gpu(form, &program, &Arc::new(weights.clone()), options(Numerics::Exact));
            let tokens = host(&[1, 2]);
            let seqs = [drawing(rows(0, Role::Prompt, &tokens, 0, &[&[0]]), SampleSpec::GREEDY)];
            assert_eq!(run(&mut gpu, &seqs).1, [Drawn { slot: 0, token: None }], "{form:?} {broken}");
        }
    }
}

#[test]
fn gpu_results_come_in_the_order_of_the_step() {
    let program = gpt2(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(12));
    let mut gpu = gpu(LAVAPIPE, &program, &weights, options(Numerics::Exact));
    let tables: [[&[u32]; 1]; 3] = [[&[0, 1]], [&[5, 4]], [&[9, 8]]];
    let tokens = host(&[8, 6, 7, 5]);
    let seq = |slot: u32, role, count: usize| SeqStep {
        outs: Outs::Last,
        sample: Some(SampleSpec::GREEDY),
        ..rows(slot, role, &tokens[..count], 0, &tables[slot as usize])
    };
    let seqs = [seq(1, Role::Prompt, 4), seq(0, Role::Generated, 2), seq(2, Role::Prompt, 3)];
    let (logits, drawn) = run(&mut gpu, &seqs);
    assert_eq!(drawn.iter().map(|d| d.slot).collect::<Vec<_>>(), [1, 0, 2]);
    for (row, drawn) in logits.chunks(193).zip(drawn) {
        let best = (0..193).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        assert_eq!(drawn.token, Some(best as u32));
    }
}

#[test]
fn gpu_cache_ops_run_in_order_with_steps() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(14));
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let mut gpu = gpu(LAVAPIPE, &program, &weights, options(numerics));
        let tokens = host(&(0..17).collect::<Vec<_>>());
        let [old, new]: [[&[u32]; 1]; 2] = [[&[3, 4]], [&[9, 10]]];
        let prompt =
            [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Role::Prompt, &tokens[..16], 0, &old) }];
        let next = |tables| [rows(0, Role::Generated, &tokens[16..], 16, tables)];
        run(&mut gpu, &prompt);
        let expected = run(&mut gpu, &next(&old)).0;
        gpu.cache(&[CacheOp::Copy { group: GroupId(0), from: 3, to: 9 }]).unwrap();
        assert_eq!(run(&mut gpu, &next(&new)).0, expected);
        gpu.cache(&[CacheOp::Zero { group: GroupId(0), block: 9 }]).unwrap();
        assert_ne!(run(&mut gpu, &next(&new)).0, expected);
        assert!(gpu.cache(&[CacheOp::Zero { group: GroupId(0), block: 40 }]).is_err());
    }
}

/// A matrix over a binding's limit lies in several buffers, and a vocabulary in several dispatches.
#[test]
fn gpu_matrices_are_split_at_a_bindings_limit() {
    let (n, k) = (70_000, 512); // 143 MB in f32; lavapipe binds 134 MB
    let op = OneOp::new(&[], |b, _| {
        let x = b.embed("table", Index::Token, n, k, 1.0);
        let w = b.weight("table", n, k);
        b.linear("y", x, w, None)
    });
    let mut rng = Rng(3);
    let pattern = rng.normals(4096 + k as usize, 0.1);
    let rows_of = |r: usize| &pattern[r * 7 % 4096..r * 7 % 4096 + k as usize];
    let values: Vec<f32> = (0..n as usize).flat_map(|r| rows_of(r).to_vec()).collect();
    let weights = CpuWeights { matrices: vec![matrix(F32, n, k, &values)], vectors: Vec::new() };
    let small = Limits { rows: 2, outs: 2, ..limits() };
    let all = GpuOptions { keep_values: true, limits: small, ..options(Numerics::Exact) };
    let mut program = op.program.clone();
    program.vocab = n;
    let mut gpu = gpu(LAVAPIPE, &program, &Arc::new(weights), all);
    let id = 69_999;
    let tokens = [Token::Host(id)];
    let seqs = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Role::Generated, &tokens, 0, &[]) }];
    run(&mut gpu, &seqs);
    let got = pollster::block_on(gpu.value(Role::Generated, op.out, 1)).unwrap();
    let x = rows_of(id as usize);
    let dot = |r: usize| rows_of(r).iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let wanted: Vec<f64> = (0..n as usize).map(dot).collect();
    assert!(nmse(&got, &wanted) < EXACT);
    assert!(gpu.labels(Role::Generated).iter().filter(|(label, _)| *label == "matvec").count() > 1);
}
