//! `wgslm logits`: the logits of every position, as a NumPy file.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use super::exit::Exit;
use super::{npy, open, term};
use crate::Error;
use crate::engine::score;
use crate::exec::{DeviceChoice, Executor, Numerics, Options};
use crate::ops::KvStorage;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: open::WeightsArg,
    /// Token ids, from the first position on.
    #[arg(long, required = true, value_delimiter = ',', value_name = "1,2,3")]
    ids: Vec<u32>,
    /// auto, gpu, cpu, or the number of an adapter (see `wgslm devices`).
    #[arg(long, default_value = "auto", value_parser = open::device)]
    device: DeviceChoice,
    /// exact (f32 outside the weights) or fast (16-bit cache, 8-bit activations).
    #[arg(long, default_value = "exact", value_parser = open::numerics)]
    numerics: Numerics,
    /// What keys and values are stored as: f32, f16 or q8 (8-bit integers and a scale for each vector) [default: as the numerics].
    #[arg(long, value_name = "TYPE", value_parser = open::kv_type)]
    kv_type: Option<KvStorage>,
    /// The file to write: float32, (positions, vocabulary).
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    /// Output rows of a step: their logits are held at once, and a vocabulary may have 256,000 tokens.
    const OUTS: u32 = 64;
    let model = args.model.open()?;
    let program = &model.program;
    let positions = u32::try_from(args.ids.len()).unwrap_or(u32::MAX);
    if positions > program.context {
        return Err(Exit::usage(format!("--ids: {positions} ids; the model has a context of {}", program.context)));
    }
    let options = Options {
        device: args.device,
        numerics: args.numerics,
        kv: args.kv_type,
        outs: OUTS.min(positions),
        ..Options::new(program, positions)
    };
    let mut executor = open::executor(&model, &options)?;
    let logits = pollster::block_on(score(&mut executor, program, &args.ids))?;
    let path = args.output.display().to_string();
    let file = File::create(&args.output).map_err(|e| Error::io(&path, e));
    let written = npy::write(
        &mut BufWriter::new(file.map_err(|e| Exit::failure(e.to_string()))?),
        program.vocab as usize,
        &logits,
    );
    written.map_err(|e| Exit::failure(Error::io(&path, e).to_string()))?;
    term::note(&format!("{path}: ({positions}, {}), {}", program.vocab, executor.device()));
    Ok(())
}
