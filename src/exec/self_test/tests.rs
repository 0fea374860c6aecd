//! The self-test passes correct kernels and catches wrong ones: a list of mutations, each of which stands for a driver's
//! bug.

use std::collections::BTreeSet;

use super::family::{FAMILIES, Family};
use super::{run, *};
use crate::gpu::{Choice, Fragment, Kind, Matrices, MatrixTile};
use crate::model::{Builder, Out};
use crate::ops::{CpuWeights, Index, KvStorage};
use crate::quant::BlockFormat::{Q2_K, Q4_K, Q5_K, Q6_K, Q8_0};

/// A software adapter, and no other.
fn device(name: &str) -> Device {
    let choice = Choice { name: Some(name.to_owned()), ..Choice::default() };
    let device = pollster::block_on(Device::open(&choice)).unwrap_or_else(|e| panic!("{e}; scripts/test installs it"));
    assert_eq!(device.caps().kind, Kind::Software);
    assert!(device.caps().name.to_lowercase().contains(name), "{}", device.caps().name);
    device
}

fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("{name}"))
}

fn runs(device: &Device, family: &Family, numerics: Numerics, kv: KvStorage) -> Result<Vec<String>> {
    pollster::block_on(run::family(device, family, family.format.unwrap_or(Q8_0), numerics, kv))
}

fn runs_matmul(device: &Device, format: BlockFormat) -> Result<Vec<String>> {
    pollster::block_on(run::matmul(device, format, form(device, format)))
}

/// The device, with a stand-in for cooperative matrices, which no software adapter has.
fn with_stand_in(device: &Device) -> Device {
    let matrices = Matrices {
        side: 16,
        threads: 128,
        tiles: [
            MatrixTile { threads: 128, parts: 4, of_part: [2, 2] },
            MatrixTile { threads: 128, parts: 8, of_part: [2, 2] },
        ],
        types: Fragment { name: "side 16", source: "const SIDE: u32 = 16u;\nconst SUBGROUPS: u32 = 4u;" },
        fragment: Fragment {
            name: "stand-in",
            source: include_str!("../../../tests/device/kernels/cooperative_stand_in.wgsl"),
        },
    };
    device.with_matrices(matrices).with_matmul(|_, _| Matmul::Cooperative)
}

/// Correct kernels pass, on both adapters, with subgroups and without, with every type of keys and values; and no kernel of
/// a model is left out.
#[test]
fn gpu_right_kernels_pass() {
    let lavapipe = device("llvmpipe");
    let plain = lavapipe.without_subgroups();
    let mut kernels = BTreeSet::new();
    for (device, numerics, kv) in [
        (lavapipe.clone(), Numerics::Exact, KvStorage::F32),
        (lavapipe, Numerics::Fast, KvStorage::Q8),
        (plain, Numerics::Fast, KvStorage::F16),
        (device("swiftshader"), Numerics::Fast, KvStorage::F16),
    ] {
        // Latent attention, whose values lie within its keys, has no int8 cache.
        let kv_of = |family: &Family| if family.name == "latent" && kv == KvStorage::Q8 { KvStorage::F16 } else { kv };
        let families = FAMILIES.iter().flat_map(|family| runs(&device, family, numerics, kv_of(family)).unwrap());
        let forms = [Matmul::F16, Matmul::Dot].map(|form| device.with_matmul(|_, _| form));
        let stand_in = with_stand_in(&device);
        let attention = pollster::block_on(run::attention(&stand_in, kv)).unwrap();
        let forms = forms.into_iter().chain([stand_in]);
        let matmuls = forms.flat_map(|device| runs_matmul(&device, Q4_K).unwrap());
        let matvecs = pollster::block_on(run::matvec(&device, Q4_K)).unwrap();
        assert!(matvecs.iter().filter(|module| module.contains("lib/matvec_int8")).count() >= 2, "{matvecs:?}");
        let samples = pollster::block_on(run::samples(&device)).unwrap();
        let modules = families.chain(samples).chain(matmuls).chain(matvecs).chain(attention);
        let modules: Vec<_> = modules.collect();
        kernels.extend(modules.iter().filter_map(|module| module.split(' ').next().map(str::to_owned)));
    }
    // Kernels of `Single` ops only.
    let others = ["kv_replicate", "softmax", "attend_v1"];
    let of_models = KERNELS.iter().map(|kernel| kernel.name);
    let missing: Vec<_> = of_models.filter(|name| !kernels.contains(*name) && !others.contains(name)).collect();
    assert!(missing.is_empty(), "no family runs {missing:?}");
}

