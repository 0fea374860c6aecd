//! `wgslm run`: answers a prompt, or talks on a terminal.

use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::{Answer, Timings};
use super::exit::Exit;
use super::interrupt::Listener;
use super::models::{self, Word};
use super::sampling::SamplingArgs;
use super::wrap::Wrap;
use super::{echo, open, repl, term};
use crate::Error;
use crate::chat::{ContextPolicy, Conversation};
use crate::driver::ServeOptions;
use crate::engine::{Finish, Request};
use crate::exec::Options;
use crate::language_model::now;
use crate::sample::Sampling;
use crate::text::TextStream;

#[derive(Debug, clap::Args)]
#[command(override_usage = "wgslm run [OPTIONS] [MODEL] [PROMPT]")]
pub(super) struct Args {
    /// A model as -m takes it, and a prompt, or one of them. What comes in on stdin follows the prompt. Without a prompt stdin is
    /// read, and on a terminal a conversation begins.
    #[arg(value_name = "MODEL|PROMPT")]
    words: Vec<String>,
    /// The prompt, whatever it looks like; stdin is left alone.
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    model: open::WeightsArg,
    /// Tokens to generate at most; -1: no limit [default: until the model ends or the context is full].
    #[arg(short = 'n', long, value_name = "N", alias = "n-predict", alias = "predict", env = "WGSLM_MAX_TOKENS",
        hide_env_values = true, allow_negative_numbers = true, value_parser = max_tokens)]
    max_tokens: Option<MaxTokens>,
    #[command(flatten)]
    exec: open::ExecArgs,
    /// Threads of the CPU [default: as many as prove to be fastest].
    #[arg(short, long, value_name = "N", env = "WGSLM_THREADS", hide_env_values = true,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Positions of context; 0: all that the model was made for [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", alias = "ctx-size", env = "WGSLM_CONTEXT", hide_env_values = true)]
    context: Option<u32>,
    /// Continues the prompt as it is, even if the model has a chat template. The model that is compiled in always does with a
    /// single prompt: it tells stories.
    #[arg(long)]
    pub(super) raw: bool,
    /// The system message: what the model should know and how it should answer.
    #[arg(long, value_name = "TEXT", env = "WGSLM_SYSTEM", hide_env_values = true)]
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

/// Tokens at most; none: no limit.
#[derive(Clone, Copy, Debug)]
struct MaxTokens(Option<u32>);

fn max_tokens(text: &str) -> Result<MaxTokens, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(MaxTokens(None)),
        Ok(n) => {
            u32::try_from(n).map(|n| MaxTokens(Some(n))).map_err(|_| "0 and more work, and -1 for no limit".to_owned())
        }
        Err(_) => Err("a number works, and -1 for no limit".to_owned()),
    }
}

impl Args {
    /// Tokens to generate at most.
    pub(super) fn max_tokens(&self) -> Option<u32> {
        self.max_tokens.and_then(|most| most.0)
    }

    /// Whether it is the model that is compiled in.
    pub(super) fn embedded(&self) -> bool {
        self.model.embedded()
    }

    /// What the model is asked for as.
    pub(super) fn model_name(&self) -> String {
        let name = self.model.chosen().map(|model| model.display().to_string());
        name.unwrap_or_else(|| "the one that is compiled in".to_owned())
    }

    pub(super) fn sampling(&self, session: &Session) -> Result<Sampling, Exit> {
        self.sampling.sampling(session.model.sampling())
    }
}

pub(super) fn run(mut args: Args) -> Result<(), Exit> {
    args.sampling.sampling(Sampling::default())?; // what is out of range is said before the model is loaded
    let words = words(&args)?;
    let prompt = match prompt(&args, words.prompt.clone())? {
        Some(prompt) => prompt,
        None if args.json => return Err(Exit::usage("--json: no prompt; give one: wgslm run --json \"Why?\"")),
        None => {
            let named = words.model.clone();
            if let Some(model) = words.model {
                args.model.set(model);
            }
            let session = Session::open(&args).map_err(|exit| or_a_prompt(named.as_deref(), exit))?;
            let sampling = args.sampling(&session)?;
            return repl::run(session, &args, sampling);
        }
    };
    let named = words.model.clone().filter(|_| words.prompt.is_none());
    if let Some(model) = words.model {
        args.model.set(model);
    }
    let mut session = Session::open(&args).map_err(|exit| or_a_prompt(named.as_deref(), exit))?;
    let sampling = args.sampling(&session)?;
    let embedded = args.model.embedded();
    let raw = args.raw || embedded && args.system.is_none();
    let mut chat = session.conversation(raw)?;
    if let Some(system) = &args.system {
        chat.set_system(Some(system.clone()))?;
    }
    if !args.json {
        session.introduce(args.raw, embedded);
    }
    let continues = raw || session.model.model().chat_template.is_none();
    chat.say(prompt.as_str());
    let beginning = prompt;
    let prompt = chat.prompt(&[], session.policy(&args), now()).map_err(|error| match error {
        Error::Limit { needed, available, .. } => {
            Exit::usage(format!("the prompt needs {needed}, there are {available}; a larger one: --context N"))
        }
        error => error.into(),
    })?;
    let ids = prompt.ids;
    let mut out = term::out();
    let mut wrap = Wrap::of_stdout();
    let mut show = |piece: &str| {
        if !args.json && !piece.is_empty() {
            match &mut wrap {
                Some(wrap) => out.write_all(wrap.push(piece).as_bytes())?,
                None => out.write_all(piece.as_bytes())?,
            }
            out.flush()?;
        }
        Ok(())
    };
    // People see the text that is continued; what reads a pipe has it, and gets what is new.
    if continues && stdout().is_terminal() {
        show(&beginning)?;
    }
    let quiet = echo::Quiet::new();
    let listener = Listener::new();
    let mut answer = Answer::default();
    let tokenizer = Arc::clone(session.model.tokenizer());
    let mut text = TextStream::after(&*tokenizer, &ids);
    let request = Request { logprobs: args.logprobs, ..session.request(ids.clone(), sampling, args.max_tokens()) };
    let reason = answer.run(&mut session.model, request, &mut text, &listener, &mut show)?;
    answer.finish(&mut text, &mut show)?;
    drop(quiet);
    if let Some(mut wrap) = wrap {
        out.write_all(wrap.finish().as_bytes())?;
    }
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
        true => term::note(&timings.block(device)),
        false if args.json => {}
        false => term::dim(&timings.line(device)),
    }
    match reason {
        Finish::Cancelled => Err(Exit::Interrupted),
        Finish::Error(error) => Err(Exit::from(&*error)),
        Finish::Context => {
            term::dim("the context is full; a larger one: --context N");
            Ok(())
        }
        Finish::Stop(_) | Finish::StopString(_) | Finish::Length | Finish::Deadline => Ok(()),
    }
}

