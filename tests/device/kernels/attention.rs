//! Attention: over executors' caches and callers', however tokens are looked up and the KV is split, and what it refuses.

use super::*;
use wgslm_test::cases::cache::{By, CacheCase};

/// V1 keeps a score for every position: where a workgroup's memory does not do, the error names the form that needs none.
#[test]
fn gpu_v1_attention_refuses_long_contexts() {
    let device = device(FORMS[3]); // WebGPU's limits: 16 KiB
    let attend = |blocks: u32, layout| {
        let step = StepBuffer::new(&device, StepLimits { blocks, ..StepLimits::default() }).unwrap();
        let (kv_heads, k_dim, v_dim, slots) = (1, 64, 64, 16);
        let shape = CacheShape { kv_heads, k_dim, v_dim, slots, blocks, storage: KvStorage::F16, layout };
        let buffer = |bytes| Buffer::new(&device, "b", bytes).unwrap();
        let mut pipelines = Pipelines::new(&device);
        let mut single = Single::new(&mut pipelines, &step);
        single.v1();
        let [q, out] = [0; 2].map(|_| single.value(&buffer(256), 64).unwrap());
        let kv = Kv::Cache(single.cache(&buffer(shape.bytes()), shape).unwrap());
        single.add(Op::Attend(attend_of(q, out, kv, 64)))?;
        single.finish()
    };
    // How many scores there is capacity for depends on the threads of a workgroup, which the error reports with the memory.
    let Err(Error::Limit { available, instead, .. }) = attend(4096, KvLayout::Vectorised) else {
        panic!("capacity for 65536 scores")
    };
    assert!(instead.contains("V2"), "{instead}");
    let most: u32 = available.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert_eq!(attend(most / 16, KvLayout::Vectorised).unwrap().dispatches.len(), 1);
    assert!(matches!(attend(most / 16 + 1, KvLayout::Vectorised), Err(Error::Limit { .. })));
    assert!(attend(4, KvLayout::Paged).unwrap_err().to_string().contains("vectorised"));
}

/// V1 knows no trees, whether it is chosen before attention is added or after.
#[test]
fn gpu_v1_attention_refuses_trees() {
    let device = device(LAVAPIPE);
    let step =
        StepBuffer::new(&device, StepLimits { rows: 4, blocks: 2, tree: true, ..StepLimits::default() }).unwrap();
    let (storage, layout) = (KvStorage::F16, KvLayout::Vectorised);
    let shape = CacheShape { kv_heads: 1, k_dim: 8, v_dim: 8, slots: 16, blocks: 2, storage, layout };
    let buffer = |bytes| Buffer::new(&device, "b", bytes).unwrap();
    for first in [true, false] {
        let mut pipelines = Pipelines::new(&device);
        let mut single = Single::new(&mut pipelines, &step);
        let [q, out] = [0; 2].map(|_| single.value(&buffer(256), 8).unwrap());
        let kv = Kv::Cache(single.cache(&buffer(shape.bytes()), shape).unwrap());
        if first {
            single.v1();
        }
        let added = single.add(Op::Attend(attend_of(q, out, kv, 8)));
        single.v1();
        let error = added.and_then(|()| single.finish().map(drop)).unwrap_err();
        assert!(error.to_string().contains("tree"), "{error}");
    }
}

/// Values within keys are not stored in 8 bits: known from the program alone.
#[test]
fn gpu_refuses_latent_attention_in_int8() {
    let latent = AttendCase { kv_source: cases::attend::KvSource::Latent, ..AttendCase::PLAIN }.op().program;
    assert!(latent.on_gpu(KvStorage::F16).is_ok());
    assert!(latent.on_gpu(KvStorage::Q8).unwrap_err().to_string().contains("--device cpu"));
    assert!(AttendCase::PLAIN.op().program.on_gpu(KvStorage::Q8).is_ok());
}

