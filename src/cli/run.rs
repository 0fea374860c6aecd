//! `wgslm run`: answers a prompt.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::time::{Duration, Instant};

use super::exit::Exit;
use super::interrupt::Listener;
use super::{open, term};
use crate::engine::{Engine, Event, Finish, Request, Usage};
use crate::exec::{AnyExecutor, Executor, Numerics, Options, Place};
use crate::model::Model;
use crate::sample::{Draw, Sampling};
use crate::text::{ChatTemplate, Special, TextStream, Tokenizer};

/// Positions, unless told otherwise: enough for a conversation, and its cache fits anywhere.
const CONTEXT: u32 = 4096;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The prompt; without it, stdin is read.
    prompt: Option<String>,
    #[command(flatten)]
    model: open::ModelArg,
    /// Tokens to generate at most [default: until the model ends or the context is full].
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Temperature; 0 always takes the most likely token. The four defaults are llama.cpp's.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temp: f32,
    /// Draws among the K most likely tokens; 0: all.
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: u32,
    /// Draws among the most likely tokens whose probabilities reach P; 1: all.
    #[arg(long, default_value_t = 0.95, value_name = "P", allow_negative_numbers = true)]
    top_p: f32,
    /// Draws among tokens at least P times as likely as the most likely; 0: all.
    #[arg(long, default_value_t = 0.05, value_name = "P", allow_negative_numbers = true)]
    min_p: f32,
    /// Seed of the draws: the same seed gives the same text [default: another one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// auto (a real GPU, else the CPU), gpu, cpu, or the number of an adapter (see `wgslm devices`).
    #[arg(long, default_value = "auto", value_parser = open::place)]
    device: Place,
    /// fast (16-bit cache, 8-bit activations) or exact (f32 outside the weights).
    #[arg(long, default_value = "fast", value_parser = open::numerics)]
    numerics: Numerics,
    /// Positions of context [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Continues the prompt as it is, even if the model has a chat template. The model that is compiled in always does: it
    /// tells stories.
    #[arg(long)]
    raw: bool,
    /// Prints one JSON object at the end: prompt_ids, ids, text, finish_reason, device, timings.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let sampling = sampling(&args);
    sampling.check()?;
    let prompt = prompt(&args)?;
    let started = Instant::now();
    let model = args.model.open()?;
    let tokenizer = Tokenizer::of(&model.file)?;
    let ids = prompt_ids(&model, &tokenizer, &prompt, args.raw || args.model.model.is_none())?;
    let options = Options {
        place: args.device.clone(),
        numerics: args.numerics,
        ..Options::new(&model.program, args.context.unwrap_or(CONTEXT))
    };
    let executor = open::executor(&model, &options)?;
    let mut engine = Engine::new(executor, &model.program);
    let load = started.elapsed();

    let mut stop = tokenizer.eog().to_vec();
    stop.extend(&model.specials.eos);
    let request = Request { prompt: ids.clone(), sampling, max_tokens: args.max_tokens, stop, sequence: None };
    let answer = generate(&mut engine, &tokenizer, request, !args.json)?;
    let timings = Timings { load, prompt: answer.first, answer: answer.rest, usage: answer.usage };
    let device = engine.executor().device();
    if args.json {
        let object = serde_json::json!({
            "model": model.name,
            "prompt_ids": ids,
            "ids": answer.ids,
            "text": answer.text,
            "finish_reason": answer.reason.name(),
            "device": device,
            "seed": sampling.seed,
            "timings": timings.json(),
        });
        writeln!(stdout(), "{object}")?;
    } else {
        term::dim(&timings.line(&device));
    }
    match answer.reason {
        Finish::Cancelled => Err(Exit::Interrupted),
        Finish::Error(error) => Err(Exit::from(&*error)),
        Finish::Context => {
            term::dim("the context is full; a larger one: --context N");
            Ok(())
        }
        Finish::Stop(_) | Finish::Length => Ok(()),
    }
}

fn sampling(args: &Args) -> Sampling {
    // 32 bits: what reads JSON may hold numbers as f64.
    let random = || RandomState::new().build_hasher().finish() >> 32;
    Sampling {
        temperature: args.temp,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed.unwrap_or_else(random),
        draw: Draw::Gumbel,
    }
}

fn prompt(args: &Args) -> Result<String, Exit> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if stdin().is_terminal() {
        return Err(Exit::usage("no prompt; give one: wgslm run \"Once upon a time\""));
    }
    let mut bytes = Vec::new();
    stdin().read_to_end(&mut bytes).map_err(|e| Exit::failure(format!("stdin: {e}")))?;
    let mut text = String::from_utf8(bytes)
        .map_err(|e| Exit::usage(format!("stdin: not UTF-8 from byte {} on", e.utf8_error().valid_up_to())))?;
    // The newline that ends a file or an `echo` is not meant.
    if text.ends_with('\n') {
        text.pop();
        text.truncate(text.trim_end_matches('\r').len());
    }
    Ok(text)
}

