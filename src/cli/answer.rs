//! An answer: runs a request to its end, and reports how long it took.

use std::time::{Duration, Instant};

use super::exit::Exit;
use super::interrupt::Listener;
use super::open::Served;
use super::term;
use crate::driver::{GenerationEvent, Next};
use crate::engine::{Finish, Request, Usage};
use crate::ops::Logprob;
use crate::text::{TextStream, Tokenizer};

/// How often Ctrl-C is looked for while a lost device cannot be opened again yet.
const LISTEN: Duration = Duration::from_millis(20);

/// What was answered. Answers that go on where another ended are added up in one.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) ids: Vec<u32>,
    /// Of each token, if the request asked for them.
    pub(super) logprobs: Vec<Vec<Logprob>>,
    pub(super) text: String,
    pub(super) usage: Usage,
    /// Time to the first token, and from there to the end.
    pub(super) first: Duration,
    pub(super) rest: Duration,
}

impl Answer {
    /// Runs a request; `show` gets the text while it comes. Ctrl-C ends it within one step. The text is made of the tokens here and
    /// not taken from the events: an answer may go on with another request in the middle of a character.
    pub(super) fn run(
        &mut self,
        model: &mut Served,
        request: Request,
        text: &mut TextStream<&Tokenizer>,
        listener: &Listener,
        show: &mut dyn FnMut(&str) -> Result<(), Exit>,
    ) -> Result<Finish, Exit> {
        let started = Instant::now();
        let mut first = None;
        let mut generation = model.handle().generate(request).map_err(|e| Exit::usage(e.to_string()))?;
        let (reason, usage) = 'answer: loop {
            if let Next::Wait(time) = pollster::block_on(model.driver.turn()) {
                std::thread::sleep(time.min(LISTEN));
            }
            while let Some(event) = generation.try_next() {
                match event {
                    GenerationEvent::Token { id, logprobs, .. } => {
                        first.get_or_insert_with(|| started.elapsed());
                        self.ids.push(id);
                        self.logprobs.push(logprobs);
                        let piece = text.push(id);
                        self.text.push_str(&piece);
                        show(&piece)?;
                    }
                    GenerationEvent::Finished { reason, usage, .. } => break 'answer (reason, usage),
                }
            }
            if listener.pressed() {
                generation.cancel();
            }
        };
        let all = started.elapsed();
        let first = first.unwrap_or(all);
        self.first += first;
        self.rest += all - first;
        self.usage.prompt += usage.prompt;
        self.usage.reused += usage.reused;
        self.usage.generated += usage.generated;
        Ok(reason)
    }

    /// The probabilities of each token, with OpenAI's field names; tokens that are parts of a character are given by their bytes.
    pub(super) fn logprobs(&self, tokenizer: &Tokenizer) -> serde_json::Value {
        let entry = |l: &Logprob| {
            let bytes = tokenizer.piece(l.token).unwrap_or_default();
            let token = String::from_utf8_lossy(bytes);
            serde_json::json!({ "id": l.token, "token": token, "bytes": bytes, "logprob": l.logprob })
        };
        let reported = self.logprobs.iter().filter_map(|reported| reported.split_first());
        reported
            .map(|(own, top)| {
                let mut object = entry(own);
                object["top_logprobs"] = top.iter().map(entry).collect();
                object
            })
            .collect()
    }

    /// The end: what was held back of a character.
    pub(super) fn finish(
        &mut self,
        text: &mut TextStream<&Tokenizer>,
        show: &mut dyn FnMut(&str) -> Result<(), Exit>,
    ) -> Result<(), Exit> {
        let piece = text.finish();
        self.text.push_str(&piece);
        show(&piece)
    }
}

/// How long everything took.
pub(super) struct Timings {
    pub(super) load: Duration,
    pub(super) prompt: Duration,
    pub(super) answer: Duration,
    pub(super) usage: Usage,
}

impl Timings {
    pub(super) fn of(answer: &Answer, load: Duration) -> Self {
        Self { load, prompt: answer.first, answer: answer.rest, usage: answer.usage }
    }

    /// Tokens of the prompt that were computed.
    fn computed(&self) -> u32 {
        self.usage.prompt - self.usage.reused
    }

    /// Tokens after the first, which belongs to the prompt's time.
    fn following(&self) -> u32 {
        self.usage.generated.saturating_sub(1)
    }

    /// For the end of a one-shot answer.
    pub(super) fn line(&self, device: &str) -> String {
        format!("{device} · load {:.2} s · {}", self.load.as_secs_f64(), self.turn())
    }

    /// For the end of a turn.
    pub(super) fn turn(&self) -> String {
        format!(
            "prompt {} tokens, {:.1}/s · answer {} tokens, {:.1}/s",
            self.computed(),
            term::rate(self.computed(), self.prompt),
            self.usage.generated,
            term::rate(self.following(), self.answer),
        )
    }

    /// Everything, a line each.
    pub(super) fn block(&self, device: &str) -> String {
        let mut block = format!(
            "device       {device}\n\
             load         {:.2} s\n\
             prompt       {} tokens in {:.2} s, {:.1}/s; {} more reused\n\
             answer       {} tokens in {:.2} s, {:.1}/s",
            self.load.as_secs_f64(),
            self.computed(),
            self.prompt.as_secs_f64(),
            term::rate(self.computed(), self.prompt),
            self.usage.reused,
            self.usage.generated,
            self.answer.as_secs_f64(),
            term::rate(self.following(), self.answer),
        );
        if let Some(bytes) = peak_memory() {
            block += &format!("\npeak memory  {} MiB", bytes >> 20);
        }
        block
    }

    pub(super) fn json(&self) -> serde_json::Value {
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

/// The most memory that this process has had, in bytes, where the system reports it; a GPU's own is not in it.
fn peak_memory() -> Option<u64> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        let most = getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss();
        // Apple counts bytes, all others KiB.
        let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
        Some(u64::try_from(most).ok()? * unit)
    }
    #[cfg(not(unix))]
    None
}