/// Seeded pages hold the same numbers on a GPU, where heads of 6 elements are padded, and on the CPU.
#[test]
fn gpu_seeded_pages_are_the_cpus() {
    let program = llama(Shape { head_dim: 6, ..Shape::SMALL });
    let weights = random_weights(&program, &[F32], &mut Rng(21));
    let tokens = host(&[7]);
    let table: Vec<u32> = (0..16).rev().collect();
    let tables = [table.as_slice()];
    for kv in KvStorage::ALL {
        let options = GpuOptions { kv: Some(kv), ..options(Numerics::Exact) };
        let mut gpu = gpu(LAVAPIPE, &program, &weights, options);
        gpu.seed_caches(3);
        let seqs = [rows(0, Phase::Decode, &tokens, 200, &tables)];
        let (got, _) = run(&mut gpu, &seqs);
        let options = CpuOptions { numerics: Numerics::Exact, kv: Some(kv), ..CpuOptions::new(limits()) };
        let mut cpu = CpuExecutor::new(&program, weights.clone(), options).unwrap();
        cpu.seed_caches(3);
        cpu.enqueue(&Step { seqs: &seqs }).unwrap();
        pollster::block_on(cpu.wait()).unwrap();
        let mut wanted = Vec::new();
        cpu.poll(&mut |_, out| wanted.extend(out.unwrap().logits.iter().copied().map(f64::from)));
        let distance = nmse(&got, &wanted);
        assert!(distance < 1e-4, "{kv:?}: {distance:e}");
    }
}

#[test]
fn gpu_attend() {
    check_all_forms(&cases::attend());
}

/// A value that is infinite or NaN reaches the tokens that attend to it, and no others of its tile.
#[test]
fn gpu_attention_keeps_broken_values_to_the_rows_that_see_them() {
    let results = |form, case: &AttendCase| pollster::block_on(case.outputs(&device(form), Numerics::Exact)).0;
    let [heads, dim] = [3, 16];
    for (form, window, phase, (first, rows), broken) in [
        (LAVAPIPE, None, Phase::Prefill, (0, 21), 10),
        (LAVAPIPE, Some(5), Phase::Prefill, (60, 21), 66),
        (LAVAPIPE, Some(5), Phase::Prefill, (60, 21), 58),
        (LAVAPIPE, None, Phase::Decode, (30, 4), 32),
        (SWIFTSHADER, Some(9), Phase::Prefill, (0, 21), 3),
    ] {
        let mask = window.map_or(Mask::Causal, Mask::Window);
        let shape = [heads, 1, dim, dim];
        let whole =
            AttendCase { shape, mask, phase, seqs: vec![(first, rows)], by_position: true, ..AttendCase::PLAIN };
        let case = AttendCase { broken: Some(broken), ..whole.clone() };
        let [got, wanted] = [&case, &whole].map(|case| results(form, case));
        let width = (heads * dim) as usize;
        for (own, (got, wanted)) in (first..).zip(got.chunks(width).zip(wanted.chunks(width))) {
            match own >= broken && own - broken < window.unwrap_or(u32::MAX) {
                true => assert!(got.iter().all(|x| !x.is_finite()), "{case:?}: position {own}"),
                false => assert_eq!(got, wanted, "{case:?}: position {own}"),
            }
        }
    }
}

#[test]
fn gpu_attend_to_any_cache() {
    let cases = cases::attend_caches();
    check_adapters(&cases);
    // V1 and trees with subgroups of four.
    check(SWIFTSHADER, cases.iter().step_by(5)); // storage, layout and kernel come in threes and twos
}

