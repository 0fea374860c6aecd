//! `wgslm run`: answers a prompt, or talks on a terminal.

use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::{Answer, Timings};
use super::exit::Exit;
use super::interrupt::Listener;
use super::sampling::SamplingArgs;
use super::{open, repl, term};
use crate::Error;
use crate::chat::{ContextPolicy, Conversation};
use crate::engine::{Finish, Request};
use crate::exec::Options;
use crate::language_model::{LanguageModel, now};
use crate::sample::Sampling;
use crate::text::TextStream;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The prompt; without it, stdin is read. On a terminal a conversation begins.
    prompt: Option<String>,
    #[command(flatten)]
    model: open::WeightsArg,
    /// Tokens to generate at most [default: until the model ends or the context is full].
    #[arg(short = 'n', long, value_name = "N")]
    pub(super) max_tokens: Option<u32>,
    #[command(flatten)]
    exec: open::ExecArgs,
    /// Threads of the CPU [default: as many as prove to be fastest].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Positions of context [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Continues the prompt as it is, even if the model has a chat template. The model that is compiled in always does with a
    /// single prompt: it tells stories.
    #[arg(long)]
    pub(super) raw: bool,
    /// The system message: what the model should know and how it should answer.
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Forgets the oldest turns of a conversation when the context is full.
    #[arg(long)]
    shift: bool,
    /// Prints the times of loading, prompt and answer, and the peak memory, on stderr.
    #[arg(long)]
    pub(super) verbose: bool,
    /// Prints one JSON object at the end: prompt_ids, ids, text, finish_reason, device, timings.
    #[arg(long)]
    json: bool,
    /// With --json: the logarithm of each token's probability, and those of the N most likely tokens (0 to 20), before penalties and
    /// filters and at temperature 1.
    #[arg(long, value_name = "N", requires = "json", value_parser = clap::value_parser!(u32).range(..=20))]
    logprobs: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    args.sampling.sampling(Sampling::default())?; // what is out of range is said before the model is loaded
    let prompt = match prompt(&args)? {
        Some(prompt) => prompt,
        None if args.json => return Err(Exit::usage("--json: no prompt; give one: wgslm run --json \"Why?\"")),
        None => {
            let session = Session::open(&args)?;
            let sampling = args.sampling.sampling(session.model.sampling())?;
            return repl::run(session, &args, sampling);
        }
    };
    let mut session = Session::open(&args)?;
    let sampling = args.sampling.sampling(session.model.sampling())?;
    let mut chat = session.conversation(args.raw || args.model.embedded() && args.system.is_none())?;
    if let Some(system) = &args.system {
        chat.set_system(Some(system.clone()))?;
    }
    chat.say(prompt);
    let prompt = chat.prompt(&[], session.policy(&args), now()).map_err(|error| match error {
        Error::Limit { needed, available, .. } => {
            Exit::usage(format!("the prompt needs {needed}, there are {available}; a larger one: --context N"))
        }
        error => error.into(),
    })?;
    let ids = prompt.ids;
    let mut out = term::out();
    let mut show = |piece: &str| {
        if !args.json && !piece.is_empty() {
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    };
    let listener = Listener::new();
    let mut answer = Answer::default();
    let tokenizer = Arc::clone(session.model.tokenizer());
    let mut text = TextStream::after(&*tokenizer, &ids);
    let request = Request { logprobs: args.logprobs, ..session.request(ids.clone(), sampling, args.max_tokens) };
    let reason = answer.run(session.model.engine_mut(), request, &mut text, &listener, &mut show)?;
    answer.finish(&mut text, &mut show)?;
    let timings = Timings::of(&answer, session.load);
    let device = session.model.device();
    if args.json {
        let mut object = serde_json::json!({
            "model": session.model.model().name,
            "prompt_ids": ids,
            "ids": answer.ids,
            "text": answer.text,
            "finish_reason": reason.name(),
            "device": device,
            "seed": sampling.seed,
            "timings": timings.json(),
        });
        if args.logprobs.is_some() {
            object["logprobs"] = answer.logprobs(&tokenizer);
        }
        writeln!(out, "{object}")?;
    } else if !answer.text.is_empty() && !answer.text.ends_with('\n') {
        writeln!(out)?;
    }
    match args.verbose {
        true => term::note(&timings.block(&device)),
        false if args.json => {}
        false => term::dim(&timings.line(&device)),
    }
    match reason {
        Finish::Cancelled => Err(Exit::Interrupted),
        Finish::Error(error) => Err(Exit::from(&*error)),
        Finish::Context => {
            term::dim("the context is full; a larger one: --context N");
            Ok(())
        }
        Finish::Stop(_) | Finish::StopString(_) | Finish::Length => Ok(()),
    }
}

/// A model that is loaded, and how requests to it are made.
pub(super) struct Session {
    pub(super) model: LanguageModel,
    pub(super) load: Duration,
    bias: Vec<(u32, f32)>,
}

impl Session {
    fn open(args: &Args) -> Result<Self, Exit> {
        let started = Instant::now();
        let model = args.model.open()?;
        let base = Options::default();
        let base = Options { context: args.context.unwrap_or(base.context), ..base };
        let options = args.exec.options(args.threads.map(usize::from), base);
        let model = open::language_model(model, &options)?;
        if let Some(wanted) = args.context.filter(|wanted| *wanted > model.context()) {
            let (most, name) = (model.context(), &model.model().name);
            term::note(&format!("--context {wanted}: {name} was made for {most} positions, so there are {most}"));
        }
        Ok(Self { model, load: started.elapsed(), bias: args.sampling.bias().to_vec() })
    }

    /// An empty conversation; a raw one knows no template.
    pub(super) fn conversation(&self, raw: bool) -> Result<Conversation, Exit> {
        if raw {
            return Ok(Conversation::new(Arc::clone(self.model.tokenizer()), None));
        }
        Ok(self.model.conversation()?)
    }

    /// A request that goes on with the kept sequence.
    pub(super) fn request(&self, prompt: Vec<u32>, sampling: Sampling, max_tokens: Option<u32>) -> Request {
        Request { sampling, max_tokens, bias: self.bias.clone(), ..self.model.request(prompt) }
    }

    pub(super) fn policy(&self, args: &Args) -> ContextPolicy {
        ContextPolicy { context: self.model.context(), shift: args.shift }
    }
}

/// The prompt; none where a person sits at the terminal.
fn prompt(args: &Args) -> Result<Option<String>, Exit> {
    if let Some(prompt) = &args.prompt {
        return Ok(Some(prompt.clone()));
    }
    if stdin().is_terminal() {
        if stdout().is_terminal() {
            return Ok(None);
        }
        return Err(Exit::usage("no prompt; give one: wgslm run \"Once upon a time\""));
    }
    let mut bytes = Vec::new();
    stdin().read_to_end(&mut bytes).map_err(|e| Exit::failure(format!("stdin: {e}")))?;
    let mut text = String::from_utf8(bytes)
        .map_err(|e| Exit::usage(format!("stdin: not UTF-8 from byte {} on", e.utf8_error().valid_up_to())))?;
    // The newline that ends a file or an `echo` is not part of the prompt.
    if text.ends_with('\n') {
        text.pop();
        text.truncate(text.trim_end_matches('\r').len());
    }
    Ok(Some(text))
}
