//! `wgslm run` on a terminal: a conversation.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Timings};
use super::exit::Exit;
use super::interrupt::Listener;
use super::run::{Args, Session};
use super::wrap::Wrap;
use super::{echo, inspect, memory, sampling, term};
use crate::Error;
use crate::chat::{Conversation, Message};
use crate::engine::Finish;
use crate::language_model::now;
use crate::sample::Sampling;
use crate::text::{TextStream, Tokenizer};

const HELP: &str = "\
/set              shows the settings; /set temp 0.7 changes one
/system [TEXT]    shows or sets the system message; /system none removes it
/clear            forgets the conversation; the system message stays
/regenerate       answers the last message once more
/model [MODEL]    shows the model or takes another, as -m does; the conversation stays
/show             shows what runs: model, device, context, memory
/save FILE        writes the conversation as JSON; /load FILE goes on with it
/quit             leaves, as Ctrl-D does
\"\"\"               begins and ends a message of several lines
Ctrl-C stops the answer; pressed once more it leaves.
A message that begins with a slash: put a space before it.";

/// What /save writes: the messages as the OpenAI API has them.
#[derive(Serialize, Deserialize)]
struct Saved {
    model: String,
    messages: Vec<Message>,
}

struct Repl<'a> {
    session: Session,
    args: &'a Args,
    /// What the model was asked for as.
    model: String,
    chat: Conversation,
    sampling: Sampling,
    max_tokens: Option<u32>,
    verbose: bool,
    listener: Listener,
}

/// What a person entered.
enum Input {
    Text(String),
    Interrupted,
    End,
}

pub(super) fn run(session: Session, args: &Args, sampling: Sampling) -> Result<(), Exit> {
    let mut chat = session.conversation(args.raw)?;
    if let Some(system) = &args.system {
        chat.set_system(Some(system.clone()))?;
    }
    let mut lines = Lines::new()?;
    // The line editor shows what is typed. It leaves the terminal as it found it, so that there is no moment between a message
    // and its answer in which keys are shown.
    let _quiet = echo::Quiet::new();
    let (name, device, context) = (&session.model.model().name, session.model.device(), session.model.context());
    let load = session.load.as_secs_f64();
    term::dim(&format!("{name} · {device} · context {context} · load {load:.2} s · /help"));
    session.introduce(args.raw, args.embedded());
    let (max_tokens, verbose) = (args.max_tokens(), args.verbose);
    let model = args.model_name();
    let mut repl = Repl { session, args, model, chat, sampling, max_tokens, verbose, listener: Listener::new() };
    // Whether the last thing that happened was a Ctrl-C: the next one leaves.
    let mut interrupted = false;
    loop {
        repl.listener.reset();
        let text = match lines.read()? {
            Input::End => return Ok(()),
            Input::Interrupted if interrupted => return Err(Exit::Interrupted),
            Input::Interrupted => {
                interrupted = true;
                term::dim("Ctrl-C again or Ctrl-D leaves");
                continue;
            }
            Input::Text(text) => text,
        };
        interrupted = false;
        let command = text.strip_prefix('/').map(|command| command.split_once(' ').unwrap_or((command, "")));
        let done = match command {
            Some(("quit" | "bye" | "exit", _)) => return Ok(()),
            Some(("regenerate" | "retry", _)) => repl.regenerate().map(|stopped| interrupted = stopped),
            Some((command, rest)) => repl.command(command, rest.trim()),
            None if text.trim().is_empty() => continue,
            None => repl.answer(&text).map(|stopped| interrupted = stopped),
        };
        match done {
            // A device that is gone does not come back; all else concerns this message only.
            Err(Exit::Failed { code, message }) if code != 8 => term::error(&message),
            done => done?,
        }
    }
}

