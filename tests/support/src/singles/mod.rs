//! The cases of single ops on the caller's buffers: rotation and KV writes in every layout, storage type and source of angles,
//! against f64, down to the last bit that they must not touch.
use wgslm::exec::single::{Rotation, RowPos, Single, StepBuffer, StepLimits};
use wgslm::gpu::{Buffer, Device, Pipelines, PlanBuilder, StepCounts};
use wgslm::ops::{
    BlockMove, CacheShape, Epi, KvLayout, KvReplicate, KvStorage, KvWrite, Linear, NormKind, NormSpec, Op, Pairing,
    Part, Pre, Rope, RopeKv, RopeKvSpec, RopeSpec, Softmax, ValueId, View,
};
use wgslm::quant::BlockFormat;

use crate::programs::{Rng, nmse};
use heads::Heads;

mod heads;

/// NMSE of f32 arithmetic, element by element.
const EXACT: f64 = 1e-10;
/// With angles that are off by 2⁻³¹ revolutions per position.
const POWER: f64 = 1e-9;
/// With 16 or 8 bits an element.
const COARSE: f64 = 1e-4;

/// Where angles come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum From {
    Host,
    Frequencies,
    Power,
}

/// What happens to the heads of q and k.
#[derive(Clone, Copy, Debug)]
pub struct HeadRotation {
    pub pairing: Pairing,
    pub dims: u32,
    pub from: From,
}

/// How rows stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stand {
    /// So many of one sequence, from a position on.
    Run { rows: u32, first: u32 },
    /// Three sequences, each in shuffled blocks, positions said for each row.
    Ids,
}

/// Any of the single ops.
#[derive(Clone, Copy, Debug)]
pub enum Alone {
    Heads(Heads),
    /// A rotation alone: heads, elements of a head, and whether it is done in place.
    Rope {
        heads: u32,
        head_dim: u32,
        rotation: HeadRotation,
        in_place: bool,
        stand: Stand,
    },
    /// Cosines and sines at positions near and far.
    Angles(HeadRotation),
    Replicate {
        op: KvReplicate,
        both: bool,
    },
    Softmax {
        rows: u32,
        n: u32,
        extreme: bool,
    },
    /// Copies and zeros of blocks, of so many words.
    Blocks {
        words: u32,
    },
    Product(Product),
}

/// `W x + b` for rows of x.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub format: BlockFormat,
    pub n: u32,
    pub k: u32,
    /// By rows, else by tiles.
    pub by_rows: bool,
    /// In the device's best form.
    pub fast: bool,
    pub stand: Stand,
}

impl Alone {
    /// The largest distance that is allowed.
    pub fn bound(&self) -> f64 {
        match self {
            Self::Heads(heads) if heads.storage != KvStorage::F32 => COARSE,
            Self::Heads(Heads { rotation: Some(HeadRotation { from: From::Power, .. }), .. })
            | Self::Rope { rotation: HeadRotation { from: From::Power, .. }, .. } => POWER,
            Self::Product(Product { fast: true, .. }) => 5e-4,
            Self::Heads(Heads { normed: true, .. }) | Self::Softmax { .. } | Self::Product(_) => 1e-9,
            Self::Heads(_) | Self::Rope { .. } => EXACT,
            Self::Angles(_) => 1.0,
            Self::Replicate { .. } | Self::Blocks { .. } => 0.0,
        }
    }

    /// Its distance from f64 on a device, and the modules that it ran. Something touched that should not be is infinitely far.
    pub async fn distance(&self, device: &Device) -> (f64, Vec<String>) {
        let mut pipelines = Pipelines::new(device);
        let distance = match self {
            Self::Heads(heads) => heads.distance(device, &mut pipelines).await,
            Self::Rope { heads, head_dim, rotation, in_place, stand } => {
                rope(device, &mut pipelines, *heads, *head_dim, *rotation, *in_place, *stand).await
            }
            Self::Angles(rotation) => far_angles(device, &mut pipelines, *rotation).await,
            Self::Replicate { op, both } => replicate(device, &mut pipelines, *op, *both).await,
            Self::Softmax { rows, n, extreme } => softmax(device, &mut pipelines, *rows, *n, *extreme).await,
            Self::Blocks { words } => blocks(device, &mut pipelines, *words).await,
            Self::Product(product) => product.distance(device, &mut pipelines).await,
        };
        (distance, pipelines.modules().collect())
    }
}

