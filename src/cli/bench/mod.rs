//! `wgslm bench`: how fast a model's prompts are read and its tokens generated, measured as llama-bench measures.

mod kernels;
mod measure;
mod parallel;
mod profile;
mod report;

use std::io::Write;

use clap::ValueEnum;

use super::exit::Exit;
use super::open;
use super::term;
use super::term::Bar;
use crate::exec::{Options, Progress};
use crate::model::Model;
use measure::{Kind, Runner, Test};
use parallel::Clients;
use profile::Profile;
use report::{Line, Report};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    source: open::SourceArg,
    /// Lengths of prompts; 0 for none.
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<u32>,
    /// Tokens to generate; 0 for none.
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<u32>,
    /// A prompt and an answer in one test: the lengths of both; may be given several times.
    #[arg(long, value_name = "P,N", value_parser = lengths)]
    pg: Vec<(u32, u32)>,
    /// Tokens that are in the cache before.
    #[arg(short = 'd', long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<u32>,
    /// Sequences at once; with several, prompts and answers go through the engine, as requests do.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: Vec<u32>,
    /// Tokens that the prompts of several sequences begin with, all the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: u32,
    /// How often each test runs, after one run that does not count.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Threads of the CPU; without it, as many as prove to be fastest, for prompts and for generated tokens apart.
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    #[command(flatten)]
    exec: open::ExecArgs,
    /// Also shows where the time goes, by kernel: one more run of each test.
    #[arg(long)]
    profile: bool,
    /// How results are printed.
    #[arg(short, long, value_enum, default_value_t = Format::Md)]
    output: Format,
}

/// What else than models can be measured.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Single kernels beside a copy, and what fusing them saves.
    Kernels(kernels::Args),
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table, as llama-bench prints it.
    Md,
    /// A line a test, with names in the first.
    Csv,
    /// Everything, with every sample.
    Json,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    if let Some(Command::Kernels(args)) = &args.command {
        return kernels::run(args);
    }
    let model = args.source.open_any()?;
    let tests = tests(&args, &model)?;
    let context = tests.iter().map(Test::end).max().unwrap_or(1);
    let threads: Vec<Option<usize>> = match &args.threads[..] {
        [] => vec![None],
        several => several.iter().map(|&n| Some(usize::from(n))).collect(),
    };
    let mut report = Report::new(&model);
    let mut profiles = Vec::new();
    for threads in threads {
        let (alone, several): (Vec<&Test>, Vec<&Test>) = tests.iter().partition(|test| test.parallel == 1);
        let options = args.exec.options(threads, Options::new(&model.program, context));
        if !alone.is_empty() {
            profiles.extend(measure_alone(&args, &model, &options, &alone, &mut report)?);
        }
        measure_several(&args, &model, &options, &several, &mut report)?;
    }
    let mut out = term::out();
    match args.output {
        Format::Md => report.markdown(&mut out)?,
        Format::Csv => report.csv(&mut out)?,
        Format::Json => report.json(&mut out, &profiles)?,
    }
    if args.output != Format::Json {
        profiles.iter().try_for_each(|profile| profile.print(&mut out))?;
    }
    Ok(out.flush()?)
}

/// The tests of one sequence, on an executor without an engine around it.
fn measure_alone(
    args: &Args,
    model: &Model,
    options: &Options,
    tests: &[&Test],
    report: &mut Report,
) -> Result<Vec<Profile>, Exit> {
    let mut executor = open::executor(model, options)?;
    let mut profiles = Vec::new();
    if args.profile {
        // Fails, if it must, before anything is measured.
        executor.profile(true)?;
        executor.profile(false)?;
    }
    let bandwidth = pollster::block_on(executor.bandwidth())?;
    let mut runner = Runner::new(&mut executor, model, args.exec.storage());
    let mut bar = Bar::new();
    bar.name("measuring");
    let all = tests.len() as u64 * u64::from(args.repetitions);
    for (i, &test) in (0..).zip(tests) {
        pollster::block_on(runner.prepare(test))?;
        let mut samples = Vec::new();
        for repetition in 0..args.repetitions {
            bar.show(Progress::Loading(i * u64::from(args.repetitions) + u64::from(repetition), all));
            samples.push(pollster::block_on(runner.run(test))?);
        }
        let speed = runner.cost(test).map(|cost| (cost, bandwidth));
        report.add(Line::new(runner.executor, *test, &samples, speed, args.exec.numerics));
    }
    if args.profile {
        runner.executor.profile(true)?;
        for &test in tests.iter().filter(|test| !matches!(test.kind, Kind::Both { .. })) {
            pollster::block_on(runner.prepare(test))?;
            profiles.push(pollster::block_on(profile::profile(&mut runner, test))?);
        }
    }
    Ok(profiles)
}

/// The tests of several sequences at once, each number of them on an executor of its own.
fn measure_several(
    args: &Args,
    model: &Model,
    options: &Options,
    tests: &[&Test],
    report: &mut Report,
) -> Result<(), Exit> {
    for &seqs in args.parallel.iter().filter(|seqs| **seqs > 1) {
        let executor = open::executor(model, &Options { seqs, ..options.clone() })?;
        let mut clients = Clients::new(executor, model, args.shared_prefix);
        let mut bar = Bar::new();
        bar.name("measuring");
        for test in tests.iter().filter(|test| test.parallel == seqs) {
            let mut samples = Vec::new();
            for repetition in 0..=args.repetitions {
                bar.show(Progress::Loading(u64::from(repetition), u64::from(args.repetitions)));
                samples.push(pollster::block_on(clients.run(test))?);
            }
            report.add(Line::new(clients.engine.executor(), **test, &samples[1..], None, args.exec.numerics));
        }
    }
    Ok(())
}

/// Reads `P,N`.
fn lengths(text: &str) -> Result<(u32, u32), String> {
    let read = |text: &str| text.trim().parse().ok().filter(|n| (1..=1 << 24).contains(n));
    let both = text.split_once(',').and_then(|(prompt, answer)| Some((read(prompt)?, read(answer)?)));
    both.ok_or_else(|| "two lengths work, as in 512,128".to_owned())
}

/// The tests in llama-bench's order.
fn tests(args: &Args, model: &Model) -> Result<Vec<Test>, Exit> {
    let mut tests = Vec::new();
    let depths = args.parallel.iter().flat_map(|&parallel| args.n_depth.iter().map(move |&depth| (parallel, depth)));
    for (parallel, depth) in depths {
        let kinds = [(Kind::Prompt, &args.n_prompt), (Kind::Generate, &args.n_gen)];
        for (kind, lengths) in kinds {
            tests.extend(lengths.iter().filter(|n| **n > 0).map(|&n| Test { kind, n, depth, parallel }));
        }
        tests.extend(args.pg.iter().map(|&(prompt, n)| Test { kind: Kind::Both { prompt }, n, depth, parallel }));
    }
    if model.program.needs_full_sequence() {
        // Texts are read at once, and nothing follows them.
        tests.retain(|test| test.kind == Kind::Prompt && test.depth == 0 && test.parallel == 1);
    }
    if tests.is_empty() {
        return Err(Exit::usage("there is nothing to measure: -p and -n are both 0, and there is no --pg"));
    }
    let context = model.program.context;
    match tests.iter().find(|test| test.end() > context) {
        Some(test) => {
            let (end, name) = (test.end(), test.name());
            Err(Exit::usage(format!("{name} needs {end} positions; {} was made for {context}", model.name)))
        }
        None => Ok(tests),
    }
}
