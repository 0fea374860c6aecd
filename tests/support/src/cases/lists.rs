//! The cases of each kernel.

use super::*;

/// An op as prompt and as decode rows, in such numbers.
fn ops(what: &str, op: &OneOp, format: BlockFormat, rows: &[usize], deviation: f32, bound: f64) -> Vec<Case> {
    let case = |phase, rows| Case {
        name: format!("{what}, {phase:?}, {rows} rows"),
        formats: vec![format],
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound,
        work: Work::Op { op: op.clone(), phase, rows, deviation, extreme: false },
    };
    Phase::ALL
        .into_iter()
        .flat_map(|phase| rows.iter().map(move |&rows| (phase, rows)))
        .map(|(r, n)| case(r, n))
        .collect()
}

/// The same with an extreme row among the others.
fn extreme(case: &Case) -> Case {
    let mut case = case.clone();
    case.name += ", one of them extreme";
    if let Work::Op { extreme, .. } = &mut case.work {
        *extreme = true;
    }
    case
}

pub fn linear() -> Vec<Case> {
    let mut cases = Vec::new();
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
            cases.extend(ops(&format!("linear ({n}, {k}) {format:?}"), &op, format, &[1, 9, 63], 1.0, EXACT));
        }
    }
    cases
}

/// Rows and columns of W: below, at and above the tiles of the kernels; those with many columns have few rows, to be fast.
const SHAPES: [(u32, u32); 7] = [(1, 14_336), (7, 4128), (33, 1056), (64, 544), (65, 288), (200, 96), (513, 32)];

/// Mat-mat in integers: each format of integers, rows of W and columns and rows of x pair by pair, with every
/// epilogue. The bound is that of int8 activations.
pub fn dots() -> Vec<Case> {
    matmuls("matmul = dot", |format| format.has_ints(), 0..7, 5e-4)
}

/// The same with operands in f16. Both factors of a term are off by 2.8e-4 (root mean square of 2⁻¹¹ / √3). So a sum of terms
/// with random signs has an NMSE of 1.6e-7; a gated pair has twice that on average, and up to three times for seven results.
pub fn f16_tiles() -> Vec<Case> {
    matmuls("matmul = f16", |_| true, 0..7, 1e-6)
}

/// The same in f32: each format in two of the shapes, up to 513 rows of x.
pub fn registers() -> Vec<Case> {
    matmuls("matmul = registers", |_| true, 0..2, EXACT)
}

/// Tiles of other sizes than the usual: a ninth of the formats in each, which share their decoders.
pub fn tiles() -> Vec<Case> {
    let tilings = [
        ("matmul = registers\ntile_w = 128", EXACT),
        ("matmul = registers\ntile_w = 128\ntile_x = 128", EXACT),
        ("matmul = f16\ntile_w = 128", 5e-7),
        ("matmul = dot\ntile_w = 128", 5e-4),
        ("matmul = dot\ntile_x = 128", 5e-4),
        ("matmul = registers\nsmall_x = 2", EXACT),
        ("matmul = f16\nsmall_x = 2", 5e-7),
        ("matmul = dot\nsmall_x = 2", 5e-4),
        ("matmul = dot\nsmall_x = 4\ntile_w = 128", 5e-4),
    ];
    let of = |(turn, (tuning, bound))| matmuls(tuning, |_| true, 2..4, bound).into_iter().skip(turn).step_by(9);
    tilings.into_iter().enumerate().flat_map(of).collect()
}

/// The same in f16 by cooperative matrices: every format in one shape, which changes with `turn`. Rows have at most `longest`
/// weights.
pub fn cooperative(turn: usize, longest: u32) -> Vec<Case> {
    let mut cases = matmuls("matmul = cooperative", |_| true, turn..turn + 1, 1e-6);
    cases.retain(|case| matches!(&case.work, Work::Op { op, .. } if op.program.value(op.inputs[0]).width <= longest));
    cases
}

