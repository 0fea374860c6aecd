//! `wgslm embed`: texts to vectors, pairs of texts to scores; lines or JSON lines in, JSON lines out.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write, stdin};
use std::path::PathBuf;

use super::exit::Exit;
use super::term;
use super::term::{Bar, Counter};
use super::{open, self_test_results};
use crate::engine::{EmbedOptions, Embedder, Input};
use crate::exec::{DeviceChoice, Numerics, Options};
use crate::model::Embedding;
use crate::ops::Pooling;
use crate::{Error, Result as Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Texts, taken as they are, instead of lines that are read.
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    texts: Vec<String>,
    #[command(flatten)]
    model: open::ModelArg,
    /// The lines to read. One that begins with a quotation mark or a brace is JSON: "…", {"text": "…"}, or, for rerankers,
    /// {"query": "…", "document": "…"}. Any other is a text as it is [default: stdin].
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// How the vectors of a text's tokens become one: mean, cls (the first) or last [default: the model's own].
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pool: Option<Pooling>,
    /// Brings vectors to length 1 [default: as the model's files say, else yes].
    #[arg(long, conflicts_with = "no_normalize")]
    normalize: bool,
    /// Leaves vectors as they are.
    #[arg(long)]
    no_normalize: bool,
    /// Truncates texts that are too long for the model; else they are errors.
    #[arg(long)]
    truncate: bool,
    /// Tokens of a text at most [default: what the model is meant for, at most 4096].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// auto, gpu, cpu, or the number of an adapter (see `wgslm devices`).
    #[arg(long, default_value = "auto", env = "WGSLM_DEVICE", hide_env_values = true, value_parser = open::device)]
    device: DeviceChoice,
    /// exact (f32 outside the weights) or fast (16-bit cache, 8-bit activations).
    #[arg(long, default_value = "exact", value_parser = open::numerics)]
    numerics: Numerics,
    /// Threads of the CPU at most; without it, as many as prove to be fastest.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

fn pooling(s: &str) -> Result<Pooling, String> {
    s.parse().map_err(|error: Error| error.to_string())
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let input = args.input.as_ref();
    let name = input.map_or_else(|| "stdin".to_owned(), |path| path.display().to_string());
    let lines: Box<dyn Read> = match input {
        Some(path) => Box::new(File::open(path).map_err(|e| Exit::usage(format!("--input {name}: {e}")))?),
        None if !args.texts.is_empty() => {
            let quoted = args.texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string() + "\n");
            Box::new(io::Cursor::new(quoted.collect::<String>()))
        }
        None => Box::new(stdin()),
    };
    let name = if args.texts.is_empty() { name } else { "the texts of the command line".to_owned() };
    let normalize = (args.normalize || args.no_normalize).then_some(!args.no_normalize);
    let options = EmbedOptions {
        embedding: Embedding { pooling: args.pool, normalize },
        context: args.context,
        truncate: args.truncate,
    };
    let mut embedder = {
        let file = args.model.file()?;
        let mut bar = Bar::new();
        self_test_results::keeping(|self_test_results| {
            let run = Options {
                device: args.device,
                numerics: args.numerics,
                threads: args.threads.map(usize::from).map(open::at_most_the_cores),
                self_test_results: Some(self_test_results),
                ..Options::default()
            };
            pollster::block_on(Embedder::open(file, &options, &run, &mut |progress| bar.show(progress)))
        })?
    };
    let mut lines = Lines { reader: BufReader::new(lines), name, number: 0, truncate: args.truncate, failed: None };
    let mut out = term::out();
    let mut counter = Counter::new("texts", !out.is_terminal());
    loop {
        let batch = lines.batch(&embedder)?;
        if batch.is_empty() {
            return Ok(());
        }
        let vectors = pollster::block_on(embedder.run(&batch))?;
        for (input, vector) in batch.iter().zip(vectors) {
            let tokens = input.ids.len();
            // Written as 32-bit numbers, which take half the digits of the same numbers in 64 bits.
            let line = match vector[..] {
                [score] if embedder.scores() => serde_json::to_string(&Score { score, tokens }),
                _ => serde_json::to_string(&Vector { embedding: &vector, tokens }),
            };
            writeln!(out, "{}", line.map_err(|e| Exit::failure(e.to_string()))?)?;
        }
        out.flush()?;
        counter.add(batch.len() as u64);
    }
}

#[derive(serde::Serialize)]
struct Score {
    score: f32,
    tokens: usize,
}

#[derive(serde::Serialize)]
struct Vector<'a> {
    embedding: &'a [f32],
    tokens: usize,
}

struct Lines {
    reader: BufReader<Box<dyn Read>>,
    name: String,
    number: u64,
    /// Texts that are too long are truncated.
    truncate: bool,
    /// What is wrong with the line after the last batch.
    failed: Option<Exit>,
}

impl Lines {
    /// The next texts: all that are there without waiting, up to a limit. Empty at the end. A wrong line fails only after the
    /// lines before it are done.
    fn batch(&mut self, embedder: &Embedder) -> Result<Vec<Input>, Exit> {
        const MOST: usize = 256;
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let mut batch = Vec::new();
        while batch.len() < MOST && (batch.is_empty() || self.reader.buffer().contains(&b'\n')) {
            let mut line = Vec::new();
            let read = self.reader.read_until(b'\n', &mut line);
            if read.map_err(|e| Exit::failure(format!("{}: {e}", self.name)))? == 0 {
                break;
            }
            self.number += 1;
            if !line.trim_ascii().is_empty() {
                match self.input(&line, embedder) {
                    Ok(input) => batch.push(input),
                    Err(failed) if batch.is_empty() => return Err(failed),
                    Err(failed) => {
                        self.failed = Some(failed);
                        break;
                    }
                }
            }
        }
        Ok(batch)
    }

    /// A line as the model reads it.
    fn input(&self, line: &[u8], embedder: &Embedder) -> Result<Input, Exit> {
        let wrong = |problem: String| Exit::usage(format!("{}, line {}: {problem}", self.name, self.number));
        let works = match embedder.scores() {
            true => r#"this model scores pairs: {"query": "…", "document": "…"}"#,
            false => r#"a text works: as it is, "…" or {"text": "…"}"#,
        };
        let json = matches!(line.trim_ascii_start().first(), Some(b'"' | b'{' | b'['));
        let value = match json {
            true => serde_json::from_slice(line).map_err(|e| wrong(format!("not JSON ({e}); {works}")))?,
            false => {
                let text = std::str::from_utf8(line).map_err(|_| wrong(format!("not UTF-8; {works}")))?;
                text.trim_end_matches(['\r', '\n']).into()
            }
        };
        let text = |key: &str| value_text(&value, key);
        let input: Outcome<Input> = match (&value, embedder.scores()) {
            (serde_json::Value::String(text), false) => embedder.text(text),
            (_, false) => match text("text") {
                Some(text) => embedder.text(text),
                None => return Err(wrong(works.to_owned())),
            },
            (_, true) => match (text("query"), text("document")) {
                (Some(query), Some(document)) => embedder.pair(query, document),
                _ => return Err(wrong(works.to_owned())),
            },
        };
        input.map_err(|error| match error {
            Error::Limit { needed, available, .. } => {
                let what = if embedder.scores() { "pair" } else { "text" };
                // What is still too long when truncated is a pair's query.
                let works = if self.truncate { "a shorter query works" } else { "--truncate shortens it" };
                wrong(format!("the {what} has {needed}, at most {available} fit; {works}"))
            }
            error => wrong(error.to_string()),
        })
    }
}

fn value_text<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a str> {
    value.as_object()?.get(key)?.as_str()
}