const THETA: f64 = 10_000.0;
const SCALE: f64 = 0.7;
const FACTOR: f32 = 1.25;

impl HeadRotation {
    /// Radians a position, for each pair. Only a table can have waves of its own.
    fn frequencies(&self) -> Vec<f64> {
        let own = |i: u32| if self.from == From::Power { 1.0 } else { 1.0 + 0.3 * f64::from(i % 3) };
        (0..self.dims / 2).map(|i| own(i) * THETA.powf(-2.0 * f64::from(i) / f64::from(self.dims))).collect()
    }

    /// Adds the angles of these positions.
    fn add(&self, device: &Device, single: &mut Single<'_>, positions: &[u32]) -> RopeSpec {
        let frequencies = self.frequencies();
        let scale = SCALE;
        let table = match self.from {
            From::Host => {
                let angle = |&pos: &u32| {
                    let one = |f: &f64| {
                        let (sin, cos) = (f64::from(pos) * f * scale).sin_cos();
                        [(f64::from(FACTOR) * cos) as f32, (f64::from(FACTOR) * sin) as f32]
                    };
                    frequencies.iter().map(one).collect::<Vec<_>>()
                };
                let angles: Vec<[f32; 2]> = positions.iter().flat_map(angle).collect();
                let buffer = Buffer::new(device, "angles", ROWS * frequencies.len() as u64 * 8).unwrap();
                buffer.write(device, 0, &angles);
                single.rotation(Rotation::Host { angles: &buffer, pairs: self.dims / 2 })
            }
            From::Frequencies => {
                single.rotation(Rotation::Frequencies { frequencies: &frequencies, scale, factor: FACTOR })
            }
            From::Power => single.rotation(Rotation::Power { theta: THETA, dims: self.dims, scale, factor: FACTOR }),
        };
        RopeSpec { table: table.unwrap(), pairing: self.pairing, dims: self.dims }
    }

    /// A head at a position, in f64.
    fn rotated(&self, head: &mut [f64], pos: u32) {
        for (i, f) in self.frequencies().iter().enumerate() {
            let (sin, cos) = (f64::from(pos) * f * SCALE).sin_cos();
            let (a, b) = match self.pairing {
                Pairing::Interleaved => (2 * i, 2 * i + 1),
                Pairing::Neox => (i, i + self.dims as usize / 2),
            };
            let factor = f64::from(FACTOR);
            (head[a], head[b]) = (factor * (head[a] * cos - head[b] * sin), factor * (head[a] * sin + head[b] * cos));
        }
    }
}

/// Rows that buffers have capacity for: more than any case has.
const ROWS: u64 = 24;
/// What lies where nothing may be written: NaN as f32, and as two f16; as bytes, 0 and -2, 127 and -64.
const CANARY: u32 = 0x7fc0_fe00;

impl Stand {
    fn places(self) -> Vec<RowPos> {
        let run = |seq, first: u32, rows: u32| (first..first + rows).map(move |pos| RowPos { pos, seq });
        match self {
            Self::Run { rows, first } => run(0, first, rows).collect(),
            // The second begins within a word that it shares with slots of an earlier step.
            Self::Ids => run(0, 0, 9).chain(run(1, 3, 7)).chain(run(2, 17, 1)).collect(),
        }
    }

