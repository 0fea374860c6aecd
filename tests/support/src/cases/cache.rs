//! Attention as a single op, by each of its kernels, over a cache of any layout and storage type that the host has filled.

use wgslm::exec::single::{Single, StepBuffer, StepLimits};
use wgslm::gpu::{Buffer, Device, Pipelines};
use wgslm::ops::{Attend, CacheShape, Kv, KvLayout, KvStorage, Mask, Op};

use super::CANARY;
use crate::programs::*;

/// Which kernel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Rows,
    Tiles,
    /// In the device's best form.
    FastTiles,
    V1,
}

/// Tokens of a sequence, and the cache that they attend to.
#[derive(Clone, Copy, Debug)]
pub struct CacheCase {
    pub by: By,
    pub storage: KvStorage,
    pub layout: KvLayout,
    /// heads, kv_heads, k_dim, v_dim
    pub shape: [u32; 4],
    /// Positions in a block.
    pub slots: u32,
    /// Where the first row stands, and how many there are.
    pub first: u32,
    pub rows: u32,
    pub mask: Mask,
    pub softcap: f32,
    pub sinks: bool,
    pub slopes: bool,
    /// The rows are drafts of a tree.
    pub tree: bool,
    /// The table has the last block as an id past the cache, which is clamped to it.
    pub past_end: bool,
}

/// The keys and values that a position has, by heads.
type Kept = Vec<(Vec<f64>, Vec<f64>)>;

impl CacheCase {
    pub const PLAIN: Self = Self {
        by: By::Rows,
        storage: KvStorage::F16,
        layout: KvLayout::Vectorised,
        shape: [6, 2, 20, 12],
        slots: 16,
        first: 50,
        rows: 11,
        mask: Mask::Causal,
        softcap: 0.0,
        sinks: false,
        slopes: false,
        tree: false,
        past_end: false,
    };

    /// The NMSE against f64 over what the cache holds, and the modules that ran.
    pub async fn distance(&self, device: &Device) -> (f64, Vec<String>) {
        let Self { shape: [heads, kv_heads, k_dim, v_dim], storage, layout, first, rows, .. } = *self;
        let mut rng = Rng(17);
        let needed = (first + rows).div_ceil(self.slots);
        let (slots, blocks) =
            if layout == KvLayout::Contiguous { (needed * self.slots, 1) } else { (self.slots, needed + 5) };
        let shape = CacheShape { kv_heads, k_dim, v_dim, slots, blocks, storage, layout };
        let mut table: Vec<u32> = (0..blocks).collect();
        rng.shuffle(&mut table);
        table.truncate(if layout == KvLayout::Contiguous { 0 } else { needed as usize });
        if self.past_end && !table.contains(&(blocks - 1)) {
            table[needed as usize / 2] = blocks - 1;
        }
        let (words, kept) = self.filled(&shape, &table, &mut rng);
        if self.past_end {
            table.iter_mut().filter(|block| **block == blocks - 1).for_each(|block| *block = 0x7fff_fff0);
        }

        let limits = StepLimits {
            rows: rows + 2,
            seqs: 1,
            blocks: table.len() as u32,
            tree: self.tree,
            ..StepLimits::default()
        };
        let step = StepBuffer::new(device, limits).unwrap();
        let counts = match self.tree {
            true => step.write_tree(device, first, &paths(rows), &table),
            false => step.write_run(device, rows, first, &table),
        };
        let counts = counts.unwrap();
        let buffer = |n: u32| Buffer::new(device, "test", u64::from(n) * 4).unwrap();
        let stride = |width: u32| width.next_multiple_of(4);
        let [q, out] = [heads * k_dim, heads * v_dim].map(|width| buffer((rows + 2) * stride(width)));
        let cache = Buffer::new(device, "kv", shape.bytes()).unwrap();
        let queries = rng.normals((rows * stride(heads * k_dim)) as usize, 1.5);
        q.write(device, 0, &queries);
        out.write(device, 0, &vec![CANARY; ((rows + 2) * stride(heads * v_dim)) as usize]);
        cache.write(device, 0, &words);
        let mut pipelines = Pipelines::new(device);
        let mut single = Single::new(&mut pipelines, &step);
        match self.by {
            By::Rows => single.by_rows(),
            By::Tiles => {}
            By::FastTiles => single.fast(),
            By::V1 => single.v1(),
        }
        let values = [(&q, heads * k_dim), (&out, heads * v_dim)].map(|(b, width)| single.value(b, width).unwrap());
        let per_head = rng.normals(2 * heads.next_multiple_of(4) as usize, 1.0);
        let vectors = buffer(2 * heads.next_multiple_of(4));
        vectors.write(device, 0, &per_head);
        let ids = single.vectors(&vectors, &[heads, heads]).unwrap();
        let op = Attend {
            q: values[0],
            heads,
            kv_heads,
            k_dim,
            v_dim,
            kv: Kv::Cache(single.cache(&cache, shape).unwrap()),
            mask: self.mask,
            scale: 0.3,
            softcap: self.softcap,
            sinks: self.sinks.then_some(ids[0]),
            slopes: self.slopes.then_some(ids[1]),
            out: values[1],
        };
        single.add(Op::Attend(op)).unwrap();
        single.finish().unwrap().submit(device, counts);
        let all: Vec<f32> = out.read(device, 0..out.size() / 4).await.unwrap();

        let (mut got, mut wanted) = (Vec::new(), Vec::new());
        for (r, row) in all.chunks(stride(heads * v_dim) as usize).enumerate() {
            let written = if r < rows as usize { (heads * v_dim) as usize } else { 0 };
            assert!(row[written..].iter().all(|x| *x == CANARY), "{self:?}: past the result of row {r}");
            got.extend_from_slice(&row[..written]);
        }
        for (r, row) in queries.chunks(stride(heads * k_dim) as usize).enumerate() {
            for (head, q) in row[..(heads * k_dim) as usize].chunks(k_dim as usize).enumerate() {
                let extra = |i: u32| f64::from(per_head[(i * heads.next_multiple_of(4)) as usize + head]);
                wanted.extend(self.head(&kept, r, head, q, extra(0), extra(1)));
            }
        }
        (nmse(&got, &wanted), pipelines.modules().collect())
    }

