//! What is asked of attention: single rows and tiles of rows over contexts of every length, each with what a model may want.

use wgslm::exec::{GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Role, SeqStep, Step, Token};
use wgslm::gpu::{Buffer, Device, Pipelines};
use wgslm::model::CacheSpec;
use wgslm::ops::{Attend, CacheShape, Kv, KvLayout, KvStorage, Mask, Op, Room, Single, StepBuffer};
use wgslm::quant::BlockFormat::F32;

use super::super::programs::*;
use super::run;

/// Where keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Pages,
    /// In pages, values as the first elements of their keys.
    Latent,
    /// In the step's rows.
    Packed,
}

/// An attention, and the sequences that it is asked of.
#[derive(Clone, Debug)]
pub struct AttendCase {
    pub place: Place,
    /// heads, kv_heads, k_dim, v_dim
    pub shape: [u32; 4],
    pub mask: Mask,
    pub softcap: f32,
    pub sinks: bool,
    pub slopes: bool,
    /// Positions in a block.
    pub block: u32,
    pub role: Role,
    /// For each sequence the positions that are there, and the rows that come.
    pub seqs: Vec<(u32, u32)>,
    /// Tiles search for their sequence.
    pub search: bool,
    /// Rows are what their positions make them, however many come at once.
    pub by_position: bool,
}

impl AttendCase {
    pub const PLAIN: Self = Self {
        place: Place::Pages,
        shape: [4, 2, 16, 16],
        mask: Mask::Causal,
        softcap: 0.0,
        sinks: false,
        slopes: false,
        block: 16,
        role: Role::Generated,
        seqs: Vec::new(),
        search: false,
        by_position: false,
    };