    fn step(self, device: &Device, tables: &[Vec<u32>]) -> (StepBuffer, StepCounts) {
        let pos_ids = self == Self::Ids;
        let blocks = tables.iter().map(Vec::len).max().unwrap_or(0) as u32;
        let seqs = if pos_ids { 3 } else { 1 };
        let step =
            StepBuffer::new(device, StepLimits { rows: ROWS as u32, seqs, blocks, pos_ids, ..StepLimits::default() })
                .unwrap();
        let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
        let counts = match self {
            Self::Run { rows, first } => step.write_run(device, rows, first, tables.first().copied().unwrap_or(&[])),
            Self::Ids => step.write_rows(device, &self.places(), &tables),
        };
        (step, counts.unwrap())
    }
}

/// A value of random rows, with canaries after them; multiples of 1/64, which f16 holds exactly.
fn value(
    device: &Device,
    single: &mut Single<'_>,
    rows: usize,
    width: u32,
    rng: &mut Rng,
) -> (ValueId, Buffer, Vec<f32>) {
    let stride = width.next_multiple_of(4) as usize;
    let buffer = Buffer::new(device, "value", ROWS * stride as u64 * 4).unwrap();
    buffer.write(device, 0, &vec![CANARY; ROWS as usize * stride]);
    let mut values: Vec<f32> = rng.normals(rows * stride, 64.0).iter().map(|x| x.round() / 64.0).collect();
    values.chunks_mut(stride).for_each(|row| row[width as usize..].fill(f32::from_bits(CANARY)));
    buffer.write(device, 0, &values);
    (single.value(&buffer, width).unwrap(), buffer, values)
}

/// The rows of a value, its canaries checked.
async fn rows_of(device: &Device, buffer: &Buffer, rows: usize, width: u32) -> Option<Vec<f32>> {
    let stride = width.next_multiple_of(4) as usize;
    let words: Vec<u32> = buffer.read(device, 0..buffer.size() / 4).await.unwrap();
    let (own, rest) = words.split_at(rows * stride);
    let padding = own.chunks(stride).all(|row| row[width as usize..].iter().all(|w| *w == CANARY));
    let untouched = padding && rest.iter().all(|w| *w == CANARY);
    untouched.then(|| own.chunks(stride).flat_map(|row| &row[..width as usize]).map(|w| f32::from_bits(*w)).collect())
}

/// Far: something was touched, or is not what it must be.
const WRONG: f64 = f64::INFINITY;

/// Not compared: what an overflow leaves of a vector.
const LOST: f64 = f64::MAX;

/// The distance of what is finite in `wanted`; what is not must not be finite either.
fn distance(got: &[f32], wanted: &[f64]) -> f64 {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for (got, wanted) in got.iter().zip(wanted) {
        if *wanted == LOST {
            continue;
        }
        if wanted.is_finite() && wanted.abs() < 1e30 {
            a.push(*got);
            b.push(*wanted);
        } else if got.is_finite() && got.abs() < 6e4 {
            return WRONG;
        }
    }
    if a.is_empty() { 0.0 } else { nmse(&a, &b) }
}

async fn rope(
    device: &Device,
    pipelines: &mut Pipelines,
    heads: u32,
    head_dim: u32,
    rotation: HeadRotation,
    in_place: bool,
    stand: Stand,
) -> f64 {
    let mut rng = Rng(1);
    let (step, counts) = stand.step(device, &[]);
    let places = stand.places();
    let mut single = Single::new(pipelines, &step);
    let width = heads * head_dim;
    let (x, buffer, values) = value(device, &mut single, places.len(), width, &mut rng);
    let out_buffer = Buffer::new(device, "out", ROWS * u64::from(width.next_multiple_of(4)) * 4).unwrap();
    out_buffer.write(device, 0, &vec![CANARY; out_buffer.size() as usize / 4]);
    let out = if in_place { x } else { single.value(&out_buffer, width).unwrap() };
    let positions: Vec<u32> = places.iter().map(|p| p.pos).collect();
    let spec = rotation.add(device, &mut single, &positions);
    single.add(Op::Rope(Rope { x, heads, head_dim, spec, out })).unwrap();
    single.finish().unwrap().submit(device, counts);
    let result = if in_place { &buffer } else { &out_buffer };
    let Some(got) = rows_of(device, result, places.len(), width).await else { return WRONG };
    let mut wanted = Vec::new();
    for (row, place) in values.chunks(width.next_multiple_of(4) as usize).zip(&places) {
        for head in row[..width as usize].chunks(head_dim as usize) {
            let mut head: Vec<f64> = head.iter().copied().map(f64::from).collect();
            rotation.rotated(&mut head, place.pos);
            wanted.extend(head);
        }
    }
    distance(&got, &wanted)
}

