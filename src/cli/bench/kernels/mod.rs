//! `wgslm bench kernels`: how near single kernels come to the bandwidth of a copy, and what fusion saves.

mod attention;
mod matmul;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::term;
use crate::exec::single::{Rotation, Single, StepBuffer, StepLimits};
use crate::gpu::{Arg, Buffer, Choice, Device, Dim, Kernel, Pipelines, Plan, PlanBuilder, StepCounts};
use crate::ops::sample::SampleBuffers;
use crate::ops::{
    Act, BlockMove, CacheId, CacheShape, KvLayout, KvReplicate, KvStorage, KvWrite, Norm, NormKind, NormSpec, Op,
    Pairing, Pointwise, Rope, RopeId, RopeKv, RopeKvSpec, RopeSpec, SampleSpec, Softmax, ValueId, View,
};
use crate::{Error, Result};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The number of an adapter, or a part of its name; without it, the GPU that the system prefers.
    #[arg(long, value_name = "N|NAME")]
    device: Option<String>,
    /// Smaller tensors and fewer rounds.
    #[arg(long)]
    quick: bool,
    /// How often each kernel is measured [default: 9; with --quick, 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measures the kernels whose names hold this, and the copy.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Prints a JSON array.
    #[arg(long)]
    json: bool,
}

/// What is measured: a plan, and the bytes that it must read and write.
struct Item {
    name: String,
    plan: Plan,
    /// A shorter plan, whose time is subtracted: both include the cost of a submission.
    less: Option<Plan>,
    counts: StepCounts,
    bytes: f64,
    /// Seconds a run, round by round.
    seconds: Vec<f64>,
    /// How often it was run, in all.
    runs: u64,
}

/// How long a kernel should be measured in a round.
const ROUND: Duration = Duration::from_millis(20);

const COPY: &str = "//! copy: y = x, four words a thread
struct Params { n: u32, across: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;
@compute @workgroup_size(64)
fn copy(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.across + id.x;
    if i < params.n {
        y[i] = x[i];
    }
}";

const READ: &str = "//! reads: y[i] = x[i] ^ x[i + threads] ^ …, so that a compiler must read them
struct Params { n: u32, threads: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn reads(@builtin(global_invocation_id) id: vec3<u32>) {
    var all = vec4<u32>(0u);
    for (var i = id.x; i < params.n; i += params.threads) {
        all ^= x[i];
    }
    y[id.x] = all.x ^ all.y ^ all.z ^ all.w;
}";

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let name = args.device.clone().unwrap_or_default();
    let choice = Choice {
        index: name.parse().ok(),
        name: (!name.is_empty() && name.parse::<usize>().is_err()).then(|| name.to_lowercase()),
        ..Choice::default()
    };
    let device = pollster::block_on(Device::open(&choice))?;
    let (mut items, too_large) = items(&device, args)?;
    device.check()?;
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 9 });
    let mut repeats = Vec::new();
    for item in &mut items {
        time(&device, item, 1)?; // makes what is made late
        let once = time(&device, item, 1)?;
        repeats.push((ROUND.as_secs_f64() / once).clamp(1.0, 2000.0) as u32);
    }
    // Round by round, so that a disturbance hits all items alike.
    for _ in 0..rounds {
        for (item, &repeats) in items.iter_mut().zip(&repeats) {
            let seconds = time(&device, item, repeats)?;
            item.seconds.push(seconds);
        }
    }
    for item in &mut items {
        item.seconds.sort_by(f64::total_cmp);
    }
    let copy = items[0].rate();
    let mut out = term::out();
    if args.json {
        let line = |item: &Item| {
            json!({
                "kernel": item.name,
                "device": device.caps().name,
                "driver": device.caps().driver,
                "dispatches": item.plan.count(item.counts),
                "runs": item.runs,
                "runs_that_searched": if item.searches() { item.runs } else { 0 },
                "bytes": item.bytes,
                "seconds": item.seconds,
                "gb_per_second": item.rate() / 1e9,
                "share_of_copy": item.rate() / copy,
            })
        };
        let none = too_large.iter().map(|name| json!({ "kernel": name, "device": device.caps().name, "fits": false }));
        writeln!(out, "{:#}", serde_json::Value::from_iter(items.iter().map(line).chain(none)))?;
    } else {
        let caps = device.caps();
        writeln!(out, "{} ({}, {}), medians of {rounds} rounds in turns\n", caps.name, caps.backend, caps.driver)?;
        writeln!(out, "| kernel | dispatches | µs (lowest - highest) | GB/s | of the copy |")?;
        writeln!(out, "|---|---:|---:|---:|---:|")?;
        for item in &items {
            let [least, most] = [item.seconds[0], item.seconds[item.seconds.len() - 1]].map(|s| s * 1e6);
            let (median, rate) = (item.median() * 1e6, item.rate());
            let dispatches = item.plan.count(item.counts);
            writeln!(
                out,
                "| {} | {dispatches} | {median:.0} ({least:.0} - {most:.0}) | {:.2} | {:.0} % |",
                item.name,
                rate / 1e9,
                100.0 * rate / copy
            )?;
        }
        for name in too_large {
            writeln!(out, "| {name} | | does not fit | | |")?;
        }
    }
    Ok(out.flush()?)
}

