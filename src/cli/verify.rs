//! `wgslm verify`: does an executor compute what it should? Compared value by value with the CPU running the canonical
//! program in f32.

use std::collections::BTreeMap;
use std::io::Write;

use super::exit::Exit;
use super::open;
use super::term;
use crate::Result;
use crate::exec::{AnyExecutor, DeviceChoice, Executor, Numerics, Options, Outs, Phase, SeqStep, Step, Token};
use crate::kv::Kv;
use crate::model::{Program, Rows};
use crate::ops::KvStorage;
use crate::text::{Special, Tokenizer};

/// What a model is verified with, where it has a tokenizer.
const TEXT: &str =
    "Once upon a time, there was a little robot who counted: 1, 2, 3, and so on until the stars came out.";
/// The default length of the prompt, and the tokens after it that run as decode.
const PROMPT: usize = 24;
const DECODED: usize = 3;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: open::SourceArg,
    /// What is verified: auto, gpu, cpu (its fused program), or the number of an adapter.
    #[arg(long, default_value = "gpu", value_parser = open::device)]
    device: DeviceChoice,
    /// exact or fast; the reference is always exact.
    #[arg(long, default_value = "exact", value_parser = open::numerics)]
    numerics: Numerics,
    /// What keys and values are stored as: f32, f16 or q8 (8-bit integers and a scale for each vector) [default: as the numerics].
    #[arg(long, value_name = "TYPE", value_parser = open::kv_type)]
    kv_type: Option<KvStorage>,
    /// Rows of the prompt.
    #[arg(long, value_name = "N", default_value_t = PROMPT as u32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    rows: u32,
    /// Positions before them, whose keys and values are seeded random numbers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: u32,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    // f32 sums in another order differ by about 1e-12; 16-bit caches and 8-bit activations by 1e-5. An 8-bit key or value that
    // is rounded the other way, with all that follows, differs by 7e-4 (SmolLM2).
    let limit = match args.kv_type.unwrap_or(args.numerics.kv()) {
        KvStorage::Q8 => 5e-3,
        KvStorage::F32 if args.numerics == Numerics::Exact => 1e-8,
        _ => 5e-4,
    };
    let model = args.model.open_any()?;
    let (context, depth) = (model.program.context, args.depth);
    let Some(left) = context.checked_sub(depth).filter(|left| *left > 0) else {
        return Err(Exit::usage(format!("--depth {depth}; {} was made for {context} positions", model.name)));
    };
    if depth > 0 && (model.program.needs_full_sequence() || model.program.state_bytes() > 0) {
        return Err(Exit::usage(format!("--depth: {} does not keep all it has read as keys and values", model.name)));
    }
    let mut ids = match Tokenizer::of(&model.file) {
        Ok(tokenizer) => tokenizer.encode(TEXT, Special::Plain)?,
        Err(_) => Vec::new(),
    };
    // Past the end of the text, or without a tokenizer, any ids do: some from all over the vocabulary.
    let wanted = (args.rows as usize + DECODED).min(left as usize);
    ids.extend((1..=wanted as u32).map(|i| i.wrapping_mul(0x9e37_79b9) % model.program.vocab));
    ids.truncate(wanted);
    let positions = ids.len() as u32;
    let outs = positions;
    let base = Options { outs, keep_values: true, ..Options::new(&model.program, (depth + positions).max(16)) };
    let tested = Options { device: args.device, numerics: args.numerics, kv: args.kv_type, ..base.clone() };
    // An 8-bit cache is compared with an 8-bit cache: its loss against f32 is not a fault of a kernel.
    let q8 = args.kv_type.filter(|kv| *kv == KvStorage::Q8);
    let oracle = Options { device: DeviceChoice::Cpu, numerics: Numerics::Exact, kv: q8, fused: false, ..base };
    let mut tested = open::executor(&model, &tested)?;
    let mut oracle = open::executor(&model, &oracle)?;
    if depth > 0 {
        tested.seed_caches(1);
        oracle.seed_caches(1);
    }
    let found = pollster::block_on(compare(&mut tested, &mut oracle, &model.program, &ids, depth, limit))?;

    let mut out = term::out();
    writeln!(out, "{} against {}, the canonical program", tested.device(), oracle.device())?;
    writeln!(out, "{:<10} {:>7} {:>10}  at", "op", "values", "worst NMSE")?;
    for (op, worst) in &found.ops {
        writeln!(out, "{op:<10} {:>7} {:>10.1e}  {}", worst.values, worst.nmse, worst.at)?;
    }
    match found.first {
        None => Ok(writeln!(out, "all within {limit:.0e}")?),
        Some(first) => Err(Exit::failure(format!("{first} is the first that differs by more than {limit:.0e}"))),
    }
}