/// The largest error of an angle, as a share of `position * 2⁻²³ + 5e-4` radians.
async fn far_angles(device: &Device, pipelines: &mut Pipelines, rotation: HeadRotation) -> f64 {
    let places = [0, 1, 1000, 8192, 32_768, 131_072].map(|pos| RowPos { pos, seq: 0 });
    let step = StepBuffer::new(
        device,
        StepLimits { rows: ROWS as u32, seqs: 1, pos_ids: true, any_order: true, ..StepLimits::default() },
    )
    .unwrap();
    let counts = step.write_rows(device, &places, &[]).unwrap();
    let mut single = Single::new(pipelines, &step);
    let buffer = Buffer::new(device, "x", ROWS * u64::from(rotation.dims) * 4).unwrap();
    let pairs = rotation.dims as usize / 2;
    buffer.write(device, 0, &[1f32, 0.0].repeat(places.len() * pairs)); // becomes cosine and sine
    let x = single.value(&buffer, rotation.dims).unwrap();
    let spec = rotation.add(device, &mut single, &places.map(|p| p.pos));
    let rope = Rope { x, heads: 1, head_dim: rotation.dims, spec, out: x };
    single.add(Op::Rope(rope)).unwrap();
    single.finish().unwrap().submit(device, counts);
    let got: Vec<f32> = buffer.read(device, 0..(places.len() * pairs * 2) as u64).await.unwrap();
    let mut worst = 0f64;
    for (row, place) in got.chunks(2 * pairs).zip(places) {
        for (cosine_sine, frequency) in row.chunks(2).zip(rotation.frequencies()) {
            let [cosine, sine] = [0, 1].map(|i| f64::from(cosine_sine[i]) / f64::from(FACTOR));
            let (s, c) = (f64::from(place.pos) * frequency * SCALE).sin_cos();
            let error = (sine * c - cosine * s).atan2(cosine * c + sine * s).abs();
            let length = (cosine.hypot(sine) - 1.0).abs();
            if length > 1e-6 || length.is_nan() {
                return WRONG;
            }
            worst = worst.max(error / (f64::from(place.pos) * 0.5f64.powi(23) + 5e-4));
        }
    }
    worst
}

impl Product {
    async fn distance(&self, device: &Device, pipelines: &mut Pipelines) -> f64 {
        let Self { format, n, k, .. } = *self;
        let mut rng = Rng(5);
        let blocks = format.row_bytes(k.into()).unwrap() as usize;
        let words = format.gpu_row_words(k.into()).unwrap() as usize;
        let (mut rows, mut packed) = (vec![0; blocks * n as usize], vec![0u32; words * n as usize]);
        format.encode(&rng.normals((n * k) as usize, 1.0), &mut rows).unwrap();
        let mut w = vec![0f32; (n * k) as usize];
        format.decode(&rows, &mut w).unwrap();
        for (row, packed) in rows.chunks(blocks).zip(packed.chunks_mut(words)) {
            format.repack_row(row, k.into(), packed).unwrap();
        }
        let matrix = Buffer::new(device, "w", packed.len() as u64 * 4).unwrap();
        matrix.write(device, 0, &packed);
        let bias = rng.normals(n.next_multiple_of(4) as usize, 1.0);
        let biases = Buffer::new(device, "biases", bias.len() as u64 * 4).unwrap();
        biases.write(device, 0, &bias);

        let (step, counts) = self.stand.step(device, &[]);
        let count = self.stand.places().len();
        let mut single = Single::new(pipelines, &step);
        if self.by_rows {
            single.by_rows();
        }
        if self.fast {
            single.fast();
        }
        let (x, _, values) = value(device, &mut single, count, k, &mut rng);
        let out_buffer = Buffer::new(device, "out", ROWS * u64::from(n.next_multiple_of(4)) * 4).unwrap();
        out_buffer.write(device, 0, &vec![CANARY; out_buffer.size() as usize / 4]);
        let out = single.value(&out_buffer, n).unwrap();
        let weight = single.matrix(&matrix, format, n, k).unwrap();
        let bias_id = single.vectors(&biases, &[n]).unwrap()[0];
        let parts = vec![Part { weight, n, bias: Some(bias_id) }];
        single.add(Op::Linear(Linear { x, k, parts, pre: Pre::None, epi: Epi::None, out })).unwrap();
        single.finish().unwrap().submit(device, counts);
        let Some(got) = rows_of(device, &out_buffer, count, n).await else { return WRONG };
        let mut wanted = Vec::new();
        for x in values.chunks(k.next_multiple_of(4) as usize) {
            for (w, b) in w.chunks(k as usize).zip(&bias) {
                let dot: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                wanted.push(dot + f64::from(*b));
            }
        }
        distance(&got, &wanted)
    }
}