impl Item {
    fn new(plan: Plan, counts: StepCounts, bytes: f64) -> Self {
        Self { name: String::new(), plan, less: None, counts, bytes, seconds: Vec::new(), runs: 0 }
    }

    /// Whether its kernels search for the sequence of a row or a tile.
    fn searches(&self) -> bool {
        self.plan.dispatches.iter().any(|dispatch| dispatch.overrides.contains(&("SEARCH", true.into())))
    }

    fn median(&self) -> f64 {
        self.seconds[self.seconds.len() / 2]
    }

    /// Bytes a second.
    fn rate(&self) -> f64 {
        self.bytes / self.median()
    }
}

/// Seconds that a run takes, of so many in a row.
fn time(device: &Device, item: &mut Item, repeats: u32) -> Result<f64> {
    let started = Instant::now();
    item.plan.submit_times(device, item.counts, repeats);
    item.runs += u64::from(repeats);
    device.finish()?;
    let seconds = started.elapsed().as_secs_f64() / f64::from(repeats);
    let Some(less) = &item.less else { return Ok(seconds) };
    let started = Instant::now();
    less.submit_times(device, item.counts, repeats);
    device.finish()?;
    // More than it has would be noise.
    Ok((seconds - started.elapsed().as_secs_f64() / f64::from(repeats)).max(seconds / 100.0))
}

/// Makes what is measured under a name; items have the rest of theirs.
type Make = Box<dyn FnOnce(&Device, &mut Pipelines) -> Result<Vec<Item>>>;

/// A name under which one thing is measured.
fn one(
    name: impl Into<String>,
    make: impl FnOnce(&Device, &mut Pipelines) -> Result<Item> + 'static,
) -> (String, Make) {
    (name.into(), Box::new(move |device, pipelines| Ok(vec![make(device, pipelines)?])))
}

/// Everything that is measured, the copy first, and the names of what does not fit the device.
fn items(device: &Device, args: &Args) -> Result<(Vec<Item>, Vec<String>)> {
    let mut pipelines = Pipelines::new(device);
    let copy = copy(device, &mut pipelines, if args.quick { 8 << 20 } else { 64 << 20 })?;
    let mut items = vec![Item { name: "copy, four words a thread".to_owned(), ..copy }];
    let mut too_large = Vec::new();
    let makes = single(args.quick).into_iter().chain(attention::items(args.quick)).chain(matmul::items(args.quick));
    for (name, make) in makes.filter(|(name, _)| args.only.as_ref().is_none_or(|part| name.contains(part))) {
        match make(device, &mut pipelines) {
            Ok(all) => items.extend(all.into_iter().map(|item| Item { name: format!("{name}{}", item.name), ..item })),
            Err(Error::Limit { .. }) => too_large.push(name),
            Err(error) => return Err(error),
        }
    }
    Ok((items, too_large))
}