impl Repl<'_> {
    /// Answers a message; true if Ctrl-C ended the answer.
    fn answer(&mut self, message: &str) -> Result<bool, Exit> {
        self.chat.say(message);
        let done = self.generate();
        if done.is_err() {
            // Nothing if it was answered.
            self.chat.unsay();
        }
        done
    }

    /// Answers the last message again, with other samples.
    fn regenerate(&mut self) -> Result<bool, Exit> {
        let last = self.chat.messages().last().cloned();
        if !self.chat.unhear() {
            return Err(Exit::usage("there is no answer yet"));
        }
        if self.sampling.temperature == 0.0 {
            term::dim("the temperature is 0, so the answer is the same; /set temp 0.8 changes that");
        }
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        let done = self.generate();
        if let (Err(_), Some(last)) = (&done, last) {
            // The old answer is better than none.
            self.chat.hear_text(&last.content);
        }
        done
    }

    fn generate(&mut self) -> Result<bool, Exit> {
        let policy = self.session.policy(self.args);
        let mut out = term::out();
        let mut wrap = Wrap::of_stdout();
        let mut show = |piece: &str| {
            match &mut wrap {
                Some(wrap) => out.write_all(wrap.push(piece).as_bytes())?,
                None => out.write_all(piece.as_bytes())?,
            }
            out.flush()?;
            Ok(())
        };
        let tokenizer = Arc::clone(self.session.model.tokenizer());
        let mut answer = Answer::default();
        let mut text: Option<TextStream<&Tokenizer>> = None;
        let reason = loop {
            let prompt = match self.chat.prompt(&answer.ids, policy, now()) {
                Ok(prompt) => prompt,
                Err(Error::Limit { .. }) if !answer.ids.is_empty() => break Finish::Context,
                Err(error @ Error::Limit { .. }) => {
                    let way = if policy.shift { "a shorter message" } else { "/clear, or to start with --shift" };
                    return Err(Exit::failure(format!("{error}: --context N, {way}")));
                }
                Err(error) => return Err(error.into()),
            };
            if prompt.forgotten > 0 {
                let s = if prompt.forgotten == 1 { "turn was" } else { "turns were" };
                let newline = if answer.text.is_empty() { "" } else { "\n" };
                term::note(&format!("{newline}[the context is full: {} oldest {s} forgotten]", prompt.forgotten));
            }
            let text = text.get_or_insert_with(|| TextStream::after(&*tokenizer, &prompt.ids));
            let left = self.max_tokens.map(|most| most.saturating_sub(answer.usage.generated));
            let request = self.session.request(prompt.ids, self.sampling, left);
            let reason = answer.run(&mut self.session.model, request, text, &self.listener, &mut show)?;
            if !(matches!(reason, Finish::Context) && policy.shift && self.chat.can_forget()) {
                break reason;
            }
        };
        if let Some(text) = &mut text {
            answer.finish(text, &mut show)?;
        }
        if !answer.text.ends_with('\n') {
            show("\n")?;
        }
        if let Some(wrap) = &mut wrap {
            out.write_all(wrap.finish().as_bytes())?;
        }
        if let Finish::Error(error) = &reason {
            return Err(Exit::from(&**error));
        }
        self.chat.hear(&answer.ids, &answer.text);
        let timings = Timings::of(&answer, self.session.load);
        match self.verbose {
            true => term::note(&timings.block(self.session.model.device())),
            false => term::dim(&timings.turn()),
        }
        let stopped = matches!(reason, Finish::Cancelled);
        if stopped {
            term::dim("stopped; Ctrl-C again leaves");
        }
        if matches!(reason, Finish::Context) {
            term::note(
                "[the context is full: a larger one is --context N, --shift forgets the oldest turns, /clear all]",
            );
        }
        Ok(stopped)
    }

    fn command(&mut self, command: &str, rest: &str) -> Result<(), Exit> {
        match command {
            "help" | "?" => term::note(HELP),
            "clear" => self.chat.clear(),
            "show" => self.show(),
            "model" if rest.is_empty() => term::note(&self.model),
            "model" => self.change_model(rest)?,
            "system" => match rest {
                "" => term::note(self.chat.system().unwrap_or("none")),
                "none" => self.chat.set_system(None)?,
                text => self.chat.set_system(Some(text.to_owned()))?,
            },
            "set" => self.set(rest)?,
            "save" => self.save(&path(command, rest)?)?,
            "load" => self.load(&path(command, rest)?)?,
            _ => return Err(Exit::usage(format!("/{command} is no command; /help lists them"))),
        }
        Ok(())
    }

    /// What runs, a line each.
    fn show(&self) {
        let model = self.session.model.model();
        let types = inspect::types(&model.file);
        let (program, context) = (&model.program, self.session.model.context());
        let weights = model.file.tensors().iter().fold(0, |all: u64, tensor| all.saturating_add(tensor.bytes));
        let cache = inspect::cache_bytes(program, context);
        let used = self.chat.messages().len();
        term::note(&format!(
            "model          {} ({})\narchitecture   {}, {} layers, {:.1} M parameters\nweights        {}, {types}\n\
             device         {}\ncontext        {context} of {} positions, cache {}\nchat template  {}\nmessages       {used}",
            model.name,
            self.model,
            model.arch,
            program.layers(),
            model.parameters as f64 / 1e6,
            memory::bytes(weights),
            self.session.model.device(),
            program.context,
            memory::bytes(cache),
            if model.chat_template.is_some() { "yes" } else { "no: texts are continued" },
        ));
    }

    /// Takes another model, which gets the conversation as it is.
    fn change_model(&mut self, name: &str) -> Result<(), Exit> {
        let session = Session::open_named(self.args, Path::new(name))?;
        let mut chat = session.conversation(self.args.raw)?;
        if chat.restore(self.chat.messages().to_vec()).is_err() {
            term::note("it has no chat template, and so no system message: the conversation begins anew");
        }
        let (shown, device, context) = (&session.model.model().name, session.model.device(), session.model.context());
        term::dim(&format!("{shown} · {device} · context {context} · load {:.2} s", session.load.as_secs_f64()));
        session.introduce(self.args.raw, false);
        self.sampling = Sampling { seed: self.sampling.seed, ..self.args.sampling(&session)? };
        (self.session, self.chat, self.model) = (session, chat, name.to_owned());
        Ok(())
    }

    fn set(&mut self, rest: &str) -> Result<(), Exit> {
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let value = value.trim();
        match name {
            "" => self.settings(),
            "max_tokens" | "max-tokens" if value == "none" => self.max_tokens = None,
            "max_tokens" | "max-tokens" => self.max_tokens = Some(sampling::number(name, value)?),
            "verbose" if value == "on" || value == "off" => self.verbose = value == "on",
            "verbose" => return Err(Exit::usage("verbose: on and off work")),
            _ => match sampling::set(&self.sampling, name, value)? {
                Some(sampling) => self.sampling = sampling,
                None => return Err(Exit::usage(format!("{name}: no such setting; /set shows them"))),
            },
        }
        Ok(())
    }

    fn settings(&self) {
        let settings = sampling::settings(self.sampling);
        let max_tokens = self.max_tokens.map_or("none".to_owned(), |most| most.to_string());
        let verbose = if self.verbose { "on" } else { "off" };
        term::note(&format!("{settings}max_tokens {max_tokens}\nverbose {verbose}"));
    }

    fn save(&self, path: &Path) -> Result<(), Exit> {
        let saved = Saved { model: self.session.model.model().name.clone(), messages: self.chat.messages().to_vec() };
        let json = serde_json::to_string_pretty(&saved).map_err(|e| Exit::failure(e.to_string()))?;
        std::fs::write(path, json + "\n").map_err(|e| Error::io(path.display().to_string(), e))?;
        term::note(&format!("{}: {} messages", path.display(), saved.messages.len()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), Exit> {
        let name = path.display().to_string();
        let json = std::fs::read_to_string(path).map_err(|e| Error::io(&name, e))?;
        let saved: Saved = serde_json::from_str(&json).map_err(|e| Exit::failure(format!("{name}: {e}")))?;
        let messages = saved.messages.len();
        self.chat.restore(saved.messages)?;
        term::note(&format!("{name}: {messages} messages"));
        Ok(())
    }
}

fn path(command: &str, rest: &str) -> Result<PathBuf, Exit> {
    if rest.is_empty() {
        return Err(Exit::usage(format!("/{command} needs a file: /{command} chat.json")));
    }
    Ok(PathBuf::from(rest))
}

/// Lines from the terminal, and what was entered before.
struct Lines {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
}

impl Lines {
    fn new() -> Result<Self, Exit> {
        let config = Config::builder().max_history_size(1000).map_err(terminal)?.build();
        let mut editor = Editor::with_config(config).map_err(terminal)?;
        // History is a convenience: where no file can be made it lasts as long as the process.
        let history = state_folder().filter(|folder| std::fs::create_dir_all(folder).is_ok());
        let history = history.map(|folder| folder.join("history"));
        if let Some(path) = history.as_ref().filter(|path| path.exists()) {
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    /// A line, or all lines between two `"""`.
    fn read(&mut self) -> Result<Input, Exit> {
        const QUOTES: &str = "\"\"\"";
        let mut text = match self.line(">>> ")? {
            Input::Text(line) => line,
            other => return Ok(other),
        };
        if let Some(begun) = text.trim_start().strip_prefix(QUOTES) {
            let mut message = begun.to_owned();
            let mut searched = 0;
            while message.get(searched..).is_some_and(|new| !new.trim_end().ends_with(QUOTES)) {
                searched = message.len();
                match self.line("... ")? {
                    Input::Text(line) => message = message + "\n" + &line,
                    other => return Ok(other),
                }
            }
            message.truncate(message.trim_end().len() - QUOTES.len());
            text = message.trim_matches('\n').to_owned();
        }
        if !text.trim().is_empty() {
            let _ = self.editor.add_history_entry(&text);
            if let Some(path) = &self.history {
                let _ = self.editor.append_history(path);
            }
        }
        Ok(Input::Text(text))
    }

    fn line(&mut self, prompt: &str) -> Result<Input, Exit> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Input::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(terminal(error)),
        }
    }
}

fn terminal(error: ReadlineError) -> Exit {
    Exit::failure(format!("terminal: {error}"))
}

/// Where the system wants a program to keep what it remembers.
fn state_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_vendor = "apple") {
        folder("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")))
    };
    base.map(|base| base.join("wgslm"))
}