async fn replicate(device: &Device, pipelines: &mut Pipelines, op: KvReplicate, both: bool) -> f64 {
    let [x_bytes, out_bytes] = op.bytes();
    let mut rng = Rng(3);
    let mut tensors = Vec::new();
    for _ in 0..if both { 2 } else { 1 } {
        let x: Vec<u32> = (0..x_bytes / 4).map(|_| rng.word() as u32).collect(); // NaN among them
        let buffers = [x_bytes, out_bytes + 64].map(|bytes| Buffer::new(device, "tensor", bytes).unwrap());
        buffers[0].write(device, 0, &x);
        buffers[1].write(device, 0, &vec![CANARY; buffers[1].size() as usize / 4]);
        tensors.push((x, buffers));
    }
    let pairs: Vec<_> = tensors.iter().map(|(_, [x, out])| (x, out)).collect();
    let mut plan = PlanBuilder::new(pipelines);
    op.dispatch(&mut plan, &pairs).unwrap();
    plan.finish().unwrap().submit(device, StepCounts::default());
    let words = KvReplicate { head_dim: op.head_dim / op.storage.lanes(), storage: KvStorage::F32, ..op };
    for (x, [_, out]) in &tensors {
        let got: Vec<u32> = out.read(device, 0..out.size() / 4).await.unwrap();
        let (own, rest) = got.split_at(out_bytes as usize / 4);
        if *own != words.oracle(x) || rest.iter().any(|w| *w != CANARY) {
            return WRONG;
        }
    }
    0.0
}

async fn softmax(device: &Device, pipelines: &mut Pipelines, rows: u32, n: u32, extreme: bool) -> f64 {
    let stride = n + 3;
    let scale = 0.6f32;
    let mut x = Rng(4).normals((rows * stride) as usize, 8.0);
    for (r, row) in x.chunks_mut(stride as usize).enumerate() {
        let row = &mut row[..n as usize];
        let last = row.len() - 1;
        match r {
            0 => row.fill(-1e30 / scale * 1.5),       // masked as a whole
            1 => row[..last].fill(f32::NEG_INFINITY), // but for one
            2 => row[last] = 1e5,                     // its exponential would overflow
            3 if extreme => row[last] = f32::NAN,
            4 if extreme => row[0] = f32::INFINITY,
            _ => {}
        }
    }
    let buffers = [(); 2].map(|()| Buffer::new(device, "x", u64::from(rows * stride) * 4).unwrap());
    buffers[0].write(device, 0, &x);
    buffers[1].write(device, 0, &vec![CANARY; (rows * stride) as usize]);
    let mut plan = PlanBuilder::new(pipelines);
    Softmax { rows, n, stride, scale }.dispatch(&mut plan, &buffers[0], &buffers[1]).unwrap();
    plan.finish().unwrap().submit(device, StepCounts::default());
    let got: Vec<u32> = buffers[1].read(device, 0..u64::from(rows * stride)).await.unwrap();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for (r, (x, got)) in x.chunks(stride as usize).zip(got.chunks(stride as usize)).enumerate() {
        if got[n as usize..].iter().any(|w| *w != CANARY) {
            return WRONG;
        }
        let got = got[..n as usize].iter().map(|w| f32::from_bits(*w));
        if extreme && (r == 3 || r == 4) {
            if got.into_iter().any(|p| !p.is_nan()) {
                return WRONG;
            }
            continue;
        }
        let scores: Vec<f64> = x[..n as usize].iter().map(|x| (f64::from(scale) * f64::from(*x)).max(-1e30)).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
        a.extend(got);
        b.extend(scores.iter().map(|s| (s - most).exp() / sum));
    }
    nmse(&a, &b)
}