    /// A cache that holds random keys and values, and NaN wherever nothing is kept; zeros stand after a key's elements, as they
    /// are stored.
    fn filled(&self, shape: &CacheShape, table: &[u32], rng: &mut Rng) -> (Vec<u32>, Vec<Kept>) {
        let mut words = vec![0x7fc0_7e00u32; (shape.bytes() / 4) as usize];
        let mut kept = Vec::new();
        for pos in 0..self.first + self.rows {
            let (block, slot) = match self.layout {
                KvLayout::Contiguous => (0, pos),
                _ => (table[(pos / shape.slots) as usize], pos % shape.slots),
            };
            let mut pairs = Kept::new();
            for head in 0..shape.kv_heads {
                let lens = [(shape.k_dim, shape.padded_k(), false), (shape.v_dim, shape.padded_v(), true)];
                let [k, v] = lens.map(|(n, len, of_value)| {
                    let mut x = rng.normals(n as usize, 1.5);
                    x.resize(len as usize, 0.0);
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
                pairs.push((k, v));
            }
            kept.push(pairs);
        }
        (words, kept)
    }

    /// A head's result in f64, of a row's query.
    fn head(&self, kept: &[Kept], row: usize, head: usize, q: &[f32], sink: f64, slope: f64) -> Vec<f64> {
        let [heads, kv_heads, _, v_dim] = self.shape.map(|n| n as usize);
        let first = self.first as usize;
        let mut path: Vec<usize> = match self.tree {
            false => (0..=first + row).collect(),
            true => {
                let path = paths(self.rows)[row];
                (0..first).chain((0..=row).filter(|j| path >> j & 1 == 1).map(|j| first + j)).collect()
            }
        };
        path.reverse();
        if let Mask::Window(n) = self.mask {
            path.truncate(n as usize);
        }
        let seen = path.iter().enumerate().map(|(back, &t)| (back, &kept[t][head / (heads / kv_heads)]));
        let cap = f64::from(self.softcap);
        let scores = seen.map(|(back, (k, v))| {
            let dot = q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(0.3f32);
            let capped = if cap == 0.0 { dot } else { cap * (dot / cap).tanh() };
            (if self.slopes { capped - slope * back as f64 } else { capped }, v)
        });
        let scores: Vec<_> = scores.collect();
        let most = scores.iter().map(|s| s.0).fold(if self.sinks { sink } else { f64::MIN }, f64::max);
        let own_weight = if self.sinks { (sink - most).exp() } else { 0.0 };
        let total = scores.iter().map(|s| (s.0 - most).exp()).sum::<f64>() + own_weight;
        let mean = |i: usize| scores.iter().map(|(s, v)| (s - most).exp() / total * v[i]).sum();
        (0..v_dim).map(mean).collect()
    }
}

/// A tree of so many drafts: chains that branch, some at once, some late.
fn paths(rows: u32) -> Vec<u64> {
    let mut paths: Vec<u64> = Vec::new();
    for i in 0..rows as usize {
        let parent = if i % 7 == 0 { None } else { Some(i - 1 - (i * 5 % 3).min(i - 1)) };
        paths.push(parent.map_or(0, |p| paths[p]) | 1 << i);
    }
    paths
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

/// Tiles by the device's best kernel: every layout with every storage type, with options that models use.
pub fn cooperative() -> Vec<CacheCase> {
    let masks = [Mask::Causal, Mask::Window(20), Mask::Window(5)];
    let mut cases = Vec::new();
    for (i, layout) in KvLayout::ALL.into_iter().enumerate() {
        for (j, storage) in KvStorage::ALL.into_iter().enumerate() {
            cases.push(CacheCase {
                by: By::FastTiles,
                storage,
                layout,
                shape: [[7, 1, 80, 80], [6, 2, 20, 12], [4, 1, 64, 96]][(i + 2 * j) % 3],
                slots: [8, 16, 32][(i + j) % 3],
                first: 60,
                rows: 35,
                mask: masks[i],
                softcap: [0.0, 2.0][(i + j) % 2],
                sinks: j == 1,
                slopes: i == j,
                ..CacheCase::PLAIN
            });
        }
    }
    cases
}

/// Every layout with every storage type, by each kernel that takes it; then V1 over shapes, contexts and masks, trees of drafts, and ids past the
/// cache.
pub fn caches() -> Vec<CacheCase> {
    let mut cases = Vec::new();
    for layout in KvLayout::ALL {
        for storage in KvStorage::ALL {
            for by in [By::Rows, By::Tiles, By::V1] {
                if by != By::V1 || layout == KvLayout::Vectorised {
                    cases.push(CacheCase { storage, layout, by, ..CacheCase::PLAIN });
                }
            }
        }
    }
    let shapes: [[u32; 4]; 10] = [
        [1, 1, 1, 1],
        [4, 2, 32, 32],
        [3, 1, 64, 64],
        [7, 1, 80, 80],
        [5, 1, 96, 96],
        [2, 2, 112, 112],
        [8, 1, 128, 128],
        [2, 1, 256, 256],
        [6, 2, 65, 63],
        [2, 1, 33, 512],
    ];
    // No context but the token itself, a block and one less and more, several tiles.
    let contexts = [(0, 1), (15, 3), (0, 9), (255, 2), (600, 5)];
    let masks = [Mask::Causal, Mask::Window(5), Mask::Causal, Mask::Window(70), Mask::Window(0)];
    for (i, shape) in shapes.into_iter().enumerate() {
        for n in 0..3 {
            let (first, rows) = contexts[(i + 2 * n) % contexts.len()];
            cases.push(CacheCase {
                by: By::V1,
                storage: KvStorage::ALL[n],
                layout: KvLayout::Vectorised,
                shape,
                slots: [8, 16, 32][(i + n) % 3],
                first,
                rows,
                mask: masks[(i + n) % masks.len()],
                softcap: [0.0, 2.0][(i + n) / 2 % 2],
                sinks: (i + n) % 3 == 1,
                slopes: (i + n) % 4 == 2,
                ..CacheCase::PLAIN
            });
        }
    }
    // Values of more elements than a kernel sums up at once.
    for (i, by) in [By::Rows, By::Tiles].into_iter().enumerate() {
        for (storage, shape) in KvStorage::ALL.into_iter().zip([[2, 1, 8, 513], [3, 1, 6, 1030], [4, 2, 8, 768]]) {
            cases.push(CacheCase { by, storage, layout: KvLayout::ALL[2 * i], shape, sinks: true, ..CacheCase::PLAIN });
        }
    }
    // Trees that use some or all of the mask's bits, over prefixes of several lengths; windows that end before the tree and
    // within.
    for (i, (first, rows)) in [(0, 1), (0, 64), (50, 64), (3, 20), (300, 33), (61, 3)].into_iter().enumerate() {
        for by in [By::Rows, By::Tiles] {
            cases.push(CacheCase {
                by,
                first,
                rows,
                mask: masks[(3 * i + 2) % masks.len()],
                sinks: i % 2 == 0,
                slopes: i % 3 == 1,
                layout: KvLayout::ALL[i % 2 * 2],
                storage: KvStorage::ALL[i % 3],
                tree: true,
                ..CacheCase::PLAIN
            });
        }
    }
    for (by, layout) in [
        (By::Rows, KvLayout::Paged),
        (By::Tiles, KvLayout::Paged),
        (By::Rows, KvLayout::Vectorised),
        (By::V1, KvLayout::Vectorised),
    ] {
        cases.push(CacheCase { by, layout, past_end: true, ..CacheCase::PLAIN });
    }
    cases
}
