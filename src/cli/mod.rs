//! The command line: a thin front end over the library.
//!
//! Answers go to stdout, everything else to stderr. Colour and progress bars appear on terminals only.

mod answer;
mod bench;
mod convert;
mod devices;
mod embed;
mod exit;
mod inspect;
mod interrupt;
mod logits;
mod npy;
mod open;
mod perplexity;
mod process;
mod repl;
mod run;
mod sampling;
mod self_test_results;
mod template;
mod term;
mod tokenize;
mod verify;

use std::process::ExitCode;

pub use process::Allocator;

use clap::{Parser, Subcommand};

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
    Inspect(inspect::Args),
    /// Lists the devices that models can run on.
    Devices(devices::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    process::quiet_drivers();
    process::explain_shrunk_files();
    process::handle_signals(interrupt::install);
    let done = match Args::parse().command {
        Command::Run(args) => run::run(args),
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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}