/// Blocks copied and zeroed, some after others that they depend on.
async fn blocks(device: &Device, pipelines: &mut Pipelines, words: u32) -> f64 {
    let shape = CacheShape {
        kv_heads: 1,
        k_dim: 4,
        v_dim: 0,
        slots: words / 4,
        blocks: 9,
        storage: KvStorage::F32,
        layout: KvLayout::Paged,
    };
    let shape =
        if words.is_multiple_of(4) { shape } else { CacheShape { slots: words, storage: KvStorage::Q8, ..shape } };
    let words = shape.block_words() as usize;
    let mut rng = Rng(5);
    let mut expected: Vec<u32> = (0..words * 9).map(|_| rng.word() as u32).collect();
    let kv = Buffer::new(device, "kv", shape.bytes()).unwrap();
    kv.write(device, 0, &expected);
    let moves =
        [(Some(3), 8), (Some(3), 1), (None, 3), (Some(8), 4), (Some(0), 8), (None, 0), (Some(4), 5), (Some(6), 6)];
    let moves = moves.map(|(from, to)| BlockMove { from, to });
    let mut plan = PlanBuilder::new(pipelines);
    BlockMove::dispatch(&mut plan, &kv, &shape, &moves).unwrap();
    assert!(BlockMove::dispatch(&mut plan, &kv, &shape, &[BlockMove { from: Some(9), to: 0 }]).is_err());
    plan.finish().unwrap().submit(device, StepCounts::default());
    for BlockMove { from, to } in moves {
        let to = to as usize * words;
        match from {
            Some(from) => expected.copy_within(from as usize * words..(from as usize + 1) * words, to),
            None => expected[to..to + words].fill(0),
        }
    }
    let got: Vec<u32> = kv.read(device, 0..words as u64 * 9).await.unwrap();
    if got == expected { 0.0 } else { WRONG }
}

/// Forms of a rotation, in turn: each pairing with each source of angles.
fn head_rotations(dims: u32) -> [HeadRotation; 6] {
    let rotation = |pairing, from| HeadRotation { pairing, dims, from };
    [From::Host, From::Frequencies, From::Power]
        .map(|from| [rotation(Pairing::Interleaved, from), rotation(Pairing::Neox, from)])
        .concat()
        .try_into()
        .unwrap()
}

/// Rotations alone: in place and not, positions said or counted.
pub fn rotations() -> Vec<Alone> {
    let mut cases = Vec::new();
    for (heads, head_dim, dims) in [(3, 64, 64), (2, 65, 32), (5, 7, 6), (1, 256, 256), (2, 80, 20), (4, 2, 2)] {
        for (i, rotation) in head_rotations(dims).into_iter().enumerate() {
            let stand = if i % 2 == 0 { Stand::Ids } else { Stand::Run { rows: 5, first: 4093 } };
            cases.push(Alone::Rope { heads, head_dim, rotation, in_place: i % 3 == 0, stand });
        }
    }
    cases
}

/// Each source of angles.
pub fn angles() -> Vec<Alone> {
    let rotation = |from| Alone::Angles(HeadRotation { pairing: Pairing::Interleaved, dims: 128, from });
    [From::Host, From::Frequencies, From::Power].map(rotation).into()
}

