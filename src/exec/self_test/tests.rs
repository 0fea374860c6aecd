//! The self-test passes what is right, and catches what is wrong: a list of mutations, each of which stands for a driver.

use std::collections::BTreeSet;

use super::family::{FAMILIES, Family};
use super::{run, *};
use crate::gpu::{Choice, Fragment, Kind, Matrices};
use crate::model::{Builder, Out};
use crate::ops::{CpuWeights, Index, KvStorage};
use crate::quant::BlockFormat::{Q4_K, Q6_K, Q8_0};

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

fn runs_products(device: &Device, format: BlockFormat) -> Result<Vec<String>> {
    pollster::block_on(run::products(device, format, form(device, format)))
}

/// The device, with what stands in for cooperative matrices, which no software adapter has.
fn with_stand_in(device: &Device) -> Device {
    let matrices = Matrices {
        side: 16,
        types: Fragment { name: "side 16", source: "const SIDE: u32 = 16u;\nconst SUBGROUPS: u32 = 4u;" },
        products: Fragment {
            name: "stand-in",
            source: include_str!("../../../tests/device/kernels/cooperative_stand_in.wgsl"),
        },
    };
    device.with_matrices(matrices).with_matmul(|_, _| Matmul::Cooperative)
}

/// Right kernels pass, on both adapters, with subgroups and without, with every type of keys and values; and no kernel of a model is
/// left out.
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
        // Values within keys are in no cache of eight bits.
        let kv_of = |family: &Family| if family.name == "latent" && kv == KvStorage::Q8 { KvStorage::F16 } else { kv };
        let families = FAMILIES.iter().flat_map(|family| runs(&device, family, numerics, kv_of(family)).unwrap());
        let forms = [Matmul::Halves, Matmul::Dot].map(|form| device.with_matmul(|_, _| form));
        let stand_in = with_stand_in(&device);
        let attention = pollster::block_on(run::attention(&stand_in, kv)).unwrap();
        let forms = forms.into_iter().chain([stand_in]);
        let products = forms.flat_map(|device| runs_products(&device, Q4_K).unwrap());
        let modules = families.chain(pollster::block_on(run::draws(&device)).unwrap()).chain(products).chain(attention);
        let modules: Vec<_> = modules.collect();
        kernels.extend(modules.iter().filter_map(|module| module.split(' ').next().map(str::to_owned)));
    }
    // Of `Single` ops.
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
    let y = b.pick(y);
    let program = b.finish(vec![Out::Logits(y)]);
    let bytes = std::sync::Arc::new(crate::file::Bytes::new("zeros", vec![0; 8 * 34]));
    let matrix = crate::ops::Matrix::new(bytes, 0, Q8_0, 8, 32).unwrap();
    (program, CpuWeights { matrices: vec![matrix], vectors: Vec::new() })
}

#[test]
fn gpu_wrong_subgroups_are_left_unused_and_verdicts_are_kept() {
    let device = device("llvmpipe");
    assert!(device.caps().subgroups.is_some());
    let (program, weights) = embedding();
    let test = |device: &Device, verdicts: &Verdicts| {
        pollster::block_on(self_test(device, &program, &weights, Numerics::Exact, None, verdicts))
    };
    // Only the subgroups are wrong: the plain form is taken, and passes.
    let verdicts = Verdicts::default();
    let wrong = device.mutated("subgroupAdd(v)", "v");
    let plain = test(&wrong, &verdicts).unwrap();
    assert!(plain.caps().subgroups.is_none());
    let [told] = verdicts.faults().try_into().unwrap();
    assert!(told.starts_with("used without subgroups: llvmpipe"), "{told}");
    assert_eq!((verdicts.passed(&device), verdicts.passed(&plain)), (0, 2), "{}", verdicts.text());
    // So it is where a driver does not compile them.
    let faults = Verdicts::default();
    let plain = test(&device.mutated("subgroupAdd(v)", "subgroupAdd(v, nothing)"), &faults).unwrap();
    assert!(plain.caps().subgroups.is_none());
    let [told] = faults.faults().try_into().unwrap();
    assert!(told.starts_with("used without subgroups: "), "{told}");
    // What was passed is believed, also when it comes from a file; what is damaged or of other kernels is not.
    let text = verdicts.text();
    let kept = Verdicts::parse(&format!("\u{fffd}{text}rubbish\n\n{}", text.replace('\t', " ")));
    assert_eq!(kept.passed(&plain), 1, "{}", kept.text());
    let hash = format!("{:016x}", kernels_hash());
    assert_eq!(Verdicts::parse(&text.replace(&hash, "0123456789abcdef")).text(), "");
    // Everything is wrong: the device is refused, and the error names adapter and kernel. What was passed is not run again.
    let wrong = device.mutated("params.scale * v", "v + 1.0");
    let error = test(&wrong, &Verdicts::default()).unwrap_err().to_string();
    assert!(error.contains("llvmpipe") && error.contains("computes wrongly: embed:"), "{error}");
    test(&wrong.without_subgroups(), &verdicts).unwrap();
    // What was passed with one type of keys and values says nothing of another.
    let wrong = wrong.without_subgroups();
    let q8 = Some(KvStorage::Q8);
    pollster::block_on(self_test(&wrong, &program, &weights, Numerics::Exact, q8, &verdicts)).unwrap_err();
}