/// Whatever the tuning table or file has for a format, mat-vec is right: threads, rows of W and rows of x pair by pair.
pub fn tunings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, lanes) in [4, 16, 32, 64].into_iter().enumerate() {
        for (j, row_vec4s) in [1, 2, 4].into_iter().enumerate() {
            let format = BlockFormat::ALL[(3 * i + j) % BlockFormat::ALL.len()];
            let of = |name: &str, number| format!("{name}.{} = {number}\n", format.info().name);
            let batch = [1, 2, 4][(i + j) % 3].min(64 / lanes);
            let cols = [8, 4, 2][j];
            let tuning =
                [of("lanes", lanes), of("cols", cols), of("row_vec4s", row_vec4s), of("row_vec4s_batch", batch)];
            let tuning = tuning.concat().leak();
            let op = OneOp::new(&[768], |b, x| {
                let w = b.weight("w", 65, 768);
                b.linear("y", x[0], w, None)
            });
            let what = format!(
                "linear {format:?}, lanes {lanes}, cols {cols}, row_vec4s {row_vec4s}, row_vec4s_batch {batch}"
            );
            let rows = ops(&what, &op, format, &[1, 7], 1.0, EXACT);
            let decode = |case: &Case| matches!(case.work, Work::Op { phase: Phase::Decode, .. });
            cases.extend(rows.into_iter().filter(decode).map(|case| Case { tuning, ..case }));
        }
    }
    cases
}

/// Matmuls of formats, each in several of the shapes.
fn matmuls(tuning: &'static str, has: fn(&BlockFormat) -> bool, shapes: Range<usize>, bound: f64) -> Vec<Case> {
    const ROWS: [usize; 7] = [1, 7, 33, 64, 65, 200, 513];
    let mut cases = Vec::new();
    for (f, format) in BlockFormat::ALL.iter().copied().filter(has).enumerate() {
        for i in shapes.clone().map(|i| i + f * shapes.len() % 7) {
            let (n, k) = SHAPES[i % 7];
            // A row of floats may have any length.
            let weights = format.info().weights as u32;
            let k = if weights == 1 { k - 5 } else { k.next_multiple_of(weights) };
            // A single element may be near 0, where a relative error means nothing: at least 7 rows.
            let rows = if n == 1 { ROWS[(i + f) % 7].max(7) } else { ROWS[(i + f) % 7] };
            // One of each format: compiling takes longer than computing.
            let epilogue = (f + shapes.start) % 5;
            let other = match format.has_ints() {
                true if format == Q8_0 => Q4_0,
                true => Q8_0,
                false if format == F32 => F16,
                false => F32,
            };
            let inputs = if epilogue == 1 { &[k, n][..] } else { &[k] };
            let op = OneOp::new(inputs, |b, x| {
                let w = b.weight("w", n, k);
                let bias = (n % 2 == 1).then(|| b.vector("b", n));
                let y = b.linear("y", x[0], w, bias);
                match epilogue {
                    0 => y,
                    1 => b.add("sum", x[1], y),
                    2 => b.act("act", y, Act::GeluTanh),
                    // 4: gates and ups of two formats, one dispatch each.
                    _ => {
                        let act = b.act("act", y, Act::Silu);
                        let w = b.weight("up", n, k);
                        let bias = (n % 2 == 1).then(|| b.vector("up_b", n));
                        let up = b.linear("up", x[0], w, bias);
                        b.mul("gated", act, up)
                    }
                }
            });
            cases.push(Case {
                name: format!("{tuning}, ({n}, {k}) {format:?}, {rows} rows, epilogue {epilogue}"),
                formats: if epilogue == 4 { vec![format, other] } else { vec![format] },
                numerics: Numerics::Fast,
                unfused: false,
                tuning,
                bound,
                work: Work::Op { op, phase: Phase::Prefill, rows, deviation: 1.0, extreme: false },
            });
        }
    }
    cases
}