/// KV writes: every layout with every storage type over every shape, the rest chosen pair by pair.
pub fn writes() -> Vec<Alone> {
    let shapes = [
        (4, 2, 64, 64, 64),
        (6, 2, 128, 128, 128),
        (3, 3, 80, 80, 32),
        (5, 1, 96, 96, 96),
        (2, 1, 112, 112, 56),
        (8, 1, 256, 256, 64),
        (1, 1, 32, 32, 8),
        (2, 2, 65, 65, 6),
        (3, 1, 7, 7, 2),
        (3, 1, 20, 20, 8),
        (2, 1, 24, 24, 8),
        (0, 3, 64, 64, 0),
        (0, 1, 192, 128, 0),
        (0, 2, 33, 17, 0),
        (0, 2, 1, 3, 0),
    ];
    let mut cases = Vec::new();
    let mut n = 0;
    for storage in KvStorage::ALL {
        for layout in KvLayout::ALL {
            for (heads, kv_heads, k_dim, v_dim, dims) in shapes {
                // Two of the six rotations, half of them with norms; every other source, standing and block size.
                for form in 0..if heads == 0 { 1 } else { 2 } {
                    let rotation = head_rotations(dims)[(n + 3 * form) % 6];
                    cases.push(Alone::Heads(Heads {
                        heads,
                        kv_heads,
                        k_dim,
                        v_dim,
                        slots: [8, 16, 32][n % 3],
                        storage,
                        layout,
                        rotation: (heads > 0 && n % 7 != 0).then_some(rotation),
                        normed: heads > 0 && (n / 2) % 2 == 0,
                        together: heads > 0 && n % 5 < 2,
                        stand: if n % 4 < 2 { Stand::Ids } else { Stand::Run { rows: 11, first: 5 } },
                        extreme: n % 11 == 10,
                        fine: n % 13 < 6,
                    }));
                    n += 1;
                }
            }
        }
    }
    cases
}

/// Copies: replication in odd shapes, blocks of whole vectors and of words.
pub fn copies() -> Vec<Alone> {
    let mut cases = vec![Alone::Blocks { words: 64 }, Alone::Blocks { words: 7 }];
    let shapes =
        [(1, 1, 8, 1), (12, 2, 8, 64), (33, 1, 8, 63), (7, 3, 15, 80), (65, 5, 5, 2), (4, 4, 28, 256), (3, 1, 71, 5)];
    for (i, (rows, kv_heads, q_heads, head_dim)) in shapes.into_iter().enumerate() {
        let storage = if i % 2 == 1 { KvStorage::F16 } else { KvStorage::F32 };
        let storage = if head_dim % 2 == 1 { KvStorage::F32 } else { storage };
        let op = KvReplicate { rows, kv_heads, q_heads, head_dim, storage };
        cases.extend([true, false].map(|both| Alone::Replicate { op, both }));
    }
    cases
}

/// Matmuls by rows and by tiles, of few rows and of more, in each kind of block: of none, of 32, of 256.
pub fn matmuls() -> Vec<Alone> {
    let (one, few) = (Stand::Run { rows: 1, first: 3 }, Stand::Run { rows: 23, first: 0 });
    let formats = [BlockFormat::F16, BlockFormat::Q8_0, BlockFormat::Q4_K];
    let cases = formats.into_iter().zip([(5, 130), (70, 96), (131, 512)]);
    let each = |(format, (n, k))| {
        let forms = [(true, false, one), (true, false, Stand::Ids), (false, false, few), (false, true, few)];
        forms.map(|(by_rows, fast, stand)| Alone::Product(Product { format, n, k, by_rows, fast, stand }))
    };
    cases.flat_map(each).collect()
}

/// Softmaxes of odd shapes.
pub fn softmaxes() -> Vec<Alone> {
    let shapes = [(5, 1, false), (5, 63, true), (7, 65, false), (6, 257, true), (3, 4096, false)];
    shapes.map(|(rows, n, extreme)| Alone::Softmax { rows, n, extreme }).into()
}