/// The prompt as the model wants it: rendered by its chat template as one message of a user, or as it is.
fn prompt_ids(model: &Model, tokenizer: &Tokenizer, prompt: &str, raw: bool) -> Result<Vec<u32>, Exit> {
    let mut ids = match &model.chat_template {
        Some(source) if !raw => {
            let template = ChatTemplate::for_tokenizer(source, tokenizer)?;
            let messages = serde_json::json!([{ "role": "user", "content": prompt }]);
            let context = serde_json::json!({ "messages": messages, "add_generation_prompt": true });
            tokenizer.encode_segments(&template.render(&context, now())?)?
        }
        _ => tokenizer.encode(prompt, Special::Plain)?,
    };
    if let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.add_bos() && ids.first() != Some(bos)) {
        ids.insert(0, bos);
    }
    if ids.is_empty() {
        // Where a model has no token for the beginning of a text, the end of another one is where a text begins.
        ids.extend(tokenizer.bos().or(tokenizer.eos()));
    }
    if ids.is_empty() {
        return Err(Exit::usage("the prompt is empty, and this model has no token that begins a text"));
    }
    Ok(ids)
}

/// Seconds since 1970, for templates that tell the date.
fn now() -> Option<i64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

struct Answer {
    ids: Vec<u32>,
    text: String,
    reason: Finish,
    usage: Usage,
    /// Time to the first token, and from there to the end.
    first: Duration,
    rest: Duration,
}

/// Runs a request to its end; `stream` prints the text while it comes.
fn generate(
    engine: &mut Engine<AnyExecutor>,
    tokenizer: &Tokenizer,
    request: Request,
    stream: bool,
) -> Result<Answer, Exit> {
    let listener = Listener::new();
    let mut out = stdout().lock();
    let mut stream_text = TextStream::after(tokenizer, &request.prompt);
    let started = Instant::now();
    let mut first = None;
    let (mut ids, mut text) = (Vec::new(), String::new());
    let mut show = |piece: &str| {
        text.push_str(piece);
        if stream && !piece.is_empty() {
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
        Ok::<(), Exit>(())
    };
    let id = engine.submit(request).map_err(|e| Exit::usage(e.to_string()))?;
    let (reason, usage) = 'answer: loop {
        for event in pollster::block_on(engine.step())? {
            match event {
                Event::Token { id, .. } => {
                    first.get_or_insert_with(|| started.elapsed());
                    ids.push(id);
                    show(&stream_text.push(id))?;
                }
                Event::Finished { reason, usage, .. } => break 'answer (reason, usage),
            }
        }
        if listener.pressed() {
            engine.cancel(id);
        }
    };
    show(&stream_text.finish())?;
    if stream && !text.is_empty() && !text.ends_with('\n') {
        writeln!(out)?;
    }
    let all = started.elapsed();
    let first = first.unwrap_or(all);
    Ok(Answer { ids, text, reason, usage, first, rest: all - first })
}

struct Timings {
    load: Duration,
    prompt: Duration,
    answer: Duration,
    usage: Usage,
}

impl Timings {
    /// Tokens of the prompt that were computed.
    fn computed(&self) -> u32 {
        self.usage.prompt - self.usage.reused
    }

    /// Tokens behind the first, which belongs to the prompt's time.
    fn following(&self) -> u32 {
        self.usage.generated.saturating_sub(1)
    }

    fn line(&self, device: &str) -> String {
        format!(
            "{device} · load {:.2} s · prompt {} tokens, {:.1}/s · answer {} tokens, {:.1}/s",
            self.load.as_secs_f64(),
            self.computed(),
            term::rate(self.computed(), self.prompt),
            self.usage.generated,
            term::rate(self.following(), self.answer),
        )
    }

    fn json(&self) -> serde_json::Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let rate = |n, time| (term::rate(n, time) * 1e3).round() / 1e3;
        serde_json::json!({
            "load_ms": ms(self.load),
            "prompt_tokens": self.usage.prompt,
            "reused_tokens": self.usage.reused,
            "prompt_ms": ms(self.prompt),
            "prompt_per_second": rate(self.computed(), self.prompt),
            "generated_tokens": self.usage.generated,
            "generated_ms": ms(self.answer),
            "generated_per_second": rate(self.following(), self.answer),
        })
    }
}