/// All but attention.
fn single(quick: bool) -> Vec<(String, Make)> {
    let mut all: Vec<(String, Make)> = Vec::new();
    // 2 KV heads for 32 query heads of 128 elements, 2048 positions.
    let rows = if quick { 256 } else { 2048 };
    let replicate = KvReplicate { rows, kv_heads: 2, q_heads: 32, head_dim: 128, storage: KvStorage::F32 };
    for (name, tensors) in [("kv_replicate, k and v", 2), ("kv_replicate, k", 1)] {
        all.push(one(name, move |d, p| replicated(d, p, replicate, tensors)));
    }
    for (storage, layout) in [
        (KvStorage::F32, KvLayout::Paged),
        (KvStorage::F16, KvLayout::Paged),
        (KvStorage::Q8, KvLayout::Paged),
        (KvStorage::F16, KvLayout::Contiguous),
        (KvStorage::F16, KvLayout::Vectorised),
    ] {
        let heads = Heads { rows, heads: 0, kv_heads: 8, storage, layout, normed: false };
        // A vector's scale is found by the kernel that has whole heads.
        let kernel = if storage == KvStorage::Q8 { "norm_rope_kv as a KV write," } else { "kv_write" };
        all.push(one(format!("{kernel} {storage:?}, {layout:?}"), move |d, p| heads.item(d, p, true)));
    }
    for (kind, name) in [(NormKind::Rms, "norm, RMS of 4096"), (NormKind::Layer, "norm, layer of 4096")] {
        all.push(one(name, move |d, p| norm(d, p, kind, rows, 4096)));
    }
    all.push(one("softmax, 4096", move |d, p| softmax(d, p, rows, 4096)));
    for (act, name) in [(Act::Silu, "pointwise, SiLU of 4096"), (Act::GeluErf, "pointwise, GELU by erf of 4096")] {
        all.push(one(name, move |d, p| activation(d, p, act, rows, 4096)));
    }
    all.push(one("rope, 32 heads", move |d, p| rotation(d, p, rows / 4, 32)));
    all.push(one("kv_blocks, copies", move |d, p| copies(d, p, rows / 32)));
    let spec = SampleSpec { temperature: 0.8, top_k: 40, top_p: 0.95, ..SampleSpec::GREEDY };
    for (spec, how) in [(SampleSpec::GREEDY, "greedy"), (spec, "top-k 40, top-p 0.95")] {
        let make = move |_: &Device, p: &mut Pipelines| {
            let (plan, counts) = SampleBuffers::single(p, &spec, 152_064)?;
            Ok(Item::new(plan, counts, 4.0 * 152_064.0))
        };
        all.push(one(format!("a sample from 152064, {how}"), make));
    }
    for rows in [1, if quick { 64 } else { 512 }] {
        for (normed, apart, fused) in [
            (false, "two ropes and a KV write", "rope_kv"),
            (true, "two norms, two ropes and a KV write", "norm_rope_kv"),
        ] {
            for (name, fused) in [(apart, false), (fused, true)] {
                let (storage, layout) = (KvStorage::F16, KvLayout::Paged);
                let heads = Heads { rows, heads: 32, kv_heads: 8, storage, layout, normed };
                let rows = if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") };
                all.push(one(format!("{name}, {rows}"), move |d, p| heads.item(d, p, fused)));
            }
        }
    }
    all
}

fn copy(device: &Device, pipelines: &mut Pipelines, bytes: u64) -> Result<Item> {
    let [x, y] = [Buffer::new(device, "x", bytes)?, Buffer::new(device, "y", bytes)?];
    let n = (bytes / 16) as u32;
    let groups = n.div_ceil(64);
    let across = groups.min(device.caps().max_groups);
    let kernel = Kernel::new("copy", COPY);
    let mut plan = PlanBuilder::new(pipelines);
    let grid = [Dim::Fixed(across), Dim::Fixed(groups.div_ceil(across)), Dim::Fixed(1)];
    plan.dispatch(&kernel, &[n, across * 64], &[Arg::read(&x), Arg::Write(&y)], grid)?;
    Ok(Item::new(plan.finish()?, StepCounts::default(), 2.0 * bytes as f64))
}

/// A kernel that reads a buffer, sixteen times four words a thread, and keeps next to nothing of it.
fn read(device: &Device, pipelines: &mut Pipelines, bytes: u64) -> Result<Item> {
    let (x, y) = (Buffer::new(device, "x", bytes)?, Buffer::new(device, "y", bytes / 64)?);
    let n = (bytes / 16) as u32;
    let groups = n.div_ceil(64 * 16);
    let kernel = Kernel::new("reads", READ);
    let mut plan = PlanBuilder::new(pipelines);
    let grid = [Dim::Fixed(groups), Dim::Fixed(1), Dim::Fixed(1)];
    plan.dispatch(&kernel, &[n, groups * 64], &[Arg::read(&x), Arg::Write(&y)], grid)?;
    Ok(Item::new(plan.finish()?, StepCounts::default(), bytes as f64))
}

fn replicated(device: &Device, pipelines: &mut Pipelines, op: KvReplicate, tensors: usize) -> Result<Item> {
    let [x, out] = op.bytes();
    let tensor = || Ok((Buffer::new(device, "x", x)?, Buffer::new(device, "out", out)?));
    let all: Vec<(Buffer, Buffer)> = (0..tensors).map(|_| tensor()).collect::<Result<_>>()?;
    let pairs: Vec<_> = all.iter().map(|(x, out)| (x, out)).collect();
    let mut plan = PlanBuilder::new(pipelines);
    op.dispatch(&mut plan, &pairs)?;
    Ok(Item::new(plan.finish()?, StepCounts::default(), tensors as f64 * (x + out) as f64))
}