/// A wrong form of matrix times matrix is left unused, and nothing else.
#[test]
fn gpu_wrong_products_are_left_unused() {
    let (program, weights) = embedding();
    let test = |device: &Device, numerics, verdicts: &Verdicts| {
        pollster::block_on(self_test(device, &program, &weights, numerics, None, verdicts)).unwrap()
    };
    let device = device("llvmpipe").with_matmul(|_, _| Matmul::Dot);
    let wrong = device.mutated("(1.0 / 127.0)", "(1.0 / 120.0)");
    let cooperative = with_stand_in(&device);
    let uncooperative = cooperative.mutated("sum += tile[a", "sum -= tile[a");
    for (device, numerics, form, told) in [
        (&device, Numerics::Fast, Matmul::Dot, None),
        (&wrong, Numerics::Fast, Matmul::Halves, Some("used without dot products: llvmpipe")),
        (&wrong, Numerics::Exact, Matmul::Dot, None),
        (&cooperative, Numerics::Fast, Matmul::Cooperative, None),
        (&uncooperative, Numerics::Fast, Matmul::Dot, Some("used without cooperative products: llvmpipe")),
    ] {
        let verdicts = Verdicts::default();
        assert_eq!(super::form(&test(device, numerics, &verdicts), Q8_0), form);
        let faults = verdicts.faults();
        assert_eq!(faults.len(), usize::from(told.is_some()), "{faults:?}");
        assert!(faults.iter().zip(told).all(|(fault, told)| fault.starts_with(told)), "{faults:?}");
        let tested = form != Matmul::Registers && numerics == Numerics::Fast;
        assert_eq!(verdicts.text().contains(&format!("products {} Q8_0", form.name())), tested);
    }
}

/// Nor does a wrong form of some formats change what others are multiplied in.
#[test]
fn gpu_wrong_products_of_a_format_are_left_unused() {
    let device = with_stand_in(&device("llvmpipe"));
    let mixed = device.tuned("matmul.Q8_0 = dot\nmatmul.Q6_K = halves\nmatmul.Q4_K = cooperative").unwrap();
    let formats = [Q8_0, Q6_K, Q4_K];
    for (from, to, left, forms) in [
        ("(1.0 / 127.0)", "(1.0 / 120.0)", "dot", [Matmul::Halves, Matmul::Halves, Matmul::Cooperative]),
        ("sum += tile[a", "sum -= tile[a", "cooperative", [Matmul::Dot, Matmul::Halves, Matmul::Dot]),
        (
            "return vec4<f16>(within(v))",
            "return vec4<f16>(0.0)",
            "halves",
            [Matmul::Dot, Matmul::Registers, Matmul::Cooperative],
        ),
    ] {
        let verdicts = Verdicts::default();
        let wrong = mixed.mutated(from, to);
        let used = pollster::block_on(super::multiplying(wrong, &HashSet::from(formats), &verdicts)).unwrap();
        assert_eq!(formats.map(|format| super::form(&used, format)), forms, "{left}");
        let [told] = verdicts.faults().try_into().unwrap();
        assert!(told.starts_with(&format!("used without {left} products: ")), "{told}");
    }
}