/// What a comparison found.
struct Found {
    /// By the name of the op.
    ops: BTreeMap<&'static str, Worst>,
    /// The first value beyond the limit, in words.
    first: Option<String>,
}

#[derive(Default)]
struct Worst {
    values: usize,
    nmse: f64,
    at: String,
}

/// Runs `ids` after `depth` positions on both, the last few as decode and the others as prefill, and compares all values that
/// both compute.
async fn compare(
    tested: &mut AnyExecutor,
    oracle: &mut AnyExecutor,
    program: &Program,
    ids: &[u32],
    depth: u32,
    limit: f64,
) -> Result<Found> {
    let mut found = Found { ops: BTreeMap::new(), first: None };
    // Encoders read texts whole.
    let decoded = if program.needs_full_sequence() { 0 } else { DECODED };
    let prompt = ids.len().saturating_sub(decoded).max(1);
    let most = tested.limits().rows.min(oracle.limits().rows) as usize;
    let steps = (0..prompt).step_by(most).map(|at| (Phase::Prefill, at..prompt.min(at + most)));
    let steps = steps.chain((prompt..ids.len()).map(|i| (Phase::Decode, i..i + 1)));
    for (phase, range) in steps {
        let pos = depth + range.start as u32;
        let tokens: Vec<Token> = ids[range].iter().map(|&id| Token::Host(id)).collect();
        step(tested, program, phase, &tokens, pos).await?;
        step(oracle, program, phase, &tokens, pos).await?;
        for node in &tested.program(phase).nodes.clone() {
            let Some(id) = node.op.writes().filter(|id| id.index() < program.values.len()) else { continue };
            let rows = if program.value(id).rows == Rows::Seqs { 1 } else { tokens.len() as u32 };
            let ours = tested.value(phase, id, rows).await?;
            let theirs = oracle.value(phase, id, rows).await?;
            let nmse = nmse(&ours, &theirs);
            let value = program.value(id);
            let kind = match value.rows {
                Rows::Step => "row",
                Rows::Outs => "output row",
                Rows::Seqs => "sequence",
            };
            let at = format!("{} ({phase:?}, {rows} {kind}s from position {pos})", value.name);
            let worst = found.ops.entry(node.op.name()).or_default();
            worst.values += 1;
            if worst.at.is_empty() || nmse > worst.nmse {
                (worst.nmse, worst.at) = (nmse, at.clone());
            }
            if nmse > limit && found.first.is_none() {
                found.first = Some(format!("{} {at}, NMSE {nmse:.1e},", node.op.name()));
            }
        }
    }
    Ok(found)
}

/// `Σ (a - b)² / Σ b²`; infinite if a number is not finite, or if there are more of one than of the other.
fn nmse(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let power: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
    let nmse = if error == 0.0 { 0.0 } else { error / power };
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

/// Runs one step of one sequence to its end.
async fn step(executor: &mut AnyExecutor, program: &Program, phase: Phase, tokens: &[Token], pos: u32) -> Result<()> {
    let limits = executor.limits();
    // The same blocks each time.
    let tables = Kv::of_one(program, &limits);
    let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
    let seq = SeqStep { outs: Outs::All, ..SeqStep::new(0, phase, tokens, pos, &tables) };
    executor.enqueue(&Step { seqs: &[seq] })?;
    let mut result = Ok(());
    while executor.poll(&mut |_, out| result = out.map(drop)) == 0 {
        executor.wait().await?;
    }
    result
}