/// Mat-vec with x in int8: each format of integers, shapes and rows of x pair by pair, with every epilogue, after an RMS norm
/// with a weight, one without, or none.
pub fn int8_vectors() -> Vec<Case> {
    const ROWS: [usize; 5] = [1, 8, 3, 9, 7];
    let mut cases = Vec::new();
    for (f, format) in BlockFormat::ALL.iter().copied().filter(|format| format.has_ints()).enumerate() {
        for turn in 0..3 {
            let (n, k) = SHAPES[(3 * f + turn) % 7];
            let k = k.next_multiple_of(format.info().weights as u32);
            let rows = if n == 1 { 7 } else { ROWS[(f / 3 + turn) % 5] };
            let (epilogue, norm) = ((f + turn) % 5, (f + turn) % 3);
            let other = if format == Q8_0 { Q4_0 } else { Q8_0 };
            let inputs = if epilogue == 1 { &[k, n][..] } else { &[k] };
            let op = OneOp::new(inputs, |b, x| {
                let h = match norm {
                    0 => x[0],
                    _ => {
                        let weight = (norm == 1).then(|| norm_weight(b, k));
                        b.norm("h", x[0], NormSpec { kind: NormKind::Rms, n: k, weight, bias: None, eps: 1e-5 })
                    }
                };
                let w = b.weight("w", n, k);
                let bias = (n % 2 == 1).then(|| b.vector("b", n));
                let y = b.linear("y", h, w, bias);
                match epilogue {
                    0 => y,
                    1 => b.add("sum", x[1], y),
                    2 => b.act("act", y, Act::GeluTanh),
                    // 4: gates and ups of two formats, one dispatch each.
                    _ => {
                        let act = b.act("act", y, Act::Silu);
                        let w = b.weight("up", n, k);
                        let up = b.linear("up", h, w, None);
                        b.mul("gated", act, up)
                    }
                }
            });
            cases.push(Case {
                name: format!("in int8, ({n}, {k}) {format:?}, {rows} rows, epilogue {epilogue}, norm {norm}"),
                formats: if epilogue == 4 { vec![format, other] } else { vec![format] },
                numerics: Numerics::Fast,
                unfused: false,
                tuning: if turn == 0 { IN_INT8 } else { FEW_IN_INT8 },
                bound: 5e-4,
                work: Work::Op { op, phase: Phase::Decode, rows, deviation: 1.0, extreme: false },
            });
        }
    }
    cases
}

/// Mat-vec with x in int8, whatever the length of a row.
pub const IN_INT8: &str = "matmul = registers\nmatvec = dot\ndot_k = 32";
/// The same with fewer rows of x at a time, which drivers compile in a fraction of the time.
const FEW_IN_INT8: &str = "matmul = registers\nmatvec = dot\ndot_k = 32\ncols = 2";

/// Layers whose decode rows are in int8: both kernels of mat-vec, and how keys and values are stored. Of each, q, k and v have
/// three formats, a dispatch each.
pub fn int8_models() -> Vec<Case> {
    let mut cases = Vec::new();
    let formats: Vec<_> = BlockFormat::ALL.iter().copied().filter(|format| format.has_ints()).collect();
    for formats in formats.chunks(3) {
        let program = layer_of(formats);
        for stored in [KvStorage::F16, KvStorage::F32] {
            let mut case = model("a layer in int8 of", &program, formats, Numerics::Fast, false, 9);
            (case.tuning, case.bound) = (FEW_IN_INT8, INT8_MODEL);
            case.name += &format!(", {stored:?}");
            if let Work::Model { kv, .. } = &mut case.work {
                *kv = stored;
            }
            cases.push(case);
        }
    }
    cases
}

/// A row of NaN or huge numbers among others, in each variant of matmul.
pub fn extreme_matmuls() -> Vec<Case> {
    let forms = [("matmul = registers", EXACT), ("matmul = dot", 5e-4), ("matmul = f16", 1e-6)];
    let tiled = forms.into_iter().flat_map(|(tuning, bound)| matmuls(tuning, |f| matches!(f, F16 | Q8_0), 2..4, bound));
    let few = linear().into_iter().filter(|case| matches!(case.work, Work::Op { rows: 9, .. }));
    let experts = expert_formats().into_iter().filter(|case| matches!(case.formats[..], [F32 | F16 | Q8_0]));
    let heads = heads().into_iter().filter(|case| matches!(case.work, Work::Op { rows: 63, .. }));
    let of_some = |case: &Case| matches!((&case.work, case.formats[0]), (Work::Op { rows: 2.., .. }, Q8_0 | Q4_1));
    let int8 = int8_vectors().into_iter().filter(of_some);
    tiled.chain(few).chain(experts).chain(heads).chain(int8).map(|case| extreme(&case)).collect()
}

