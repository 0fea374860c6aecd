//! One kernel's cases on every adapter that this machine has, against the f64 oracle: scripts/kernels NAME
//!
//! `WGSLM_TEST_ADAPTER`: adapters with this in their names alone, in lower case. Ends with 1 where a case is wrong, or where
//! none ran the kernel.

use std::process::ExitCode;
use std::time::Instant;

use pollster::block_on;
use wgslm::gpu::{Choice, Device, Fragment, Matrices, MatrixTile};
use wgslm::ops::KERNELS;
use wgslm_test::{adapter, cases};

/// Few software adapters have cooperative matrices: plain WGSL of the same meaning takes the place of the operations.
const STAND_IN: Matrices = Matrices {
    side: 8,
    threads: 128,
    tiles: [
        MatrixTile { threads: 128, parts: 4, of_part: [2, 2] },
        MatrixTile { threads: 128, parts: 8, of_part: [2, 2] },
    ],
    types: Fragment { name: "side 8, 2 subgroups", source: "const SIDE: u32 = 8u;\nconst SUBGROUPS: u32 = 2u;" },
    fragment: Fragment { name: "stand-in", source: include_str!("../device/kernels/cooperative_stand_in.wgsl") },
};

fn main() -> ExitCode {
    let Some(kernel) = std::env::args().nth(1).filter(|name| KERNELS.iter().any(|kernel| kernel.name == name)) else {
        let names: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
        eprintln!("usage: scripts/kernels NAME, where NAME is one of {}", names.join(", "));
        return ExitCode::from(2);
    };
    let requested = adapter::requested().unwrap_or_default();
    let mut adapters = block_on(Device::list());
    adapters.retain(|adapter| adapter.name.to_lowercase().contains(&requested));
    if adapters.is_empty() {
        eprintln!("no adapter; scripts/test installs two that run on processors");
        return ExitCode::FAILURE;
    }
    let mut wrong = 0;
    for adapter in adapters {
        println!("{} ({}, {})", adapter.name, adapter.backend, adapter.driver);
        let choice = Choice { index: Some(adapter.index), ..Choice::default() };
        let device = match block_on(Device::open(&choice)) {
            Ok(device) => device,
            Err(error) => {
                println!("  {error}");
                wrong += 1;
                continue;
            }
        };
        wrong += run(&device, &kernel);
    }
    ExitCode::from(u8::from(wrong > 0))
}

/// Runs the cases of a kernel; gives the number of faults.
fn run(device: &Device, kernel: &str) -> usize {
    let own = device.caps().cooperative;
    let stand_in = kernel.ends_with("_cooperative") && own.is_none();
    // Attention takes its own matrices once a self-test has passed; these are the tests.
    let matrices = own.or(stand_in.then_some(STAND_IN));
    let device = &matrices.map_or_else(|| device.clone(), |matrices| device.with_matrices(matrices));
    if stand_in {
        println!("  cooperative matrices are made of plain WGSL here");
    }
    let (began, mut ran, mut wrong) = (Instant::now(), 0, 0);
    for case in cases::of_kernel(kernel) {
        let (distance, modules) = block_on(case.distance(device));
        if !modules.iter().any(|module| module.split(' ').next() == Some(kernel)) {
            continue;
        }
        ran += 1;
        if distance.is_nan() || distance > case.bound {
            wrong += 1;
            println!("  WRONG  {}: {distance:e}, at most {:e}", case.name, case.bound);
        }
    }
    if let Err(error) = device.check() {
        wrong += 1;
        println!("  {error}");
    }
    println!("  {ran} cases run {kernel}, {wrong} are wrong, {:.1} s", began.elapsed().as_secs_f64());
    wrong + usize::from(ran == 0)
}
