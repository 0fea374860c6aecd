//! `wgslm template`: what a chat template makes of messages.

use std::io::{Read, Write, stdin};
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::open;
use super::term;
use crate::Error;
use crate::language_model::now;
use crate::model::Model;
use crate::text::{ChatTemplate, Origin, Tokenizer};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: open::ModelArg,
    /// A template file, instead of a model's own. Tokens are the model's all the same: BOS, EOS, and the control tokens that the
    /// segments are about.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// The variables as a JSON object: messages, add_generation_prompt, tools and so on; a JSON array is taken as the messages.
    /// `-` reads stdin.
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Prints the segments as JSON: what the template wrote, and what is a user's and never becomes a control token.
    #[arg(long)]
    segments: bool,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let (source, tokenizer) = match &args.template {
        Some(path) => (read(path)?, Tokenizer::of(&args.model.file()?)?),
        None => {
            let model = pollster::block_on(Model::open(args.model.file()?))?;
            let tokenizer = Tokenizer::of(&model.file)?;
            let source = model.chat_template;
            (source.ok_or_else(|| Exit::failure(format!("{}: it has no chat template", model.name)))?, tokenizer)
        }
    };
    let template = ChatTemplate::for_tokenizer(&source, &tokenizer)?;
    let input: serde_json::Value =
        serde_json::from_str(&read(&args.input)?).map_err(|e| Exit::usage(format!("{}: {e}", args.input.display())))?;
    let context = match input {
        messages @ serde_json::Value::Array(_) => {
            serde_json::json!({ "messages": messages, "add_generation_prompt": true })
        }
        context => context,
    };
    let segments = template.render(&context, now())?;
    let mut out = term::out();
    if args.segments {
        let origin = |origin| if origin == Origin::Template { "template" } else { "user" };
        let segment = |s: &crate::text::Segment| serde_json::json!({ "origin": origin(s.origin), "text": s.text });
        writeln!(out, "{:#}", serde_json::Value::from_iter(segments.iter().map(segment)))?;
    } else {
        segments.iter().try_for_each(|s| out.write_all(s.text.as_bytes()))?;
    }
    out.flush()?;
    Ok(())
}

fn read(path: &Path) -> Result<String, Exit> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|e| Error::io(path.display().to_string(), e).into())
}
