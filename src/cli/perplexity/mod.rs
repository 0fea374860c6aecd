//! `wgslm perplexity`: how well a model predicts a text, and how far it is from another, chunk by chunk as llama.cpp's tool does it.

mod logits;
mod stats;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::PathBuf;

use super::exit::Exit;
use super::open;
use super::term;
use super::term::Bar;
use crate::engine::{LogProbs, score_from};
use crate::exec::{AnyExecutor, Executor, Options, Progress};
use crate::model::Model;
use crate::text::{Special, Tokenizer};
use crate::{Error, Result};
use logits::{RANGE, Reader, Writer};
use stats::{Likelihood, Mean, Quantiles};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: open::WeightsArg,
    /// The text, in UTF-8; - for stdin. A comparison takes its text from the file of logits.
    #[arg(short, long, value_name = "TEXT", required_unless_present = "kl_divergence")]
    file: Option<PathBuf>,
    /// Tokens of a chunk; the second half of each counts.
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    context: u32,
    /// Overlapping chunks instead: each begins so many tokens after the one before, and its last ones count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,
    /// Chunks at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// The file of logits: written, or with --kl-divergence read. It has llama.cpp's format.
    #[arg(long, value_name = "FILE", conflicts_with = "stride")]
    kl_divergence_base: Option<PathBuf>,
    /// Compares with the file of logits.
    #[arg(long, requires = "kl_divergence_base", conflicts_with_all = ["file", "context"])]
    kl_divergence: bool,
    #[command(flatten)]
    exec: open::ExecArgs,
    /// Threads of the CPU [default: as many as prove to be fastest].
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Prints a JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> std::result::Result<(), Exit> {
    let model = args.model.open()?;
    if args.kl_divergence {
        return compare(&args, &model);
    }
    let tokenizer = Tokenizer::of(&model.file)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let text = read(args.file.as_deref().unwrap_or("-".as_ref()))?;
    let ids = tokenizer.encode(&text, Special::Plain)?;
    // As the tokenizer of a model that begins texts with a token does.
    let ids: Vec<u32> = bos.filter(|bos| ids.first() != Some(bos)).into_iter().chain(ids).collect();
    let windows = windows(&args, ids.len())?;
    let mut executor = executor(&args, &model, args.context)?;
    let mut writer = match &args.kl_divergence_base {
        Some(path) => {
            let name = path.display().to_string();
            let out = File::create(path).map_err(|e| Error::io(&name, e))?;
            let used = &ids[..windows.len() * args.context as usize];
            Some(Writer::new(BufWriter::new(out), name, args.context, model.program.vocab, used)?)
        }
        None => None,
    };
    let mut likelihood = Likelihood::default();
    let mut bar = Bar::new();
    bar.name("reading");
    for (i, window) in (0..).zip(&windows) {
        bar.show(Progress::Loading(i, windows.len() as u64));
        let mut chunk = ids[window.start..window.start + args.context as usize].to_vec();
        if let (Some(bos), Some(first)) = (bos, chunk.first_mut()) {
            *first = bos;
        }
        let mut result = Ok(());
        each(&mut executor, &model, &chunk, window.first, &mut |next, logits| {
            let probs = LogProbs::new(logits);
            likelihood.add(-probs.of(next));
            if let (Some(writer), Ok(())) = (&mut writer, &result) {
                result = writer.push(logits, &probs);
            }
        })?;
        result?;
    }
    drop(bar);
    if let Some(writer) = writer {
        writer.finish()?;
    }
    let mut out = term::out();
    if args.json {
        let mut json = likelihood.json();
        json["chunks"] = windows.len().into();
        json["device"] = executor.device().into();
        writeln!(out, "{json}")?;
    } else {
        let (chunks, device) = (windows.len(), executor.device());
        writeln!(out, "{} of {} tokens in {chunks} chunks, {device}", model.name, likelihood.count())?;
        likelihood.print(&mut out)?;
    }
    Ok(())
}

/// Some tokens: where they begin, and which of their predictions count.
struct Window {
    start: usize,
    /// The first position whose prediction of the next token counts.
    first: usize,
}

/// The chunks of a text of so many tokens.
fn windows(args: &Args, tokens: usize) -> std::result::Result<Vec<Window>, Exit> {
    let context = args.context as usize;
    let most = args.chunks.map_or(usize::MAX, |n| n as usize);
    let windows: Vec<Window> = match args.stride.map(|stride| stride as usize) {
        None => (0..tokens / context).take(most).map(|i| Window { start: i * context, first: context / 2 }).collect(),
        Some(stride) if stride >= context => {
            return Err(Exit::usage(format!("--stride {stride} leaves gaps between chunks of {context}")));
        }
        Some(stride) => {
            let starts = (0..).step_by(stride).take_while(|start| start + context <= tokens).take(most);
            starts.map(|start| Window { start, first: context - stride - 1 }).collect()
        }
    };
    match windows.is_empty() {
        true => {
            Err(Exit::usage(format!("the text has {tokens} tokens, a chunk {context}; a longer text or -c is needed")))
        }
        false => Ok(windows),
    }
}