/// Each format's decoder alone, and in the kernels of W x for few rows and for many.
pub fn formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &format) in BlockFormat::ALL.iter().enumerate() {
        for k in [format.info().weights as u32 * 3, 512] {
            let op = OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, k, 1.0));
            cases.extend(ops(&format!("embed {format:?} of {k}"), &op, format, &[9], 1.0, 1e-12));
        }
        // Three of the shapes for each format, so each shape gets a third of the formats or more, and so does each number of
        // rows of x. More rows, and more shapes for tiles: `registers`.
        for (shift, rows) in [(0, [1, 8]), (2, [2, 7]), (3, [5, 65])] {
            let (n, k) = SHAPES[(i + shift) % SHAPES.len()];
            let k = k.next_multiple_of(format.info().weights as u32);
            let op = OneOp::new(&[k], |b, x| {
                let w = b.weight("w", n, k);
                b.linear("y", x[0], w, None)
            });
            cases.extend(ops(&format!("linear ({n}, {k}) {format:?}"), &op, format, &rows, 1.0, EXACT));
        }
    }
    cases
}

pub fn norm() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [NormKind::Rms, NormKind::Layer] {
        for (n, groups) in [(1, 1), (63, 1), (65, 3), (257, 2)] {
            let op = OneOp::new(&[n * groups], |b, x| {
                let weight = Some(norm_weight(b, n));
                let bias = (n % 2 == 1).then(|| b.vector("bias", n));
                b.norm("y", x[0], NormSpec { kind, n, weight, bias, eps: 1e-5 })
            });
            let plain = ops(&format!("{kind:?} norm of {groups} groups of {n}"), &op, F32, &[7], 3.0, EXACT);
            cases.extend(plain.iter().take(usize::from(groups > 1)).map(extreme));
            cases.extend(plain);
        }
    }
    cases
}

pub fn pointwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [1, 65, 257] {
        for act in [Act::Silu, Act::GeluErf, Act::GeluTanh, Act::Relu, Act::Relu2, Act::Tanh] {
            for deviation in [0.1, 1.0, 10.0] {
                let op = OneOp::new(&[n], |b, x| b.act("y", x[0], act));
                let what = format!("{act:?} of {n}, deviation {deviation}");
                let plain = ops(&what, &op, F32, &[5], deviation, EXACT);
                cases.extend(plain.iter().take(usize::from(n == 65 && deviation == 1.0)).map(extreme));
                cases.extend(plain);
            }
        }
        for (what, op) in [
            ("add", OneOp::new(&[n, n], |b, x| b.add("y", x[0], x[1]))),
            ("mul", OneOp::new(&[n, n], |b, x| b.mul("y", x[0], x[1]))),
            ("scale", OneOp::new(&[n], |b, x| b.scale("y", x[0], 0.37))),
        ] {
            let plain = ops(&format!("{what} of {n}"), &op, F32, &[5], 1.0, EXACT);
            cases.extend(plain.iter().take(usize::from(n == 65)).map(extreme));
            cases.extend(plain);
        }
    }
    cases
}

pub fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for pairing in [Pairing::Interleaved, Pairing::Neox] {
        for (heads, head_dim, dims) in [(1, 2, 2), (3, 64, 64), (2, 65, 32), (5, 16, 6)] {
            let op = OneOp::new(&[heads * head_dim], |b, x| {
                let divisors = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
                let table = b.rope_table(divisors, 1.25);
                b.rope("y", x[0], head_dim, RopeSpec { table, pairing, dims })
            });
            let what = format!("{pairing:?} rope {heads} x {head_dim}, {dims} rotated");
            let plain = ops(&what, &op, F32, &[63], 1.0, EXACT);
            cases.extend(plain.iter().take(usize::from(head_dim == 65)).map(extreme));
            cases.extend(plain);
        }
    }
    cases
}

/// Ops that move numbers, and change none.
pub fn moves() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, op) in [
        ("slice", OneOp::new(&[65], |b, x| b.slice("y", x[0], 7, 33))),
        ("gather", OneOp::new(&[65], |b, x| b.gather(x[0]))),
        // Some ids are clamped.
        ("embed of tokens", OneOp::new(&[], |b, _| b.embed("table", Index::Token, 60, 96, 1.0))),
        ("embed of types", OneOp::new(&[], |b, _| b.embed("table", Index::Type, 2, 96, 1.0))),
        ("embed of positions", OneOp::new(&[], |b, _| b.embed("table", Index::Position(2), 60, 63, 1.0))),
    ] {
        for format in [F32, F16, Q8_0, Q4_1] {
            cases.extend(ops(&format!("{what} {format:?}"), &op, format, &[9], 1.0, 0.0));
        }
    }
    cases
}

