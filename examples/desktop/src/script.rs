//! A user of few words, for tests: each line of a script does something, waits for something, or checks something.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use eframe::egui::{self, ColorImage};

use crate::app::App;
use crate::engine::Source;
use crate::frames::percentile;

/// A line that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// One line.
#[derive(Clone, Debug, PartialEq)]
enum Line {
    /// `adapter TEXT`: the device has this in its name.
    Adapter(String),
    /// `open PATH`
    Open(String),
    /// `opened`: waits until a model is open, or could not be opened.
    Opened,
    /// `max_tokens N`
    MaxTokens(u32),
    /// `rest SECONDS`: measures frames while nothing is answered, more of them each time.
    Rest(f32),
    /// `say TEXT`: asks, and measures frames from then on.
    Say(String),
    /// `tokens N`: waits until the answer has so many.
    Tokens(usize),
    /// `stop`
    Stop,
    /// `regenerate`
    Regenerate,
    /// `answered`: waits until the answer has ended, which is not empty.
    Answered,
    /// `messages N`: the conversation has so many.
    Messages(usize),
    /// `conversations N`: there are so many with messages.
    Conversations(usize),
    /// `select N`: shows that conversation, from 0.
    Select(usize),
    /// `problem TEXT`: one is shown that has this in it; it is closed.
    Problem(String),
    /// `frames RATIO`: the 99th percentile of frame times while answering is at most this, times that of the rest.
    Frames(f64),
    /// `screenshot FILE`: a PNG of the window, which is not blank.
    Screenshot(PathBuf),
}

fn line(text: &str) -> Option<Line> {
    let (word, rest) = text.split_once(' ').map_or((text, ""), |(word, rest)| (word, rest.trim()));
    let given = || Some(rest.to_owned()).filter(|rest| !rest.is_empty());
    Some(match word {
        "adapter" => Line::Adapter(given()?),
        "open" => Line::Open(given()?),
        "opened" => Line::Opened,
        "max_tokens" => Line::MaxTokens(rest.parse().ok()?),
        "rest" => Line::Rest(rest.parse().ok()?),
        "say" => Line::Say(given()?),
        "tokens" => Line::Tokens(rest.parse().ok()?),
        "stop" => Line::Stop,
        "regenerate" => Line::Regenerate,
        "answered" => Line::Answered,
        "messages" => Line::Messages(rest.parse().ok()?),
        "conversations" => Line::Conversations(rest.parse().ok()?),
        "select" => Line::Select(rest.parse().ok()?),
        "problem" => Line::Problem(given()?),
        "frames" => Line::Frames(rest.parse().ok()?),
        "screenshot" => Line::Screenshot(given()?.into()),
        _ => return None,
    })
}

/// What is left of a script.
pub(crate) struct Script {
    /// The next one last.
    lines: Vec<Line>,
    /// When the first of them began.
    began: Option<Instant>,
    rest: Vec<Duration>,
    answering: Vec<Duration>,
    screenshot: Option<Receiver<std::sync::Arc<ColorImage>>>,
}