/// A step of so many rows.
fn step_of(device: &Device, rows: u32) -> Result<(StepBuffer, StepCounts)> {
    let step = StepBuffer::new(device, StepLimits { rows, ..StepLimits::default() })?;
    let counts = step.write_run(device, rows, 0, &[])?;
    Ok((step, counts))
}

fn norm(device: &Device, pipelines: &mut Pipelines, kind: NormKind, rows: u32, n: u32) -> Result<Item> {
    let (step, counts) = step_of(device, rows)?;
    let mut single = Single::new(pipelines, &step);
    let [x, out] = [0; 2].map(|_| value(device, &mut single, rows, n));
    let weights = Buffer::new(device, "weights", u64::from(n) * 4)?;
    let weight = single.vectors(&weights, &[n])?[0];
    let spec = NormSpec { kind, n, weight: Some(weight), bias: None, eps: 1e-5 };
    single.add(Op::Norm(Norm { x: x?, spec, groups: 1, per_group: false, out: out? }))?;
    Ok(Item::new(single.finish()?, counts, 2.0 * f64::from(rows) * f64::from(n) * 4.0))
}

fn softmax(device: &Device, pipelines: &mut Pipelines, rows: u32, n: u32) -> Result<Item> {
    let bytes = u64::from(rows) * u64::from(n) * 4;
    let [x, out] = [Buffer::new(device, "x", bytes)?, Buffer::new(device, "out", bytes)?];
    let mut plan = PlanBuilder::new(pipelines);
    Softmax { rows, n, stride: n, scale: 1.0 }.dispatch(&mut plan, &x, &out)?;
    Ok(Item::new(plan.finish()?, StepCounts::default(), 2.0 * bytes as f64))
}

fn activation(device: &Device, pipelines: &mut Pipelines, act: Act, rows: u32, n: u32) -> Result<Item> {
    let (step, counts) = step_of(device, rows)?;
    let mut single = Single::new(pipelines, &step);
    let [x, out] = [0; 2].map(|_| value(device, &mut single, rows, n));
    single.add(Op::Pointwise(Pointwise::Act { x: x?, act, n, out: out? }))?;
    Ok(Item::new(single.finish()?, counts, 2.0 * f64::from(rows) * f64::from(n) * 4.0))
}

fn rotation(device: &Device, pipelines: &mut Pipelines, rows: u32, heads: u32) -> Result<Item> {
    let (step, counts) = step_of(device, rows)?;
    let mut single = Single::new(pipelines, &step);
    let [x, out] = [0; 2].map(|_| value(device, &mut single, rows, heads * DIM));
    let angles = Buffer::new(device, "angles", u64::from(rows) * u64::from(DIM) * 4)?;
    let table = single.rotation(Rotation::Host { angles: &angles, pairs: DIM / 2 })?;
    let spec = RopeSpec { table, pairing: Pairing::Neox, dims: DIM };
    single.add(Op::Rope(Rope { x: x?, heads, head_dim: DIM, spec, out: out? }))?;
    Ok(Item::new(single.finish()?, counts, f64::from(rows) * f64::from(heads * DIM) * 8.0))
}

/// The first half of a cache's blocks, of 16 positions of 8 heads, over the second.
fn copies(device: &Device, pipelines: &mut Pipelines, moves: u32) -> Result<Item> {
    let (storage, layout) = (KvStorage::F16, KvLayout::Paged);
    let shape = CacheShape { kv_heads: 8, k_dim: DIM, v_dim: DIM, slots: 16, blocks: 2 * moves, storage, layout };
    let kv = Buffer::new(device, "kv", shape.bytes())?;
    let all: Vec<_> = (0..moves).map(|block| BlockMove { from: Some(block), to: moves + block }).collect();
    let mut plan = PlanBuilder::new(pipelines);
    BlockMove::dispatch(&mut plan, &kv, &shape, &all)?;
    Ok(Item::new(plan.finish()?, StepCounts::default(), shape.bytes() as f64))
}

fn value(device: &Device, single: &mut Single<'_>, rows: u32, width: u32) -> Result<ValueId> {
    single.value(&Buffer::new(device, "value", u64::from(rows) * u64::from(width) * 4)?, width)
}