pub fn route() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, spec) in route_specs().into_iter().enumerate() {
        let op = OneOp::new(&[spec.experts], |b, x| {
            let bias = (i % 2 == 1).then(|| b.vector("bias", spec.experts));
            b.route("y", x[0], bias, spec)
        });
        cases.extend(ops(&format!("route {i}, {spec:?}"), &op, F32, &[37], 2.0, EXACT));
    }
    cases
}

pub fn expert_layers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (count, used, shape, formats) in [
        (1, 1, [1, 1, 1], &[F32][..]),
        (3, 2, [65, 63, 5], &[F32, F16]),
        (17, 4, [64, 96, 33], &[Q8_0, F16, Q4_1]),
        (5, 5, [64, 70, 64], &[BF16]),
        (40, 8, [256, 32, 96], &[Q4_1]),
    ] {
        let biased = count != 17;
        let op = OneOp::new(&[count, shape[0]], |b, x| experts(b, x, plain(count, used), shape, biased));
        // In the last of them, some experts have more rows than small tiles are for.
        let rows = if count == 3 { [1, 9, 130] } else { [1, 9, 63] };
        for mut case in ops(&format!("{used} of {count} experts, {shape:?} {formats:?}"), &op, F32, &rows, 1.0, LONG) {
            case.formats = formats.to_vec();
            cases.push(case);
        }
    }
    cases
}

/// Each format's decoder in the kernels of many matrices.
pub fn expert_formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &format) in BlockFormat::ALL.iter().enumerate() {
        let op = OneOp::new(&[3, 256], |b, x| {
            let chosen = b.route("route", x[0], None, plain(3, 2));
            let w = (0..3).map(|e| b.weight(&format!("w.{e}"), 10, 256)).collect();
            b.expert_linear("y", x[1], chosen, w, Vec::new())
        });
        // Every fifth also with so many rows that experts have large tiles.
        let rows = if i % 5 == 0 { &[7, 130][..] } else { &[7] };
        cases.extend(ops(&format!("expert_linear {format:?}"), &op, format, rows, 1.0, EXACT));
    }
    cases
}

/// Ops on heads: a matrix for each, concat, weighted sums.
pub fn heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for (heads, n, k) in [(1, 1, 1), (3, 65, 63), (5, 32, 64), (16, 7, 96)] {
        let op = OneOp::new(&[heads * k], |b, x| {
            let matrices = (0..heads).map(|h| b.weight(&format!("w.{h}"), n, k)).collect();
            b.head_linear("y", x[0], matrices)
        });
        let format = if k.is_multiple_of(32) { Q8_0 } else { F32 };
        cases.extend(ops(&format!("head_linear {heads} x ({n}, {k})"), &op, format, &[1, 63], 1.0, EXACT));
        let op = OneOp::new(&[heads * n, heads * k], |b, x| b.concat("y", x[0], x[1], heads));
        cases.extend(ops(&format!("join {heads} x {n} + {k}"), &op, F32, &[7], 1.0, 0.0));
        let op = OneOp::new(&[heads * n, 5], |b, x| b.combine("y", x[0], x[1], 2, 1));
        cases.extend(ops(&format!("combine {heads} x {n}"), &op, F32, &[7], 1.0, EXACT));
    }
    cases
}

/// Ops on whole rows, and one row for all of a sequence.
pub fn row_wise() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [1, 63, 257] {
        let mut each = |what: &str, op: &OneOp, bound| {
            cases.extend(ops(&format!("{what} of {n}"), op, F32, &[7], 3.0, bound));
        };
        let magnitude = |floor| OneOp::new(&[n, n], move |b, x| b.magnitude("y", x[0], x[1], floor));
        each("magnitude", &magnitude(1e-5), EXACT);
        each("magnitude, by the floor", &magnitude(100.0), EXACT);
        each("sparsify", &OneOp::new(&[n], |b, x| b.sparsify("y", x[0], 0.7)), EXACT);
        for weights in [n, 1] {
            let op = OneOp::new(&[n], |b, x| {
                let weight = b.vector("w", weights);
                b.weigh("y", x[0], weight)
            });
            each(&format!("weigh by {weights}"), &op, EXACT);
        }
        for (pooling, bound) in [(Pooling::Mean, EXACT), (Pooling::Cls, 0.0), (Pooling::Last, 0.0)] {
            each(&format!("pool {pooling:?}"), &OneOp::new(&[n], |b, x| b.pool(x[0], pooling)), bound);
        }
    }
    cases
}