impl Script {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for (n, text) in text.lines().map(str::trim).enumerate() {
            if !text.is_empty() && !text.starts_with('#') {
                lines.push(line(text).ok_or_else(|| format!("line {}: {text:?} is nothing that can be done", n + 1))?);
            }
        }
        lines.reverse();
        Ok(Self { lines, began: None, rest: Vec::new(), answering: Vec::new(), screenshot: None })
    }

    /// Goes on with the app, once a frame. True at the end.
    pub(crate) fn go_on(&mut self, app: &mut App, context: &egui::Context) -> Result<bool, String> {
        while let Some(line) = self.lines.last().cloned() {
            let began = self.began.is_none();
            let since = *self.began.get_or_insert_with(Instant::now);
            let done = self.step(&line, began, since, app, context).map_err(|why| format!("{line:?}: {why}"))?;
            if !done {
                let late = since.elapsed() > PATIENCE;
                return if late { Err(format!("{line:?}: not after {} s", PATIENCE.as_secs())) } else { Ok(false) };
            }
            self.lines.pop();
            self.began = None;
        }
        Ok(true)
    }

    /// Does a line, or looks whether it is done. `began`: for the first time.
    fn step(
        &mut self,
        line: &Line,
        began: bool,
        since: Instant,
        app: &mut App,
        context: &egui::Context,
    ) -> Result<bool, String> {
        let check = |holds: bool, is: String| if holds { Ok(true) } else { Err(is) };
        match line {
            Line::Adapter(name) => {
                check(app.adapter.to_lowercase().contains(&name.to_lowercase()), app.adapter.clone())
            }
            Line::Open(path) => {
                app.open(Source::Path(path.into()));
                Ok(true)
            }
            Line::Opened => match app.opening() {
                true => Ok(false),
                false => check(app.problems.is_empty(), format!("{:?}", app.problems)),
            },
            Line::MaxTokens(n) => {
                app.settings.max_tokens = *n;
                Ok(true)
            }
            Line::Rest(seconds) => {
                if began {
                    app.frames.measure();
                }
                let done = since.elapsed().as_secs_f32() >= *seconds;
                if done {
                    let measured = app.frames.measured();
                    report("at rest", &measured);
                    self.rest.extend(measured);
                }
                Ok(done)
            }
            Line::Say(text) => {
                app.input = text.clone();
                app.ask();
                app.frames.measure();
                check(app.answering(), format!("nothing was asked: {:?}", app.problems))
            }
            Line::Tokens(n) => match app.tokens() >= *n {
                false if !app.answering() => Err(format!("the answer has ended: {:?}", app.problems)),
                enough => Ok(enough),
            },
            Line::Stop => {
                app.stop();
                Ok(true)
            }
            Line::Regenerate => {
                app.regenerate();
                check(app.answering(), "nothing was asked".into())
            }
            Line::Answered if app.answering() => Ok(false),
            Line::Answered => {
                let measured = app.frames.measured();
                if !measured.is_empty() {
                    self.answering = measured;
                    report("answering", &self.answering);
                }
                if let Some(speed) = app.speed {
                    println!("{speed:.1} tokens/s");
                }
                let answer = app.conversation().messages.last();
                let answer = answer.filter(|last| last.role == "assistant" && !last.content.trim().is_empty());
                check(answer.is_some(), format!("there is none: {:?}", app.problems))
            }
            Line::Messages(n) => {
                let there = app.conversation().messages.len();
                check(there == *n, there.to_string())
            }
            Line::Conversations(n) => {
                let there = app.conversations.iter().filter(|one| !one.messages.is_empty()).count();
                check(there == *n, there.to_string())
            }
            Line::Select(n) => {
                app.select(*n);
                Ok(true)
            }
            Line::Problem(text) => match app.problems.iter().position(|problem| problem.what.contains(text)) {
                Some(at) => {
                    app.problems.remove(at);
                    Ok(true)
                }
                None if app.opening() || app.answering() => Ok(false),
                None => Err(format!("{:?}", app.problems)),
            },
            Line::Frames(most) => {
                let p99 = |times: &[Duration]| percentile(times.iter().copied(), 0.99).ok_or("no frames were measured");
                let ratio = p99(&self.answering)?.as_secs_f64() / p99(&self.rest)?.as_secs_f64();
                self.rest.clear();
                println!("frame time p99 answering: {ratio:.2} times that at rest");
                check(ratio <= *most, format!("{ratio:.2}"))
            }
            Line::Screenshot(path) => {
                let shot = self.screenshot.get_or_insert_with(|| {
                    let (sender, shot) = channel();
                    context.request_screenshot(move |image| _ = sender.send(image));
                    shot
                });
                let Ok(image) = shot.try_recv() else { return Ok(false) };
                self.screenshot = None;
                save(&image, path).map_err(|error| format!("{}: {error}", path.display()))?;
                let colours: std::collections::HashSet<_> = image.pixels.iter().collect();
                println!("{}: {:?}, {} colours", path.display(), image.size, colours.len());
                // A blank window has one, panels without text a few.
                check(colours.len() >= 16, format!("{} colours", colours.len()))
            }
        }
    }
}

fn report(what: &str, times: &[Duration]) {
    let ms = |part: f64| percentile(times.iter().copied(), part).unwrap_or_default().as_secs_f64() * 1e3;
    let n = times.len();
    println!("frame time {what}: {n} frames, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms", ms(0.5), ms(0.99), ms(1.0));
}

fn save(image: &ColorImage, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut encoder = png::Encoder::new(file, image.size[0] as u32, image.size[1] as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    let bytes: Vec<u8> = image.pixels.iter().flat_map(|pixel| [pixel.r(), pixel.g(), pixel.b()]).collect();
    encoder.write_header()?.write_image_data(&bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_whole() {
        let script = Script::parse("# what\n\nsay Once upon a time\n tokens 20\nstop\nframes 2.5\n").unwrap();
        let expected = [Line::Frames(2.5), Line::Stop, Line::Tokens(20), Line::Say("Once upon a time".into())];
        assert_eq!(script.lines, expected);
        for wrong in ["dance", "tokens", "tokens many", "say", "screenshot "] {
            assert!(
                Script::parse(&format!("stop\n{wrong}")).is_err_and(|problem| problem.contains("line 2")),
                "{wrong}"
            );
        }
    }
}
