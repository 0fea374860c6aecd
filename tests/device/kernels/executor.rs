//! The GPU executor: steps, caches and states keep their bits, and matrices are split at limits.

use super::*;

/// Blocks in use are moved to the start of the cache, and sequences go on from there with the same bits.
#[test]
fn gpu_a_compacted_cache_is_the_same_cache() {
    let program = llama(Shape::SMALL);
    let weights = random_weights(&program, &[F32], &mut Rng(15));
    let mut gpu = gpu(LAVAPIPE, &program, &weights, options(Numerics::Fast));
    let tokens = host(&(0..33).collect::<Vec<_>>());
    let old: [[&[u32]; 1]; 2] = [[&[30, 2, 17]], [&[0, 39, 8]]];
    let part = |slot: u32, table| SeqStep {
        outs: Outs::None,
        read_logits: false,
        ..rows(slot, Phase::Prefill, &tokens[slot as usize..32], 0, table)
    };
    run(&mut gpu, &[part(0, &old[0]), part(1, &old[1])]);
    let next = |tables: &[[&[u32]; 1]; 2], gpu: &mut GpuExecutor| {
        let seqs = [0, 1].map(|s| rows(s, Phase::Decode, &tokens[32..], 32 - s, &tables[s as usize]));
        run(gpu, &seqs).0
    };
    let expected = next(&old, &mut gpu);
    let moves = BlockMove::compact(&[30, 2, 17, 0, 39, 8]);
    let copies: Vec<_> =
        moves.iter().map(|m| CacheOp::Copy { group: GroupId(0), from: m.from.unwrap(), to: m.to }).collect();
    gpu.cache(&copies).unwrap();
    gpu.cache(&[6, 30, 39].map(|block| CacheOp::Zero { group: GroupId(0), block })).unwrap();
    let moved = |block: &u32| moves.iter().find(|m| m.from == Some(*block)).map_or(*block, |m| m.to);
    let new = old.map(|[table]| table.iter().map(moved).collect::<Vec<_>>());
    assert!(new.iter().flatten().all(|block| *block < 6), "{new:?}");
    let new: [[&[u32]; 1]; 2] = [[&new[0]], [&new[1]]];
    assert_eq!(next(&new, &mut gpu), expected);
}

/// Norms of heads, rotation and KV write are one dispatch of a layer, whoever's rows they are.
#[test]
fn gpu_norms_of_heads_are_folded_into_the_kv_write() {
    let program = llama(Shape { head_norms: true, layers: 30, ..Shape::SMALL });
    let weights = random_weights(&program, &[F32], &mut Rng(16));
    let mut gpu = gpu(LAVAPIPE, &program, &weights, options(Numerics::Fast));
    let tokens = host(&[1, 2]);
    for phase in Phase::ALL {
        run(&mut gpu, &[rows(0, phase, &tokens, 0, &[&[0]])]);
        let labels = gpu.labels(phase);
        let count = |name: &str| labels.iter().filter(|(label, _)| *label == name).count();
        assert_eq!((count("norm_rope_kv"), count("rope"), count("kv_write")), (30, 0, 0), "{phase:?}");
    }
}

/// A copy of a state goes on as the state itself.
#[test]
fn gpu_states_are_copied() {
    let program = mamba();
    let weights = random_weights(&program, &[F32], &mut Rng(15));
    let mut gpu = gpu(LAVAPIPE, &program, &weights, options(Numerics::Exact));
    let tokens = host(&(0..40).collect::<Vec<_>>());
    let part = |slot, span: std::ops::Range<usize>| {
        [rows(slot, Phase::Prefill, &tokens[span.clone()], span.start as u32, &[])]
    };
    run(&mut gpu, &part(2, 0..21));
    let checkpoint = limits().seqs + 1;
    gpu.cache(&[CacheOp::CopyState { from: 2, to: checkpoint }]).unwrap();
    let expected = run(&mut gpu, &part(2, 21..40)).0;
    gpu.cache(&[CacheOp::CopyState { from: checkpoint, to: 0 }]).unwrap();
    assert_ne!(run(&mut gpu, &part(2, 21..40)).0, expected, "the slot has gone on");
    assert_eq!(run(&mut gpu, &part(0, 21..40)).0, expected);
    assert!(gpu.cache(&[CacheOp::CopyState { from: 0, to: checkpoint + 1 }]).is_err());
}

