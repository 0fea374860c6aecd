//! `wgslm convert`: a safetensors folder or a GGUF file to a GGUF file.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::open;
use super::term::{self, Bar};
use crate::convert::{Options, convert};
use crate::exec::Progress;
use crate::file::{ModelFile, Shape};
use crate::quant::mix::FileType;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Safetensors folder, or GGUF file (any part of a split one).
    #[arg(required_unless_present = "shape")]
    source: Option<PathBuf>,
    /// Writes random weights of a known shape instead: tiny, 160M, Llama-3.2-1B, Qwen3-0.6B, Llama-3-8B, Qwen3-30B-A3B.
    #[arg(long, conflicts_with_all = ["source", "requantize"], requires = "to", value_parser = open::shape)]
    shape: Option<Shape>,
    /// The file to write. It appears when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What to store weights as: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S,
    /// Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, IQ4_NL, IQ4_XS; as they are without it.
    #[arg(short = 't', long = "type", value_parser = open::file_type)]
    to: Option<FileType>,
    /// Also takes weights that are quantised already, which loses more than the originals would.
    #[arg(long)]
    requantize: bool,
    /// Overwrites the output if it exists.
    #[arg(short, long)]
    force: bool,
    /// Threads that encode; all of them without it.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    if args.output.exists() && !args.force {
        let problem = "it exists; --force overwrites it";
        return Err(crate::Error::argument(args.output.display().to_string(), problem).into());
    }
    let file = match (&args.source, args.shape, args.to) {
        (Some(source), ..) if !source.exists() => {
            let source = source.display();
            return Err(Exit::not_found(format!("{source}: there is no such file or folder; a model's is needed")));
        }
        (Some(source), ..) => ModelFile::open(source)?,
        (None, Some(shape), Some(to)) => shape.model_file(to, 1)?,
        (None, ..) => return Err(Exit::usage("a model's file or folder is needed, or --shape and --type")),
    };
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or_else(cores, usize::from);
    let to = args.to.filter(|_| args.shape.is_none()); // a shape's weights are of the type already
    let options = Options { to, requantize: args.requantize, threads };
    let part = PartialFile::new(&args.output)?;
    {
        let mut bar = Bar::new();
        bar.name("converting");
        let mut out = BufWriter::new(&part.file);
        let mut progress = |done, all| bar.show(Progress::Loading(done, all));
        pollster::block_on(convert(file, options, &mut out, &mut progress))?;
    }
    let bytes = part.finish(&args.output)?;
    term::note(&format!("{}: {:.1} MB", args.output.display(), bytes as f64 / 1e6));
    Ok(())
}

/// A file in the making beside its place, gone if it is not finished.
struct PartialFile {
    path: PathBuf,
    file: File,
    finished: bool,
}

impl PartialFile {
    fn new(output: &Path) -> crate::Result<Self> {
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let path = output.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = File::create(&path).map_err(|e| crate::Error::io(path.display().to_string(), e))?;
        Ok(Self { path, file, finished: false })
    }

    /// Moves it to its place. Tells its length.
    fn finish(mut self, output: &Path) -> crate::Result<u64> {
        let io = |e| crate::Error::io(output.display().to_string(), e);
        self.file.sync_all().map_err(io)?;
        let bytes = self.file.metadata().map_err(io)?.len();
        std::fs::rename(&self.path, output).map_err(io)?;
        self.finished = true;
        Ok(bytes)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_file(&self.path); // it may be gone: nothing is left either way
        }
    }
}