/// The smallest model.
fn embedding() -> (Program, CpuWeights) {
    let mut b = Builder::new(8, 16);
    let x = b.embed("embed.weight", Index::Token, 8, 32, 1.0);
    let w = b.weight("embed.weight", 8, 32);
    let y = b.linear("y", x, w, None);
    let y = b.gather(y);
    let program = b.finish(vec![Out::Logits(y)]);
    let bytes = std::sync::Arc::new(crate::file::Bytes::new("zeros", vec![0; 8 * 34]));
    let matrix = crate::ops::Matrix::new(bytes, 0, Q8_0, 8, 32).unwrap();
    (program, CpuWeights { matrices: vec![matrix], vectors: Vec::new() })
}

#[test]
fn gpu_wrong_subgroups_are_left_unused_and_results_are_kept() {
    let device = device("llvmpipe");
    assert!(device.caps().subgroups.is_some());
    let (program, weights) = embedding();
    let test = |device: &Device, self_test_results: &SelfTestResults| {
        pollster::block_on(self_test(device, &program, &weights, Numerics::Exact, None, self_test_results))
    };
    // Only the subgroups are wrong: the plain variant is used, and passes.
    let self_test_results = SelfTestResults::default();
    let wrong = device.mutated("subgroupAdd(v)", "v");
    let plain = test(&wrong, &self_test_results).unwrap();
    assert!(plain.caps().subgroups.is_none());
    let [reported] = self_test_results.faults().try_into().unwrap();
    assert!(reported.starts_with("used without subgroups: llvmpipe"), "{reported}");
    // Samples, which run at the same time, may pass with subgroups.
    let passed = (self_test_results.passed(&device), self_test_results.passed(&plain));
    assert!(matches!(passed, (0 | 1, 2)), "{}", self_test_results.text());
    let kept = self_test_results.text();
    let with_subgroups = |line: &&str| line.contains("\tsubgroups ") && !line.ends_with("\tsamples");
    assert_eq!(kept.lines().find(with_subgroups), None);
    // The same where a driver does not compile them.
    let faults = SelfTestResults::default();
    let plain = test(&device.mutated("subgroupAdd(v)", "subgroupAdd(v, nothing)"), &faults).unwrap();
    assert!(plain.caps().subgroups.is_none());
    let [reported] = faults.faults().try_into().unwrap();
    assert!(reported.starts_with("used without subgroups: "), "{reported}");
    // A test that was passed is trusted, also when it comes from a file; a damaged line, or one of other kernels, is not.
    let text = self_test_results.text();
    let kept = SelfTestResults::parse(&format!("\u{fffd}{text}rubbish\n\n{}", text.replace('\t', " ")));
    assert_eq!(kept.passed(&plain), 1, "{}", kept.text());
    let hash = format!("{:016x}", kernels_hash());
    assert_eq!(SelfTestResults::parse(&text.replace(&hash, "0123456789abcdef")).text(), "");
    // Everything is wrong: the device is refused, and the error names adapter and kernel. A test that was passed is not run
    // again.
    let wrong = device.mutated("params.scale * v", "v + 1.0");
    let error = test(&wrong, &SelfTestResults::default()).unwrap_err().to_string();
    assert!(error.contains("llvmpipe") && error.contains("computes wrongly: embed:"), "{error}");
    test(&wrong.without_subgroups(), &self_test_results).unwrap();
    // A pass with one type of keys and values says nothing about another.
    let wrong = wrong.without_subgroups();
    let q8 = Some(KvStorage::Q8);
    pollster::block_on(self_test(&wrong, &program, &weights, Numerics::Exact, q8, &self_test_results)).unwrap_err();
}