/// Alone or batched, in one chunk or in many, one column of a matmul or eight: the same bits.
#[test]
fn gpu_batches_and_chunks_do_not_change_a_bit() {
    // Fast numerics have a device's best variants of matmul and attention: of 8 and 16 bits.
    for (form, numerics) in
        [LAVAPIPE, SWIFTSHADER].into_iter().flat_map(|f| [(f, Numerics::Exact), (f, Numerics::Fast)])
    {
        let program = llama(Shape::SMALL);
        let mut rng = Rng(7);
        let weights = random_weights(&program, &[Q8_0, F32], &mut rng);
        let tokens: Vec<_> = (0..45).map(|_| Token::Host(rng.below(193) as u32)).collect();
        for phase in Phase::ALL {
            let mut expected: Option<Vec<u32>> = None;
            for (chunk, mate) in [(45, false), (1, false), (7, false), (16, true), (8, true)] {
                let mut gpu = gpu(form, &program, &weights, options(numerics));
                let mut pool = Pool::new(&limits(), &mut rng);
                let [a, b] = [pool.table(90, &limits()), pool.table(90, &limits())];
                let [a, b] = [[a.as_slice()], [b.as_slice()]];
                let mut logits = Vec::new();
                for (i, part) in tokens.chunks(chunk).enumerate() {
                    let pos = (i * chunk) as u32;
                    let own = rows(0, phase, part, pos, &a);
                    let other = SeqStep { read_logits: false, ..rows(1, phase, &tokens[..3], 3 * i as u32, &b) };
                    let seqs = if mate { vec![other, own] } else { vec![own] };
                    logits.extend(run(&mut gpu, &seqs).0.iter().map(|x| x.to_bits()));
                }
                let expected = expected.get_or_insert_with(|| logits.clone());
                let what =
                    format!("{phase:?}, chunks of {chunk}, with another sequence: {mate}, {form:?}, {numerics:?}");
                assert!(*expected == logits, "{what}");
            }
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
    let seq = |slot: u32, phase, count: usize| SeqStep {
        outs: Outs::Last,
        sample: Some(SampleSpec::GREEDY),
        ..rows(slot, phase, &tokens[..count], 0, &tables[slot as usize])
    };
    let seqs = [seq(1, Phase::Prefill, 4), seq(0, Phase::Decode, 2), seq(2, Phase::Prefill, 3)];
    let (logits, sampled) = run(&mut gpu, &seqs);
    assert_eq!(sampled.iter().map(|d| d.slot).collect::<Vec<_>>(), [1, 0, 2]);
    for (row, sampled) in logits.chunks(193).zip(sampled) {
        let best = (0..193).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        assert_eq!(sampled.token, Some(best as u32));
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
            [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Phase::Prefill, &tokens[..16], 0, &old) }];
        let next = |tables| [rows(0, Phase::Decode, &tokens[16..], 16, tables)];
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
    let (n, k) = (70_000, 512); // 143 MB in f32; by default, a binding has 134 MB
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
    let mut gpu = gpu(FORMS[1], &program, &Arc::new(weights), all);
    let id = 69_999;
    let tokens = [Token::Host(id)];
    let seqs = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Phase::Decode, &tokens, 0, &[]) }];
    run(&mut gpu, &seqs);
    let got = pollster::block_on(gpu.value(Phase::Decode, op.out, 1)).unwrap();
    let x = rows_of(id as usize);
    let dot = |r: usize| rows_of(r).iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let wanted: Vec<f64> = (0..n as usize).map(dot).collect();
    assert!(nmse(&got, &wanted) < EXACT);
    assert!(gpu.labels(Phase::Decode).iter().filter(|(label, _)| *label == "matvec").count() > 1);
}