    pub fn op(&self) -> OneOp {
        let [heads, kv_heads, k_dim, v_dim] = self.shape;
        let widths = [heads * k_dim, kv_heads * k_dim, kv_heads * v_dim];
        let apart = self.place != Place::Latent;
        OneOp::new(&widths[..if apart { 3 } else { 2 }], |b, x| {
            let group = b.group();
            let scale = 1.3 / (k_dim as f32).sqrt();
            let cache = match self.place {
                Place::Latent => {
                    b.cache(CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k: true, window: None })
                }
                _ => b.pages(group, kv_heads, k_dim, v_dim, None),
            };
            b.kv_write(cache, x[1], apart.then(|| x[2]));
            let [sinks, slopes] = [("sinks", self.sinks), ("slopes", self.slopes)]
                .map(|(name, wanted)| wanted.then(|| b.vector(name, heads)));
            let out = b.attend(x[0], cache, self.mask, scale);
            let Op::Attend(attend) = last_op(b) else { unreachable!() };
            let kv = if self.place == Place::Packed { Kv::Packed { k: x[1], v: x[2] } } else { attend.kv };
            *attend = Attend { softcap: self.softcap, sinks, slopes, kv, ..attend.clone() };
            out
        })
    }

    /// Room for the sequences, and for filling their pages.
    fn limits(&self) -> Limits {
        let end = self.seqs.iter().map(|&(pos, rows)| pos + rows).max().unwrap_or(0);
        let rows = self.seqs.iter().map(|s| s.1).sum::<u32>().max(FILLED * FILLERS);
        let blocks = self.seqs.iter().map(|&(pos, rows)| (pos + rows).div_ceil(self.block)).sum::<u32>();
        Limits {
            rows: rows + 3,
            seqs: (self.seqs.len() as u32).max(FILLERS),
            outs: 1,
            block: self.block,
            blocks: blocks + 5,
            context: end.max(FILLED),
            in_flight: 2,
            checkpoints: 0,
        }
    }

    /// What the device computes for each row, what the oracle does, and the modules that ran.
    pub async fn outputs(&self, device: &Device, numerics: Numerics) -> (Vec<f32>, Vec<f64>, Vec<String>) {
        let op = self.op();
        let mut rng = Rng(self.seqs.len() as u64 + 5);
        let limits = self.limits();
        let weights = random_weights(&op.program, &[F32], &mut rng);
        let options = GpuOptions { numerics, limits, unfused: true, keep_values: true };
        let mut gpu = GpuExecutor::load(device, &op.program, &*weights, options, &mut |_, _| {}).await.unwrap();
        gpu.fill_cache(0x7fc0_7e00); // NaN as f32, and as two f16
        if self.search {
            gpu.search_for_tiles();
        }
        let mut oracle = Oracle::new(&op.program, weights, limits);
        let mut pool = Pool::new(&limits, &mut rng);
        let tables: Vec<_> = self.seqs.iter().map(|&(pos, rows)| pool.table(pos + rows, &limits)).collect();

        // Positions that are there come as short sequences of their own over the same pages: in one op, a key does not know
        // where it stands. So no prompt of thousands of rows has to be attended to.
        let mut fillers = Vec::new();
        for (&(there, _), table) in self.seqs.iter().zip(&tables) {
            for first in (0..there).step_by(FILLED as usize) {
                fillers.push((first, FILLED.min(there - first), &table[(first / self.block) as usize..]));
            }
        }
        let token = [Token::Host(0)];
        let tokens = token.repeat(limits.rows as usize);
        for together in fillers.chunks(FILLERS as usize) {
            let groups: Vec<[&[u32]; 1]> = together.iter().map(|f| [f.2]).collect();
            let steps = together.iter().zip(&groups).enumerate();
            let seqs: Vec<_> =
                steps.map(|(i, (f, group))| seq(i, Role::Prompt, 0, &tokens[..f.1 as usize], group)).collect();
            let positions = together.iter().flat_map(|&(first, rows, _)| first..first + rows).collect();
            self.step(&mut gpu, &mut oracle, &op, positions, &mut rng, &seqs).await;
        }
        let groups: Vec<[&[u32]; 1]> = tables.iter().map(|t| [t.as_slice()]).collect();
        let steps = self.seqs.iter().zip(&groups).enumerate();
        let part = |(i, (&(pos, rows), group))| seq(i, self.role, pos, &tokens[..rows as usize], group);
        let seqs: Vec<_> = steps.map(part).collect();
        let canary = vec![CANARY; (limits.rows * self.shape[0] * self.shape[3]) as usize];
        gpu.set_value(self.role, op.out, &canary);
        let positions = self.seqs.iter().flat_map(|&(pos, rows)| pos..pos + rows).collect();
        self.step(&mut gpu, &mut oracle, &op, positions, &mut rng, &seqs).await;
        let all = gpu.value(self.role, op.out, limits.rows).await.unwrap();
        let wanted = oracle.value(op.out).concat();
        let (got, rest) = all.split_at(wanted.len());
        assert!(got.iter().all(|x| *x != CANARY), "{self:?}: an element was not written");
        assert!(rest.iter().all(|x| *x == CANARY), "{self:?}: a row behind the last was written");
        (got.to_vec(), wanted, gpu.modules())
    }

    async fn step(
        &self,
        gpu: &mut GpuExecutor,
        oracle: &mut Oracle,
        op: &OneOp,
        positions: Vec<u32>,
        rng: &mut Rng,
        seqs: &[SeqStep<'_>],
    ) {
        for &id in &op.inputs {
            let width = op.program.value(id).width as usize;
            let of = |pos: &u32| Rng(u64::from(8 * pos + id.0)).normals(width, 1.5);
            let values = match self.by_position {
                true => positions.iter().flat_map(of).collect(),
                false => rng.normals(positions.len() * width, 1.5),
            };
            gpu.set_value(seqs[0].role, id, &values);
            let rows = values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect());
            oracle.set_value(id, rows.collect());
        }
        run(gpu, seqs).await;
        oracle.step(&Step { seqs }).unwrap();
    }
}

fn seq<'a>(slot: usize, role: Role, pos: u32, tokens: &'a [Token], tables: &'a [&'a [u32]; 1]) -> SeqStep<'a> {
    SeqStep { outs: Outs::None, read_logits: false, ..rows(slot as u32, role, tokens, pos, tables) }
}

/// Positions of a filling sequence (a multiple of every block size), and how many come at once.
const FILLED: u32 = 64;
const FILLERS: u32 = 4;
const CANARY: f32 = -77_777.0;