/// What another device cannot do, or does wrongly, says nothing about the device itself; what it does wrongly, does.
#[test]
fn gpu_devices_that_help_do_not_decide() {
    let device = device("llvmpipe");
    let (program, _) = embedding();
    let stored = (Numerics::Exact, KvStorage::F32);
    let run = |device: &Device, other: Device| {
        let results = SelfTestResults::default();
        let tests = Tests::new(device, &program, &HashSet::from([Q8_0]), stored, &results);
        assert_eq!(tests.tests.len(), 2);
        let ran = tests.run_with(device, &[other.clone(), other]);
        (ran, results.passed(device))
    };
    let beside = || pollster::block_on(device.beside()).expect("another device");
    let lost = beside();
    lost.release();
    let wrong = "params.scale * v";
    for other in [beside(), lost.clone(), beside().mutated(wrong, "v + 1.0")] {
        let (ran, passed) = run(&device, other);
        ran.unwrap();
        assert_eq!(passed, 2);
    }
    let (ran, _) = run(&device.mutated(wrong, "v + 1.0"), lost);
    let error = ran.unwrap_err().to_string();
    assert!(error.contains("computes wrongly: embed:"), "{error}");
}

/// A wrong mat-mat variant is left unused, and nothing else.
#[test]
fn gpu_wrong_matmuls_are_left_unused() {
    let (program, weights) = embedding();
    let test = |device: &Device, numerics, self_test_results: &SelfTestResults| {
        pollster::block_on(self_test(device, &program, &weights, numerics, None, self_test_results)).unwrap()
    };
    let device = device("llvmpipe").with_matmul(|_, _| Matmul::Dot);
    let wrong = device.mutated("(1.0 / 127.0)", "(1.0 / 120.0)");
    let cooperative = with_stand_in(&device);
    let uncooperative = cooperative.mutated("sum += sh_tile[a", "sum -= sh_tile[a");
    for (device, numerics, form, reported) in [
        (&device, Numerics::Fast, Matmul::Dot, None),
        (&wrong, Numerics::Fast, Matmul::F16, Some("used without the dot kernels of matmul: llvmpipe")),
        (&wrong, Numerics::Exact, Matmul::Dot, None),
        (&cooperative, Numerics::Fast, Matmul::Cooperative, None),
        (&uncooperative, Numerics::Fast, Matmul::Dot, Some("used without the cooperative kernels of matmul: llvmpipe")),
    ] {
        let self_test_results = SelfTestResults::default();
        assert_eq!(super::form(&test(device, numerics, &self_test_results), Q8_0), form);
        let faults = self_test_results.faults();
        assert_eq!(faults.len(), usize::from(reported.is_some()), "{faults:?}");
        assert!(faults.iter().zip(reported).all(|(fault, reported)| fault.starts_with(reported)), "{faults:?}");
        let tested = form != Matmul::Registers && numerics == Numerics::Fast;
        assert_eq!(self_test_results.text().contains(&format!("matmul {} Q8_0", form.name())), tested);
    }
}

/// A wrong variant for one format leaves the variants of other formats as they are.
#[test]
fn gpu_wrong_matmuls_of_a_format_are_left_unused() {
    let device = with_stand_in(&device("llvmpipe"));
    let mixed = device.tuned("matmul.Q8_0 = dot\nmatmul.Q6_K = f16\nmatmul.Q4_K = cooperative").unwrap();
    let formats = [Q8_0, Q6_K, Q4_K];
    for (from, to, left, forms) in [
        ("(1.0 / 127.0)", "(1.0 / 120.0)", "dot", [Matmul::F16, Matmul::F16, Matmul::Cooperative]),
        ("sum += sh_tile[a", "sum -= sh_tile[a", "cooperative", [Matmul::Dot, Matmul::F16, Matmul::Dot]),
        (
            "return vec4<f16>(clamp_f16(v))",
            "return vec4<f16>(0.0)",
            "f16",
            [Matmul::Dot, Matmul::Registers, Matmul::Cooperative],
        ),
    ] {
        let self_test_results = SelfTestResults::default();
        let wrong = mixed.mutated(from, to);
        let used = pollster::block_on(super::multiplying(wrong, &HashSet::from(formats), &self_test_results)).unwrap();
        assert_eq!(formats.map(|format| super::form(&used, format)), forms, "{left}");
        let [reported] = self_test_results.faults().try_into().unwrap();
        assert!(reported.starts_with(&format!("used without the {left} kernels of matmul: ")), "{reported}");
    }
}

