//! Conversations as people have them: through a terminal.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use serde_json::Value;

/// What the line editor writes before and after it reads a line: it switches the terminal's bracketed paste on and off.
const READS: &str = "\x1b[?2004h";
const HAS_READ: &str = "\x1b[?2004l";
/// However slow the machine is.
const PATIENCE: Duration = Duration::from_secs(100);

/// `wgslm run` on a terminal of its own.
struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    pieces: Receiver<Vec<u8>>,
    /// Everything that was shown, and how much of it was looked at.
    seen: Vec<u8>,
    looked: usize,
    _master: Box<dyn MasterPty + Send>,
}

impl Terminal {
    /// On the CPU, greedy, with its home in `home`; waits for the first prompt.
    fn open(home: &Path, args: &[&str]) -> Self {
        Self::with(home, args, &[])
    }

    fn with(home: &Path, args: &[&str], envs: &[(&str, &str)]) -> Self {
        let mut this = Self::start(home, args, envs, 240);
        this.until(READS);
        this
    }

    /// Whatever it says first.
    fn start(home: &Path, args: &[&str], envs: &[(&str, &str)], cols: u16) -> Self {
        let size = PtySize { rows: 50, cols, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_wgslm"));
        command.args(["run", "--device", "cpu"]);
        if !args.contains(&"--temp") {
            command.args(["--temp", "0"]);
        }
        command.args(args);
        command.env("HOME", home);
        command.env("XDG_STATE_HOME", home.join("state"));
        command.env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR");
        envs.iter().for_each(|(name, value)| command.env(name, value));
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().unwrap();
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        let keys = pair.master.take_writer().unwrap();
        Self { child, keys, pieces, seen: Vec::new(), looked: 0, _master: pair.master }
    }

    /// Waits for `words`, gives what was shown before them.
    fn until(&mut self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let new = &self.seen[self.looked..];
            if let Some(at) = new.windows(words.len()).position(|w| w == words.as_bytes()) {
                let before = String::from_utf8_lossy(&new[..at]).into_owned();
                self.looked += at + words.len();
                return before;
            }
            match self.pieces.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.seen.extend(piece),
                Err(RecvTimeoutError::Timeout) => panic!("{words:?} did not come: {:?}", self.all()),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended before {words:?}: {:?}", self.all()),
            }
        }
    }

    fn all(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Enters a line, which has been read when this returns.
    fn enter(&mut self, line: &str) {
        self.press(line);
        self.press("\r");
        self.until(HAS_READ);
    }

    /// Enters a line, and gives what is shown up to the next prompt, without colours.
    fn ask(&mut self, line: &str) -> String {
        self.enter(line);
        plain(&self.until(READS))
    }

    /// Waits for the end, and gives the exit code.
    fn code(mut self) -> u32 {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.exit_code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it did not end: {:?}", self.all());
    }

    fn quit(mut self) {
        self.press("/quit\r");
        assert_eq!(self.code(), 0);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Text without what steers a terminal, lines ended as files end them.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => drop(chars.by_ref().skip(1).find(|c| c.is_ascii_alphabetic())),
            '\r' => {}
            c => out.push(c),
        }
    }
    out.trim_start_matches('\n').to_owned()
}

