//! Single ops on buffers of the caller's: against f64, and what they refuse.

use super::*;

#[test]
fn gpu_single_rotations() {
    check_all_forms(&cases::rotations());
}

#[test]
fn gpu_angles_keep_their_bound_to_far_positions() {
    check_all_forms(&cases::angles());
}

#[test]
fn gpu_single_kv_writes() {
    // All on lavapipe, a third of them in each other form.
    let cases = cases::writes();
    check(LAVAPIPE, &cases);
    FORMS[1..].iter().enumerate().for_each(|(i, form)| check(*form, cases.iter().skip(i).step_by(3)));
}

/// What `lib/owner` is for: if two threads each replace their half of a word, one write is lost; the tests above would see it.
#[test]
fn gpu_16_bit_stores_of_two_threads_to_a_word_are_lost() {
    const RACE: &str = "//! use: lib/kv_store_f16
struct Params { n: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> kv: array<u32>;
@compute @workgroup_size(64)
fn race(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.n {
        kv[id.x / 2u] = kv_insert4(vec4<u32>(kv[id.x / 2u]), id.x % 2u, vec4<f32>(1.0)).x;
    }
}";
    for form in [LAVAPIPE, SWIFTSHADER] {
        let device = device(form);
        let kv = Buffer::new(&device, "kv", 4096).unwrap();
        let mut pipelines = Pipelines::new(&device);
        let mut plan = PlanBuilder::new(&mut pipelines);
        let kernel = Kernel::new("race", RACE);
        plan.dispatch(&kernel, &[2048u32], &[Arg::Write(&kv)], [Dim::Fixed(32), Dim::Fixed(1), Dim::Fixed(1)]).unwrap();
        plan.finish().unwrap().submit(&device, StepCounts::default());
        let words: Vec<u32> = pollster::block_on(kv.read(&device, 0..1024)).unwrap();
        assert!(words.iter().any(|w| *w != 0x3c00_3c00), "{form:?}: nothing was lost");
    }
}

/// Results past a binding's limit are made by several dispatches, and each part begins where it should.
#[test]
fn gpu_replication_is_split_at_a_bindings_limit() {
    let device = device(LAVAPIPE);
    let op = KvReplicate { rows: 1200, kv_heads: 1, q_heads: 300, head_dim: 101, storage: KvStorage::F32 };
    let [x_bytes, out_bytes] = op.bytes();
    assert!(out_bytes > device.caps().max_binding && x_bytes < 1 << 20);
    let [x, out] = [x_bytes, out_bytes].map(|bytes| Buffer::new(&device, "tensor", bytes).unwrap());
    let values: Vec<u32> = (0..x_bytes as u32 / 4).collect();
    x.write(&device, 0, &values);
    let mut pipelines = Pipelines::new(&device);
    let mut plan = PlanBuilder::new(&mut pipelines);
    op.dispatch(&mut plan, &[(&x, &out)]).unwrap();
    let plan = plan.finish().unwrap();
    assert!(plan.dispatches.len() > 1);
    plan.submit(&device, StepCounts::default());
    device.check().unwrap();
    let got: Vec<u32> = pollster::block_on(out.read(&device, 0..out_bytes / 4)).unwrap();
    assert!(got == op.oracle(&values));
}

/// Mistakes are errors that say so, and nothing is dispatched.
#[test]
fn gpu_single_ops_refuse_what_does_not_fit() {
    let device = device(LAVAPIPE);
    let step = StepBuffer::new(&device, StepLimits { rows: 4, ..StepLimits::default() }).unwrap();
    assert!(step.write_run(&device, 5, 0, &[]).unwrap_err().to_string().contains("at most 4, 1 and 0 fit"));
    assert!(step.write_run(&device, 1, 0, &[0]).is_err());
    assert!(step.write_run(&device, 2, u32::MAX - 1, &[]).unwrap_err().to_string().contains("32 bits"));
    assert!(step.write_rows(&device, &[], &[]).is_err());
    let short = StepBuffer::new(&device, StepLimits { rows: 4, blocks: 2, slots: 8, ..StepLimits::default() }).unwrap();
    assert!(short.write_run(&device, 2, 14, &[0, 1]).is_ok());
    assert!(
        short.write_run(&device, 3, 14, &[0, 1]).unwrap_err().to_string().contains("17 positions in 2 blocks of 8")
    );
    let places = |all: &[[u32; 2]]| all.iter().map(|&[seq, pos]| RowPos { pos, seq }).collect::<Vec<_>>();
    let limits = StepLimits { rows: 4, seqs: 2, pos_ids: true, ..StepLimits::default() };
    let ordered = StepBuffer::new(&device, limits).unwrap();
    assert!(ordered.write_rows(&device, &places(&[[0, 7], [0, 8], [1, 0]]), &[]).is_ok());
    let any = StepBuffer::new(&device, StepLimits { any_order: true, ..limits }).unwrap();
    for wrong in [[[0, 7], [0, 9]], [[0, 8], [0, 7]], [[1, 0], [0, 0]]] {
        let error = ordered.write_rows(&device, &places(&wrong), &[]).unwrap_err().to_string();
        assert!(error.contains("row 1") && error.contains("any_order"), "{error}");
        assert!(any.write_rows(&device, &places(&wrong), &[]).is_ok());
    }
    let buffer = |words: u64| Buffer::new(&device, "b", words * 4).unwrap();
    let mut pipelines = Pipelines::new(&device);
    let mut single = Single::new(&mut pipelines, &step);
    assert!(single.value(&buffer(31), 8).is_ok(), "buffers are rounded up to 16 bytes");
    assert!(single.value(&buffer(28), 8).unwrap_err().to_string().contains("128 bytes"));
    let (x, out) = (single.value(&buffer(32), 8).unwrap(), single.value(&buffer(32), 8).unwrap());
    let power = Rotation::Power { theta: 0.5, dims: 8, scale: 1.0, factor: 1.0 };
    assert!(single.rotation(power).is_err());
    let table = single.rotation(Rotation::Frequencies { frequencies: &[1.0, 0.1], scale: 1.0, factor: 1.0 }).unwrap();
    let spec = RopeSpec { table, pairing: Pairing::Neox, dims: 4 };
    let rope = Rope { x, heads: 2, head_dim: 4, spec, out };
    single.add(Op::Rope(rope.clone())).unwrap();
    assert!(single.add(Op::Rope(Rope { heads: 3, ..rope.clone() })).is_err());
    assert!(single.add(Op::Rope(Rope { x: ValueId(9), ..rope.clone() })).is_err());
    assert!(single.add(Op::Rope(Rope { spec: RopeSpec { dims: 8, ..spec }, ..rope })).is_err());
    let shape = CacheShape {
        kv_heads: 2,
        k_dim: 4,
        v_dim: 4,
        slots: 6,
        blocks: 1,
        storage: KvStorage::F16,
        layout: KvLayout::Vectorised,
    };
    assert!(single.cache(&buffer(1000), shape).unwrap_err().to_string().contains("multiple of 4"));
    assert!(single.cache(&buffer(10), CacheShape { layout: KvLayout::Paged, ..shape }).is_err());
    let cache = single.cache(&buffer(1000), CacheShape { slots: 8, ..shape }).unwrap();
    let write = KvWrite { k: x, v: Some(out), cache, kv_heads: 2, k_dim: 4, v_dim: 4 };
    single.add(Op::KvWrite(write.clone())).unwrap();
    assert!(single.add(Op::KvWrite(KvWrite { kv_heads: 1, k_dim: 8, v_dim: 8, ..write })).is_err());
    let other = Op::Gather(wgslm::ops::Gather { x, n: 8, out });
    assert!(single.add(other).unwrap_err().to_string().contains("executor"));
    assert_eq!(single.finish().unwrap().dispatches.len(), 2);
}

/// Caches without tables have one block per sequence, and their positions are checked, too. And short contexts have few KV
/// splits.
#[test]
fn gpu_single_ops_know_how_far_caches_reach() {
    let device = device(LAVAPIPE);
    let buffer = |bytes| Buffer::new(&device, "b", bytes).unwrap();
    let (storage, layout) = (KvStorage::F32, KvLayout::Contiguous);
    let shape = CacheShape { kv_heads: 1, k_dim: 4, v_dim: 4, slots: 40, blocks: 2, storage, layout };
    let cache = |limits: StepLimits, shape: CacheShape| {
        let step = StepBuffer::new(&device, limits).unwrap();
        Single::new(&mut Pipelines::new(&device), &step).cache(&buffer(shape.bytes()), shape)
    };
    let limits = StepLimits { rows: 4, slots: 40, ..StepLimits::default() };
    let step = StepBuffer::new(&device, limits).unwrap();
    assert!(step.write_run(&device, 4, 36, &[]).is_ok());
    assert!(step.write_run(&device, 4, 37, &[]).unwrap_err().to_string().contains("41 positions in 1 blocks of 40"));
    assert!(cache(limits, shape).is_ok());
    assert!(cache(limits, CacheShape { slots: 39, ..shape }).unwrap_err().to_string().contains("39 positions"));
    assert!(cache(limits, CacheShape { layout: KvLayout::Paged, ..shape }).is_err(), "pages without a table");
    let tables = StepLimits { rows: 4, slots: 16, blocks: 2, ..StepLimits::default() };
    assert!(cache(tables, shape).is_ok(), "a contiguous cache beside paged ones that reach less far");
    assert!(cache(StepLimits { blocks: 3, ..tables }, shape).is_err());
    assert!(cache(tables, CacheShape { slots: 16, layout: KvLayout::Paged, ..shape }).is_ok());
    assert!(cache(tables, CacheShape { slots: 32, layout: KvLayout::Paged, ..shape }).is_err());

    let most = device.caps().max_groups;
    let split_kv =
        StepLimits { rows: most / 3, slots: 16, blocks: 48, split_kv: true, pos_ids: true, ..StepLimits::default() };
    assert!(StepBuffer::new(&device, split_kv).is_ok(), "768 positions are three splits");
    assert!(StepBuffer::new(&device, StepLimits { blocks: 49, ..split_kv }).is_err());
    assert!(StepBuffer::new(&device, StepLimits { slots: 0, ..split_kv }).is_err());
}

/// Rows in any order are for attention row by row, and for caches whose words belong to one position.
#[test]
fn gpu_single_ops_refuse_rows_in_any_order_where_order_counts() {
    let device = device(LAVAPIPE);
    let limits = StepLimits { rows: 4, blocks: 2, pos_ids: true, any_order: true, ..StepLimits::default() };
    let step = StepBuffer::new(&device, limits).unwrap();
    let buffer = |bytes| Buffer::new(&device, "b", bytes).unwrap();
    let tried = |layout, choose: fn(&mut Single<'_>), write: bool| {
        let shape =
            CacheShape { kv_heads: 1, k_dim: 8, v_dim: 8, slots: 16, blocks: 2, storage: KvStorage::F16, layout };
        let mut pipelines = Pipelines::new(&device);
        let mut single = Single::new(&mut pipelines, &step);
        choose(&mut single);
        let [x, out] = [0; 2].map(|_| single.value(&buffer(128), 8).unwrap());
        let cache = single.cache(&buffer(shape.bytes()), shape).unwrap();
        let write_op = KvWrite { k: x, v: Some(out), cache, kv_heads: 1, k_dim: 8, v_dim: 8 };
        let attend = attend_of(x, out, Kv::Cache(cache), 8);
        single.add(if write { Op::KvWrite(write_op) } else { Op::Attend(attend) })
    };
    let by_rows: fn(&mut Single<'_>) = |s| s.by_rows();
    let searched: fn(&mut Single<'_>) = |s| {
        s.by_rows();
        s.search();
    };
    assert!(tried(KvLayout::Paged, by_rows, false).is_ok());
    assert!(tried(KvLayout::Vectorised, |s| s.v1(), false).is_ok());
    assert!(tried(KvLayout::Paged, |_| {}, true).is_ok());
    assert!(tried(KvLayout::Paged, |_| {}, false).unwrap_err().to_string().contains("by_rows"), "tiles");
    assert!(tried(KvLayout::Paged, searched, false).is_err());
    assert!(tried(KvLayout::Vectorised, by_rows, true).unwrap_err().to_string().contains("paged"));
}

/// A buffer smaller than declared is never bound, none is bound twice, and attention over nothing is refused.
#[test]
fn gpu_single_ops_refuse_buffers_and_shapes_that_do_not_fit() {
    let device = device(LAVAPIPE);
    let mut pipelines = Pipelines::new(&device);
    let (storage, layout) = (KvStorage::F32, KvLayout::Paged);
    let shape = CacheShape { kv_heads: 1, k_dim: 4, v_dim: 4, slots: 8, blocks: 9, storage, layout };
    let block = shape.bytes() / 9;
    let mut moved = |bytes, shape: &CacheShape| {
        let kv = Buffer::new(&device, "kv", bytes).unwrap();
        BlockMove::dispatch(&mut PlanBuilder::new(&mut pipelines), &kv, shape, &[BlockMove { from: None, to: 8 }])
    };
    assert!(moved(9 * block, &shape).is_ok());
    assert!(moved(8 * block, &shape).unwrap_err().to_string().contains("the buffer has"));
    assert!(moved(9 * block, &CacheShape { slots: 0, ..shape }).is_err());

    let [x, y, out] = [32, 32, 32].map(|words| Buffer::new(&device, "tensor", words * 4).unwrap());
    let op = KvReplicate { rows: 1, kv_heads: 2, q_heads: 4, head_dim: 8, storage };
    let mut replicated = |tensors: &[(&Buffer, &Buffer)]| op.dispatch(&mut PlanBuilder::new(&mut pipelines), tensors);
    assert!(replicated(&[(&x, &y)]).is_ok());
    for wrong in [&[(&x, &x)][..], &[(&x, &out), (&y, &out)], &[(&x, &y), (&y, &out)]] {
        assert!(replicated(wrong).unwrap_err().to_string().contains("out is another"));
    }

    let step = StepBuffer::new(&device, StepLimits { blocks: 9, slots: 8, ..StepLimits::default() }).unwrap();
    let mut single = Single::new(&mut pipelines, &step);
    let kv = Kv::Cache(single.cache(&Buffer::new(&device, "kv", shape.bytes()).unwrap(), shape).unwrap());
    let [q, out] = [x, out].map(|buffer| single.value(&buffer, 4).unwrap());
    let none = Attend { heads: 0, ..attend_of(q, out, kv, 4) };
    assert!(single.add(Op::Attend(none)).unwrap_err().to_string().contains("0 query heads"));
    assert!(single.add(Op::Attend(attend_of(q, out, kv, 4))).is_ok());
}

/// A contiguous cache is one block a sequence, which may have more elements than a grid has threads.
#[test]
fn gpu_large_blocks_are_zeroed_to_their_end() {
    let device = device(LAVAPIPE);
    let (storage, layout) = (KvStorage::F16, KvLayout::Contiguous);
    let shape = CacheShape { kv_heads: 8, k_dim: 128, v_dim: 128, slots: 20_000, blocks: 1, storage, layout };
    let words = shape.bytes() / 4;
    assert!(words / 4 > 64 * u64::from(device.caps().max_groups));
    let kv = Buffer::new(&device, "kv", shape.bytes()).unwrap();
    let places = [0, words / 2, words - 8];
    places.iter().for_each(|&at| kv.write(&device, at, &[7u32; 8]));
    let mut pipelines = Pipelines::new(&device);
    let mut plan = PlanBuilder::new(&mut pipelines);
    BlockMove::dispatch(&mut plan, &kv, &shape, &[BlockMove { from: None, to: 0 }]).unwrap();
    plan.finish().unwrap().submit(&device, StepCounts::default());
    for at in places {
        let got: Vec<u32> = pollster::block_on(kv.read(&device, at..at + 8)).unwrap();
        assert_eq!(got, [0; 8], "word {at}");
    }
}

#[test]
fn gpu_single_copies_are_exact() {
    check_all_forms(&cases::copies());
}

#[test]
fn gpu_single_matmuls() {
    check_all_forms(&cases::single_matmuls());
}

#[test]
fn gpu_single_softmaxes() {
    check_all_forms(&cases::softmaxes());
}