/// Pair by pair, everything that attention may be asked for.
pub fn cases() -> Vec<AttendCase> {
    let plain = AttendCase::PLAIN;
    // Ratios of heads, sizes of heads, sizes of blocks, contexts: each value of each meets both kernels.
    let shapes: &[[u32; 4]] = &[
        [1, 1, 1, 1],
        [4, 2, 16, 16],
        [3, 1, 32, 32],
        [10, 2, 64, 64],
        [7, 1, 80, 80],
        [6, 2, 96, 96],
        [2, 2, 112, 112],
        [8, 1, 128, 128],
        [4, 1, 256, 256],
        [6, 1, 65, 63],
        [6, 3, 5, 5],
        [3, 3, 32, 8],
        [9, 3, 64, 48],
    ];
    let masks = [Mask::Causal, Mask::Window(5), Mask::Full, Mask::Window(70), Mask::Near(9), Mask::Window(0)];
    let contexts: &[&[(u32, u32)]] = &[
        &[(0, 1)],
        &[(15, 1), (0, 1), (16, 1), (31, 3), (7, 2)],
        &[(300, 1), (0, 33), (64, 9)],
        &[(0, 95)],
        &[(255, 2), (0, 8), (513, 17)],
    ];
    let mut cases = Vec::new();
    for (i, &shape) in shapes.iter().enumerate() {
        for (j, role) in Role::ALL.into_iter().enumerate() {
            for n in 0..3 {
                let at = 3 * i + n + j;
                cases.push(AttendCase {
                    shape,
                    role,
                    mask: masks[at % masks.len()],
                    softcap: [0.0, 2.0][at / 2 % 2],
                    sinks: at % 3 == 1,
                    slopes: at % 4 == 2,
                    block: [8, 16, 32][(i + n) % 3],
                    place: if at % 5 == 3 { Place::Packed } else { Place::Pages },
                    seqs: contexts[(at + i) % contexts.len()].to_vec(),
                    search: at % 2 == 0,
                    by_position: false,
                });
            }
        }
    }
    for case in &mut cases {
        if case.place == Place::Packed {
            case.seqs.iter_mut().for_each(|s| s.0 = 0); // sequences are whole
        }
    }
    for role in Role::ALL {
        // Latent attention: one KV head, many query heads.
        for shape in [[16, 1, 72, 64], [5, 1, 576, 512], [2, 1, 13, 6]] {
            let seqs = vec![(40, 5), (0, 1), (700, 1)];
            cases.push(AttendCase { place: Place::Latent, shape, role, seqs, ..plain.clone() });
        }
        // Long, and everything at once.
        let seqs = vec![(8191, 1), (8192, 1), (1, 1), (4100, 2)];
        cases.push(AttendCase { role, seqs, shape: [3, 1, 16, 16], ..plain.clone() });
        let seqs = vec![(9000, 1), (3, 1)];
        let mask = Mask::Window(4000);
        let all = AttendCase { softcap: 3.0, sinks: true, slopes: true, mask, ..plain.clone() };
        cases.push(AttendCase { role, seqs, block: 32, shape: [5, 1, 20, 12], ..all });
    }
    cases
}

/// Attention as a single op over a cache of any layout and storage type, which the host fills.
#[derive(Clone, Copy, Debug)]
pub struct CacheCase {
    pub storage: KvStorage,
    pub layout: KvLayout,
    /// Each row by itself, else in tiles.
    pub by_rows: bool,
}