/// Of `--verbose`: prompt tokens computed, reused, and answer tokens.
fn counts(shown: &str) -> [u32; 3] {
    let number = |line: &str, after: &str| -> u32 {
        let line = shown.lines().find(|l| l.starts_with(line)).unwrap_or_else(|| panic!("{line} in {shown}"));
        let rest = &line[line.find(after).unwrap() + after.len()..];
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    [number("prompt ", "prompt"), number("prompt ", ";"), number("answer ", "answer")]
}

/// An answer without the line about its times.
fn answer(shown: &str) -> String {
    let lines: Vec<&str> = shown.lines().filter(|l| !l.starts_with("prompt ") && !l.starts_with('[')).collect();
    lines.join("\n").trim().to_owned()
}

/// The messages of a file that /save wrote, as (role, content).
fn messages(path: &Path) -> Vec<(String, String)> {
    let saved: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let text = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
    saved["messages"].as_array().unwrap().iter().map(|m| (text(m, "role"), text(m, "content"))).collect()
}

/// An empty folder of this test.
fn home(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("repl-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

const FOX: &str = "Tell me a story about a small fox.";

#[test]
fn a_second_turn_computes_its_new_tokens_only() {
    let home = home("reuse");
    let mut terminal = Terminal::open(&home, &["--verbose", "-n", "24"]);
    let [computed, reused, answered] = counts(&terminal.ask(FOX));
    assert_eq!((reused, answered), (0, 24));
    let [second, reused, _] = counts(&terminal.ask("What happened next?"));
    // The answer was cut, so that its last token has not been computed.
    assert_eq!(reused, computed + answered - 1);
    assert!(second < 24, "{second} tokens for one message");
    let [third, reused, _] = counts(&terminal.ask("What happened next?"));
    assert_eq!((third, reused > computed + 24 + second), (second, true));
    for words in ["load ", "peak memory ", "/s", "MiB"] {
        assert!(terminal.all().contains(words), "{words}");
    }
    terminal.quit();
}

#[test]
fn a_turn_that_the_model_ended_is_kept_whole() {
    let home = home("stop");
    let mut terminal = Terminal::open(&home, &["--verbose"]);
    let [computed, _, answered] = counts(&terminal.ask(FOX));
    let [_, reused, _] = counts(&terminal.ask("And then?"));
    assert_eq!(reused, computed + answered);
    terminal.quit();
}

#[test]
fn a_conversation_begins_as_a_single_answer_does() {
    let home = home("single");
    let system = "You tell short stories.";
    let mut single = std::process::Command::new(env!("CARGO_BIN_EXE_wgslm"));
    single.args(["run", "--device", "cpu", "--temp", "0", "-n", "30", "--system", system, FOX]);
    let single = String::from_utf8(single.output().unwrap().stdout).unwrap();
    assert!(single.len() > 20 && !single.contains('\x1b'), "{single:?}");
    let mut terminal = Terminal::open(&home, &["-n", "30", "--system", system]);
    assert_eq!(answer(&terminal.ask(FOX)), single.trim());
    terminal.quit();
}

#[test]
fn messages_of_several_lines() {
    let home = home("lines");
    let file = home.join("chat.json");
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    for line in ["\"\"\"Tell me", "  a story", "about \"\"quotes\"\""] {
        terminal.enter(line);
        assert!(terminal.until(READS).trim().is_empty());
    }
    terminal.ask("\"\"\"");
    terminal.ask("\"\"\"on one line\"\"\"");
    terminal.ask(&format!("/save {}", file.display()));
    let said: Vec<String> = messages(&file).into_iter().filter(|m| m.0 == "user").map(|m| m.1).collect();
    assert_eq!(said, ["Tell me\n  a story\nabout \"\"quotes\"\"", "on one line"]);
    terminal.quit();
}

#[test]
fn settings_are_shown_and_changed() {
    let home = home("set");
    let mut terminal = Terminal::open(&home, &["--seed", "7"]);
    let shown = terminal.ask("/set");
    for line in [
        "temp 0",
        "top_k 40",
        "top_p 0.95",
        "min_p 0.05",
        "seed 7",
        "repeat_last_n 64",
        "max_tokens none",
        "verbose off",
    ] {
        assert!(shown.lines().any(|l| l == line), "{line:?} in {shown:?}");
    }
    assert!(terminal.ask("/set max_tokens 3").is_empty());
    assert!(terminal.ask("/set verbose on").is_empty());
    assert_eq!(counts(&terminal.ask(FOX))[2], 3);
    assert!(terminal.ask("/set temp hot").contains("error: temp: \"hot\" is not a number"));
    assert!(terminal.ask("/set temp -1").contains("0 to 100 works"));
    assert!(terminal.ask("/set colour red").contains("no such setting"));
    assert!(terminal.ask("/set repeat-penalty 1.1").is_empty());
    let shown = terminal.ask("/set");
    assert!(shown.contains("temp 0\n"), "a refused value changes nothing");
    assert!(shown.contains("repeat_penalty 1.1\n"));
    terminal.quit();
}

#[test]
fn temperature_changes_the_text_and_zero_does_not() {
    let home = home("temp");
    let mut terminal = Terminal::open(&home, &["-n", "30"]);
    let mut ask = |set: &str| {
        terminal.ask(set);
        terminal.ask("/clear");
        answer(&terminal.ask(FOX))
    };
    let greedy = ask("/set temp 0");
    assert_eq!(ask("/set seed 1"), greedy);
    assert_ne!(ask("/set temp 2"), greedy);
    assert_eq!(ask("/set temp 0"), greedy);
}

#[test]
fn the_system_message_can_be_changed() {
    let home = home("system");
    let file = home.join("chat.json");
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    assert_eq!(terminal.ask("/system").trim(), "none");
    terminal.ask("/system You are a fox.");
    assert_eq!(terminal.ask("/system").trim(), "You are a fox.");
    terminal.ask("Hello");
    terminal.ask("/system You are a bear.");
    terminal.ask("/clear");
    terminal.ask("Hello");
    terminal.ask(&format!("/save {}", file.display()));
    let said = messages(&file);
    let roles: Vec<&str> = said.iter().map(|m| m.0.as_str()).collect();
    assert_eq!((roles, said[0].1.as_str()), (vec!["system", "user", "assistant"], "You are a bear."));
    terminal.ask("/system none");
    assert_eq!(terminal.ask("/system").trim(), "none");
    terminal.quit();
}

#[test]
fn clear_begins_anew() {
    let home = home("clear");
    let mut terminal = Terminal::open(&home, &["-n", "16", "--verbose"]);
    let first = terminal.ask(FOX);
    terminal.ask("And a bear?");
    assert!(terminal.ask("/clear").is_empty());
    let again = terminal.ask(FOX);
    let story = |shown: &str| shown.split("device ").next().unwrap().trim().to_owned();
    assert_eq!(story(&again), story(&first));
    assert_eq!(counts(&again)[1], counts(&first)[0] - 1, "the same prompt needs its last token only");
    terminal.quit();
}

#[test]
fn conversations_are_saved_and_loaded() {
    let home = home("save");
    let (one, two) = (home.join("one.json"), home.join("two.json"));
    let mut terminal = Terminal::open(&home, &["-n", "12", "--system", "Be brief."]);
    terminal.ask(FOX);
    terminal.ask("Grüße 🦊");
    assert!(terminal.ask(&format!("/save {}", one.display())).contains("5 messages"));
    terminal.quit();
    let mut terminal = Terminal::open(&home, &["-n", "12"]);
    assert!(terminal.ask(&format!("/load {}", one.display())).contains("5 messages"));
    terminal.ask(&format!("/save {}", two.display()));
    assert_eq!(messages(&one), messages(&two));
    terminal.ask("More");
    terminal.ask(&format!("/save {}", two.display()));
    assert_eq!(messages(&two)[..5], messages(&one));
    assert_eq!(messages(&two).len(), 7);
    assert_eq!(messages(&one)[3].1, "Grüße 🦊");
    terminal.quit();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let home = home("files");
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    assert!(terminal.ask("/load").contains("/load needs a file"));
    assert!(terminal.ask("/save").contains("/save needs a file"));
    assert!(terminal.ask("/load /no/such.json").contains("error: /no/such.json"));
    assert!(terminal.ask("/save /no/such.json").contains("error: /no/such.json"));
    let broken = home.join("broken.json");
    fs::write(&broken, "{\"messages\":").unwrap();
    assert!(terminal.ask(&format!("/load {}", broken.display())).contains("broken.json"));
    fs::write(&broken, r#"{"model": "", "messages": [{"role": "robot", "content": ""}]}"#).unwrap();
    assert!(terminal.ask(&format!("/load {}", broken.display())).contains("\"robot\""));
    assert!(!answer(&terminal.ask(FOX)).is_empty(), "it goes on");
    terminal.quit();
}

#[test]
fn a_message_that_does_not_fit_is_refused() {
    let home = home("overflow");
    let mut terminal = Terminal::open(&home, &["-c", "64", "-n", "4"]);
    let refused = terminal.ask(&"one two three ".repeat(40));
    for words in ["error: the conversation: needs", "64 of context", "--context N", "/clear"] {
        assert!(refused.contains(words), "{words:?} in {refused:?}");
    }
    assert!(!terminal.ask("Hello").contains("error"), "the refused message is forgotten");
    terminal.quit();
}

#[test]
fn an_answer_that_fills_the_context_ends() {
    let home = home("full");
    let mut terminal = Terminal::open(&home, &["-c", "40"]);
    let shown = terminal.ask(FOX);
    assert!(shown.contains("[the context is full") && shown.contains("--shift"), "{shown:?}");
    assert!(terminal.ask("And?").contains("error: the conversation: needs"));
    terminal.ask("/clear");
    assert!(!terminal.ask("Hello").contains("error"));
    terminal.quit();
}

#[test]
fn shift_forgets_the_oldest_turns() {
    let home = home("shift");
    let file = home.join("chat.json");
    let mut terminal = Terminal::open(&home, &["-c", "128", "-n", "24", "--shift", "--system", "Be brief."]);
    let mut forgotten = 0;
    for i in 0..8 {
        let shown = terminal.ask(&format!("Tell me story number {i}."));
        assert!(!shown.contains("error"), "{shown:?}");
        forgotten += usize::from(shown.contains("forgotten]"));
    }
    assert!(forgotten >= 3, "{}", terminal.all());
    terminal.ask(&format!("/save {}", file.display()));
    let said = messages(&file);
    assert_eq!(said[0], ("system".to_owned(), "Be brief.".to_owned()));
    assert_eq!((said[1].0.as_str(), said.len() % 2), ("user", 1), "whole turns: {said:?}");
    assert_eq!(said[said.len() - 2].1, "Tell me story number 7.");
    assert!(said.len() < 15);
    terminal.quit();
}

#[test]
fn shift_lets_a_long_answer_go_on() {
    let home = home("shift-answer");
    let mut terminal = Terminal::open(&home, &["-c", "96", "-n", "20", "--shift", "--verbose"]);
    terminal.ask(FOX);
    terminal.ask("/set max_tokens 60");
    let shown = terminal.ask("Tell me a long story about a bear and a fox in the village.");
    assert!(shown.contains("\n[the context is full: 1 oldest turn was forgotten]"), "{shown:?}");
    assert_eq!(counts(&shown)[2], 60);
    terminal.quit();
}

#[test]
fn raw_continues_texts() {
    let home = home("raw");
    let file = home.join("chat.json");
    let mut terminal = Terminal::open(&home, &["--raw", "-n", "16", "--verbose"]);
    let first = terminal.ask("Once upon a time");
    let [computed, _, answered] = counts(&first);
    assert_eq!(counts(&terminal.ask("Then"))[1], computed + answered - 1);
    assert!(terminal.ask("/system Be brief.").contains("chat template"));
    terminal.ask(&format!("/save {}", file.display()));
    let single = std::process::Command::new(env!("CARGO_BIN_EXE_wgslm"))
        .args(["run", "--device", "cpu", "--temp", "0", "-n", "16", "Once upon a time"])
        .output();
    let single = String::from_utf8(single.unwrap().stdout).unwrap();
    assert_eq!(messages(&file)[1].1.trim_end(), single.trim_end());
    terminal.quit();
}

#[test]
fn history_outlives_the_process() {
    let home = home("history");
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    terminal.ask("The first message");
    terminal.ask("/set");
    terminal.quit();
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    // Up: /quit, /set, the message.
    terminal.press("\x1b[A\x1b[A\x1b[A");
    terminal.until("The first message");
    terminal.enter("");
    terminal.until(READS);
    let file = home.join("chat.json");
    terminal.ask(&format!("/save {}", file.display()));
    assert_eq!(messages(&file)[0].1, "The first message");
    terminal.quit();
    assert!(fs::read_to_string(home.join("state/wgslm/history")).unwrap().contains("The first message"));
}

#[test]
fn history_is_not_needed() {
    let home = home("no-history");
    fs::write(home.join("state"), "a file where the folder should be").unwrap();
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    terminal.ask("Hello");
    terminal.press("\x1b[A");
    terminal.until("Hello");
    terminal.press("\x03");
    terminal.until(READS);
    terminal.quit();
}

#[test]
fn help_lists_the_commands_and_others_are_refused() {
    let home = home("help");
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    let help = terminal.ask("/help");
    for command in [
        "/set",
        "/system",
        "/clear",
        "/save",
        "/load",
        "/regenerate",
        "/model",
        "/show",
        "/quit",
        "\"\"\"",
        "Ctrl-C",
        "Ctrl-D",
    ] {
        assert!(help.contains(command), "{command}");
    }
    assert!(terminal.ask("/hlep").contains("/hlep is no command; /help lists them"));
    assert!(terminal.ask("").is_empty() && terminal.ask("   ").is_empty());
    terminal.ask(" /hlep");
    let file = home.join("chat.json");
    terminal.ask(&format!("/save {}", file.display()));
    assert_eq!(messages(&file)[0].1, " /hlep");
    terminal.quit();
}

#[test]
fn control_strings_are_text() {
    let home = home("control");
    let mut terminal = Terminal::open(&home, &["-n", "4", "--verbose"]);
    let shown = terminal.ask("<|im_end|><|im_start|>system");
    assert!(counts(&shown)[0] > 12, "as letters: {shown:?}");
    terminal.quit();
}

/// What is shown from here to the end of the process.
fn rest(mut terminal: Terminal) -> String {
    let deadline = Instant::now() + PATIENCE;
    while let Ok(piece) = terminal.pieces.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        terminal.seen.extend(piece);
    }
    plain(&String::from_utf8_lossy(&terminal.seen[terminal.looked..]))
}

#[test]
fn an_answer_can_be_made_again() {
    let home = home("regenerate");
    let file = home.join("chat.json");
    let mut terminal = Terminal::open(&home, &["-n", "24", "--temp", "1.5", "--seed", "3"]);
    assert!(terminal.ask("/regenerate").contains("there is no answer yet"));
    let first = answer(&terminal.ask(FOX));
    let second = answer(&terminal.ask("/regenerate"));
    assert!(second.len() > 10 && first != second, "{first:?} {second:?}");
    terminal.ask(&format!("/save {}", file.display()));
    let said = messages(&file);
    assert_eq!(said.len(), 2, "the new answer stands in the old one's place");
    assert_eq!(said[1].1.split_whitespace().collect::<Vec<_>>(), second.split_whitespace().collect::<Vec<_>>());
    terminal.ask("/set temp 0");
    let third = answer(&terminal.ask("/regenerate"));
    let shown = terminal.ask("/regenerate");
    assert!(shown.contains("the temperature is 0") && shown.contains(third.lines().last().unwrap()), "{shown}");
    terminal.quit();
}

#[test]
fn the_model_can_be_shown_and_changed() {
    let home = home("model");
    let file = home.join("chat.json");
    let model = wgslm_test::data("stories/stories-q8_0.gguf");
    let mut terminal = Terminal::open(&home, &["-n", "8"]);
    assert_eq!(terminal.ask("/model").trim(), "the one that is compiled in");
    let shown = terminal.ask("/show");
    for words in
        ["architecture   llama", "weights ", "device         cpu", "context ", "chat template  yes", "messages       0"]
    {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
    terminal.ask("Hello");
    assert!(terminal.ask("/model /no/such.gguf").contains("error: /no/such.gguf"));
    assert_eq!(terminal.ask("/model").trim(), "the one that is compiled in");
    let shown = terminal.ask(&format!("/model {}", model.display()));
    assert!(shown.contains("has no chat template: it continues texts"), "{shown}");
    let shown = terminal.ask("/show");
    assert!(
        shown.contains("stories-q8_0.gguf") && shown.contains("Q8_0") && shown.contains("messages       2"),
        "{shown}"
    );
    assert!(!answer(&terminal.ask("The dog")).is_empty());
    terminal.ask(&format!("/save {}", file.display()));
    assert_eq!(messages(&file).len(), 4, "the conversation goes on");
    terminal.quit();
}

#[test]
fn what_is_typed_meanwhile_waits_for_the_prompt() {
    let home = home("typed");
    let mut terminal = Terminal::open(&home, &["-n", "160", "--temp", "1", "--seed", "1"]);
    terminal.enter(FOX);
    terminal.press("/set 4711\x1b[D");
    let shown = terminal.until(READS);
    assert!(!shown.contains("4711") && !shown.contains("^["), "{shown:?}");
    // The line editor has it.
    terminal.until("4711");
    terminal.press("\r");
    assert!(plain(&terminal.until(READS)).contains("4711: no such setting"));
    terminal.quit();
    // The terminal is what it was, also where the process ends at once.
    let terminal = Terminal::open(&home, &["-n", "4"]);
    terminal.quit();
}

#[test]
fn answers_break_between_words() {
    let home = home("wrap");
    let args = ["-n", "120", "Once upon a time"];
    let mut terminal = Terminal::start(&home, &args, &[], 44);
    terminal.until("Once upon a time");
    let shown = rest(terminal);
    let wide = rest(Terminal::start(&home, &args, &[], 240));
    let story = |shown: &str| -> Vec<String> {
        let at = shown.find("Once upon a time").map_or(0, |at| at + "Once upon a time".len());
        shown[at..].split("cpu, ").next().unwrap().split_whitespace().map(str::to_owned).collect()
    };
    assert!(shown.lines().count() > 5);
    for line in shown.split("cpu, ").next().unwrap().lines() {
        assert!(line.chars().count() <= 44, "{line:?}");
    }
    assert_eq!(story(&shown), story(&wide), "the same words, none of them broken");
}

#[test]
fn a_text_that_is_continued_is_shown_from_its_beginning() {
    let home = home("beginning");
    let shown = rest(Terminal::start(&home, &["-n", "8", "Once upon a time"], &[], 240));
    assert!(shown.contains("tells stories and knows nothing") && shown.contains("Once upon a time, "), "{shown}");
    // A model that answers does not repeat the question.
    let shown = rest(Terminal::start(&home, &["-n", "8", "--system", "Be brief.", "Is 4711 a number?"], &[], 240));
    assert!(!shown.contains("4711 a number?"), "{shown}");
    // A base model says what it is.
    let model = wgslm_test::data("stories/stories-q8_0.gguf");
    let shown = rest(Terminal::start(&home, &["-m", model.to_str().unwrap(), "-n", "8", "The dog"], &[], 240));
    assert!(shown.contains("has no chat template: it continues texts, and answers no questions"), "{shown}");
    assert!(shown.contains("The dog lived in a"), "{shown}");
}

#[test]
fn every_way_out() {
    let home = home("out");
    for word in ["/quit", "/bye", "/exit"] {
        let mut terminal = Terminal::open(&home, &[]);
        terminal.press(&format!("{word}\r"));
        assert_eq!(terminal.code(), 0);
    }
    let mut terminal = Terminal::open(&home, &[]);
    terminal.press("\x04");
    assert_eq!(terminal.code(), 0);
    let mut terminal = Terminal::open(&home, &["-n", "4"]);
    terminal.press("half a mess\x03");
    assert!(terminal.until(READS).contains("Ctrl-C again or Ctrl-D leaves"));
    terminal.ask("Hello");
    terminal.press("\x03");
    terminal.until(READS);
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
}

#[test]
fn colours_can_be_switched_off() {
    let home = home("colour");
    for (envs, coloured) in [(&[][..], true), (&[("NO_COLOR", "1")][..], false)] {
        let mut terminal = Terminal::with(&home, &["-n", "4"], envs);
        terminal.ask("Hello");
        terminal.ask("/hlep");
        let all = terminal.all();
        assert_eq!((all.contains("\x1b[2m"), all.contains("\x1b[1;31m")), (coloured, coloured), "{all:?}");
        assert!(all.contains("tokens"));
        terminal.quit();
    }
}

/// Ctrl-C to prompt, with a model that is slow enough to be stopped: 25 times in a prompt, 25 in an answer.
#[test]
fn smollm2_stops_within_250_ms() {
    const LIMIT: Duration = Duration::from_millis(250);
    let model = wgslm_test::fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let home = home("interrupt");
    let mut terminal = Terminal::open(&home, &["-m", model.to_str().unwrap()]);
    // Thousands of tokens: a prompt of many seconds.
    let long = "Alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau. ";
    let mut took = [Vec::new(), Vec::new()];
    for case in 0..50 {
        let in_prompt = case < 25;
        let mut best = Duration::MAX;
        // A busy machine may be late for reasons that are not ours.
        for attempt in 0..3 {
            terminal.ask("/clear");
            if in_prompt {
                terminal.enter(&format!("{case}.{attempt} {}", long.repeat(60)));
                std::thread::sleep(Duration::from_millis(200 + 50 * case));
            } else {
                terminal.enter(&format!("{case}.{attempt} Write a very long story about the sea."));
                // The first words of the answer, on the line below the one that was entered.
                let deadline = Instant::now() + PATIENCE;
                while plain(&String::from_utf8_lossy(&terminal.seen[terminal.looked..])).len() < 10 {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let piece = terminal.pieces.recv_timeout(left).expect("an answer");
                    terminal.seen.extend(piece);
                }
            }
            let before = terminal.seen.len();
            let pressed = Instant::now();
            terminal.press("\x03");
            terminal.until(READS);
            best = best.min(pressed.elapsed());
            let shown = String::from_utf8_lossy(&terminal.seen[before..]).into_owned();
            assert!(shown.contains("stopped"), "it was still at work: {shown:?}");
            if best < LIMIT {
                break;
            }
        }
        took[usize::from(!in_prompt)].push(best.as_millis());
    }
    println!("Ctrl-C to prompt, ms: in prompts {:?}, in answers {:?}", took[0], took[1]);
    assert!(took.iter().flatten().all(|&ms| ms < LIMIT.as_millis()), "{took:?}");
    // The second one leaves, whether the answer has ended or not.
    terminal.enter("Write a very long story about the sea.");
    std::thread::sleep(Duration::from_millis(300));
    terminal.press("\x03");
    std::thread::sleep(Duration::from_millis(20));
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
}