/// A text in a kernel or fragment, what a faulty driver might make of it, and the family that is tested.
const MUTATIONS: &[(&str, &str, &str)] = &[
    // Wrong operators, constants and signs.
    ("rotary", "params.scale * v", "v"),
    ("rotary", "s.d * y + s.low * total", "s.d * y"),
    ("rotary", "scaled16(chunks[4u * f + 2u], half), v", "scaled16(chunks[4u * f], half), v"),
    ("rotary", "sum[h] += w[h] * value", "sum[h] += w[0] * value"),
    ("rotary", "select(vec4<f32>(0.0), values[j], inside[j])", "values[0]"),
    ("rotary", "squares += d * d", "squares += d"),
    ("rotary", "+ params.eps)", "- params.eps)"),
    ("rotary", "y *= vecs[params.norm_w + (own + i) / 4u]", "y *= vecs[params.norm_w]"),
    ("rotary", "return x / (1.0 + exp(-x));", "return x / (1.0 + exp(x));"),
    ("rotary", "x.a *= scale * weight4", "x.a *= scale * scale * weight4"),
    ("rotary", "x.a * s + x.b * c", "x.a * s - x.b * c"),
    ("rotary", "v.x * a.x - v.z * a.y", "v.x * a.x + v.z * a.y"),
    ("neighbours", "v.x * a.y + v.y * a.x", "v.x * a.y - v.y * a.x"),
    ("learned", "sum += x[at + i]", "sum -= x[at + i]"),
    ("learned", "out[i] = x + b[i]", "out[i] = x - b[i]"),
    ("learned", "0.70710678", "0.65"),
    ("experts", "out[i] = x * b[i]", "out[i] = x + b[i]"),
    ("latent", "out[a] = u * t.x - v * t.y", "out[a] = u * t.x + v * t.y"),
    ("encoder", "y /= f32(rows);", ""),
    ("row_wise", "out[at + i] = max(x[at + i] - threshold, 0.0)", "out[at + i] = max(x[at + i], threshold)"),
    ("row_wise", "sqrt(sums.y / max(sums.x, params.by))", "sums.y / max(sums.x, params.by)"),
    // Scales of blocks.
    ("matvec", "(four & 0x0f0fu)", "(four & 0x0e0fu)"),
    ("matvec", "(head.z >> t) << 16u", "(head.y >> t) << 16u"),
    ("matvec", "(six >> 2u) & 0x30303030u", "(six >> 1u) & 0x30303030u"),
    ("Q5_K", "(four << 12u) & 0x0f0f0000u", "(four << 8u) & 0x0f0f0000u"),
    ("Q6_K", "vec4<u32>(4u - 4u * half)", "vec4<u32>(4u)"),
    ("Q6_K", "c / 4u * 2u;", "c / 8u * 2u;"),
    ("Q2_K", "chunk.scales >> (16u * half)", "chunk.scales >> (8u * half)"),
    // Reductions and loops.
    ("learned", "subgroupAdd(v)", "v"),
    ("rotary", "subgroupAdd(partial)", "partial"),
    ("rotary", "sh_partials[t] = vec4<f32>(0.0);", "sh_partials[t] = vec4<f32>(1.0);"),
    ("learned", "denominator *= rescale;", ""),
    ("learned", "d1[h] += dot(k1, v);", "d1[h] += dot(k0, v);"),
    ("learned", "quadSwapX(select(parts[3], parts[2], odd))", "select(parts[3], parts[2], odd)"),
    ("learned", "quadSwapY(select(high, low, upper))", "quadSwapX(select(high, low, upper))"),
    ("learned", "slot + lid % THREADS_PER_KEY * slots", "lid"),
    ("rotary", "let own = e % V_VEC4S;", "let own = lid;"),
    ("rotary", "all.sum += sh_sum[i];", ""),
    ("learned", "sh_rescale[quad] = rescale;", "sh_rescale[quad] = vec4<f32>(1.0);"),
    ("learned", "sum_b[2] += b.z * value", "sum_b[2] += b.y * value"),
    ("learned", "let y = exp(b.state.x - running_max);", "let y = 1.0;"),
    ("rotary", "own + 1u - min(params.before, own + 1u)", "0u"),
    ("recurrent", "state[kept + i * params.n] = v;", "state[kept + i * params.n] = 0.0;"),
    ("recurrent", "vec2<f32>(gain, a * size)", "vec2<f32>(gain, a)"),
    ("recurrent", "known += keep *", "known -= keep *"),
    ("recurrent", "b += gates[", "b -= gates["),
    // Decoders and storage.
    ("rotary", "vec4<u32>(24u, 16u, 8u, 0u)", "vec4<u32>(24u, 16u, 0u, 8u)"),
    ("rotary", ">> vec4<u32>(24u)", ">> vec4<u32>(23u)"),
    ("rotary", "word(at + i / 2u) >> (16u * (i & 1u))", "word(at + i / 2u)"),
    ("rotary", "unpack2x16float(kv[i / 4u].y)", "unpack2x16float(kv[i / 4u].x)"),
    ("rotary", "kv_store2(i + 2u, v.zw)", "kv_store2(i + 2u, v.xy)"),
    ("rotary, q8", "return unpack4x8snorm(kv[i / 4u]); }", "return unpack4x8snorm(kv[i / 4u]).xyzz; }"),
    ("rotary, q8", "{ return 127.0 * bitcast<f32>", "{ return bitcast<f32>"),
    ("rotary, q8", "kv[scale_at(seq, head, pos) + KV_HEADS * PAGE_SLOTS]", "kv[scale_at(seq, head, pos)]"),
    ("rotary, q8", "/ 4u + head * PAGE_SLOTS + pos % PAGE_SLOTS", "/ 4u + pos % PAGE_SLOTS"),
    // Moves, markers.
    ("rotary", "kv[move_.y * params.n + i] = v;", "kv[move_.y * params.n] = v;"),
    ("recurrent", "v = kv[move_.x * params.n + i];", "v = kv[move_.x * params.n];"),
    ("rotary", "number[0] ^ params.salt", "number[0]"),
    // Rows, positions, tables, experts.
    ("rotary", "pos / PAGE_SLOTS", "pos / (PAGE_SLOTS + 1u)"),
    ("rotary", "(head * PAGE_SLOTS + pos % PAGE_SLOTS) * V_DIM", "(pos % PAGE_SLOTS) * V_DIM"),
    ("rotary", "return batch[BATCH_ROWS + 4u * r + 3u];", "return 0u;"),
    ("rotary", "return batch[BATCH_ROWS + 4u * r + 2u];", "return batch[BATCH_ROWS + 4u * r + 2u] / 2u;"),
    ("rotary", "return batch[BATCH_OUTS + o]", "return batch[BATCH_OUTS]"),
    ("learned", "index = row_pos(row) + params.offset", "index = params.offset"),
    ("learned", "row_pos(row) % 16u", "(row_pos(row) + 1u) % 16u"),
    ("latent", "head * params.b_dim + i - params.a_dim", "i - params.a_dim"),
    ("latent", "params.start + id.x % params.n", "id.x % params.n"),
    ("encoder", "(seq_row0(seq) + pos) * params.k_stride", "pos * params.k_stride"),
    ("experts", "out[to + j] = f32(sh_chosen[j])", "out[to + j] = f32(sh_chosen[0])"),
    ("experts", "other.x > found.x", "other.x < found.x"),
    ("experts", "j * params.n + id.x", "id.x"),
    ("experts", "if CHOSEN {", "if !CHOSEN {"),
    // Matmul in integers.
    ("matmul", "dots(q_low, v) * (d_low * s.x)", "dots(q_low, v) * d_low"),
    ("matmul", "chunk_at(min(k16, k16s - 1u) / 2u) + k16 % 2u * HALF_GAP", "16u * k16"),
    ("matmul", "select(scales.w, scales.z, from_k % 32u == 0u)", "scales.z"),
    ("matmul", "low[m] += vec4<f32>(s0.y, s1.y, s2.y, s3.y) * s.y;", ""),
    ("matmul", "largest * (1.0 / 127.0)", "largest * (1.0 / 120.0)"),
    ("matmul", "return k / 32u * 3u;", "return k / 32u * 2u;"),
    ("matmul", "dot4I8Packed(a.x, b.x)", "i32(dot4U8Packed(a.x, b.x))"),
    ("matmul", "let to = slot_w(row, i / TILE_N * 2u + r);", "let to = slot_w(row, i / TILE_N * 2u);"),
    ("matmul", "min(tile * (TILE_N / 2u) + i % (TILE_N / 2u), params.n - 1u)", "min(tile * TILE_N + i, params.n - 1u)"),
    // Matvec in integers.
    ("matvec", "f32(dot16(w.q, v)) * (w.d * s)", "f32(dot16(w.q, v)) * w.d"),
    ("matvec", "y += w.low * total;", ""),
    ("matvec", "select(scales.w, scales.z, first16)", "scales.w"),
    ("matvec", "select(0.0, scales.y, first16)", "scales.y"),
    ("matvec", "(first + min(col, cols - 1u)) * units", "first * units"),
    ("matvec", "v *= vecs[params.norm_w + 8u * c + i];", ""),
    ("matvec", "i / 32u * 3u + i / 16u % 2u", "i / 32u * 3u"),
    // Matmul in f16.
    ("f16", "return vec4<f16>(clamp_f16(v))", "return vec4<f16>(clamp_f16(v)) + vec4<f16>(0.1)"),
    ("f16", "sh_x[slot(tm + m * THREADS_M, i)]", "sh_x[slot(tm, i)]"),
    // Matmul and attention by cooperative matrices.
    ("cooperative", "put(i, 16u * half + 4u, numbers[1])", "put(i, 4u, numbers[1])"),
    ("cooperative", "(TILE_N + part / 2u * DOWN * SIDE)", "TILE_N"),
    ("cooperative", "(pair * DOWN + down) * SIDE", "down * SIDE"),
    ("cooperative", "if part / 2u == pair {", "if part / 2u != pair {"),
    ("cooperative", "eight / 2u * HALF_GAP + eight % 2u * 8u", "eight * 8u"),
    ("cooperative", "if i == j {", "if i < j {"),
    ("cooperative", "load_left(at_x + m * SIDE * STRIDE + s, STRIDE)", "load_left(at_x + s, STRIDE)"),
    ("cooperative", "load_right_t(at_w + n * SIDE * STRIDE + s, STRIDE)", "load_right_t(at_w + s, STRIDE)"),
    ("cooperative", "sh_sums[e + AREA] + bitcast", "sh_sums[e] + bitcast"),
    ("cooperative", "e % AREA / SIDE;", "0u;"),
    ("attention", "load_right(block_at + s * STRIDE + column, STRIDE)", "load_right(block_at + column, STRIDE)"),
    ("attention", "if from_vec4 > 0u {", "if from_vec4 > 8u {"),
    ("attention", "n / EACH * 8u + i % 8u", "i % 8u"),
    ("attention", "min(head + row / SIDE, last_head), i % q_vec4s", "head, i % q_vec4s"),
    ("attention", "sh_rescale[row] = rescale;", "sh_rescale[row] = 1.0;"),
    ("attention", "return two + quadSwapY(two);", "return two;"),
    ("attention", "state[n].y * rescale + sum_of_four", "sum_of_four"),
    ("attention", "block + (lid + n * THREADS) / 8u, begin", "block + lid / 8u, begin"),
    ("attention", "seq_row0(middle) / size + middle <= tile", "seq_row0(middle) / size <= tile"),
    // Samples.
    ("samples", "h *= 0x7feb352du", "h *= 0x7feb352fu"),
    ("samples", "return -ln(-ln(u))", "return ln(-ln(u))"),
    ("samples", "fit = fit * m + 3.3333331e-1", "fit = fit * m - 3.3333331e-1"),
    ("samples", "(s == other_score && t < other)", "(s == other_score && t > other)"),
    ("samples", "bad = 1u", "bad = 0u"),
    ("samples", "atomicMax(&bins", "atomicMin(&bins"),
    ("samples", "atomicAdd(&sh_lower[e >> 11u], 1u)", "atomicAdd(&sh_lower[e >> 11u], 2u)"),
    ("samples", "atomicAdd(&sh_upper[e >> 11u], w >> LOWER_BITS)", "atomicAdd(&sh_upper[e >> 11u], 0u)"),
    ("samples", "if e >> 11u <= sh_last && e <= deepest", "if e >> 11u < sh_last && e <= deepest"),
    ("samples", "select(bits | 0x80000000u, ~bits,", "select(bits | 0x80000000u, bits,"),
    ("samples", "m = 45426u -", "m = 35426u -"),
    ("samples", "return (m << 10u) >> (e >> 16u)", "return m << 10u"),
    ("samples", "sh_left = sub(sh_left, sh_sums[chunk]);", ""),
    ("samples", "prefix.y |= sh_found", "prefix.y = sh_found"),
    ("samples", "> sample_word(d, DEEPEST)", "< sample_word(d, DEEPEST)"),
    ("samples", "let scaled = x * sample_f32(d, REPEAT + u32(x > 0.0))", "let scaled = x"),
    ("samples", "count += u32(sampled_before(d, j) == token)", "count += 0u"),
    ("samples", "x + bitcast<f32>(samples[bias + 2u * i + 1u])", "x"),
    ("samples", "first = first && !(same && j <= lid)", "first = first && !same"),
    ("samples", ">> (i % 32u)) & 1u) != 0u;", ">> (i % 31u)) & 1u) != 0u;"),
    ("samples", "sum += exp(logits[row + i] - largest)", "sum += exp(logits[row + i])"),
    ("samples", "a.x == b.x && a.y < b.y", "a.x == b.x && a.y > b.y"),
    ("samples", "* exp(unorder(top[at + 1u].x) - largest)", ""),
    ("samples", "bitcast<u32>(x - largest - rest)", "bitcast<u32>(x - largest)"),
    ("samples", "if samples[stops + i] == before {", "if samples[stops] == before {"),
    ("samples", "sh_broken[0] != 0u || over", "sh_broken[0] != 0u"),
    ("samples", "select(row_token, before, over)", "row_token"),
];

