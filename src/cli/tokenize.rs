//! `wgslm tokenize`: text to ids and back.

use std::io::{Read, Write, stdin};

use super::exit::Exit;
use super::open;
use super::term;
use crate::text::{Special, Tokenizer};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: open::ModelArg,
    /// Reads ids, separated by commas or blanks, and prints their text.
    #[arg(long)]
    ids: bool,
    /// Turns the texts of control tokens into control tokens.
    #[arg(long)]
    special: bool,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let tokenizer = Tokenizer::of(&args.model.file()?)?;
    let mut bytes = Vec::new();
    stdin().read_to_end(&mut bytes).map_err(|e| Exit::failure(format!("stdin: {e}")))?;
    let text = String::from_utf8(bytes)
        .map_err(|e| Exit::usage(format!("stdin: not UTF-8 from byte {} on", e.utf8_error().valid_up_to())))?;
    let mut out = term::out();
    if args.ids {
        let vocab = tokenizer.vocab_size();
        let words = text.split(|c: char| c == ',' || c.is_whitespace()).map(|w| w.trim_matches(['[', ']']));
        let id = |word: &str| match word.parse::<u32>() {
            Ok(id) if (id as usize) < vocab => Ok(id),
            _ => Err(Exit::usage(format!("stdin: {word:?} is not a token id; 0 to {} work", vocab.saturating_sub(1)))),
        };
        let ids = words.filter(|w| !w.is_empty()).map(id).collect::<Result<Vec<_>, _>>()?;
        out.write_all(tokenizer.decode(&ids, false).as_bytes())?;
    } else {
        let special = if args.special { Special::Parse } else { Special::Plain };
        let ids: Vec<String> = tokenizer.encode(&text, special)?.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    }
    out.flush()?;
    Ok(())
}