/// What stands in a kernel or a fragment, what a driver might make of it, and the family that is asked.
const MUTATIONS: &[(&str, &str, &str)] = &[
    // Wrong operators, constants and signs.
    ("rotary", "params.scale * v", "v"),
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
    ("row_wise", "out[at + i] = max(x[at + i] - cut, 0.0)", "out[at + i] = max(x[at + i], cut)"),
    ("row_wise", "sqrt(sums.y / max(sums.x, params.by))", "sums.y / max(sums.x, params.by)"),
    // Reductions and loops.
    ("learned", "subgroupAdd(v)", "v"),
    ("rotary", "subgroupAdd(part)", "part"),
    ("rotary", "parts[t] = vec4<f32>(0.0);", "parts[t] = vec4<f32>(1.0);"),
    ("learned", "total *= shrink;", ""),
    ("learned", "d1 += products(key_four(a1, i)", "d1 += products(key_four(a0, i)"),
    ("learned", "shrink_of[quad] = shrink;", "shrink_of[quad] = vec4<f32>(1.0);"),
    ("learned", "sum_b[2] += b.z * value", "sum_b[2] += b.y * value"),
    ("learned", "let y = exp(b.state.x - most);", "let y = 1.0;"),
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
    // Moves, stamps.
    ("rotary", "kv[move_.y * params.n + i] = v;", "kv[move_.y * params.n] = v;"),
    ("recurrent", "v = kv[move_.x * params.n + i];", "v = kv[move_.x * params.n];"),
    ("rotary", "number[0] ^ params.salt", "number[0]"),
    // Rows, positions, tables, experts.
    ("rotary", "pos / PAGE_SLOTS", "pos / (PAGE_SLOTS + 1u)"),
    ("rotary", "(head * PAGE_SLOTS + pos % PAGE_SLOTS) * V_DIM", "(pos % PAGE_SLOTS) * V_DIM"),
    ("rotary", "return step[STEP_ROWS + 4u * r + 3u];", "return 0u;"),
    ("rotary", "return step[STEP_ROWS + 4u * r + 2u];", "return step[STEP_ROWS + 4u * r + 2u] / 2u;"),
    ("rotary", "return step[STEP_OUTS + o]", "return step[STEP_OUTS]"),
    ("learned", "index = row_pos(row) + params.offset", "index = params.offset"),
    ("learned", "row_pos(row) % 16u", "(row_pos(row) + 1u) % 16u"),
    ("latent", "head * params.b_dim + i - params.a_dim", "i - params.a_dim"),
    ("latent", "params.start + id.x % params.n", "id.x % params.n"),
    ("encoder", "(seq_row0(seq) + pos) * params.k_stride", "pos * params.k_stride"),
    ("experts", "out[to + j] = f32(chosen[j])", "out[to + j] = f32(chosen[0])"),
    ("experts", "other.x > found.x", "other.x < found.x"),
    ("experts", "j * params.n + id.x", "id.x"),
    ("experts", "if CHOSEN {", "if !CHOSEN {"),
    // Products in whole numbers.
    ("products", "dots(q_low, v) * (d_low * s.x)", "dots(q_low, v) * d_low"),
    ("products", "chunk_at(min(run, runs - 1u) / 2u) + run % 2u * RUN_GAP", "16u * run"),
    ("products", "[from_k / 32u % 4u]", "[0]"),
    ("products", "low[m] += vec4<f32>(s0.y, s1.y, s2.y, s3.y) * s.y;", ""),
    ("products", "largest * (1.0 / 127.0)", "largest * (1.0 / 120.0)"),
    ("products", "dot4I8Packed(a.x, b.x)", "i32(dot4U8Packed(a.x, b.x))"),
    ("products", "let to = slot_w(row, i / TILE_N * 2u + r);", "let to = slot_w(row, i / TILE_N * 2u);"),
    (
        "products",
        "min(tile * (TILE_N / 2u) + i % (TILE_N / 2u), params.n - 1u)",
        "min(tile * TILE_N + i, params.n - 1u)",
    ),
    // Of numbers in f16.
    ("halves", "return vec4<f16>(within(v))", "return vec4<f16>(within(v)) + vec4<f16>(0.1)"),
    ("halves", "tile_x[slot(tm + m * THREADS_M, i)]", "tile_x[slot(tm, i)]"),
    // And by cooperative matrices.
    ("cooperative", "row * STRIDE + 16u * run + 4u * j", "row * STRIDE + 4u * j"),
    ("cooperative", "(TILE_N + part / 2u * (2u * SIDE))", "TILE_N"),
    ("cooperative", "load_left(at_x + SIDE * STRIDE + s, STRIDE)", "load_left(at_x + s, STRIDE)"),
    ("cooperative", "sums[e], sums[e + AREA]", "sums[e], sums[e]"),
    ("cooperative", "e % AREA / SIDE;", "0u;"),
    ("attention", "load_right(block_at + s * STRIDE + column, STRIDE)", "load_right(block_at + column, STRIDE)"),
    ("attention", "if from_four > 0u {", "if from_four > 8u {"),
    ("attention", "min(head + row / SIDE, last_head), i % q_fours", "head, i % q_fours"),
    ("attention", "shrink[row] = exp(most[row] - highest);", "shrink[row] = 1.0;"),
    ("attention", "seq_row0(middle) / size + middle <= tile", "seq_row0(middle) / size <= tile"),
    // Draws.
    ("draws", "h *= 0x7feb352du", "h *= 0x7feb352fu"),
    ("draws", "return -ln(-ln(u))", "return ln(-ln(u))"),
    ("draws", "fit = fit * m + 3.3333331e-1", "fit = fit * m - 3.3333331e-1"),
    ("draws", "(s == other_score && t < other)", "(s == other_score && t > other)"),
    ("draws", "bad = 1u", "bad = 0u"),
    ("draws", "atomicMax(&bins", "atomicMin(&bins"),
    ("draws", "atomicAdd(&lower[e >> 11u], 1u)", "atomicAdd(&lower[e >> 11u], 2u)"),
    ("draws", "atomicAdd(&upper[e >> 11u], w >> LOWER_BITS)", "atomicAdd(&upper[e >> 11u], 0u)"),
    ("draws", "if e >> 11u <= last && e <= deepest", "if e >> 11u < last && e <= deepest"),
    ("draws", "select(bits | 0x80000000u, ~bits,", "select(bits | 0x80000000u, bits,"),
    ("draws", "m = 45426u -", "m = 35426u -"),
    ("draws", "return (m << 10u) >> (e >> 16u)", "return m << 10u"),
    ("draws", "left = sub(left, sums[chunk]);", ""),
    ("draws", "prefix.y |= found", "prefix.y = found"),
    ("draws", "> draw_word(d, DEEPEST)", "< draw_word(d, DEEPEST)"),
    ("draws", "let scaled = x * draw_f32(d, REPEAT + u32(x > 0.0))", "let scaled = x"),
    ("draws", "count += u32(drawn_before(d, j) == token)", "count += 0u"),
    ("draws", "x + bitcast<f32>(draws[bias + 2u * i + 1u])", "x"),
    ("draws", "first = first && !(same && j <= lid)", "first = first && !same"),
    ("draws", ">> (i % 32u)) & 1u) != 0u;", ">> (i % 31u)) & 1u) != 0u;"),
    ("draws", "sum += exp(logits[row + i] - largest)", "sum += exp(logits[row + i])"),
    ("draws", "a.x == b.x && a.y < b.y", "a.x == b.x && a.y > b.y"),
    ("draws", "* exp(unorder(top[at + 1u].x) - largest)", ""),
    ("draws", "bitcast<u32>(x - largest - rest)", "bitcast<u32>(x - largest)"),
    ("draws", "if draws[stops + i] == before {", "if draws[stops] == before {"),
    ("draws", "broken[0] != 0u || over", "broken[0] != 0u"),
    ("draws", "select(row_token, before, over)", "row_token"),
];