/// Mat-vec in int8 that is wrong is left unused, and nothing else; it is tested where a model has rows that are long enough.
#[test]
fn gpu_wrong_matvecs_are_left_unused() {
    let (program, weights) = embedding();
    let test = |device: &Device, numerics, self_test_results: &SelfTestResults| {
        pollster::block_on(self_test(device, &program, &weights, numerics, None, self_test_results)).unwrap()
    };
    let device = device("llvmpipe").with_matmul(|_, _| Matmul::Registers).with_matvec(Matvec::Dot);
    let long = device.tuned("dot_k = 32").unwrap();
    let wrong = |device: &Device| device.mutated("(1.0 / 127.0)", "(1.0 / 120.0)");
    for (device, numerics, form, tests) in [
        (&long, Numerics::Fast, Matvec::Dot, 1),
        (&wrong(&long), Numerics::Fast, Matvec::Registers, 0),
        (&wrong(&long), Numerics::Exact, Matvec::Dot, 0),
        (&wrong(&device.tuned("dot_k = 64").unwrap()), Numerics::Fast, Matvec::Dot, 0),
    ] {
        let self_test_results = SelfTestResults::default();
        let left = test(device, numerics, &self_test_results);
        assert_eq!(left.caps().matvec(Q8_0), form, "{numerics:?}");
        let of_matvec = self_test_results.text().lines().filter(|line| line.contains("matvec dot Q8_0")).count();
        assert_eq!(of_matvec, tests, "{}", self_test_results.text());
        let faults = self_test_results.faults();
        let reported = faults.iter().any(|fault| fault.starts_with("used without the dot kernels of matvec: llvmpipe"));
        assert_eq!(reported, form == Matvec::Registers, "{faults:?}");
    }
}

