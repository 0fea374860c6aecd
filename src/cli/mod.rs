//! The command line: a thin front end over the library.
//!
//! Answers go to stdout, everything else to stderr. Colour and progress bars appear on terminals only.

mod answer;
mod bench;
mod catalog;
mod convert;
mod devices;
mod doctor;
mod echo;
mod embed;
mod exit;
mod hints;
mod inspect;
mod interrupt;
mod logits;
mod memory;
mod models;
mod npy;
mod open;
mod perplexity;
mod process;
mod repl;
mod run;
mod sampling;
mod self_test_results;
mod serve;
mod template;
mod term;
mod tokenize;
mod verify;
mod wrap;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub use process::Allocator;

use clap::{CommandFactory, Parser, Subcommand};

/// Runs language models: GGUF and safetensors files as they are, on the GPU or the CPU.
#[derive(Debug, Parser)]
#[command(name = "wgslm", version, max_term_width = 100, after_help = exit::TABLE)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers a prompt, or talks with you on a terminal.
    Run(run::Args),
    /// Serves a model to others: the APIs of OpenAI, Anthropic and Ollama, and a page to chat on.
    Serve(serve::Args),
    /// Downloads models by name, and prints where they are.
    Pull(models::PullArgs),
    /// Lists the models that were downloaded.
    #[command(visible_alias = "ls")]
    List(models::ListArgs),
    /// Removes models that were downloaded.
    Rm(models::RmArgs),
    /// Measures how fast prompts are read and tokens generated.
    Bench(bench::Args),
    /// Measures how well a model predicts a text.
    Perplexity(perplexity::Args),
    /// Compares the GPU with the CPU, value by value, and names the first op that differs.
    Verify(verify::Args),
    /// Writes the logits of every position of a text to a file.
    Logits(logits::Args),
    /// Prints what a chat template makes of messages.
    Template(template::Args),
    /// Turns text on stdin into token ids, or ids into text.
    Tokenize(tokenize::Args),
    /// Writes a safetensors folder or a GGUF file as a GGUF file, quantised as you like.
    Convert(convert::Args),
    /// Turns texts into vectors, or pairs of texts into scores: JSON lines in and out.
    Embed(embed::Args),
    /// Shows what a model's files say, and how much memory it takes.
    #[command(visible_alias = "show")]
    Inspect(inspect::Args),
    /// Lists the devices that models can run on.
    Devices(devices::Args),
    /// Looks at devices, memory, folders and settings, and says what to do about problems.
    Doctor(doctor::Args),
    /// Prints the completions of a shell: where to put them is in docs/cli.md.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Writes the manual's pages into a folder.
    Man {
        /// The folder.
        folder: std::path::PathBuf,
    },
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    process::quiet_drivers();
    process::explain_shrunk_files();
    process::handle_signals(interrupt::install);
    let args = match hints::parse() {
        Ok(args) => args,
        Err(exit) => return exit,
    };
    let done = match args.command {
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Pull(args) => models::pull(args),
        Command::List(args) => models::list(args),
        Command::Rm(args) => models::rm(args),
        Command::Bench(args) => bench::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Template(args) => template::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => man(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}

/// The completions of a shell.
fn completions(shell: clap_complete::Shell) -> Result<(), exit::Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "wgslm", &mut script);
    let mut out = term::out();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// A page for the program, and one for each command.
fn man(folder: &Path) -> Result<(), exit::Exit> {
    let failed = |error: std::io::Error| exit::Exit::failure(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Args::command(), folder).map_err(failed)
}
