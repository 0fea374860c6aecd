//! Makes every pipeline that models need on an adapter, and runs none: tools/gpu_compilers reads what drivers say of them.
//!
//!     pipelines SHAPE TYPE...       pipelines 160M Q4_K_M F16
//!
//! `WGSLM_TUNING_TEXT`: lines of a tuning file, apart by semicolons. `WGSLM_WGSL`: a folder like `wgsl`, whose files stand in place of what is
//! compiled in. Weights are random. The adapter is the first; self-tests are left out, since nothing runs.

use std::error::Error;
use std::process::ExitCode;

use pollster::block_on;
use wgslm::exec::{Executor, GpuExecutor, GpuOptions, Limits, Numerics, Phase};
use wgslm::file::Shape;
use wgslm::gpu::{Choice, Device, compose};
use wgslm::model::Model;
use wgslm::quant::mix::FileType;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [shape, types @ ..] = args.as_slice() else {
        eprintln!("usage: pipelines SHAPE TYPE...");
        return ExitCode::from(2);
    };
    match make(shape, types) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn make(shape: &str, types: &[String]) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = std::env::var_os("WGSLM_WGSL") {
        compose::read_texts_from(folder.into())?;
    }
    let shape: Shape = shape.parse()?;
    let tuning = std::env::var("WGSLM_TUNING_TEXT").unwrap_or_default().replace(';', "\n");
    let device = block_on(Device::open(&Choice { index: Some(0), tuning, ..Choice::default() }))?;
    let device = device.caps().cooperative.map_or_else(|| device.clone(), |matrices| device.with_matrices(matrices));
    for to in types {
        let to: FileType = to.parse()?;
        let model = block_on(Model::open(shape.model_file(to, 1)?))?;
        for numerics in [Numerics::Fast, Numerics::Exact] {
            let limits = Limits {
                rows: 512,
                seqs: 8,
                outs: 8,
                block: 16,
                blocks: 64,
                context: 1024,
                in_flight: 2,
                checkpoints: 0,
            };
            let options = GpuOptions { numerics, kv: None, limits, unfused: false, keep_values: false };
            let mut executor = block_on(GpuExecutor::load(&device, &model.program, &model, options, &mut |_, _| {}))?;
            for phase in Phase::ALL {
                block_on(executor.plan(phase, &mut |_, _| {}))?;
            }
        }
    }
    Ok(())
}