/// Attention by cooperative matrices that is wrong is left unused, and nothing else.
#[test]
fn gpu_wrong_attention_by_matrices_is_left_unused() {
    let device = with_stand_in(&device("llvmpipe"));
    let test = |device: &Device, verdicts: &Verdicts| {
        pollster::block_on(attending(device.clone(), KvStorage::F16, verdicts)).unwrap()
    };
    let verdicts = Verdicts::default();
    assert!(test(&device, &verdicts).caps().attend_matrices().is_some());
    assert_eq!((verdicts.passed(&device), verdicts.faults().len()), (1, 0));
    let verdicts = Verdicts::default();
    let left = test(&device.mutated("sum += tile[a", "sum -= tile[a"), &verdicts);
    assert!(left.caps().attend_matrices().is_none() && left.caps().cooperative.is_some());
    let [told] = verdicts.faults().try_into().unwrap();
    assert!(told.starts_with("used without cooperative attention: llvmpipe"), "{told}");
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
    let device = device("llvmpipe");
    let mut escaped = Vec::new();
    for (name, from, to) in MUTATIONS {
        let wrong = device.mutated(from, to);
        let verdict = match *name {
            "draws" => pollster::block_on(run::draws(&wrong)),
            "products" => runs_products(&wrong.with_matmul(|_, _| Matmul::Dot), Q4_K),
            "halves" => runs_products(&wrong.with_matmul(|_, _| Matmul::Halves), Q4_K),
            "cooperative" => runs_products(&with_stand_in(&wrong), Q4_K),
            "attention" => pollster::block_on(run::attention(&with_stand_in(&wrong), KvStorage::F16)),
            "rotary, q8" => runs(&wrong, family("rotary"), Numerics::Fast, KvStorage::Q8),
            name => runs(&wrong, family(name), Numerics::Fast, KvStorage::F16),
        };
        match verdict {
            Err(Error::Miscomputed { kernel, problem, .. }) => println!("{from} -> {to}\n    {kernel}: {problem}"),
            Err(error @ Error::LostStep { .. }) => println!("{from} -> {to}\n    {error}"),
            Err(error) => panic!("{from} -> {to}: {error}"),
            Ok(_) => escaped.push(from),
        }
    }
    println!("{} of {} escaped: {escaped:?}", escaped.len(), MUTATIONS.len());
    assert!(escaped.len() * 20 <= MUTATIONS.len(), "{escaped:?}");
}