/// Positions of a sequence of a recurrent op.
pub(super) const POSITIONS: usize = 60;

/// One sequence in chunks of `chunk` rows, from the third step on batched with another (`company`), all in the same phase.
fn chunks(phase: Phase, chunk: usize, company: bool) -> Vec<(Phase, Vec<SeqChunk>)> {
    let part = |seq, step: usize| SeqChunk { seq, pos: step * chunk, rows: chunk.min(POSITIONS - step * chunk) };
    let step = |i: usize| {
        let mut parts = vec![part(0, i)];
        if company && i >= 2 {
            parts.insert(i % 2, part(1, i - 2));
        }
        (phase, parts)
    };
    (0..POSITIONS.div_ceil(chunk)).map(step).collect()
}

fn recurrent_case((name, op): &(String, OneOp), format: BlockFormat, steps: Vec<(Phase, Vec<SeqChunk>)>) -> Case {
    Case {
        name: format!("{name}, {format:?}, {} steps", steps.len()),
        formats: vec![format],
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound: EXACT,
        work: Work::Recurrent { op: op.clone(), steps },
    }
}

/// Recurrent ops: a second sequence joins late, phases change in the middle of a tile, a sequence begins again in its slot.
pub fn recurrences() -> Vec<Case> {
    let mut cases = Vec::new();
    let (prefill, decode) = (Phase::Prefill, Phase::Decode);
    for op in &recurrent() {
        let at = |seq, pos, rows| SeqChunk { seq, pos, rows };
        let steps = vec![
            (prefill, vec![at(0, 0, 21)]),
            (decode, vec![at(0, 21, 1)]),
            (prefill, vec![at(1, 0, 5), at(0, 22, 17)]),
            (decode, vec![at(0, 39, 2), at(1, 5, 1)]),
            (prefill, vec![at(1, 6, 30)]),
            (prefill, vec![at(0, 0, 19), at(1, 36, 3)]),
        ];
        cases.push(recurrent_case(op, F32, steps));
    }
    cases
}

/// The same sequence in chunks of every size, alone and batched with another: the same bits.
pub fn recurrent_chunks(op: &(String, OneOp), phase: Phase) -> Vec<Case> {
    let chunked = [(60, false), (1, false), (3, true), (16, true), (7, false)];
    let both = [0, 1].map(|seq| SeqChunk { seq, pos: 0, rows: POSITIONS });
    let chunked = chunked.map(|(chunk, company)| chunks(phase, chunk, company)).into_iter();
    chunked.chain([vec![(phase, both.to_vec())]]).map(|steps| recurrent_case(op, F32, steps)).collect()
}

/// Each format's decoder in the convolution.
pub fn conv_formats() -> Vec<Case> {
    let of = |&format: &BlockFormat| {
        let op = conv(5, (format.info().weights as u32).max(4));
        recurrent_case(&op, format, chunks(Phase::Prefill, 30, true))
    };
    BlockFormat::ALL.iter().map(of).collect()
}

/// Attention, in f32 and f16 by turns: each case with one of them, the cases of long contexts with both.
pub fn attend() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, case) in attend::cases().into_iter().enumerate() {
        for (numerics, bound) in [(Numerics::Exact, ATTEND), (Numerics::Fast, HALF)] {
            let long = case.seqs.iter().any(|s| s.0 > 600);
            if long || (i % 2 == 0) == (numerics == Numerics::Exact) {
                cases.push(Case {
                    name: format!("{case:?}, {numerics:?}"),
                    formats: vec![F32],
                    numerics,
                    unfused: true,
                    tuning: "",
                    bound,
                    work: Work::Attend(case.clone()),
                });
            }
        }
    }
    cases
}

/// Attention of prompts by cooperative matrices, over pages of f16, then over caches of every layout and storage type.
pub fn cooperative_attention() -> Vec<Case> {
    let case = |name, work| Case {
        name,
        formats: vec![F32],
        numerics: Numerics::Fast,
        unfused: true,
        tuning: "matmul = cooperative",
        bound: 1e-4,
        work,
    };
    let pages = attend::cooperative().into_iter();
    let pages = pages.map(|one| case(format!("{one:?}"), Work::Attend(one)));
    let caches = cache::cooperative().into_iter();
    pages.chain(caches.map(|one| case(format!("{one:?}"), Work::AttendTo(one)))).collect()
}

