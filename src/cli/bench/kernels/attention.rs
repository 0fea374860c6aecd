//! Attention benchmarks: V1 beside the engine's kernels, over contexts; decoding beside a plain stream of reads; tiles of
//! prefill tokens beside single tokens; a binary search for a token's sequence beside a lookup.

use super::{DIM, Item, Make, one, read};
use crate::exec::single::{RowPos, Single, StepBuffer, StepLimits};
use crate::gpu::{Buffer, Device, Pipelines};
use crate::ops::{Attend, CacheShape, Kv, KvLayout, KvStorage, Mask, Op};
use crate::{Error, Result};

/// Chooses the kernel.
type Choose = fn(&mut Single<'_>);

/// Positions in a block.
const SLOTS: u32 = 16;
/// Bytes of a cache whose blocks are used in turn, so that decoding does not read what it has just read.
const COLD: u64 = 256 << 20;

/// Causal attention of the last rows of sequences over a 16-bit cache.
#[derive(Clone)]
struct Attention {
    layout: KvLayout,
    heads: u32,
    kv_heads: u32,
    /// For each sequence, its tokens in the step and its length.
    seqs: Vec<(u32, u32)>,
    split_kv: bool,
    /// Bytes of the cache, if that is more than sequences need, or if they share it.
    bytes: u64,
    /// Sequences that need more than that share blocks.
    shared: bool,
}

const PLAIN: Attention = Attention {
    layout: KvLayout::Paged,
    heads: 32,
    kv_heads: 8,
    seqs: Vec::new(),
    split_kv: false,
    bytes: 0,
    shared: false,
};

/// V1 goes as far as a workgroup's memory.
pub(super) fn items(quick: bool) -> Vec<(String, Make)> {
    let contexts: &[u32] = if quick { &[128, 2048] } else { &[128, 512, 2048, 8192, 32768] };
    let mut all: Vec<(String, Make)> = Vec::new();
    let mut add = |name: String, attention: Attention, choose: Choose| {
        all.push(one(name, move |d, p| attention.item(d, p, choose)));
    };
    for &context in contexts {
        let mut at = |name: &str, layout, split_kv, choose: Choose| {
            let attention = Attention { layout, seqs: vec![(1, context)], split_kv, ..PLAIN };
            add(format!("{name}, a row that sees {context}"), attention, choose);
        };
        at("attend_v1", KvLayout::Vectorised, false, |s| s.v1());
        at("attend over a vectorised cache", KvLayout::Vectorised, false, |s| s.by_rows());
        at("attend in parts over a vectorised cache", KvLayout::Vectorised, true, |s| s.by_rows());
        at("attend", KvLayout::Paged, false, |s| s.by_rows());
        at("attend in parts", KvLayout::Paged, true, |s| s.by_rows());
    }
    let rows = if quick { 32 } else { 256 };
    for (name, choose) in [("attend_tiled", (|_| {}) as Choose), ("attend", (|s| s.by_rows()) as Choose)] {
        add(format!("{name}, a prompt of {rows} rows"), Attention { seqs: vec![(rows, rows)], ..PLAIN }, choose);
    }
    let bytes = if quick { COLD / 8 } else { COLD };
    for batch in [1, 16] {
        let attention = Attention { seqs: vec![(1, 8192); batch], split_kv: true, bytes, ..PLAIN };
        add(format!("attend, decoding, {batch} of 8192"), attention, |s| s.by_rows());
    }
    let stream = move |d: &Device, p: &mut Pipelines| read(d, p, bytes.min(d.caps().max_binding));
    all.push(one("a stream of reads, decoding's measure", stream));
    all.push((format!("attend_cooperative, a prompt of {rows} rows"), Box::new(move |d, _| cooperative(d, rows))));
    all.extend(owners(quick));
    all
}

/// A prompt by cooperative matrices, on a device that has them and was not set to use another form.
fn cooperative(device: &Device, rows: u32) -> Result<Vec<Item>> {
    // The engine uses it only where the self-test has passed; here it is measured without one.
    let device = device.with_attend_matrices(true);
    if device.caps().attend_matrices().is_none() {
        return Ok(Vec::new());
    }
    let attention = Attention { seqs: vec![(rows, rows)], ..PLAIN };
    Ok(vec![attention.item(&device, &mut Pipelines::new(&device), |s| s.fast())?])
}

/// The rows of vllm-metal's comparison: the sequence of a token, or of a tile, is searched for or looked up.
fn owners(quick: bool) -> impl Iterator<Item = (String, Make)> {
    let mixed = [vec![(1, 128); 32], vec![(512, 512); 4]].concat();
    let rows: Choose = |s| s.by_rows();
    let tiles: Choose = |_| {};
    let cases = [
        ("decode, 64 x 128".to_owned(), vec![(1, 128); 64], rows),
        ("decode, 256 x 128".to_owned(), vec![(1, 128); 256], rows),
        ("decode, 1024 x 128".to_owned(), vec![(1, 128); 1024], rows),
        ("decode, 64 x 2048".to_owned(), vec![(1, 2048); 64], rows),
        ("decode, 1024 x 2048".to_owned(), vec![(1, 2048); 1024], rows),
        ("prefill, 8 x 512".to_owned(), vec![(512, 512); 8], tiles),
        ("mixed, 32 x 1 of 128 and 4 x 512".to_owned(), mixed, tiles),
    ];
    let cases = cases
        .into_iter()
        .filter(move |(_, seqs, _)| !quick || seqs.iter().map(|&(rows, context)| rows * context).sum::<u32>() < 40_000);
    cases.map(move |(name, seqs, choose)| {
        let bytes = if quick { COLD / 8 } else { COLD };
        let attention = Attention { heads: 16, kv_heads: 4, seqs, bytes, shared: true, ..PLAIN };
        let make: Make = Box::new(move |d, p| attention.owned(d, p, choose));
        (format!("attend, {name}"), make)
    })
}

/// The buffers of an attention: its cache, queries, results.
struct Buffers {
    shape: CacheShape,
    kv: Buffer,
    q: Buffer,
}

impl Attention {
    fn rows(&self) -> u32 {
        self.seqs.iter().map(|(rows, _)| rows).sum()
    }

    /// Blocks in the tables of all sequences.
    fn needed(&self) -> u32 {
        self.seqs.iter().map(|(_, context)| context.div_ceil(SLOTS)).sum()
    }

    fn buffers(&self, device: &Device) -> Result<Buffers> {
        let (kv_heads, storage, layout) = (self.kv_heads, KvStorage::F16, self.layout);
        let mut shape = CacheShape { kv_heads, k_dim: DIM, v_dim: DIM, slots: SLOTS, blocks: 1, storage, layout };
        let most = self.bytes.min(device.caps().max_binding) / shape.bytes();
        shape.blocks = if self.shared { most as u32 } else { self.needed().max(most as u32) };
        let kv = Buffer::new(device, "kv", shape.bytes())?;
        let q = Buffer::new(device, "q", u64::from(self.rows()) * u64::from(self.heads * DIM) * 4)?;
        // Numbers from 0.5 to 1 of either sign, both as f16 and as f32, by a generator of Knuth's.
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        let some: Vec<u32> = (0..1 << 18).map(|_| random() >> 3 & 0x83ff_83ff | 0x3800_3800).collect();
        for word in (0..shape.bytes() / 4).step_by(some.len()) {
            kv.write(device, word, &some[..some.len().min((shape.bytes() / 4 - word) as usize)]);
        }
        let some: Vec<u32> = (0..q.size() / 4).map(|_| random() & 0x807f_ffff | 0x3f00_0000).collect();
        q.write(device, 0, &some);
        Ok(Buffers { shape, kv, q })
    }

    /// The plan over the next blocks, and where its results are.
    fn plan(
        &self,
        device: &Device,
        pipelines: &mut Pipelines,
        buffers: &Buffers,
        next: &mut dyn Iterator<Item = u32>,
        choose: &dyn Fn(&mut Single<'_>),
    ) -> Result<(Item, Buffer)> {
        let Self { heads, kv_heads, split_kv, .. } = *self;
        let rows = self.rows();
        let most = self.seqs.iter().map(|(_, context)| context.div_ceil(SLOTS)).max().unwrap_or(1);
        let limits = StepLimits {
            rows,
            seqs: self.seqs.len() as u32,
            blocks: most,
            slots: SLOTS,
            pos_ids: true,
            split_kv,
            ..StepLimits::default()
        };
        let step = StepBuffer::new(device, limits)?;
        let table = |&(_, context): &(u32, u32)| (&mut *next).take(context.div_ceil(SLOTS) as usize).collect();
        let tables: Vec<Vec<u32>> = self.seqs.iter().map(table).collect();
        let places = (0..)
            .zip(&self.seqs)
            .flat_map(|(seq, &(rows, context))| (context - rows..context).map(move |pos| RowPos { pos, seq }));
        let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
        let counts = step.write_rows(device, &places.collect::<Vec<_>>(), &tables)?;
        let mut single = Single::new(pipelines, &step);
        choose(&mut single);
        let kv = Kv::Cache(single.cache(&buffers.kv, buffers.shape)?);
        let q = single.value(&buffers.q, heads * DIM)?;
        let result = Buffer::new(device, "out", buffers.q.size())?;
        let out = single.value(&result, heads * DIM)?;
        let (k_dim, v_dim, mask, scale) = (DIM, DIM, Mask::Causal, 0.1);
        let (softcap, sinks, slopes) = (0.0, None, None);
        let op = Attend { q, heads, kv_heads, k_dim, v_dim, kv, mask, scale, softcap, sinks, slopes, out };
        single.add(Op::Attend(op))?;
        // Each key and value counts once for a sequence.
        let positions: f64 = self.seqs.iter().map(|&(_, context)| f64::from(context)).sum();
        let bytes = 2.0 * buffers.q.size() as f64 + positions * f64::from(kv_heads * 2 * DIM * 2);
        Ok((Item::new(single.finish()?, counts, bytes), result))
    }

    fn item(&self, device: &Device, pipelines: &mut Pipelines, choose: Choose) -> Result<Item> {
        let buffers = self.buffers(device)?;
        let blocks = buffers.shape.blocks;
        let mut next = (0..blocks).rev().cycle();
        let mut item = self.plan(device, pipelines, &buffers, &mut next, &choose)?.0;
        // Until all of the cache was read.
        for _ in 1..blocks / self.needed() {
            let more = self.plan(device, pipelines, &buffers, &mut next, &choose)?.0;
            item.plan.append(more.plan);
            item.bytes += more.bytes;
        }
        Ok(item)
    }

    /// The same with sequences searched for and looked up, which must give the same bits.
    fn owned(&self, device: &Device, pipelines: &mut Pipelines, choose: Choose) -> Result<Vec<Item>> {
        let buffers = self.buffers(device)?;
        let mut items = Vec::new();
        let mut results: Vec<Vec<u32>> = Vec::new();
        for (name, search) in [(", by search", true), (", by list", false)] {
            let choose = |single: &mut Single<'_>| {
                choose(single);
                if search {
                    single.search();
                }
            };
            let mut next = (0..buffers.shape.blocks).rev().cycle();
            let (item, result) = self.plan(device, pipelines, &buffers, &mut next, &choose)?;
            if item.searches() != search {
                return Err(Error::argument("attend", format!("the form{name} is not what was planned")));
            }
            item.plan.submit(device, item.counts);
            results.push(pollster::block_on(result.read(device, 0..result.size() / 4))?);
            items.push(Item { name: name.to_owned(), ..item });
        }
        if results[0] != results[1] {
            return Err(Error::argument("attend", "a search and a list give different bits"));
        }
        Ok(items)
    }
}
