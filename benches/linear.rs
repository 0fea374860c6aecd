//! Matmuls alone, on one adapter: milliseconds a matrix, for decode rows and for prompts.
//!
//! `cargo bench --bench linear -- llvmpipe [Q4_K,Q6_K] [2048x8192] [1,8,128] [registers,dot]`: a part of the adapter's name, block
//! formats, rows and columns of the matrix, rows of x (up to 16 as decode, more as prefill), mat-mat variants, with other
//! numbers of the tuning if need be (`dot+tile_x=128`). `256x512x32x4` are 32 experts' matrices, of which a row chooses four.

mod support;

use std::sync::Arc;

use wgslm::exec::{GpuExecutor, GpuOptions, Limits, Numerics, Phase};
use wgslm::file::Bytes;
use wgslm::gpu::{Choice, Device};
use wgslm::model::{Builder, Out, Program, WeightSpec};
use wgslm::ops::{CpuWeights, Divide, Index, Matrix, RouteSpec, Score};
use wgslm::quant::BlockFormat;

/// Matrices of the program, each in memory of its own: a step's fixed costs are shared by them.
const LAYERS: u32 = 4;

fn program(n: u32, k: u32) -> Program {
    let mut b = Builder::new(2, 1024);
    let x = b.input("x", k);
    let mut out = x;
    for layer in 0..LAYERS {
        b.layer(layer, String::new());
        let weight = b.weight(&format!("w{layer}"), n, k);
        out = b.linear("y", x, weight, None);
    }
    b.finish(vec![Out::Hidden(out)])
}

/// Each position chooses by a row of a table.
fn of_experts(n: u32, k: u32, experts: u32, used: u32) -> Program {
    let mut b = Builder::new(2, 1024);
    let x = b.input("x", k);
    let scores = b.embed("scores", Index::Position(0), 1024, experts, 1.0);
    let spec = RouteSpec { experts, used, score: Score::Softmax, groups: None, divide: Divide::No, scale: 1.0 };
    let chosen = b.route("route", scores, None, spec);
    let mut out = x;
    for layer in 0..LAYERS {
        b.layer(layer, String::new());
        let w = (0..experts).map(|e| b.weight(&format!("w{layer}.{e}"), n, k)).collect();
        out = b.expert_linear("y", x, chosen, w, Vec::new());
    }
    b.finish(vec![Out::Hidden(out)])
}

/// Ordinary numbers between -1 and 1: the same rows again and again.
fn matrix(format: BlockFormat, n: u32, k: u32) -> Matrix {
    const ROWS: u32 = 32;
    let number = |i: u32| (i.wrapping_mul(2_654_435_769) >> 8) as f32 / 8_388_608.0 - 1.0;
    let values: Vec<f32> = (0..ROWS * k).map(number).collect();
    let row_bytes = format.row_bytes(u64::from(k)).expect("whole blocks") as usize;
    let mut bytes = vec![0; row_bytes * ROWS as usize];
    format.encode(&values, &mut bytes).expect("rows");
    let bytes = bytes.repeat(n.div_ceil(ROWS) as usize);
    Matrix::new(Arc::new(Bytes::new("rows", bytes)), 0, format, n, k).expect("a matrix")
}

fn list(arg: Option<String>, default: &str, separator: char) -> Vec<String> {
    arg.as_deref().unwrap_or(default).split(separator).map(str::to_owned).collect()
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let name = args.next().unwrap_or_default();
    let formats = list(args.next(), "F16,Q8_0,Q4_0,Q4_K,Q6_K", ',');
    let shape: Vec<u32> = list(args.next(), "2048x8192", 'x').iter().map(|n| n.parse().expect("a size")).collect();
    let counts: Vec<usize> = list(args.next(), "1,2,4,8,128", ',').iter().map(|r| r.parse().expect("rows")).collect();
    let forms = list(args.next(), "registers,dot", ',');
    let device =
        pollster::block_on(Device::open(&Choice { name: Some(name), ..Choice::default() })).expect("an adapter");
    let program = match shape[..] {
        [n, k] => program(n, k),
        [n, k, experts, used] => of_experts(n, k, experts, used),
        _ => panic!("rows x columns, or with experts x used"),
    };
    println!("{} ({}), W of {shape:?}, ms a product (lowest - highest)", device.caps().name, device.caps().driver);
    for &format in BlockFormat::ALL.iter().filter(|f| formats.iter().any(|name| name == f.name())) {
        let of = |spec: &WeightSpec| if spec.tensor == "scores" { BlockFormat::F32 } else { format };
        let mut kinds: Vec<((BlockFormat, u32, u32), Matrix)> = Vec::new();
        let mut made = |spec: &WeightSpec| {
            let kind = (of(spec), spec.n, spec.k);
            if let Some((_, matrix)) = kinds.iter().find(|(known, _)| *known == kind) {
                return matrix.clone();
            }
            kinds.push((kind, matrix(kind.0, kind.1, kind.2)));
            kinds[kinds.len() - 1].1.clone()
        };
        let weights = CpuWeights { matrices: program.weights.iter().map(&mut made).collect(), vectors: Vec::new() };
        let rows = *counts.iter().max().expect("rows") as u32;
        let limits =
            Limits { rows, seqs: 1, outs: 1, block: 16, blocks: 64, context: 1024, in_flight: 1, checkpoints: 0 };
        let options = GpuOptions { numerics: Numerics::Fast, limits, unfused: false, keep_values: false, kv: None };
        let load = |form: &String| {
            let device = device.tuned(&format!("matmul = {}", form.replace('+', "\n"))).expect("a form");
            let load = async { GpuExecutor::load(&device, &program, &weights, options, &mut |_, _| {}).await };
            pollster::block_on(load).expect("a program of products")
        };
        let mut gpus: Vec<_> = forms.iter().map(load).collect();
        for &rows in &counts {
            let phase = if rows <= 16 { Phase::Decode } else { Phase::Prefill };
            let millis = |time: f64| time * 1e3 / f64::from(LAYERS);
            // Forms are of prompts alone.
            let forms = if phase == Phase::Prefill { &forms[..] } else { &forms[..1] };
            for (form, gpu) in forms.iter().zip(&mut gpus) {
                let [least, median, most] = support::times(gpu, phase, rows, 0, &[]).map(millis);
                println!("{}, {rows} rows, {form}: {median:.2} ({least:.2} - {most:.2})", format.name());
            }
        }
    }
}