/// Heads of 128 elements on their way to the cache.
struct Heads {
    rows: u32,
    /// None: keys and values are written as they are.
    heads: u32,
    kv_heads: u32,
    storage: KvStorage,
    layout: KvLayout,
    normed: bool,
}

const DIM: u32 = 128;

impl Heads {
    fn item(&self, device: &Device, pipelines: &mut Pipelines, fused: bool) -> Result<Item> {
        let Self { rows, heads, kv_heads, storage, layout, .. } = *self;
        let slots = if layout == KvLayout::Contiguous { rows } else { 16 };
        let blocks = rows.div_ceil(slots);
        let shape = CacheShape { kv_heads, k_dim: DIM, v_dim: DIM, slots, blocks, storage, layout };
        let blocks = if layout == KvLayout::Contiguous { 0 } else { blocks };
        let step = StepBuffer::new(device, StepLimits { rows, blocks, ..StepLimits::default() })?;
        let counts = step.write_run(device, rows, 0, &(0..blocks).rev().collect::<Vec<_>>())?;
        let mut single = Single::new(pipelines, &step);
        let cache = single.cache(&Buffer::new(device, "kv", shape.bytes())?, shape)?;
        let [k, v] = [0; 2].map(|_| value(device, &mut single, rows, kv_heads * DIM));
        let (k, v) = (k?, v?);
        let turned = f64::from(rows) * f64::from(heads * DIM) * 8.0; // q, read and written
        let kept = f64::from(rows) * f64::from(2 * kv_heads * DIM) * (4.0 + 4.0 / f64::from(storage.lanes()));
        if heads == 0 {
            single.add(Op::KvWrite(KvWrite { k, v: Some(v), cache, kv_heads, k_dim: DIM, v_dim: DIM }))?;
        } else {
            let [q, out] = [0; 2].map(|_| value(device, &mut single, rows, heads * DIM));
            let angles = Buffer::new(device, "angles", u64::from(rows) * u64::from(DIM) * 4)?;
            let table = single.rotation(Rotation::Host { angles: &angles, pairs: DIM / 2 })?;
            let weight = single.vectors(&Buffer::new(device, "weights", u64::from(DIM) * 4)?, &[DIM])?[0];
            let spec = NormSpec { kind: NormKind::Rms, n: DIM, weight: Some(weight), bias: None, eps: 1e-6 };
            let norm = self.normed.then_some(spec);
            let parts = RopeKvValues { q: q?, k, v, out: out?, cache, table, norm };
            if fused { self.fused(&mut single, &parts)? } else { self.apart(device, &mut single, &parts)? }
        }
        Ok(Item::new(single.finish()?, counts, turned + kept))
    }

    fn fused(&self, single: &mut Single<'_>, p: &RopeKvValues) -> Result<()> {
        let view = |value, heads| View { value, width: heads * DIM, at: 0 };
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        single.add(Op::RopeKv(RopeKv {
            q: view(p.q, heads),
            k: view(p.k, kv_heads),
            v: view(p.v, kv_heads),
            q_norm: p.norm,
            k_norm: p.norm,
            spec: RopeKvSpec { heads, kv_heads, head_dim: DIM, rope: Some(p.rope()), cache: p.cache },
            out: p.out,
        }))
    }

    fn apart(&self, device: &Device, single: &mut Single<'_>, p: &RopeKvValues) -> Result<()> {
        let mut key = p.k;
        for (mut x, heads, out) in [(p.q, self.heads, Some(p.out)), (p.k, self.kv_heads, None)] {
            if let Some(spec) = p.norm {
                let normed = value(device, single, self.rows, heads * DIM)?;
                single.add(Op::Norm(Norm { x, spec, groups: heads, per_group: false, out: normed }))?;
                x = normed;
            }
            let out = out.map_or_else(|| value(device, single, self.rows, heads * DIM), Ok)?;
            single.add(Op::Rope(Rope { x, heads, head_dim: DIM, spec: p.rope(), out }))?;
            key = out;
        }
        let (v, cache, kv_heads) = (Some(p.v), p.cache, self.kv_heads);
        single.add(Op::KvWrite(KvWrite { k: key, v, cache, kv_heads, k_dim: DIM, v_dim: DIM }))
    }
}

/// What a rotation with a KV write works on.
struct RopeKvValues {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    out: ValueId,
    cache: CacheId,
    table: RopeId,
    norm: Option<NormSpec>,
}

impl RopeKvValues {
    fn rope(&self) -> RopeSpec {
        RopeSpec { table: self.table, pairing: Pairing::Neox, dims: DIM }
    }
}