/// Attention by cooperative matrices that is wrong is left unused, and nothing else.
#[test]
fn gpu_wrong_attention_by_matrices_is_left_unused() {
    let device = with_stand_in(&device("llvmpipe"));
    let test = |device: &Device, self_test_results: &SelfTestResults| {
        pollster::block_on(attending(device.clone(), KvStorage::F16, self_test_results)).unwrap()
    };
    let self_test_results = SelfTestResults::default();
    assert!(test(&device, &self_test_results).caps().attend_matrices().is_some());
    assert_eq!((self_test_results.passed(&device), self_test_results.faults().len()), (1, 0));
    let self_test_results = SelfTestResults::default();
    let left = test(&device.mutated("sum += sh_tile[a", "sum -= sh_tile[a"), &self_test_results);
    assert!(left.caps().attend_matrices().is_none() && left.caps().cooperative.is_some());
    let [reported] = self_test_results.faults().try_into().unwrap();
    assert!(reported.starts_with("used without cooperative attention: llvmpipe"), "{reported}");
}

/// What the tests of a family say of a device, by the name that a mutation has for it.
fn tested(wrong: &Device, name: &str) -> Result<Vec<String>> {
    match name {
        "samples" => pollster::block_on(run::samples(wrong)),
        "matmul" => runs_matmul(&wrong.with_matmul(|_, _| Matmul::Dot), Q4_K),
        "matvec" => pollster::block_on(run::matvec(wrong, Q4_K)),
        "Q2_K" => pollster::block_on(run::matvec(wrong, Q2_K)),
        "Q5_K" => pollster::block_on(run::matvec(wrong, Q5_K)),
        "Q6_K" => pollster::block_on(run::matvec(wrong, Q6_K)),
        "f16" => runs_matmul(&wrong.with_matmul(|_, _| Matmul::F16), Q4_K),
        "cooperative" => runs_matmul(&with_stand_in(wrong), Q4_K),
        "attention" => pollster::block_on(run::attention(&with_stand_in(wrong), KvStorage::F16)),
        "rotary, q8" => runs(wrong, family("rotary"), Numerics::Fast, KvStorage::Q8),
        name => runs(wrong, family(name), Numerics::Fast, KvStorage::F16),
    }
}

