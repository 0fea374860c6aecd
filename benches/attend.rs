//! Attention alone, on one adapter: microseconds a layer, for rows at a depth and for prompts.
//!
//! `cargo bench --bench attend -- llvmpipe [512,2048]`: a part of the adapter's name, depths. The time does not depend on what
//! the cache holds, so nothing is computed before a depth.

mod support;

use wgslm::exec::{GpuExecutor, GpuOptions, Limits, Numerics, Phase};
use wgslm::gpu::{Choice, Device};
use wgslm::model::{Builder, Out, Program};
use wgslm::ops::{CpuWeights, Mask};

/// Layers of the program: a step's fixed costs are shared by them.
const LAYERS: u32 = 16;

fn program(heads: u32, kv_heads: u32, dim: u32, context: u32) -> Program {
    let mut b = Builder::new(2, context);
    let group = b.group();
    let [q, k, v] = [heads, kv_heads, kv_heads].map(|n| b.input("x", n * dim));
    let mut out = q;
    for layer in 0..LAYERS {
        b.layer(layer, String::new());
        let cache = b.pages(group, kv_heads, dim, dim, None);
        b.kv_write(cache, k, v);
        out = b.attend(out, cache, Mask::Causal, 1.0 / (dim as f32).sqrt());
    }
    b.finish(vec![Out::Hidden(out)])
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let name = args.next().unwrap_or_default();
    let depths = args.next().unwrap_or_else(|| "0,512,2048,8192".to_owned());
    let depths: Vec<u32> = depths.split(',').map(|d| d.parse().expect("a depth")).collect();
    let device =
        pollster::block_on(Device::open(&Choice { name: Some(name), ..Choice::default() })).expect("an adapter");
    println!("{} ({}), f16 cache, µs a layer", device.caps().name, device.caps().driver);
    for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128), (16, 16, 64)] {
        let context = depths.iter().max().expect("a depth") + 512;
        let program = program(heads, kv_heads, dim, context);
        let blocks = context.div_ceil(16);
        let limits = Limits { rows: 512, seqs: 1, outs: 1, block: 16, blocks, context, in_flight: 1, checkpoints: 0 };
        let options = GpuOptions { numerics: Numerics::Fast, kv: None, limits, unfused: false, keep_values: false };
        let weights = CpuWeights::default();
        let mut quiet = |_, _| {};
        let load = GpuExecutor::load(&device, &program, &weights, options, &mut quiet);
        let mut gpu = pollster::block_on(load).expect("a program of attention");
        gpu.fill_cache(0);
        let table: Vec<u32> = (0..blocks).rev().collect();
        let kinds = depths.iter().map(|&d| (Phase::Decode, d, 1)).chain([(Phase::Prefill, 0, 512)]);
        for (phase, pos, rows) in kinds {
            let micros = |time: f64| time * 1e6 / f64::from(LAYERS);
            let [least, median, most] = support::times(&mut gpu, phase, rows, pos, &[&table]).map(micros);
            let what = if rows == 1 { format!("a row at depth {pos}") } else { format!("a prompt of {rows}") };
            println!("{heads} / {kv_heads} heads of {dim}, {what}: {median:.0} ({least:.0} - {most:.0})");
        }
    }
}
