//! Every kernel against the f64 oracle, over odd shapes, in every form that an adapter has: both software adapters, with and
//! without subgroups, with wgpu's checks and without, the cache in f32 and f16, rows as prompt and as generated.

#[path = "support/adapter.rs"]
mod adapter;
#[path = "support/kernel_cases.rs"]
mod cases;
#[path = "support/programs.rs"]
mod programs;
#[path = "support/single_cases.rs"]
mod singles;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cases::attend_cases::AttendCase;
use cases::{Case, EXACT, Pick, options};
use programs::*;
use wgslm::Error;
use wgslm::exec::{
    CacheOp, CpuExecutor, CpuOptions, Drawn, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Role,
    SeqStep, Step, Token,
};
use wgslm::gpu::{
    Arg, Buffer, Choice, Device, Dim, FORMATS, Fragment, Kernel, Kind, Matrices, Pipelines, PlanBuilder, StepCounts,
};
use wgslm::model::Program;
use wgslm::ops::{
    Attend, BlockMove, CacheShape, CpuWeights, GroupId, Index, Kv, KvLayout, KvReplicate, KvStorage, KvWrite, Mask, Op,
    Pairing, Penalties, Place, Room, Rope, RopeSpec, Rotation, SampleSpec, Single, StepBuffer, ValueId,
};
use wgslm::quant::BlockFormat;
use wgslm::quant::BlockFormat::{F16, F32, Q4_0, Q4_K, Q6_K, Q8_0};

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
        let hardware = adapter::wished();
        let name = hardware.clone().unwrap_or_else(|| form.adapter.to_owned());
        let choice = Choice {
            name: Some(name.clone()),
            no_subgroups: !form.subgroups,
            checked: form.checked,
            // Without features a device is what a host may hand us: WebGPU's defaults.
            default_limits: !form.subgroups,
            // As GPUs have it; software adapters have a thread to a head.
            tuning: if form.subgroups { String::new() } else { "head = 8".to_owned() },
            ..Choice::default()
        };
        let device =
            pollster::block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"));
        let caps = device.caps();
        assert!(caps.name.to_lowercase().contains(&name), "{} is not {name}", caps.name);
        if hardware.is_none() {
            assert_eq!(caps.kind, Kind::Software);
            assert_eq!(caps.subgroups.is_some(), form.subgroups, "{caps:?}");
        }
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

/// Runs a step to its end; gives its logits and draws.
fn run(gpu: &mut GpuExecutor, seqs: &[SeqStep<'_>]) -> (Vec<f32>, Vec<Drawn>) {
    pollster::block_on(cases::run(gpu, seqs))
}

/// Runs cases in a form; each must stay below its bound.
fn check<'a>(form: Form, cases: impl IntoIterator<Item = &'a Case>) {
    check_on(&device(form), &format!("{form:?}"), cases);
}

