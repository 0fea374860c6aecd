//! `wgslm convert`: a safetensors folder or a GGUF file to a GGUF file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::interrupt::Listener;
use super::term::{self, Bar};
use super::{models, open};
use crate::convert::{Options, convert};
use crate::exec::Progress;
use crate::model::KnownShape;
use crate::quant::mix::FileType;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Safetensors folder, GGUF file (any part of a split one), or a name, as -m of other commands takes them.
    #[arg(required_unless_present = "shape")]
    source: Option<PathBuf>,
    /// Writes random weights of a known shape instead: tiny, 160M, Llama-3.2-1B, Qwen3-0.6B, Llama-3-8B, Qwen3-30B-A3B;
    /// and one of each kind: moe, latent, hybrid, delta, recurrent, windows, sinks, learned-positions, encoder.
    #[arg(long, conflicts_with_all = ["source", "requantize"], requires = "to", value_parser = open::shape)]
    shape: Option<KnownShape>,
    #[command(flatten)]
    hub: models::HubArg,
    #[command(flatten)]
    access: open::AccessArg,
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
    may_be_written(&args.output, args.force)?;
    let file = match (&args.source, args.shape, args.to) {
        (Some(source), ..) => args.access.open(&args.hub.locate(source)?)?,
        (None, Some(shape), Some(to)) => pollster::block_on(shape.model_file(to, 1))?,
        (None, ..) => return Err(Exit::usage("a model's file or folder is needed, or --shape and --type")),
    };
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or_else(cores, usize::from);
    let to = args.to.filter(|_| args.shape.is_none()); // a shape's weights are of the type already
    let options = Options { to, requantize: args.requantize, threads };
    let interrupted = Listener::new();
    let part = PartialFile::new(&args.output)?;
    {
        let mut bar = Bar::new();
        bar.name("converting");
        let mut out = BufWriter::new(Interruptible { file: &part.file, interrupted: &interrupted });
        let mut progress = |done, all| bar.show(Progress::Loading(done, all));
        let done = pollster::block_on(convert(file, options, &mut out, &mut progress));
        if interrupted.pressed() {
            return Err(Exit::Interrupted);
        }
        done?;
    }
    let bytes = part.finish(&args.output, args.force)?;
    term::note(&format!("{}: {:.1} MB", args.output.display(), bytes as f64 / 1e6));
    Ok(())
}

/// Refuses to replace what exists, but for a file where `force` says so.
fn may_be_written(output: &Path, force: bool) -> crate::Result<()> {
    let problem = match std::fs::symlink_metadata(output) {
        Err(_) => return Ok(()), // whether there is a folder for it shows when the file is made
        Ok(there) if !there.is_file() => {
            "it is a folder, a link or a device, which is not replaced; another name works"
        }
        Ok(_) if force => return Ok(()),
        Ok(_) => "it exists; --force overwrites it",
    };
    Err(crate::Error::argument(output.display().to_string(), problem))
}

/// A file that takes no more once a signal asks for the end.
struct Interruptible<'a> {
    file: &'a File,
    interrupted: &'a Listener,
}

impl Write for Interruptible<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.interrupted.pressed() {
            true => Err(io::Error::other("interrupted")),
            false => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
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
        let file = File::create_new(&path).map_err(|e| match e.kind() {
            // It would be taken for a model that is missing.
            io::ErrorKind::NotFound => crate::Error::argument(output.display().to_string(), "there is no such folder"),
            _ => crate::Error::io(path.display().to_string(), e),
        })?;
        Ok(Self { path, file, finished: false })
    }

    /// Moves it to its place. Returns its length. Of two that have one place and are not forced, the first gets it.
    fn finish(mut self, output: &Path, force: bool) -> crate::Result<u64> {
        let io = |e| crate::Error::io(output.display().to_string(), e);
        self.file.sync_all().map_err(io)?;
        let bytes = self.file.metadata().map_err(io)?.len();
        may_be_written(output, force)?;
        if !force {
            // What another process has made since is not replaced: only one of two can make a new file.
            File::create_new(output).map_err(io)?;
        }
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