/// What a draft's verification needs: the bits of a row do not depend on how many others are in the step, nor on its place among them.
#[test]
fn gpu_rows_have_the_same_bits_in_company() {
    let in_f32 = BlockFormat::ALL.iter().map(|format| (*format, Numerics::Exact));
    let in_int8 = BlockFormat::ALL.iter().filter(|format| format.has_ints()).map(|format| (*format, Numerics::Fast));
    for (format, numerics) in in_f32.chain(in_int8) {
        let (n, k) = (33, 768);
        let op = OneOp::new(&[k], |b, x| {
            let w = b.weight("w", n, k);
            b.linear("y", x[0], w, None)
        });
        let mut rng = Rng(17);
        let weights = random_weights(&op.program, &[format], &mut rng);
        let x = rng.normals(9 * k as usize, 1.0);
        let options = GpuOptions { keep_values: true, ..options(numerics) };
        // On SwiftShader, which compiles for seconds, those that most models have.
        let most = [F32, F16, Q8_0, Q4_0, Q4_K, Q6_K].contains(&format);
        for form in if most { &[LAVAPIPE, SWIFTSHADER][..] } else { &[LAVAPIPE] } {
            let device = device(*form).tuned(cases::IN_INT8).unwrap();
            let mut quiet = |_, _| {};
            let load = GpuExecutor::load(&device, &op.program, &*weights, options, &mut quiet);
            let mut gpu = pollster::block_on(load).unwrap();
            // The bits of some of the nine rows, computed in one step.
            let mut bits = |at: std::ops::Range<usize>| {
                gpu.set_value(Phase::Decode, op.inputs[0], &x[at.start * k as usize..at.end * k as usize]);
                let tokens = host(&vec![0; at.len()]);
                let seq = rows(0, Phase::Decode, &tokens, 0, &[]);
                run(&mut gpu, &[SeqStep { outs: Outs::None, read_logits: false, ..seq }]);
                let got = pollster::block_on(gpu.value(Phase::Decode, op.out, at.len() as u32)).unwrap();
                got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone: Vec<_> = (0..9).map(|r| bits(r..r + 1)).collect();
            for at in [0..2, 1..4, 3..7, 2..7, 0..6, 1..8, 1..9, 0..9] {
                let what = format!("{format:?}, {numerics:?}, rows {at:?}, {form:?}");
                assert!(bits(at.clone()) == alone[at.clone()].concat(), "{what}");
            }
            let in_int8 = gpu.modules().iter().any(|module| module.contains("lib/matvec_int8"));
            assert_eq!(in_int8, numerics == Numerics::Fast, "{format:?}");
        }
    }
}

/// Vocabularies of real models, on a device that cannot bind all of the table at once.
#[test]
fn gpu_vocabularies_are_split_at_a_bindings_limit() {
    for (n, format) in [(152_064, F32), (262_144, Q8_0)] {
        let op = OneOp::new(&[], |b, _| {
            let x = b.embed("table", Index::Token, n, 32, 1.0);
            let w = b.weight("table", n, 32);
            b.linear("y", x, w, None)
        });
        let program = Program { vocab: n, ..op.program };
        let weights = random_weights(&program, &[format], &mut Rng(16));
        let limits = Limits { rows: 2, seqs: 2, outs: 2, ..limits() };
        let name = adapter::requested().unwrap_or_else(|| LAVAPIPE.adapter.to_owned());
        let choice = Choice { name: Some(name), max_binding: Some(4 << 20), ..Choice::default() };
        let device = pollster::block_on(Device::open(&choice)).unwrap();
        let options = GpuOptions { keep_values: true, limits, ..options(Numerics::Exact) };
        let mut quiet = |_, _| {};
        let load = GpuExecutor::load(&device, &program, &*weights, options, &mut quiet);
        let mut gpu = pollster::block_on(load).unwrap();
        let mut oracle = Oracle::new(&program, weights, limits);
        let tokens = host(&[n - 1, n / 2]);
        let seqs = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Phase::Decode, &tokens, 0, &[]) }];
        run(&mut gpu, &seqs);
        oracle.step(&Step { seqs: &seqs }).unwrap();
        let got = pollster::block_on(gpu.value(Phase::Decode, op.out, 2)).unwrap();
        assert!(nmse(&got, &oracle.value(op.out).concat()) < EXACT, "{n}");
        assert!(gpu.labels(Phase::Decode).iter().filter(|(label, _)| *label == "matvec").count() > 1);
    }
}

/// Every matrix in several buffers: the table, gate and up, and q, k, v, which must not be split inside a head.
#[test]
fn gpu_matrices_of_a_model_lie_in_pieces() {
    let program = llama(Shape { dim: 256, hidden: 160, ..Shape::SMALL });
    let mut rng = Rng(15);
    let weights = random_weights(&program, &[F32], &mut rng);
    let limits = Limits { rows: 12, seqs: 1, outs: 12, blocks: 4, context: 32, ..limits() };
    let name = adapter::requested().unwrap_or_else(|| LAVAPIPE.adapter.to_owned());
    // 72 rows of 256 weights, of which 64 are whole heads.
    let choice = Choice { name: Some(name), max_binding: Some(72 * 1024), ..Choice::default() };
    let device = pollster::block_on(Device::open(&choice)).unwrap();
    let options = GpuOptions { limits, ..options(Numerics::Exact) };
    let mut quiet = |_, _| {};
    let load = GpuExecutor::load(&device, &program, &*weights, options, &mut quiet);
    let mut gpu = pollster::block_on(load).unwrap();
    let mut oracle = Oracle::new(&program, weights, limits);
    let tokens = host(&[192, 3, 71, 72, 140, 9, 143, 144, 0]);
    for (phase, tokens, pos) in [(Phase::Prefill, &tokens[..7], 0), (Phase::Decode, &tokens[7..], 7)] {
        let seqs = [rows(0, phase, tokens, pos, &[&[2, 1]])];
        let wanted = oracle.step(&Step { seqs: &seqs }).unwrap().concat();
        assert!(nmse(&run(&mut gpu, &seqs).0, &wanted) < EXACT, "{phase:?}");
        let matvecs =
            gpu.labels(phase).iter().filter(|(label, _)| *label != "matmul" && label.starts_with("mat")).count();
        assert!(matvecs > 2, "{:?}", gpu.labels(phase));
    }
}
