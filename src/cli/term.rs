//! What is shown on a terminal, and only there: colour, progress.

use std::borrow::Cow;
use std::io::{self, IsTerminal, StdoutLock, Write, stderr, stdout};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exec::Progress;

/// Whether stderr may be coloured: a terminal that understands it, and `NO_COLOR` not set (no-color.org).
fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stderr().is_terminal() && !set("NO_COLOR") && !dumb
}

/// A failure, on stderr.
pub(super) fn error(message: &str) {
    let (on, off) = if coloured() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    say(&format!("{on}error:{off} {}", without_controls(message)));
}

/// Something that a person may want to know, on stderr.
pub(super) fn note(message: &str) {
    say(&without_controls(message));
}

/// A line that a person may overlook: dim, and only on a terminal.
pub(super) fn dim(message: &str) {
    if stderr().is_terminal() {
        let (on, off) = if coloured() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        say(&format!("{on}{}{off}", without_controls(message)));
    }
}

/// A line on stderr. Where nobody can read it, nothing is lost that the exit code does not say.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// Whether a character would steer a terminal instead of being shown.
fn steers(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Text of a file or a model, without what would steer a terminal.
fn without_controls(text: &str) -> Cow<'_, str> {
    match text.contains(steers) {
        true => Cow::Owned(text.replace(steers, "\u{FFFD}")),
        false => Cow::Borrowed(text),
    }
}

/// Stdout, which every command writes to: on a terminal, nothing in a text steers it; elsewhere, all bytes as they are.
pub(super) fn out() -> Out {
    let out = stdout().lock();
    Out { clean: out.is_terminal().then(Vec::new), out }
}

/// See [`out`].
pub(super) struct Out {
    out: StdoutLock<'static>,
    /// On a terminal: the first bytes of a character whose others have not been written yet.
    clean: Option<Vec<u8>>,
}

impl Out {
    pub(super) fn is_terminal(&self) -> bool {
        self.clean.is_some()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(held) = &mut self.clean else { return self.out.write(bytes) };
        let all = [std::mem::take(held), bytes.to_vec()].concat();
        for chunk in all.utf8_chunks() {
            self.out.write_all(without_controls(chunk.valid()).as_bytes())?;
            let broken = chunk.invalid();
            // What the text ends with may be the beginning of a character; other bytes are none.
            let ends = all.as_ptr_range().end == broken.as_ptr_range().end;
            match ends && std::str::from_utf8(broken).is_err_and(|e| e.error_len().is_none()) {
                true => held.extend_from_slice(broken),
                false if broken.is_empty() => {}
                false => self.out.write_all("\u{FFFD}".as_bytes())?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The bar of loading and compiling: on a terminal only, gone when it is dropped.
pub(super) struct Bar {
    bar: ProgressBar,
    doing: &'static str,
}

impl Bar {
    pub(super) fn new() -> Self {
        let hidden = !stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        let template = if coloured() { "{msg} {bar:30.cyan/dim} {percent}%" } else { "{msg} {bar:30} {percent}%" };
        // The template is a constant: if it were wrong, the default one would do.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let doing = "loading";
        bar.set_message(doing);
        Self { bar, doing }
    }

    /// What is said instead of loading.
    pub(super) fn name(&self, what: &'static str) {
        self.bar.set_message(what);
    }

    pub(super) fn show(&mut self, progress: Progress) {
        let (doing, done, all) = match progress {
            Progress::Testing => ("testing the device", 0, 1),
            Progress::Loading(done, all) => ("loading", done, all),
            Progress::Compiling(done, all) => ("compiling", done, all),
        };
        if self.doing != doing {
            self.bar.set_message(doing);
            self.doing = doing;
        }
        self.bar.set_length(all);
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A download: bytes, speed, time left. On a terminal only, gone when it is dropped.
pub(super) struct Download(ProgressBar);

impl Download {
    pub(super) fn new() -> Self {
        let hidden = !stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        let colours = if coloured() { ".cyan/dim" } else { "" };
        let template = format!(
            "{{bar:24{colours}}} {{decimal_bytes}} of {{decimal_total_bytes}}, {{decimal_bytes_per_sec}}, {{eta}} left{{msg}}"
        );
        bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    pub(super) fn show(&mut self, have: u64, all: u64) {
        if self.0.length().is_none() {
            // What was here before took no time.
            self.0.set_length(all);
            self.0.set_position(have);
            self.0.reset_eta();
        }
        if !self.0.message().is_empty() {
            self.0.set_message("");
        }
        self.0.set_position(have);
    }

    pub(super) fn waiting(&mut self, file: &str) {
        let file = without_controls(file);
        note(&format!("another wgslm or a tool of Hugging Face downloads {file}; waiting for it"));
        self.0.set_message(", waiting");
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// How long ago it was, for people.
pub(super) fn ago(seconds: u64) -> String {
    let (n, unit) = match seconds {
        s if s < 60 => return "just now".to_owned(),
        s if s < 3600 => (s / 60, "minute"),
        s if s < 86_400 => (s / 3600, "hour"),
        s => (s / 86_400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

/// Counts what is done where the total is not known: on a terminal only, gone when it is dropped.
pub(super) struct Counter(ProgressBar);

impl Counter {
    /// Counts `things`; `shown` says whether the terminal is free for it.
    pub(super) fn new(things: &'static str, shown: bool) -> Self {
        let hidden = !shown || !stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(ProgressStyle::with_template("{pos} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(things);
        Self(bar)
    }

    pub(super) fn add(&mut self, n: u64) {
        self.0.inc(n);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Things a second.
pub(super) fn rate(n: u32, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { f64::from(n) / time.as_secs_f64() }
}