fn check_on<'a>(device: &Device, what: &str, cases: impl IntoIterator<Item = &'a Case>) {
    let mut wrong = Vec::new();
    for case in cases {
        let (distance, _) = pollster::block_on(case.distance(device));
        if distance.is_nan() || distance > case.bound {
            wrong.push(format!("{}: {distance:e}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

fn check_all_forms(cases: &[Case]) {
    FORMS.into_iter().for_each(|form| check(form, cases));
}

#[test]
fn gpu_linear() {
    check_all_forms(&cases::linear());
}

#[test]
fn gpu_formats() {
    // How sums are reduced is no matter of formats.
    [LAVAPIPE, FORMS[3]].into_iter().for_each(|form| check(form, &cases::formats()));
}

/// The table's formats are the block formats, and whatever it may say of one, products are right.
#[test]
fn gpu_tunings_of_products() {
    let names: Vec<_> = BlockFormat::ALL.iter().map(|format| format.info().name).collect();
    assert_eq!(names, FORMATS);
    check(LAVAPIPE, &cases::tunings());
}

#[test]
fn gpu_matmul_in_whole_numbers() {
    [LAVAPIPE, FORMS[3]].into_iter().for_each(|form| check(form, &cases::dots()));
}

/// No software adapter has cooperative matrices: plain WGSL of the same meaning takes the place of the operations, and subgroups are
/// made up. What this proves are tiles, edges, epilogues, and the turns of subgroups.
#[test]
fn gpu_matmul_by_cooperative_matrices_with_a_stand_in() {
    macro_rules! stand_in {
        ($side:literal, $subgroups:literal) => {{
            let source = concat!(
                concat!("const SIDE: u32 = ", $side, "u;\nconst SUBGROUPS: u32 = ", $subgroups, "u;\n"),
                include_str!("wgsl/cooperative_stand_in.wgsl")
            );
            Matrices {
                side: $side,
                fragment: Fragment { name: concat!("stand-in of ", $side, ", ", $subgroups, " subgroups"), source },
            }
        }};
    }
    // On lavapipe a shader's loops end after 65,535 turns of all of them: there not many turns for one thread.
    let forms = [(SWIFTSHADER, stand_in!(8, 16)), (LAVAPIPE, stand_in!(16, 4)), (LAVAPIPE, stand_in!(8, 2))];
    for (turn, (form, matrices)) in forms.into_iter().enumerate() {
        let what = format!("{form:?}, {}", matrices.fragment.name);
        check_on(&device(form).with_matrices(matrices), &what, &cases::cooperative(turn));
    }
}

#[test]
fn gpu_norm() {
    check_all_forms(&cases::norm());
}

#[test]
fn gpu_pointwise() {
    check_all_forms(&cases::pointwise());
}

#[test]
fn gpu_rope() {
    check_all_forms(&cases::rope());
}

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

/// What `lib/owner` is for: two threads that each replace their half of a word lose one, and the tests above would see it.
#[test]
fn gpu_halves_of_a_word_are_lost_between_two_threads() {
    const RACE: &str = "//! use: lib/kv_store_f16
struct Params { n: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> kv: array<u32>;
@compute @workgroup_size(64)
fn race(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.n {
        kv[id.x / 2u] = kv_insert(kv[id.x / 2u], id.x % 2u, 1.0);
    }
}";
    for form in [LAVAPIPE, SWIFTSHADER] {
        let device = device(form);
        let kv = Buffer::new(&device, "kv", 4096).unwrap();
        let mut pipelines = Pipelines::new(&device);
        let mut plan = PlanBuilder::new(&mut pipelines);
        let kernel = Kernel { name: "race", source: RACE, roles: Vec::new(), overrides: Vec::new() };
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

/// Blocks in use come to lie in front, and sequences go on from there with the same bits.
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
        ..rows(slot, Role::Prompt, &tokens[slot as usize..32], 0, table)
    };
    run(&mut gpu, &[part(0, &old[0]), part(1, &old[1])]);
    let next = |tables: &[[&[u32]; 1]; 2], gpu: &mut GpuExecutor| {
        let seqs = [0, 1].map(|s| rows(s, Role::Generated, &tokens[32..], 32 - s, &tables[s as usize]));
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
    for role in Role::ALL {
        run(&mut gpu, &[rows(0, role, &tokens, 0, &[&[0]])]);
        let labels = gpu.labels(role);
        let count = |name: &str| labels.iter().filter(|(label, _)| *label == name).count();
        assert_eq!((count("norm_rope_kv"), count("rope"), count("kv_write")), (30, 0, 0), "{role:?}");
    }
}

/// Mistakes are errors that say so, and nothing is dispatched.
#[test]
fn gpu_single_ops_refuse_what_does_not_fit() {
    let device = device(LAVAPIPE);
    let step = StepBuffer::new(&device, Room { rows: 4, ..Room::default() }).unwrap();
    assert!(step.write_run(&device, 5, 0, &[]).unwrap_err().to_string().contains("room for 4"));
    assert!(step.write_run(&device, 1, 0, &[0]).is_err());
    assert!(step.write_run(&device, 2, u32::MAX - 1, &[]).unwrap_err().to_string().contains("32 bits"));
    assert!(step.write_rows(&device, &[], &[]).is_err());
    let short = StepBuffer::new(&device, Room { rows: 4, blocks: 2, slots: 8, ..Room::default() }).unwrap();
    assert!(short.write_run(&device, 2, 14, &[0, 1]).is_ok());
    assert!(
        short.write_run(&device, 3, 14, &[0, 1]).unwrap_err().to_string().contains("17 positions in 2 blocks of 8")
    );
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
    let other = Op::Pick(wgslm::ops::Pick { x, n: 8, out });
    assert!(single.add(other).unwrap_err().to_string().contains("executor"));
    assert_eq!(single.finish().unwrap().dispatches.len(), 2);
}

/// Causal attention of one head of `dim` elements.
fn attend_of(q: ValueId, out: ValueId, kv: Kv, dim: u32) -> Attend {
    let (mask, scale, softcap, sinks, slopes) = (Mask::Causal, 0.1, 0.0, None, None);
    Attend { q, heads: 1, kv_heads: 1, k_dim: dim, v_dim: dim, kv, mask, scale, softcap, sinks, slopes, out }
}

/// V1 keeps a score for every position: where a workgroup's memory does not do, the error names the form that needs none.
#[test]
fn gpu_v1_attention_refuses_long_contexts() {
    let device = device(FORMS[3]); // WebGPU's limits: 16 KiB
    let attend = |blocks: u32, layout| {
        let step = StepBuffer::new(&device, Room { blocks, ..Room::default() }).unwrap();
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
    // How many scores there is room for depends on the threads of a workgroup, which the error tells with the memory.
    let Err(Error::Limit { available, instead, .. }) = attend(4096, KvLayout::Vectorised) else {
        panic!("room for 65536 scores")
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
    let step = StepBuffer::new(&device, Room { rows: 4, blocks: 2, tree: true, ..Room::default() }).unwrap();
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
fn gpu_refuses_latent_attention_in_eight_bits() {
    let latent = AttendCase { place: cases::attend_cases::Place::Latent, ..AttendCase::PLAIN }.op().program;
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
        let seqs = [rows(0, Role::Generated, &tokens, 200, &tables)];
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
fn gpu_single_copies_are_exact() {
    check_all_forms(&cases::copies());
}

#[test]
fn gpu_single_products() {
    check_all_forms(&cases::single_products());
}

#[test]
fn gpu_single_softmaxes() {
    check_all_forms(&cases::softmaxes());
}

#[test]
fn gpu_moves_are_exact() {
    check_all_forms(&cases::moves());
}

#[test]
fn gpu_route() {
    let cases = cases::route();
    [LAVAPIPE, FORMS[3]].into_iter().for_each(|form| check(form, &cases));
}

#[test]
fn gpu_experts() {
    check_all_forms(&cases::expert_layers());
    check_all_forms(&cases::heads());
}

#[test]
fn gpu_expert_formats() {
    let cases = cases::expert_formats();
    [LAVAPIPE, FORMS[3]].into_iter().for_each(|form| check(form, &cases));
}

#[test]
fn gpu_row_wise() {
    check_all_forms(&cases::row_wise());
}

#[test]
fn gpu_recurrences() {
    check_all_forms(&cases::recurrences());
    check(LAVAPIPE, &cases::conv_formats());
}

/// A sequence cut in any way, alone or in company: the same bits of each role.
fn same_in_all_cuts(op: &(String, OneOp)) {
    for form in [LAVAPIPE, SWIFTSHADER] {
        for role in Role::ALL {
            let bits = |case: &Case| pollster::block_on(case.bits_of(&device(form), 0));
            let cuts = cases::recurrent_cuts(op, role);
            let whole = bits(&cuts[0]);
            cuts[1..].iter().for_each(|cut| assert!(bits(cut) == whole, "{}, {role:?}, {form:?}", cut.name));
        }
    }
}

#[test]
fn gpu_recurrences_are_the_same_in_all_cuts() {
    recurrent().iter().for_each(same_in_all_cuts);
}

/// Rows in any company and cut in any way: the same bits, also where experts see very different numbers of rows.
#[test]
fn gpu_experts_are_the_same_in_all_cuts() {
    let layer = OneOp::new(&[7, 64], |b, x| experts(b, x, plain(7, 3), [64, 96, 65], true));
    let op = ("experts".to_owned(), layer);
    same_in_all_cuts(&op);
}

/// A copy of a state goes on as the state itself.
#[test]
fn gpu_states_are_copied() {
    let program = mamba();
    let weights = random_weights(&program, &[F32], &mut Rng(15));
    let mut gpu = gpu(LAVAPIPE, &program, &weights, options(Numerics::Exact));
    let tokens = host(&(0..40).collect::<Vec<_>>());
    let part =
        |slot, span: std::ops::Range<usize>| [rows(slot, Role::Prompt, &tokens[span.clone()], span.start as u32, &[])];
    run(&mut gpu, &part(2, 0..21));
    let checkpoint = limits().seqs + 1;
    gpu.cache(&[CacheOp::CopyState { from: 2, to: checkpoint }]).unwrap();
    let expected = run(&mut gpu, &part(2, 21..40)).0;
    gpu.cache(&[CacheOp::CopyState { from: checkpoint, to: 0 }]).unwrap();
    assert_ne!(run(&mut gpu, &part(2, 21..40)).0, expected, "the slot has gone on");
    assert_eq!(run(&mut gpu, &part(0, 21..40)).0, expected);
    assert!(gpu.cache(&[CacheOp::CopyState { from: 0, to: checkpoint + 1 }]).is_err());
}

#[test]
fn gpu_attend() {
    // Subgroups of 8 (lavapipe) and of 4 (SwiftShader), and none; each case meets each adapter.
    let cases = cases::attend();
    let (even, odd): (Vec<_>, Vec<_>) = cases.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    for (form, cases) in FORMS.into_iter().zip([&even, &odd, &odd, &even]) {
        check(form, cases.iter().map(|c| c.1));
    }
}

/// A value that is infinite or no number reaches the rows that see it, and none beside them in its tile.
#[test]
fn gpu_attention_keeps_broken_values_to_the_rows_that_see_them() {
    let results = |form, case: &AttendCase| pollster::block_on(case.outputs(&device(form), Numerics::Exact)).0;
    let [heads, dim] = [3, 16];
    for (form, window, role, (first, rows), broken) in [
        (LAVAPIPE, None, Role::Prompt, (0, 21), 10),
        (LAVAPIPE, Some(5), Role::Prompt, (60, 21), 66),
        (LAVAPIPE, Some(5), Role::Prompt, (60, 21), 58),
        (LAVAPIPE, None, Role::Generated, (30, 4), 32),
        (SWIFTSHADER, Some(9), Role::Prompt, (0, 21), 3),
    ] {
        let mask = window.map_or(Mask::Causal, Mask::Window);
        let shape = [heads, 1, dim, dim];
        let whole = AttendCase { shape, mask, role, seqs: vec![(first, rows)], by_position: true, ..AttendCase::PLAIN };
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
    [LAVAPIPE, FORMS[3]].into_iter().for_each(|form| check(form, &cases));
    // V1 and trees with subgroups of four.
    check(SWIFTSHADER, cases.iter().step_by(5)); // storage, layout and kernel come in threes and twos
}

/// The k + 1 rows of a draft as one sequence's, or as sequences of one row over the same pages: the same bits. And what is no tree is
/// refused.
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
            let room = Room { rows, seqs, blocks: 3, slots, pos_ids: units, ..Room::default() };
            let step = StepBuffer::new(&device, room).unwrap();
            let places: Vec<_> = (0..rows).map(|seq| Place { pos: first + seq, seq }).collect();
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
    let step = StepBuffer::new(&device, Room { rows: 4, tree: true, ..Room::default() }).unwrap();
    assert!(step.write_tree(&device, 9, &[0b1, 0b11, 0b101], &[]).is_ok());
    assert!(step.write_tree(&device, 9, &[0b1, 0b10, 0b111], &[]).is_err(), "two parents");
    assert!(step.write_tree(&device, 9, &[0b1, 0b01], &[]).is_err(), "not on its own way");
    assert!(step.write_tree(&device, 9, &[0b11, 0b10], &[]).is_err(), "a child in front");
    assert!(step.write_tree(&device, 9, &[], &[]).is_err());
}

/// Attention over random pages by the rows of a step, whose queries are given: what it is, what it should be, and whether sequences
/// were searched for.
fn attended(
    device: &Device,
    layout: KvLayout,
    divided: bool,
    places: &[Place],
    q: &[f32],
    choose: fn(&mut Single<'_>),
) -> (Vec<f32>, Vec<f32>, bool) {
    let (kv_heads, dim, slots, storage) = (1u32, 8u32, 16u32, KvStorage::F32);
    let shape = CacheShape { kv_heads, k_dim: dim, v_dim: dim, slots, blocks: 60, storage, layout };
    let (rows, seqs) = (places.len() as u32, places.iter().map(|p| p.seq + 1).max().unwrap());
    let room = Room { rows, seqs, blocks: 50, slots, pos_ids: true, divided, ..Room::default() };
    let step = StepBuffer::new(device, room).unwrap();
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
    let searches = plan.dispatches.iter().any(|dispatch| dispatch.overrides.contains(&("SEARCH", 1.0)));
    assert_eq!(counts.merges > 0, divided);
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
fn uneven() -> Vec<Place> {
    let run = |seq, first: u32, rows: u32| (first..first + rows).map(move |pos| Place { pos, seq });
    run(0, 700, 1).chain(run(2, 300, 9)).chain(run(3, 0, 1)).collect()
}

const LOOKS: [fn(&mut Single<'_>); 3] = [|s| s.by_rows(), |_| {}, |s| s.v1()];

/// Rows and tiles whose sequence is searched for or looked up, rows in parts or whole: the same bits, and near f64.
#[test]
fn gpu_single_attention_is_the_same_however_rows_are_found() {
    let places = uneven();
    let q = Rng(8).normals(24 * places.len(), 1.0);
    let searched_rows: fn(&mut Single<'_>) = |s| {
        s.by_rows();
        s.search();
    };
    for form in FORMS {
        let run = |divided, choose| attended(&device(form), KvLayout::Paged, divided, &places, &q, choose);
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

/// A query that is infinite or no number spoils its own row and no other; one that is huge finds the position that it points at.
#[test]
fn gpu_attention_keeps_wild_queries_to_their_rows() {
    let places = uneven();
    let plain = Rng(8).normals(24 * places.len(), 1.0);
    for form in [LAVAPIPE, SWIFTSHADER] {
        for (look, layout) in LOOKS.into_iter().zip([KvLayout::Paged, KvLayout::Paged, KvLayout::Vectorised]) {
            let run = |q: &[f32]| attended(&device(form), layout, false, &places, q, look);
            let (calm, ..) = run(&plain);
            for (row, wild) in [(0, f32::NAN), (3, f32::INFINITY), (5, f32::NEG_INFINITY), (8, 1e30), (2, -3e33)] {
                let mut q = plain.clone();
                q[24 * row + 9] = wild; // of the second head
                let (got, wanted, _) = run(&q);
                for (i, (got, calm)) in got.iter().zip(&calm).enumerate() {
                    match i / 8 == 3 * row + 1 {
                        true if wild.abs() < 1e38 => {
                            assert!((got - wanted[i]).abs() < 1e-5, "{form:?} {layout:?} {wild}: {got} {}", wanted[i]);
                        }
                        true => assert!(!got.is_finite(), "{form:?} {layout:?} {wild}: {got}"),
                        false => assert_eq!(got, calm, "{form:?} {layout:?} {wild}: element {i}"),
                    }
                }
            }
        }
    }
}

/// Divided among workgroups or not, in company or alone, its tile looked up or searched for: the same bits.
#[test]
fn gpu_attention_does_not_depend_on_how_it_is_divided() {
    let bits = |form, case: &AttendCase| {
        let (got, _, _) = pollster::block_on(case.outputs(&device(form), Numerics::Fast));
        got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    for form in [LAVAPIPE, SWIFTSHADER] {
        let plain = AttendCase { shape: [3, 1, 32, 32], sinks: true, by_position: true, ..AttendCase::PLAIN };
        // The 35 rows of one sequence are too many to be divided; its last row alone is not.
        let [heads, dim] = [3, 32];
        let many = bits(form, &AttendCase { seqs: vec![(1500, 35)], ..plain.clone() });
        let one = bits(form, &AttendCase { seqs: vec![(1534, 1)], ..plain.clone() });
        assert!(many[34 * heads * dim..] == one, "{form:?}: parts");
        for shape in [[3, 1, 32, 32], [1, 1, 20, 7]] {
            let tiled = AttendCase {
                role: Role::Prompt,
                shape,
                seqs: vec![(0, 1), (33, 8), (5, 31), (16, 9)],
                ..plain.clone()
            };
            let searched = AttendCase { search: true, ..tiled.clone() };
            assert!(bits(form, &tiled) == bits(form, &searched), "{form:?}: search");
        }
    }
}

#[test]
fn gpu_programs_agree_with_the_oracle() {
    // Nearly all of the time goes to compiling: each program as it is run, and in turn unfused and Fast; half of them elsewhere.
    for (p, cases) in cases::models().chunks(3).enumerate() {
        let [exact, unfused, fast] = cases else { panic!("three of each program") };
        check(LAVAPIPE, [exact, if p % 2 == 0 { unfused } else { fast }]);
        for (_, form) in FORMS.iter().enumerate().skip(1).filter(|(f, _)| (p + f) % 2 == 0) {
            check(*form, [if form.subgroups { fast } else { exact }]);
        }
    }
}

#[test]
fn gpu_draws_feed_the_next_step_and_are_the_cpus() {
    let cases = cases::draws();
    [LAVAPIPE, SWIFTSHADER].into_iter().for_each(|form| check(form, &cases));
}

#[test]
fn gpu_draws_of_every_kind_are_the_cpus() {
    let cases = cases::all_draws();
    check(LAVAPIPE, &cases);
    check(FORMS[1], cases.iter().take(3));
    check(SWIFTSHADER, cases.iter().take(4));
}

/// The distribution that draws must follow, in f64.
fn exact(pick: &Pick, seen: &[[u32; 2]]) -> Vec<f64> {
    let SampleSpec { temperature, top_k, top_p, min_p, penalties, .. } = pick.spec;
    let mut logits: Vec<f64> = pick.logits.iter().copied().map(f64::from).collect();
    for &[token, count] in seen {
        let x = &mut logits[token as usize];
        *x = if *x > 0.0 { *x / f64::from(penalties.repeat) } else { *x * f64::from(penalties.repeat) };
        *x -= f64::from(count) * f64::from(penalties.frequency) + f64::from(penalties.presence);
    }
    pick.bias.iter().for_each(|(token, bias)| logits[*token as usize] += f64::from(*bias));
    let allowed = |t: &usize| pick.allowed.as_ref().is_none_or(|map| map[t / 32] >> (t % 32) & 1 != 0);
    let mut order: Vec<usize> = (0..logits.len()).filter(allowed).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(if top_k == 0 { order.len() } else { top_k as usize });
    let largest = logits[order[0]];
    let weight = |t: usize| ((logits[t] - largest) / f64::from(temperature)).exp();
    let goal = f64::from(top_p) * order.iter().map(|&t| weight(t)).sum::<f64>();
    let mut sum = 0.0;
    let mut reached = false;
    order.retain(|&t| {
        let keep = !reached;
        sum += weight(t);
        reached |= top_p < 1.0 && sum >= goal;
        keep && weight(t) >= f64::from(min_p)
    });
    let sum: f64 = order.iter().map(|&t| weight(t)).sum();
    let mut p = vec![0.0; logits.len()];
    order.iter().for_each(|&t| p[t] = weight(t) / sum);
    p
}

/// Rows of a dispatch, and the vocabulary that draws are counted in.
const ROWS: usize = 256;
const VOCAB: u32 = 64;

fn distribution_logits() -> Vec<f32> {
    Rng(5).normals(VOCAB as usize, 1.5)
}

/// Draws 102,400 tokens for each setting; what is never to be drawn is not, the rest passes Pearson's test.
fn draws_follow(executor: &mut impl Executor, specs: &[SampleSpec], name: &str) {
    for (i, &spec) in specs.iter().enumerate() {
        let logits = distribution_logits();
        let seen: Vec<_> = if spec.penalties == Penalties::NONE { vec![] } else { vec![[3, 2], [7, 1], [40, 5]] };
        let bias = if i % 2 == 1 { vec![(1, 0.7), (9, -1.5)] } else { vec![] };
        let allowed = (i % 3 == 2).then(|| vec![0x7fff_ffef, 0xffff_fff7]);
        let pick = |row: usize| Pick {
            spec: SampleSpec { seed: row as u64 * 77, ..spec },
            bias: bias.clone(),
            allowed: allowed.clone(),
            logits: logits.clone(),
        };
        let picks: Vec<_> = (0..ROWS).map(pick).collect();
        let expected = exact(&picks[0], &seen);
        let all_seen = vec![seen; ROWS];
        let mut counts = vec![0u32; logits.len()];
        for step in 0..400 {
            for token in pollster::block_on(cases::pick(executor, &picks, 1 + step, &all_seen, 0)) {
                counts[token.unwrap() as usize] += 1;
            }
        }
        let draws = f64::from(counts.iter().sum::<u32>());
        assert!(draws >= 100_000.0);
        let (mut chi2, mut freedom) = (0.0, -1.0);
        for (token, (&count, p)) in counts.iter().zip(expected).enumerate() {
            assert!(p > 0.0 || count == 0, "{name}: token {token} of {spec:?}");
            if p > 0.0 {
                chi2 += (f64::from(count) - draws * p).powi(2) / (draws * p);
                freedom += 1.0;
            }
        }
        // Wilson and Hilferty's approximation of the 0.9999 quantile. The draws are fixed, so this cannot flicker.
        let part = 2.0 / (9.0 * f64::max(freedom, 1.0));
        let most = f64::max(freedom, 1.0) * (1.0 - part + 3.72 * part.sqrt()).powi(3);
        assert!(chi2 <= most, "{name}: {chi2} of {most} at {freedom} degrees of {spec:?}");
    }
}

#[test]
fn gpu_draws_follow_the_exact_distribution() {
    let base = SampleSpec { temperature: 0.9, ..SampleSpec::GREEDY };
    let penalties = Penalties { repeat: 1.4, presence: 0.3, frequency: 0.2 };
    let together = SampleSpec { top_k: 30, top_p: 0.9, min_p: 0.02, ..base };
    let specs = [
        base,
        SampleSpec { top_k: 12, ..base },
        SampleSpec { top_p: 0.8, ..base },
        SampleSpec { min_p: 0.05, temperature: 1.7, ..base },
        together,
        SampleSpec { penalties, ..base },
        SampleSpec { penalties, ..together },
    ];
    let op = cases::given_logits(VOCAB);
    let limits = cases::pick_limits(ROWS as u32);
    let logits = distribution_logits().repeat(ROWS);
    let options = CpuOptions { threads: Some(1), keep_values: true, ..CpuOptions::new(limits) };
    let mut cpu = CpuExecutor::new(&op.program, Arc::default(), options).unwrap();
    cpu.set_value(op.inputs[0], &logits).unwrap();
    draws_follow(&mut cpu, &specs, "CPU");
    let options = GpuOptions { limits, keep_values: true, ..cases::options(Numerics::Exact) };
    let mut gpu = gpu(LAVAPIPE, &op.program, &Arc::default(), options);
    gpu.set_value(Role::Generated, op.inputs[0], &logits);
    draws_follow(&mut gpu, &specs, "lavapipe");
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
    let seqs = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Role::Generated, &tokens, 0, &[]) }];
    run(&mut gpu, &seqs);
    let got = pollster::block_on(gpu.value(Role::Generated, op.out, 1)).unwrap();
    let x = rows_of(id as usize);
    let dot = |r: usize| rows_of(r).iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let wanted: Vec<f64> = (0..n as usize).map(dot).collect();
    assert!(nmse(&got, &wanted) < EXACT);
    assert!(gpu.labels(Role::Generated).iter().filter(|(label, _)| *label == "matvec").count() > 1);
}

/// What a draft's verification needs: the bits of a row do not depend on how many others are in the step, nor on its place among them.
#[test]
fn gpu_rows_have_the_same_bits_in_company() {
    for format in [F32, F16, Q8_0, Q4_0, Q4_K, Q6_K] {
        let (n, k) = (33, 768);
        let op = OneOp::new(&[k], |b, x| {
            let w = b.weight("w", n, k);
            b.linear("y", x[0], w, None)
        });
        let mut rng = Rng(17);
        let weights = random_weights(&op.program, &[format], &mut rng);
        let x = rng.normals(9 * k as usize, 1.0);
        let options = GpuOptions { keep_values: true, ..options(Numerics::Exact) };
        for form in [LAVAPIPE, SWIFTSHADER] {
            let mut gpu = gpu(form, &op.program, &weights, options);
            // The bits of some of the nine rows, computed in one step.
            let mut bits = |at: std::ops::Range<usize>| {
                gpu.set_value(Role::Generated, op.inputs[0], &x[at.start * k as usize..at.end * k as usize]);
                let tokens = host(&vec![0; at.len()]);
                let seq = rows(0, Role::Generated, &tokens, 0, &[]);
                run(&mut gpu, &[SeqStep { outs: Outs::None, read_logits: false, ..seq }]);
                let got = pollster::block_on(gpu.value(Role::Generated, op.out, at.len() as u32)).unwrap();
                got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone: Vec<_> = (0..9).map(|r| bits(r..r + 1)).collect();
            for at in [0..2, 1..4, 3..7, 2..7, 0..6, 1..8, 1..9, 0..9] {
                assert!(bits(at.clone()) == alone[at.clone()].concat(), "{format:?}, rows {at:?}, {form:?}");
            }
        }
    }
}

/// Vocabularies as they are, on a device that cannot bind all of the table at once.
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
        let name = adapter::wished().unwrap_or_else(|| LAVAPIPE.adapter.to_owned());
        let choice = Choice { name: Some(name), max_binding: Some(4 << 20), ..Choice::default() };
        let device = pollster::block_on(Device::open(&choice)).unwrap();
        let options = GpuOptions { keep_values: true, limits, ..options(Numerics::Exact) };
        let mut quiet = |_, _| {};
        let load = GpuExecutor::load(&device, &program, &*weights, options, &mut quiet);
        let mut gpu = pollster::block_on(load).unwrap();
        let mut oracle = Oracle::new(&program, weights, limits);
        let tokens = host(&[n - 1, n / 2]);
        let seqs = [SeqStep { outs: Outs::None, read_logits: false, ..rows(0, Role::Generated, &tokens, 0, &[]) }];
        run(&mut gpu, &seqs);
        oracle.step(&Step { seqs: &seqs }).unwrap();
        let got = pollster::block_on(gpu.value(Role::Generated, op.out, 2)).unwrap();
        assert!(nmse(&got, &oracle.value(op.out).concat()) < EXACT, "{n}");
        assert!(gpu.labels(Role::Generated).iter().filter(|(label, _)| *label == "matvec").count() > 1);
    }
}

/// Every matrix in several buffers: the table, a pair of gates and ups, q, k, v, which must not part inside a head.
#[test]
fn gpu_matrices_of_a_model_lie_in_pieces() {
    let program = llama(Shape { dim: 256, hidden: 160, ..Shape::SMALL });
    let mut rng = Rng(15);
    let weights = random_weights(&program, &[F32], &mut rng);
    let limits = Limits { rows: 12, seqs: 1, outs: 12, blocks: 4, context: 32, ..limits() };
    let name = adapter::wished().unwrap_or_else(|| LAVAPIPE.adapter.to_owned());
    // 72 rows of 256 weights, of which 64 are whole heads.
    let choice = Choice { name: Some(name), max_binding: Some(72 * 1024), ..Choice::default() };
    let device = pollster::block_on(Device::open(&choice)).unwrap();
    let options = GpuOptions { limits, ..options(Numerics::Exact) };
    let mut quiet = |_, _| {};
    let load = GpuExecutor::load(&device, &program, &*weights, options, &mut quiet);
    let mut gpu = pollster::block_on(load).unwrap();
    let mut oracle = Oracle::new(&program, weights, limits);
    let tokens = host(&[192, 3, 71, 72, 140, 9, 143, 144, 0]);
    for (role, tokens, pos) in [(Role::Prompt, &tokens[..7], 0), (Role::Generated, &tokens[7..], 7)] {
        let seqs = [rows(0, role, tokens, pos, &[&[2, 1]])];
        let wanted = oracle.step(&Step { seqs: &seqs }).unwrap().concat();
        assert!(nmse(&run(&mut gpu, &seqs).0, &wanted) < EXACT, "{role:?}");
        let matvecs =
            gpu.labels(role).iter().filter(|(label, _)| *label != "matmul" && label.starts_with("mat")).count();
        assert!(matvecs > 2, "{:?}", gpu.labels(role));
    }
}