impl CacheCase {
    /// The NMSE against f64 over what the cache holds, and the modules that ran.
    pub async fn distance(&self, device: &Device) -> (f64, Vec<String>) {
        let (heads, kv_heads, k_dim, v_dim) = (6, 2, 20, 12);
        let (slots, blocks) = if self.layout == KvLayout::Contiguous { (96, 1) } else { (16, 9) };
        let shape = CacheShape { kv_heads, k_dim, v_dim, slots, blocks, storage: self.storage, layout: self.layout };
        let (first, rows) = (50, 11);
        let table = [7u32, 2, 5, 0];
        let mut rng = Rng(17);

        // NaN wherever nothing is kept; zeros behind a key's elements, as they are stored.
        let mut words = vec![0x7fc0_7e00u32; (shape.bytes() / 4) as usize];
        let mut kept = Vec::new();
        for pos in 0..first + rows {
            let (block, slot) = match self.layout {
                KvLayout::Contiguous => (0, pos),
                _ => (table[(pos / slots) as usize], pos % slots),
            };
            let mut pair = Vec::new();
            for head in 0..kv_heads {
                let [k, v] =
                    [(k_dim, shape.k_room(), false), (v_dim, shape.v_room(), true)].map(|(n, room, of_value)| {
                        let mut x = rng.normals(n as usize, 1.5);
                        x.resize(room as usize, 0.0);
                        let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
                        if self.storage == KvStorage::Q8 {
                            words[shape.scale_word(block, head, slot, of_value) as usize] = scale.to_bits();
                        }
                        let place = |i| match of_value {
                            true => shape.v_element(block, head, slot, i),
                            false => shape.k_element(block, head, slot, i),
                        };
                        let stored = (0..).zip(x).map(|(i, x)| store(&mut words, self.storage, place(i), x, scale));
                        stored.map(f64::from).collect::<Vec<_>>()
                    });
                pair.push((k, v));
            }
            kept.push(pair);
        }

        let step = StepBuffer::new(device, Room { rows, seqs: 1, blocks: 4, pos_ids: false }).unwrap();
        let table: &[u32] = if self.layout == KvLayout::Contiguous { &[] } else { &table };
        let counts = step.write_run(device, rows, first, table).unwrap();
        let buffer = |bytes: u64| Buffer::new(device, "test", bytes).unwrap();
        let [q, out] = [heads * k_dim, heads * v_dim].map(|width| buffer(u64::from(rows * width * 4)));
        let cache = buffer(shape.bytes());
        let queries = rng.normals((rows * heads * k_dim) as usize, 1.5);
        q.write(device, 0, &queries);
        cache.write(device, 0, &words);
        let mut pipelines = Pipelines::new(device);
        let mut single = Single::new(&mut pipelines, &step);
        if self.by_rows {
            single.by_rows();
        }
        let values = [(&q, heads * k_dim), (&out, heads * v_dim)].map(|(b, width)| single.value(b, width).unwrap());
        let op = Attend {
            q: values[0],
            heads,
            kv_heads,
            k_dim,
            v_dim,
            kv: Kv::Cache(single.cache(&cache, shape).unwrap()),
            mask: Mask::Causal,
            scale: 0.3,
            softcap: 0.0,
            sinks: None,
            slopes: None,
            out: values[1],
        };
        single.add(Op::Attend(op)).unwrap();
        single.finish().unwrap().submit(device, counts);
        let got: Vec<f32> = out.read(device, 0..u64::from(rows * heads * v_dim)).await.unwrap();

        let mut wanted = Vec::new();
        for (row, queries) in (0..).zip(queries.chunks((heads * k_dim) as usize)) {
            for (head, q) in queries.chunks(k_dim as usize).enumerate() {
                let seen = kept[..=(first + row) as usize].iter().map(|pair| &pair[head / (heads / kv_heads) as usize]);
                let score = |k: &[f64]| 0.3 * q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
                let weights: Vec<_> = seen.map(|(k, v)| (score(k).exp(), v)).collect();
                let total: f64 = weights.iter().map(|w| w.0).sum();
                wanted.extend((0..v_dim as usize).map(|i| weights.iter().map(|(w, v)| w * v[i]).sum::<f64>() / total));
            }
        }
        (nmse(&got, &wanted), pipelines.modules().map(str::to_owned).collect())
    }
}

/// Stores an element in a cache; gives what it is when it is read.
fn store(words: &mut [u32], storage: KvStorage, element: u64, x: f32, scale: f32) -> f32 {
    let lanes = u64::from(storage.lanes());
    let (word, lane) = (&mut words[(element / lanes) as usize], (element % lanes) as u32);
    match storage {
        KvStorage::F32 => {
            *word = x.to_bits();
            x
        }
        KvStorage::F16 => {
            // Sixteenths are f16 as they are; the bits: sign, exponent with another bias, ten of the mantissa.
            let x = (x * 16.0).round() / 16.0;
            let bits = x.to_bits();
            let half = if x == 0.0 { 0 } else { bits >> 16 & 0x8000 | ((bits & 0x7fff_ffff) - (112 << 23)) >> 13 };
            *word = *word & !(0xffff << (16 * lane)) | half << (16 * lane);
            x
        }
        KvStorage::Q8 => {
            let integer = if scale > 0.0 { (x / scale).round() } else { 0.0 };
            *word = *word & !(0xff << (8 * lane)) | (integer as i32 as u32 & 0xff) << (8 * lane);
            integer * scale
        }
    }
}

/// Every layout with every storage type, by both kernels.
pub fn caches() -> Vec<CacheCase> {
    let each = |layout| KvStorage::ALL.into_iter().map(move |storage| (layout, storage));
    let pairs = KvLayout::ALL.into_iter().flat_map(each);
    pairs.flat_map(|(layout, storage)| [true, false].map(|by_rows| CacheCase { storage, layout, by_rows })).collect()
}