/// Attention over caches of every layout and storage type, by every kernel.
pub fn attend_caches() -> Vec<Case> {
    let case = |case: CacheCase| Case {
        name: format!("{case:?}"),
        formats: Vec::new(),
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound: ATTEND,
        work: Work::AttendTo(case),
    };
    cache::caches().into_iter().map(case).collect()
}

fn model(
    what: &str,
    program: &Program,
    formats: &[BlockFormat],
    numerics: Numerics,
    unfused: bool,
    rows: usize,
) -> Case {
    Case {
        name: format!("{what} {formats:?}, {numerics:?}{}", if unfused { ", unfused" } else { "" }),
        formats: formats.to_vec(),
        numerics,
        unfused,
        // Its other forms have cases of their own, and not the rounding of f16 alone.
        tuning: "matmul = registers",
        bound: if numerics == Numerics::Exact { EXACT } else { HALF_MODEL },
        work: Work::Model { program: program.clone(), rows, kv: numerics.kv() },
    }
}

/// Whole models, fused and unfused.
pub fn models() -> Vec<Case> {
    let shape = Shape::SMALL;
    let odd = Shape { dim: 96, heads: 3, kv_heads: 1, head_dim: 40, hidden: 257, window: Some(20), ..shape };
    let mut cases = Vec::new();
    for (what, program, formats) in [
        ("llama", llama(shape), &[F32][..]),
        ("llama, interleaved", llama(Shape { pairing: Pairing::Interleaved, ..shape }), &[Q8_0, F16]),
        ("llama, odd and windowed", llama(odd), &[Q4_1, BF16, F32]),
        ("gpt2", gpt2(shape), &[F32, Q8_0]),
        ("qwen3", llama(Shape { head_norms: true, ..shape }), &[Q8_0, F32]),
    ] {
        for (numerics, unfused) in [(Numerics::Exact, false), (Numerics::Exact, true), (Numerics::Fast, false)] {
            cases.push(model(what, &program, formats, numerics, unfused, 70));
        }
    }
    // Keys and values in 8 bits, written by each kernel that can: by itself, after a rotation, after norms of heads.
    let normed = llama(Shape { head_norms: true, ..shape });
    for (program, unfused) in [(llama(odd), true), (llama(odd), false), (normed, false)] {
        let mut case = model("8-bit pages", &program, &[F32], Numerics::Exact, unfused, 70);
        case.bound = INT8_MODEL;
        if let Work::Model { kv, .. } = &mut case.work {
            *kv = KvStorage::Q8;
        }
        cases.push(case);
    }
    cases
}

/// A layer of so many formats each. Of three, q, k and v have one each, a dispatch each.
fn model_formats(together: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for formats in BlockFormat::ALL.chunks(together) {
        let program = layer_of(formats);
        cases.extend([Numerics::Exact, Numerics::Fast].map(|n| model("a layer of", &program, formats, n, false, 9)));
    }
    cases
}

fn layer_of(formats: &[BlockFormat]) -> Program {
    let dim = formats.iter().map(|format| format.info().weights as u32).max().unwrap().max(64);
    llama(Shape { layers: 1, dim, hidden: dim, ..Shape::SMALL })
}

pub fn samples() -> Vec<Case> {
    let case = |sample: SampleSpec| Case {
        name: format!("samples at temperature {}", sample.temperature),
        formats: vec![Q8_0],
        numerics: Numerics::Exact,
        unfused: false,
        tuning: "",
        bound: 0.0,
        work: Work::Samples { program: llama(Shape::SMALL), sample },
    };
    [SampleSpec::GREEDY, SampleSpec { temperature: 0.8, seed: 99, ..SampleSpec::GREEDY }].map(case).into()
}

/// Requests that share blocks and states: full attention, windows alone, recurrent layers.
pub fn shares() -> Vec<Case> {
    let case = |(what, program): (&str, Program)| Case {
        name: format!("requests that share, {what}"),
        formats: vec![Q8_0, F32],
        numerics: Numerics::Exact,
        unfused: false,
        tuning: "",
        bound: 0.0,
        work: Work::Shares { program },
    };
    let windowed = llama(Shape { window: Some(20), ..Shape::SMALL });
    [("attention", llama(Shape::SMALL)), ("windows", windowed), ("recurrent", mamba())].map(case).into()
}