/// The k + 1 tokens of a draft as one sequence, or as sequences of one token over the same pages: the same bits. An invalid
/// tree is refused.
#[test]
fn gpu_drafts_are_verified_as_units_too() {
    let (heads, kv_heads, dim, slots, first, rows) = (3u32, 1u32, 32u32, 16u32, 37u32, 5u32);
    for form in [LAVAPIPE, SWIFTSHADER] {
        let device = device(form);
        let mut rng = Rng(3);
        let (storage, layout) = (KvStorage::F32, KvLayout::Paged);
        let shape = CacheShape { kv_heads, k_dim: dim, v_dim: dim, slots, blocks: 5, storage, layout };
        let table = [4, 1, 2];
        let filled = |n: u64, rng: &mut Rng| {
            let buffer = Buffer::new(&device, "b", n * 4).unwrap();
            buffer.write(&device, 0, &rng.normals(n as usize, 1.0));
            buffer
        };
        let cache = filled(shape.bytes() / 4, &mut rng);
        let q = filled(u64::from(rows * heads * dim), &mut rng);
        let result = |units: bool| {
            let seqs = if units { rows } else { 1 };
            let limits = StepLimits { rows, seqs, blocks: 3, slots, pos_ids: units, ..StepLimits::default() };
            let step = StepBuffer::new(&device, limits).unwrap();
            let places: Vec<_> = (0..rows).map(|seq| RowPos { pos: first + seq, seq }).collect();
            let counts = match units {
                true => step.write_rows(&device, &places, &vec![table.as_slice(); rows as usize]),
                false => step.write_run(&device, rows, first, &table),
            };
            let out = Buffer::new(&device, "out", u64::from(rows * heads * dim) * 4).unwrap();
            let mut pipelines = Pipelines::new(&device);
            let mut single = Single::new(&mut pipelines, &step);
            single.by_rows();
            let (q, to) = (single.value(&q, heads * dim).unwrap(), single.value(&out, heads * dim).unwrap());
            let kv = Kv::Cache(single.cache(&cache, shape).unwrap());
            single.add(Op::Attend(Attend { heads, kv_heads, ..attend_of(q, to, kv, dim) })).unwrap();
            single.finish().unwrap().submit(&device, counts.unwrap());
            pollster::block_on(out.read::<u32>(&device, 0..u64::from(rows * heads * dim))).unwrap()
        };
        assert!(result(true) == result(false), "{form:?}");
    }
    let device = device(LAVAPIPE);
    let step = StepBuffer::new(&device, StepLimits { rows: 4, tree: true, ..StepLimits::default() }).unwrap();
    assert!(step.write_tree(&device, 9, &[0b1, 0b11, 0b101], &[]).is_ok());
    assert!(step.write_tree(&device, 9, &[0b1, 0b10, 0b111], &[]).is_err(), "two parents");
    assert!(step.write_tree(&device, 9, &[0b1, 0b01], &[]).is_err(), "not on its own way");
    assert!(step.write_tree(&device, 9, &[0b11, 0b10], &[]).is_err(), "a child before its parent");
    assert!(step.write_tree(&device, 9, &[], &[]).is_err());
}