fn executor(args: &Args, model: &Model, context: u32) -> std::result::Result<AnyExecutor, Exit> {
    /// Output rows of a step: their logits are held at once.
    const OUTS: u32 = 64;
    if context > model.program.context {
        let message = format!("chunks of {context} tokens; {} was made for {}", model.name, model.program.context);
        return Err(Exit::usage(message));
    }
    let base = Options { outs: OUTS.min(context), ..Options::new(&model.program, context) };
    let options = args.exec.options(args.threads.map(usize::from), base);
    open::executor(model, &options)
}

/// Gives `take` each token of a chunk after position `first` with the logits of the position before it.
fn each(
    executor: &mut AnyExecutor,
    model: &Model,
    chunk: &[u32],
    first: usize,
    take: &mut dyn FnMut(u32, &[f32]),
) -> Result<()> {
    let rows = &chunk[..chunk.len().saturating_sub(1)];
    let mut give = |position: usize, logits: &[f32]| take(chunk[position + 1], logits);
    pollster::block_on(score_from(executor, &model.program, rows, first, &mut give))
}

fn read(path: &std::path::Path) -> Result<String> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read = match name.as_str() {
        "-" => std::io::stdin().read_to_end(&mut bytes),
        _ => File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|e| Error::io(&name, e))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to() as u64;
        Error::malformed(name, at, "it is not UTF-8")
    })
}

/// Compares the model's predictions with those in the file.
fn compare(args: &Args, model: &Model) -> std::result::Result<(), Exit> {
    let Some(path) = &args.kl_divergence_base else {
        return Err(Exit::usage("--kl-divergence needs --kl-divergence-base"));
    };
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Error::io(&name, e))?;
    let bytes = file.metadata().map_err(|e| Error::io(&name, e))?.len();
    let mut base = Reader::new(BufReader::new(file), name, bytes)?;
    if base.vocab != model.program.vocab {
        let (theirs, own) = (base.vocab, model.program.vocab);
        return Err(Exit::usage(format!("the logits are of {theirs} tokens, {} has {own}", model.name)));
    }
    let mut executor = executor(args, model, base.context)?;
    let tokenizer = Tokenizer::of(&model.file)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let chunks = base.chunks.min(args.chunks.unwrap_or(u32::MAX));
    let (mut own, mut theirs, mut same) = (Likelihood::default(), Likelihood::default(), Mean::default());
    let (mut ratio, mut divergence) = (Mean::default(), Quantiles::default());
    let mut bar = Bar::new();
    bar.name("comparing");
    for i in 0..chunks {
        bar.show(Progress::Loading(i.into(), chunks.into()));
        let mut chunk = base.chunk(i).to_vec();
        if let (Some(bos), Some(first)) = (bos, chunk.first_mut()) {
            *first = bos;
        }
        let mut result = Ok(());
        each(&mut executor, model, &chunk, base.context as usize / 2, &mut |next, logits| {
            if result.is_err() {
                return;
            }
            let probs = LogProbs::new(logits);
            match base.row() {
                Err(error) => result = Err(error),
                Ok(row) => {
                    // Σ p ln (p / q), p of the file and q the model's. What the file had to raise is left out.
                    let kl = |(token, &p): (u32, &f32)| f64::from(p).exp() * (f64::from(p) - probs.of(token));
                    divergence.add((0..).zip(row).filter(|(_, p)| **p > -RANGE).map(kl).sum());
                    let best = row.iter().enumerate().fold(0, |best, (i, p)| if *p > row[best] { i } else { best });
                    same.add(if best as u32 == probs.best() { 1.0 } else { 0.0 });
                    let base = -f64::from(row[next as usize]);
                    own.add(-probs.of(next));
                    theirs.add(base);
                    ratio.add(-probs.of(next) - base);
                }
            }
        })?;
        result?;
    }
    drop(bar);
    let mut out = term::out();
    if args.json {
        let mut json = own.json();
        json["base"] = theirs.json();
        json["log_ratio"] = ratio.json();
        json["kl_divergence"] = divergence.json();
        json["same_top"] = same.json();
        json["chunks"] = chunks.into();
        json["device"] = executor.device().into();
        writeln!(out, "{json}")?;
    } else {
        let (count, device) = (own.count(), executor.device());
        writeln!(out, "{} of {count} tokens in {chunks} chunks, {device}", model.name)?;
        own.print(&mut out)?;
        writeln!(out, "of the base       {:.4}", theirs.perplexity())?;
        writeln!(out, "ln of the ratio   {:.5} ± {:.5}", ratio.mean(), ratio.error())?;
        divergence.print(&mut out)?;
        writeln!(out, "same top token    {:.2} ± {:.2} %", 100.0 * same.mean(), 100.0 * same.error())?;
    }
    Ok(())
}