/// Samples of every kind in small and large vocabularies; logits far apart and close together.
pub fn all_samples() -> Vec<Case> {
    let case = |(vocab, deviation)| Case {
        name: format!("samples in a vocabulary of {vocab}, deviation {deviation}"),
        formats: Vec::new(),
        numerics: Numerics::Exact,
        unfused: false,
        tuning: "",
        bound: 0.0,
        work: Work::Picks { vocab, deviation },
    };
    [(1, 1.0), (33, 3.0), (512, 3.0), (49_152, 4.0), (152_064, 0.5), (262_144, 3.0)].map(case).into()
}

/// Angles at positions near and far: the worst, as a share of what is allowed.
pub fn angles() -> Vec<Case> {
    alone(singles::angles())
}

fn alone(cases: Vec<Alone>) -> Vec<Case> {
    let case = |alone: Alone| Case {
        name: format!("{alone:?}"),
        formats: Vec::new(),
        numerics: Numerics::Exact,
        unfused: true,
        tuning: "",
        bound: alone.bound(),
        work: Work::Alone(alone),
    };
    cases.into_iter().map(case).collect()
}

/// Rotations on buffers of the caller's.
pub fn rotations() -> Vec<Case> {
    alone(singles::rotations())
}

/// KV writes in every layout and storage type, with and without norms and rotation.
pub fn writes() -> Vec<Case> {
    alone(singles::writes())
}

/// Replication of heads, copies of blocks.
pub fn copies() -> Vec<Case> {
    alone(singles::copies())
}

/// Products of matrices in buffers of the caller's.
pub fn single_matmuls() -> Vec<Case> {
    alone(singles::matmuls())
}

pub fn softmaxes() -> Vec<Case> {
    alone(singles::softmaxes())
}

/// What a browser runs, which takes a second or two for a case: every model, fused, Exact and Fast in turn, and ops in steps that
/// meet each shape, phase and number of rows somewhere. In the order of their formats, so that neighbours share kernels.
pub fn for_browsers() -> Vec<Case> {
    let each = |cases: Vec<Case>, step| cases.into_iter().step_by(step);
    let (embeds, products): (Vec<_>, Vec<_>) = formats().into_iter().partition(|case| case.name.starts_with("embed"));
    let ops = each(linear(), 5)
        .chain(each(embeds, 4))
        .chain(each(products, 5))
        .chain(each(dots(), 6))
        .chain(each(norm(), 1))
        .chain(each(pointwise(), 5));
    let ops = ops.chain(each(rope(), 1)).chain(each(moves(), 3)).chain(each(attend(), 7));
    let ops = ops.chain(attend_caches().into_iter().enumerate().filter(|(i, _)| *i < 21 || i % 6 == 0).map(|c| c.1));
    let ops =
        ops.chain(each(route(), 9)).chain(each(expert_layers(), 3)).chain(each(heads(), 2)).chain(each(row_wise(), 3));
    let ops = ops.chain(each(expert_formats(), 1)).chain(each(recurrences(), 2)).chain(each(conv_formats(), 1));
    let singles = each(rotations(), 5).chain(each(writes(), 2)).chain(each(copies(), 1)).chain(each(softmaxes(), 2));
    let singles = singles.chain(angles()).chain(each(single_matmuls(), 3));
    let (normal, in_8_bits): (Vec<_>, Vec<_>) =
        models().into_iter().filter(|case| !case.unfused).partition(|case| !case.name.starts_with("8-bit"));
    let models = normal.chunks(2).enumerate().map(|(i, numerics)| numerics[i % 2].clone()).chain(in_8_bits);
    let samples = samples().into_iter().chain(all_samples().into_iter().take(4)).chain(each(shares(), 3));
    let int8 = each(int8_vectors(), 4).chain(int8_models());
    let mut cases: Vec<_> =
        ops.chain(singles).chain(models).chain(model_formats(3)).chain(int8).chain(samples).collect();
    let place = |case: &Case| BlockFormat::ALL.iter().position(|format| case.formats.first() == Some(format));
    cases.sort_by_key(place);
    cases
}

/// Whole models for a browser's processor, which compiles nothing: every fused model, and a layer of each format.
pub fn for_processors() -> Vec<Case> {
    let models = models().into_iter().filter(|case| !case.unfused);
    models.chain(model_formats(1)).chain(int8_models()).collect()
}