/// Attention over random pages by the rows of a step, whose queries are given: what it is, what it should be, and whether sequences
/// were searched for.
fn attended(
    device: &Device,
    layout: KvLayout,
    split_kv: bool,
    places: &[RowPos],
    q: &[f32],
    choose: fn(&mut Single<'_>),
) -> (Vec<f32>, Vec<f32>, bool) {
    let (kv_heads, dim, slots, storage) = (1u32, 8u32, 16u32, KvStorage::F32);
    let shape = CacheShape { kv_heads, k_dim: dim, v_dim: dim, slots, blocks: 60, storage, layout };
    let (rows, seqs) = (places.len() as u32, places.iter().map(|p| p.seq + 1).max().unwrap());
    let limits = StepLimits { rows, seqs, blocks: 50, slots, pos_ids: true, split_kv, ..StepLimits::default() };
    let step = StepBuffer::new(device, limits).unwrap();
    let tables: Vec<Vec<u32>> = (0..seqs).map(|s| (0..50).map(|b| (7 * b + 11 * s) % 60).collect()).collect();
    let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
    let counts = step.write_rows(device, places, &tables).unwrap();
    let kept = Rng(7).normals(shape.bytes() as usize / 4, 1.0);
    let cache = Buffer::new(device, "kv", shape.bytes()).unwrap();
    cache.write(device, 0, &kept);
    let [from, to] = [0; 2].map(|_| Buffer::new(device, "b", q.len() as u64 * 4).unwrap());
    from.write(device, 0, q);
    let mut pipelines = Pipelines::new(device);
    let mut single = Single::new(&mut pipelines, &step);
    choose(&mut single);
    let [x, out] = [&from, &to].map(|buffer| single.value(buffer, 3 * dim).unwrap());
    let kv = Kv::Cache(single.cache(&cache, shape).unwrap());
    single.add(Op::Attend(Attend { heads: 3, ..attend_of(x, out, kv, dim) })).unwrap();
    let plan = single.finish().unwrap();
    plan.submit(device, counts);
    let searches = plan.dispatches.iter().any(|dispatch| dispatch.overrides.contains(&("SEARCH", true.into())));
    assert_eq!(counts.split_rows > 0, split_kv);
    let got = pollster::block_on(to.read(device, 0..q.len() as u64)).unwrap();
    // In f64, each row over the pages of its sequence.
    let element = |at: u64| f64::from(kept[at as usize]);
    let mut wanted = Vec::new();
    for (row, place) in q.chunks(24).zip(places) {
        let at = |pos: u32| ((7 * (pos / slots) + 11 * place.seq) % 60, pos % slots);
        for head in row.chunks(8) {
            let score = |pos: u32| {
                let (block, slot) = at(pos);
                let product = |i: usize| f64::from(head[i]) * element(shape.k_element(block, 0, slot, i as u32));
                f64::from(0.1f32) * (0..8).map(product).sum::<f64>()
            };
            let scores: Vec<f64> = (0..=place.pos).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
            wanted.extend((0..8).map(|i| {
                let value = |pos: u32| element(shape.v_element(at(pos).0, 0, at(pos).1, i));
                (0..=place.pos).map(|pos| (scores[pos as usize] - most).exp() / total * value(pos)).sum::<f64>() as f32
            }));
        }
    }
    (got, wanted, searches)
}

/// The rows of sequences of 1, 0, 9 and 1 rows.
fn uneven() -> Vec<RowPos> {
    let run = |seq, first: u32, rows: u32| (first..first + rows).map(move |pos| RowPos { pos, seq });
    run(0, 700, 1).chain(run(2, 300, 9)).chain(run(3, 0, 1)).collect()
}

const LOOKS: [fn(&mut Single<'_>); 3] = [|s| s.by_rows(), |_| {}, |s| s.v1()];

/// The sequence of a token or tile is searched for or looked up, the KV is split or not: the same bits, and near f64.
#[test]
fn gpu_single_attention_is_the_same_however_rows_are_found() {
    let places = uneven();
    let q = Rng(8).normals(24 * places.len(), 1.0);
    let searched_rows: fn(&mut Single<'_>) = |s| {
        s.by_rows();
        s.search();
    };
    for form in FORMS {
        let run = |split_kv, choose| attended(&device(form), KvLayout::Paged, split_kv, &places, &q, choose);
        let (rows, wanted, _) = run(false, LOOKS[0]);
        let wanted: Vec<f64> = wanted.into_iter().map(f64::from).collect();
        assert!(nmse(&rows, &wanted) < 1e-9, "{form:?}");
        let same =
            |(got, _, searches): (Vec<f32>, _, bool), rows: &[f32], searched| got == rows && searches == searched;
        assert!(same(run(true, LOOKS[0]), &rows, false), "{form:?}: parts");
        assert!(same(run(false, searched_rows), &rows, true), "{form:?}: rows, searched");
        assert!(same(run(true, searched_rows), &rows, true), "{form:?}: parts, searched");
        let tiles = run(false, LOOKS[1]).0;
        assert!(nmse(&tiles, &wanted) < 1e-9, "{form:?}");
        assert!(same(run(false, |s| s.search()), &tiles, true), "{form:?}: tiles, searched");
    }
}

/// A query that is infinite or NaN spoils its own row and no other; a huge one attends to the position that it points at.
#[test]
fn gpu_attention_keeps_extreme_queries_to_their_rows() {
    let places = uneven();
    let plain = Rng(8).normals(24 * places.len(), 1.0);
    for form in [LAVAPIPE, SWIFTSHADER] {
        for (look, layout) in LOOKS.into_iter().zip([KvLayout::Paged, KvLayout::Paged, KvLayout::Vectorised]) {
            let run = |q: &[f32]| attended(&device(form), layout, false, &places, q, look);
            let (calm, ..) = run(&plain);
            for (row, extreme) in [(0, f32::NAN), (3, f32::INFINITY), (5, f32::NEG_INFINITY), (8, 1e30), (2, -3e33)] {
                let mut q = plain.clone();
                q[24 * row + 9] = extreme; // of the second head
                let (got, wanted, _) = run(&q);
                for (i, (got, calm)) in got.iter().zip(&calm).enumerate() {
                    match i / 8 == 3 * row + 1 {
                        true if extreme.abs() < 1e38 => {
                            assert!(
                                (got - wanted[i]).abs() < 1e-5,
                                "{form:?} {layout:?} {extreme}: {got} {}",
                                wanted[i]
                            );
                        }
                        true => assert!(!got.is_finite(), "{form:?} {layout:?} {extreme}: {got}"),
                        false => assert_eq!(got, calm, "{form:?} {layout:?} {extreme}: element {i}"),
                    }
                }
            }
        }
    }
}

/// A score of minus infinity has weight 0, the lowest finite scores have some, and a row of minus infinities alone gives zeros:
/// on the GPU, on the CPU, by the oracle.
#[test]
fn gpu_attention_without_a_finite_score_is_zeros() {
    for sinks in [false, true] {
        let op = AttendCase { shape: [2, 1, 4, 4], sinks, ..AttendCase::PLAIN }.op();
        let weights = random_weights(&op.program, &[F32], &mut Rng(4));
        let mut rng = Rng(5);
        let mut inputs: Vec<_> =
            op.inputs.iter().map(|&id| rng.normals(5 * op.program.value(id).width as usize, 1.0)).collect();
        let (q, rest) = inputs.split_first_mut().unwrap();
        for (r, (q, k)) in q.chunks_mut(8).zip(rest[0].chunks_mut(4)).enumerate() {
            (q[0], q[4]) = ([1.0, f32::NEG_INFINITY, -1e35, 1.0, 1.0][r], 0.5);
            k[0] = [1.0, 2.0, 0.5, f32::NEG_INFINITY, 3.0][r];
        }
        let tokens = host(&[0; 5]);
        let seqs = |phase| [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, phase, &tokens, 0, &[&[2]]) }];
        let mut oracle = Oracle::new(&op.program, weights.clone(), limits());
        let on_cpu =
            CpuOptions { numerics: Numerics::Exact, keep_values: true, fuse: false, ..CpuOptions::new(limits()) };
        let mut cpu = CpuExecutor::new(&op.program, weights.clone(), on_cpu).unwrap();
        for (&id, values) in op.inputs.iter().zip(&inputs) {
            let rows = values.chunks(values.len() / 5).map(|row| row.iter().copied().map(f64::from).collect());
            oracle.set_value(id, rows.collect());
            cpu.set_value(id, values).unwrap();
        }
        oracle.step(&Step { seqs: &seqs(Phase::Prefill) }).unwrap();
        cpu.enqueue(&Step { seqs: &seqs(Phase::Prefill) }).unwrap();
        assert_eq!(cpu.poll(&mut |_, out| assert!(out.is_ok())), 1);
        let wanted = oracle.value(op.out).concat();
        let mut all = vec![("CPU".to_owned(), cpu.value(op.out).unwrap().to_vec())];
        for form in [LAVAPIPE, SWIFTSHADER] {
            for phase in Phase::ALL {
                let options = GpuOptions { unfused: true, keep_values: true, ..options(Numerics::Exact) };
                let mut gpu = gpu(form, &op.program, &weights, options);
                op.inputs.iter().zip(&inputs).for_each(|(&id, values)| gpu.set_value(phase, id, values));
                run(&mut gpu, &seqs(phase));
                all.push((format!("{form:?} {phase:?}"), pollster::block_on(gpu.value(phase, op.out, 5)).unwrap()));
            }
        }
        assert_eq!(wanted[8..12], [0.0; 4]);
        for (what, got) in all {
            assert_eq!(got[8..12], [0.0; 4], "{what}");
            assert!(nmse(&got, &wanted) < EXACT, "{what}: {got:?} for {wanted:?}");
        }
    }
}

/// With split KV or without, batched or alone, with a tile looked up or searched for: the same bits.
#[test]
fn gpu_attention_does_not_depend_on_how_it_is_divided() {
    let bits = |form, case: &AttendCase| {
        let (got, _, _) = pollster::block_on(case.outputs(&device(form), Numerics::Fast));
        got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    for form in [LAVAPIPE, SWIFTSHADER] {
        let plain = AttendCase { shape: [3, 1, 32, 32], sinks: true, by_position: true, ..AttendCase::PLAIN };
        // For the 35 tokens of one sequence the KV is not split; for its last token alone it is.
        let [heads, dim] = [3, 32];
        let many = bits(form, &AttendCase { seqs: vec![(1500, 35)], ..plain.clone() });
        let one = bits(form, &AttendCase { seqs: vec![(1534, 1)], ..plain.clone() });
        assert!(many[34 * heads * dim..] == one, "{form:?}: parts");
        for shape in [[3, 1, 32, 32], [1, 1, 20, 7]] {
            let tiled = AttendCase {
                phase: Phase::Prefill,
                shape,
                seqs: vec![(0, 1), (33, 8), (5, 31), (16, 9)],
                ..plain.clone()
            };
            let searched = AttendCase { search: true, ..tiled.clone() };
            assert!(bits(form, &tiled) == bits(form, &searched), "{form:?}: search");
        }
    }
}

/// Tiles of a prompt's rows by cooperative matrices, with a stand-in for these: every case runs that form.
#[test]
fn gpu_attention_by_cooperative_matrices_with_a_stand_in() {
    let cases = cases::cooperative_attention();
    for (turn, (form, device, types)) in with_stand_ins().into_iter().enumerate() {
        // Each case meets two of the four.
        for case in cases.iter().enumerate().filter(|(i, _)| i % 2 == turn % 2).map(|c| c.1) {
            let (distance, modules) = pollster::block_on(case.distance(&device));
            assert!(modules.iter().any(|m| m.starts_with("attend_cooperative")), "{form:?}, {types}, {}", case.name);
            assert!(distance <= case.bound, "{form:?}, {types}, {}: {distance:e}", case.name);
        }
    }
}

/// Exact numerics, trees of drafts, and heads too large for workgroup memory run the usual kernel, and are right.
#[test]
fn gpu_attention_by_cooperative_matrices_is_not_for_all() {
    let [_, _, (form, device, _), _] = with_stand_ins();
    let device = device.tuned("matmul = cooperative").unwrap();
    let taken = |modules: &[String]| modules.iter().any(|m| m.starts_with("attend_cooperative"));
    let usual = AttendCase { phase: Phase::Prefill, shape: [4, 2, 32, 32], seqs: vec![(5, 20)], ..AttendCase::PLAIN };
    let wide = AttendCase { shape: [1, 1, 1024, 1024], ..usual.clone() };
    for (case, numerics, expected) in
        [(&usual, Numerics::Fast, true), (&usual, Numerics::Exact, false), (&wide, Numerics::Fast, false)]
    {
        let (got, wanted, modules) = pollster::block_on(case.outputs(&device, numerics));
        assert_eq!(taken(&modules), expected, "{form:?} {numerics:?} {case:?}: {modules:?}");
        let distance = nmse(&got, &wanted);
        assert!(distance <= 1e-4, "{form:?} {numerics:?} {case:?}: {distance:e}");
    }
    for (tree, expected) in [(false, true), (true, false)] {
        let case = CacheCase { by: By::FastTiles, layout: KvLayout::Paged, tree, ..CacheCase::PLAIN };
        let (distance, modules) = pollster::block_on(case.distance(&device));
        assert_eq!(taken(&modules), expected, "{form:?} {case:?}: {modules:?}");
        assert!(distance <= 1e-4, "{form:?} {case:?}: {distance:e}");
    }
}

/// The same with empty sequences among others, and with queries and values that are NaN or infinite: these reach only the
/// tokens that attend to them, and change no bit of others.
#[test]
fn gpu_attention_by_cooperative_matrices_keeps_rows_apart() {
    for (form, device, types) in with_stand_ins() {
        let device = device.tuned("matmul = cooperative").unwrap();
        let places = uneven();
        let plain = Rng(8).normals(24 * places.len(), 1.0);
        let run = |q: &[f32]| attended(&device, KvLayout::Paged, false, &places, q, |s| s.fast());
        let (calm, wanted, _) = run(&plain);
        let wanted: Vec<_> = wanted.into_iter().map(f64::from).collect();
        let distance = nmse(&calm, &wanted);
        assert!(distance <= 1e-4, "{form:?}, {types}: {distance:e}");
        for (row, extreme) in [(0, f32::NAN), (3, f32::INFINITY), (5, f32::NEG_INFINITY)] {
            let mut q = plain.clone();
            q[24 * row + 9] = extreme; // of the second head
            for (i, (got, calm)) in run(&q).0.iter().zip(&calm).enumerate() {
                match i / 8 == 3 * row + 1 {
                    true => assert!(!got.is_finite(), "{form:?}, {types} {extreme}: {got}"),
                    false => assert_eq!(got, calm, "{form:?}, {types} {extreme}: element {i}"),
                }
            }
        }

        let whole = AttendCase {
            shape: [3, 1, 16, 16],
            phase: Phase::Prefill,
            mask: Mask::Window(9),
            seqs: vec![(60, 21)],
            by_position: true,
            ..AttendCase::PLAIN
        };
        let results = |case: &AttendCase| pollster::block_on(case.outputs(&device, Numerics::Fast)).0;
        let clean = results(&whole);
        for broken in [66, 58] {
            let got = results(&AttendCase { broken: Some(broken), ..whole.clone() });
            for (own, (got, clean)) in (60..).zip(got.chunks(48).zip(clean.chunks(48))) {
                match own >= broken && own - broken < 9 {
                    true => assert!(got.iter().all(|x| !x.is_finite()), "{form:?}, {types}: position {own}"),
                    false => assert_eq!(got, clean, "{form:?}, {types}: position {own}"),
                }
            }
        }
    }
}