/// At least 95 of a hundred wrong kernels are caught, and none of the list has lost its text.
#[test]
fn gpu_wrong_kernels_are_caught() {
    let formats = BlockFormat::ALL.iter().map(|f| f.info().wgsl);
    let texts: Vec<_> =
        KERNELS.iter().map(|kernel| kernel.source).chain(LIB.iter().map(|f| f.source)).chain(formats).collect();
    let gone = |(_, from, _): &&(&str, &str, &str)| !texts.iter().any(|text| text.contains(from));
    let gone: Vec<_> = MUTATIONS.iter().filter(gone).collect();
    assert!(gone.is_empty(), "in no kernel any more: {gone:?}");
    // Most of the time kernels are compiled, in a thread of each device's.
    let mut devices = vec![device("llvmpipe")];
    devices.extend(pollster::block_on(others(&devices[0], MUTATIONS.len())));
    let (next, escaped) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for device in &devices {
            scope.spawn(|| {
                while let Some((family, from, to)) = MUTATIONS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match tested(&device.mutated(from, to), family) {
                        Err(Error::Miscomputed { kernel, problem, .. }) => {
                            println!("{from} -> {to}\n    {kernel}: {problem}");
                        }
                        Err(error @ Error::LostStep { .. }) => println!("{from} -> {to}\n    {error}"),
                        Err(error) => panic!("{from} -> {to}: {error}"),
                        Ok(_) => escaped.lock().unwrap().push(from),
                    }
                }
            });
        }
    });
    let escaped = escaped.into_inner().unwrap();
    println!("{} of {} escaped: {escaped:?}", escaped.len(), MUTATIONS.len());
    assert!(escaped.len() * 20 <= MUTATIONS.len(), "{escaped:?}");
}