/// A model that is loaded, and how requests to it are made.
pub(super) struct Session {
    pub(super) model: open::Served,
    pub(super) load: Duration,
    bias: Vec<(u32, f32)>,
}

impl Session {
    fn open(args: &Args) -> Result<Self, Exit> {
        Self::opened(args, args.model.open()?)
    }

    /// The same with another model.
    pub(super) fn open_named(args: &Args, model: &Path) -> Result<Self, Exit> {
        Self::opened(args, args.model.open_named(model)?)
    }

    fn opened(args: &Args, model: crate::model::Model) -> Result<Self, Exit> {
        let started = Instant::now();
        let base = Options::default();
        let context = match args.context {
            Some(0) => u32::MAX,
            Some(context) => context,
            None => base.context,
        };
        let base = Options { context, ..base };
        let options = args.exec.options(args.threads.map(usize::from), base);
        let model = open::served(model, &options, ServeOptions::default())?;
        if let Some(wanted) = args.context.filter(|wanted| *wanted > model.context()) {
            let (most, name) = (model.context(), &model.model().name);
            term::note(&format!("--context {wanted}: {name} was made for {most} positions, so there are {most}"));
        }
        Ok(Self { model, load: started.elapsed(), bias: args.sampling.bias().to_vec() })
    }

    /// Says, on a terminal, what may surprise somebody who reads the answers.
    pub(super) fn introduce(&self, raw: bool, embedded: bool) {
        let model = self.model.model();
        if embedded {
            term::dim(
                "the small model that is compiled in tells stories and knows nothing; a real one: wgslm run Qwen/Qwen3-0.6B-GGUF",
            );
        } else if model.chat_template.is_none() && !raw {
            term::dim(&format!("{} has no chat template: it continues texts, and answers no questions", model.name));
        }
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
        Request { sampling, max_tokens, bias: self.bias.clone(), ..self.model.kept_request(prompt) }
    }

    pub(super) fn policy(&self, args: &Args) -> ContextPolicy {
        ContextPolicy { context: self.model.context(), shift: args.shift }
    }
}

/// What the words of the command line are.
struct Words {
    model: Option<PathBuf>,
    prompt: Option<String>,
}

/// Which of the words is a model, and which a prompt.
fn words(args: &Args) -> Result<Words, Exit> {
    let model = |word: &String| Some(PathBuf::from(word));
    let hub = args.model.hub();
    let several = || {
        let all = args.words.join(" ");
        Exit::usage(format!("a prompt of several words stands in quotes: wgslm run {}", models::quoted(&all)))
    };
    Ok(match (&args.words[..], args.model.given(), &args.prompt) {
        ([], _, prompt) => Words { model: None, prompt: prompt.clone() },
        ([prompt], Some(_), None) => Words { model: None, prompt: Some(prompt.clone()) },
        ([word], Some(_), Some(_)) => {
            return Err(Exit::usage(format!("{word}: -m names the model, and -p the prompt already")));
        }
        ([word], None, Some(prompt)) => Words { model: model(word), prompt: Some(prompt.clone()) },
        ([word], None, None) => match hub.word(word)? {
            Word::Model => Words { model: model(word), prompt: None },
            Word::Prompt => Words { model: None, prompt: Some(word.clone()) },
        },
        ([word, prompt], None, None) => match hub.word(word) {
            Ok(Word::Model) => Words { model: model(word), prompt: Some(prompt.clone()) },
            Ok(Word::Prompt) => return Err(several()),
            Err(exit) => return Err(exit),
        },
        ([_, _], Some(_), None) => return Err(several()),
        ([first, ..], _, Some(_)) => {
            return Err(Exit::usage(format!("{first}: with -p, only a model stands there")));
        }
        _ => return Err(several()),
    })
}

/// A word that was taken for a model, and may have been meant as a prompt.
fn or_a_prompt(word: Option<&Path>, exit: Exit) -> Exit {
    match word.and_then(Path::to_str) {
        Some(word) => models::or_a_prompt(word, exit),
        None => exit,
    }
}

/// The prompt, followed by what comes in on stdin; none where a person sits at the terminal.
fn prompt(args: &Args, given: Option<String>) -> Result<Option<String>, Exit> {
    if stdin().is_terminal() || args.prompt.is_some() {
        return match given {
            Some(prompt) => Ok(Some(prompt)),
            None if stdout().is_terminal() => Ok(None),
            None => Err(Exit::usage("no prompt; give one: wgslm run \"Once upon a time\"")),
        };
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
    Ok(Some(match given {
        Some(prompt) if text.is_empty() => prompt,
        Some(prompt) => format!("{prompt}\n\n{text}"),
        None => text,
    }))
}
