//! Every kernel against the f64 oracle, over odd shapes, in every form that an adapter has: both software adapters, with and
//! without subgroups, with wgpu's checks and without, the cache in f32 and f16, rows as prefill and as decode.

mod attention;
mod executor;
mod samples;
mod single;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use wgslm::Error;
use wgslm::exec::single::{Rotation, RowPos, Single, StepBuffer, StepLimits};
use wgslm::exec::{
    CacheOp, CpuExecutor, CpuOptions, Executor, GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Phase,
    Sampled, SeqStep, Step, Token,
};
use wgslm::gpu::{
    Arg, Buffer, Choice, Device, Dim, Fragment, Kernel, Kind, Matrices, MatrixTile, Pipelines, PlanBuilder, StepCounts,
};
use wgslm::model::Program;
use wgslm::ops::{
    Attend, BlockMove, CacheShape, CpuWeights, GroupId, Index, Kv, KvLayout, KvReplicate, KvStorage, KvWrite, Mask, Op,
    Pairing, Penalties, Rope, RopeSpec, SampleSpec, ValueId,
};
use wgslm::quant::BlockFormat;
use wgslm::quant::BlockFormat::{F16, F32, Q4_0, Q4_K, Q6_K, Q8_0};
use wgslm_test::adapter;
use wgslm_test::cases::attend::AttendCase;
use wgslm_test::cases::{self, Case, EXACT, Gather, options};
use wgslm_test::modules;
use wgslm_test::programs::*;

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
        let hardware = adapter::requested();
        let name = hardware.clone().unwrap_or_else(|| form.adapter.to_owned());
        let choice = Choice {
            name: Some(name.clone()),
            no_subgroups: !form.subgroups,
            checked: form.checked,
            // Without features a device is what an application may lend: WebGPU's defaults.
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

/// Runs a step to its end; gives its logits and samples.
fn run(gpu: &mut GpuExecutor, seqs: &[SeqStep<'_>]) -> (Vec<f32>, Vec<Sampled>) {
    pollster::block_on(cases::run(gpu, seqs))
}

/// Causal attention of one head of `dim` elements.
fn attend_of(q: ValueId, out: ValueId, kv: Kv, dim: u32) -> Attend {
    let (mask, scale, softcap, sinks, slopes) = (Mask::Causal, 0.1, 0.0, None, None);
    Attend { q, heads: 1, kv_heads: 1, k_dim: dim, v_dim: dim, kv, mask, scale, softcap, sinks, slopes, out }
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

/// Half of the cases, or the other half: by the Thue-Morse sequence, which has no period that a list could have, too, and of three
/// neighbours never leaves out all.
fn half(cases: &[Case], which: u32) -> impl Iterator<Item = &Case> {
    cases.iter().enumerate().filter(move |(i, _)| i.count_ones() % 2 == which).map(|(_, case)| case)
}

/// Each case meets lavapipe, half of them with each reduction. Every second one also meets SwiftShader, which keeps nothing that it
/// has compiled, in a form whose reduction is the other one.
fn check_all_forms(cases: &[Case]) {
    for (form, which) in FORMS.into_iter().zip([0, 1, 1, 0]) {
        let step = if form.adapter == SWIFTSHADER.adapter { 2 } else { 1 };
        check(form, half(cases, which).step_by(step));
    }
}

/// Cases for which it is no matter how sums are reduced. SwiftShader has others of them in the browser.
fn check_adapters(cases: &[Case]) {
    check(LAVAPIPE, cases);
    check(FORMS[3], half(cases, 0).step_by(2));
}

#[test]
fn gpu_linear() {
    check_all_forms(&cases::linear());
}

#[test]
fn gpu_formats() {
    check_adapters(&cases::formats());
}

/// Whatever the tuning table has for a format, matmuls are right.
#[test]
fn gpu_tunings_of_matmuls() {
    check(LAVAPIPE, &cases::tunings());
}

#[test]
fn gpu_matmul_in_integers() {
    check_adapters(&cases::dots());
}

#[test]
fn gpu_matvec_in_integers() {
    check(LAVAPIPE, &cases::int8_vectors());
    // SwiftShader compiles for seconds: a fifth of them, which has each epilogue and norm.
    check(FORMS[3], cases::int8_vectors().iter().step_by(5));
}

#[test]
fn gpu_layers_in_integers() {
    let cases = cases::int8_models();
    // Without subgroups, as in a browser, where they run on SwiftShader: every module there is.
    let (device, mut seen) = (device(FORMS[1]), BTreeSet::new());
    for case in &cases {
        let (distance, modules) = pollster::block_on(case.distance(&device));
        assert!(distance <= case.bound, "{}: {distance:e}", case.name);
        seen.extend(modules);
    }
    let all = modules::all();
    let in_int8 = all.iter().filter(|m| modules::name(m).contains("lib/matvec_int8") && !modules::uses_subgroups(m));
    let missing: Vec<_> = in_int8.map(modules::name).filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no case runs {missing:?}");
}

#[test]
fn gpu_matmul_in_f32() {
    check(LAVAPIPE, &cases::registers());
}

#[test]
fn gpu_matmul_of_extreme_rows() {
    check_adapters(&cases::extreme_matmuls());
}

/// Of software adapters, lavapipe alone has f16.
#[test]
fn gpu_matmul_of_f16() {
    check(LAVAPIPE, &cases::f16_tiles());
}

#[test]
fn gpu_matmul_by_other_tiles() {
    // The second has WebGPU's minimum of workgroup memory, into which fewer columns of a tile fit.
    FORMS[..2].iter().for_each(|form| check(*form, &cases::tiles()));
}

/// Few software adapters have cooperative matrices: plain WGSL of the same meaning takes their place, and subgroups are emulated.
/// This tests tiles, edges, epilogues, and how subgroups take turns.
fn with_stand_ins() -> [(Form, Device, &'static str); 4] {
    macro_rules! stand_in {
        ($side:literal, $subgroups:literal, $threads:literal, $tiles:expr) => {{
            let source = concat!("const SIDE: u32 = ", $side, "u;\nconst SUBGROUPS: u32 = ", $subgroups, "u;");
            let stand_in = include_str!("cooperative_stand_in.wgsl");
            Matrices {
                side: $side,
                threads: $threads,
                tiles: $tiles.map(|(parts, of_part)| MatrixTile { threads: $threads, parts, of_part }),
                types: Fragment { name: concat!("side ", $side, ", ", $subgroups, " subgroups"), source },
                fragment: Fragment { name: "stand-in", source: stand_in },
            }
        }};
    }
    // On lavapipe a shader's loops end after 65,535 iterations in all, so one thread must not have many there.
    let forms = [
        (SWIFTSHADER, stand_in!(8, 16, 128, [(4, [4, 4]), (8, [4, 4])])),
        (SWIFTSHADER, stand_in!(16, 4, 256, [(4, [4, 1]), (4, [4, 2])])),
        (LAVAPIPE, stand_in!(16, 4, 256, [(4, [2, 1]), (8, [2, 1])])),
        (LAVAPIPE, stand_in!(8, 2, 128, [(4, [2, 2]), (8, [2, 2])])),
    ];
    forms.map(|(form, matrices)| (form, device(form).with_matrices(matrices), matrices.types.name))
}

#[test]
fn gpu_matmul_by_cooperative_matrices_with_a_stand_in() {
    for (turn, (form, device, types)) in with_stand_ins().into_iter().enumerate() {
        // The longest row has too many iterations for lavapipe.
        let longest = if form == LAVAPIPE { 8192 } else { u32::MAX };
        check_on(&device, &format!("{form:?}, {types}"), &cases::cooperative(turn, longest));
    }
}

/// A device with the adapter's own cooperative matrices.
fn with_own_matrices() -> (Device, Matrices) {
    let device = device(LAVAPIPE);
    let matrices = device.caps().cooperative.expect("lavapipe of Mesa 26 has cooperative matrices");
    (device.with_matrices(matrices), matrices)
}

/// Every format in every shape, with every epilogue, in all turns: two tests, since each compiles on one core.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/newest-lavapipe"]
fn gpu_cooperative_matrices_of_the_adapter_in_even_turns() {
    let (device, _) = with_own_matrices();
    (0..7).step_by(2).for_each(|turn| check_on(&device, "cooperative matrices", &cases::cooperative(turn, u32::MAX)));
}

#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/newest-lavapipe"]
fn gpu_cooperative_matrices_of_the_adapter_in_odd_turns() {
    let (device, _) = with_own_matrices();
    (1..7).step_by(2).for_each(|turn| check_on(&device, "cooperative matrices", &cases::cooperative(turn, u32::MAX)));
}

/// By larger tiles, as other adapters have them for many rows.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/newest-lavapipe"]
fn gpu_cooperative_matrices_of_the_adapter_in_large_tiles() {
    let (device, matrices) = with_own_matrices();
    let large = MatrixTile { threads: 256, parts: 8, of_part: [4, 2] };
    let device = device.with_matrices(Matrices { tiles: [matrices.tiles[0], large], ..matrices });
    check_on(&device, "cooperative matrices, large tiles", &cases::cooperative(0, u32::MAX));
}

#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/newest-lavapipe"]
fn gpu_cooperative_matrices_of_the_adapter_in_attention() {
    let (device, _) = with_own_matrices();
    for case in cases::cooperative_attention() {
        let (distance, modules) = pollster::block_on(case.distance(&device));
        assert!(modules.iter().any(|m| m.starts_with("attend_cooperative")), "{}: {modules:?}", case.name);
        assert!(distance <= case.bound, "{}: {distance:e}", case.name);
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

/// Workgroups of the sizes that the table has for GPUs; other tests have those of software adapters.
#[test]
fn gpu_kernels_in_the_geometry_of_gpus() {
    let each = |cases: Vec<Case>, step| cases.into_iter().step_by(step);
    // A sixth of the writes. Their parameters repeat with periods of their own, so each group of six gives the next one.
    let writes = cases::writes().into_iter().enumerate().filter(|(i, _)| i / 6 % 6 == i % 6).map(|(_, case)| case);
    let attention = each(cases::attend(), 9).chain(each(cases::attend_caches(), 9));
    let reductions = cases::norm().into_iter().chain(cases::softmaxes());
    let mut cases: Vec<Case> = reductions.chain(writes).chain(attention).collect();
    let tunings = [
        "reduce = 32\nhead = 32\nattend = 64",
        "reduce = 32\nhead = 32\nattend = 64\ntiled_keys = 4\ntiled_values = 1",
    ];
    cases.iter_mut().enumerate().for_each(|(i, case)| case.tuning = tunings[i % 2]);
    FORMS[..2].iter().for_each(|form| check(*form, &cases));
}

#[test]
fn gpu_moves_are_exact() {
    check_all_forms(&cases::moves());
}

#[test]
fn gpu_route() {
    check_adapters(&cases::route());
}

#[test]
fn gpu_experts() {
    check_all_forms(&cases::expert_layers());
    check_all_forms(&cases::heads());
}

#[test]
fn gpu_expert_formats() {
    check_adapters(&cases::expert_formats());
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

/// A sequence in any chunks, alone or batched: the same bits of each phase.
fn same_in_all_cuts(op: &(String, OneOp)) {
    for form in [LAVAPIPE, SWIFTSHADER] {
        for phase in Phase::ALL {
            let bits = |case: &Case| pollster::block_on(case.bits_of(&device(form), 0));
            let chunked = cases::recurrent_chunks(op, phase);
            let whole = bits(&chunked[0]);
            chunked[1..].iter().for_each(|case| assert!(bits(case) == whole, "{}, {phase:?}, {form:?}", case.name));
        }
    }
}

#[test]
fn gpu_recurrences_are_the_same_in_all_cuts() {
    recurrent().iter().for_each(same_in_all_cuts);
}

/// Rows in any batch and any chunks: the same bits, even where experts get very different numbers of rows, in tiles of both
/// sizes.
#[test]
fn gpu_experts_are_the_same_in_all_cuts() {
    for (count, used) in [(7, 3), (3, 2)] {
        let layer = OneOp::new(&[count, 64], |b, x| experts(b, x, plain(count, used), [64, 96, 65], true));
        same_in_all_cuts(&(format!("{used} of {count} experts"), layer));
    }
}

#[test]
fn gpu_programs_agree_with_the_oracle() {
    // Nearly all of the time goes to compiling: each program as it is run, and in turn unfused and Fast; half of them elsewhere.
    for (p, cases) in cases::models().chunks(3).enumerate() {
        let [exact, unfused, fast] = cases else { panic!("three of each program") };
        check(LAVAPIPE, [exact, if p % 2 == 0 { unfused } else { fast }]);
        for (f, form) in FORMS.iter().enumerate().skip(1).filter(|(f, _)| (p + f) % 2 == 0) {
            // On SwiftShader every second program.
            if form.adapter == LAVAPIPE.adapter || (p / 2 + f) % 2 == 0 {
                check(*form, [if form.subgroups { fast } else { exact }]);
            }
        }
    }
}
