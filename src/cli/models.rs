//! Models by name: `wgslm pull`, `list` and `rm`, and what `-m` makes of a name.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::builder::FalseyValueParser;
use serde_json::json;

use super::exit::Exit;
use super::{memory, term};
use crate::Error;
use crate::hub::{Cached, Hub, Local, Plan, Progress, Reference};

/// Whether the network may be used.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HubArg {
    /// Opens no connection: models are files, folders, or in the cache.
    #[arg(long, env = "WGSLM_OFFLINE", hide_env_values = true, value_parser = FalseyValueParser::new())]
    offline: bool,
}

impl HubArg {
    pub(super) fn hub(&self) -> Result<Hub, Exit> {
        Ok(Hub::from_env()?.offline(self.offline))
    }

    /// Where the model is that was asked for: a path, or a name, whose model is downloaded if it is not in the cache.
    pub(super) fn locate(&self, model: &Path) -> Result<PathBuf, Exit> {
        if model.exists() {
            return Ok(model.to_owned());
        }
        let Some(text) = model.to_str().filter(|text| !is_plainly_a_path(text)) else { return Err(missing(model)) };
        let hub = self.hub()?;
        let Some(reference) = reference(&hub, text)? else { return Err(missing(model)) };
        match hub.find(&reference)? {
            Some(local) => Ok(local.path),
            None => Ok(fetch(&hub, &reference)?.path),
        }
    }
}

/// The model that a word is the name of.
pub(super) fn reference(hub: &Hub, text: &str) -> Result<Option<Reference>, Exit> {
    Ok(match Reference::parse(text, hub.endpoint())? {
        Some(reference) => Some(reference),
        None => hub.named(text)?,
    })
}

/// Whether a text can be nothing but a path.
pub(super) fn is_plainly_a_path(text: &str) -> bool {
    Path::new(text).is_absolute() || [".", "~", "\\"].iter().any(|start| text.starts_with(start))
}

pub(super) fn missing(path: &Path) -> Exit {
    let shown = path.display();
    let name = path.to_string_lossy();
    let advice = match name.contains(['/', '\\']) || name.ends_with(".gguf") {
        true => "-m takes a GGUF file, a safetensors folder, or a name as in Qwen/Qwen3-0.6B-GGUF:Q8_0".to_owned(),
        false => suggestion(&name),
    };
    Exit::not_found(format!(
        "{shown}: there is no such file or folder, and no model in the cache has this name; {advice}"
    ))
}

/// A repository with a model of a family, for people who know it by another tool's name.
pub(super) fn suggestion(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let known = [
        ("llama", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
        ("qwen", "Qwen/Qwen3-4B-GGUF"),
        ("smollm", "bartowski/SmolLM2-135M-Instruct-GGUF"),
        ("gemma", "ggml-org/gemma-3-1b-it-GGUF"),
    ];
    let found = known.iter().find(|(family, _)| lower.starts_with(family));
    let repo = found.map_or("Qwen/Qwen3-0.6B-GGUF", |(_, repo)| repo);
    format!("models have the names of their repositories on huggingface.co, as in {repo}")
}

/// Downloads a model; says before what it is.
fn fetch(hub: &Hub, reference: &Reference) -> Result<Local, Exit> {
    let plan = hub.plan(reference)?;
    announce(&plan, hub);
    let mut bar = term::Download::new();
    let local = hub.download(&plan, &mut |progress| {
        match progress {
            Progress::Waiting(file) => bar.waiting(file),
            Progress::Bytes(have, all) => bar.show(have, all),
        }
        Ok(())
    });
    drop(bar);
    Ok(local?)
}

/// What is about to be downloaded, and whether it is of use here.
fn announce(plan: &Plan, hub: &Hub) {
    let (all, missing) = (plan.bytes(), plan.missing());
    let files = match plan.files.len() {
        1 => plan.files[0].path.clone(),
        n => format!("{n} files"),
    };
    let commit = plan.commit.get(..8).map(|commit| format!(" of commit {commit}")).unwrap_or_default();
    term::note(&format!("{}: {files}{commit}, {}", plan.name(), memory::bytes(all)));
    if let (Some(quant), false) = (&plan.quant, plan.others.is_empty()) {
        const SHOWN: usize = 12;
        let mut others = plan.others.clone();
        others.dedup();
        let more = if others.len() > SHOWN { ", …" } else { "" };
        others.truncate(SHOWN);
        term::note(&format!("{quant} of {quant}, {}{more}; :QUANT after the name takes another", others.join(", ")));
    }
    if let Some(fits) = memory::fits(all) {
        term::note(&fits);
    }
    if missing == 0 {
        return;
    }
    if missing < all {
        term::note(&format!("{} are here, {} to go", memory::bytes(all - missing), memory::bytes(missing)));
    }
    let host = plan.files.first().and_then(|file| file.url.split('/').nth(2)).unwrap_or_default();
    term::note(&format!("downloading from {host} into {}", hub.folder().display()));
}

#[derive(Debug, clap::Args)]
pub(super) struct PullArgs {
    /// ORG/REPO[:QUANT] on huggingface.co, its address there, or the address of a GGUF file.
    #[arg(required = true)]
    model: Vec<String>,
    #[command(flatten)]
    hub: HubArg,
}

pub(super) fn pull(args: PullArgs) -> Result<(), Exit> {
    let hub = args.hub.hub()?;
    let mut out = term::out();
    for model in &args.model {
        let Some(reference) = reference(&hub, model)? else {
            let what = if Path::new(model).exists() { "is here already" } else { "is no name of a model" };
            return Err(Exit::usage(format!("{model} {what}; {}", suggestion(model))));
        };
        // Without the network, what is here is all that there is.
        let local = match hub.is_offline() {
            true => hub.find(&reference)?,
            false => None,
        };
        let local = match local {
            Some(local) => local,
            None => fetch(&hub, &reference)?,
        };
        term::dim(&format!("it runs by: wgslm run {}", local.name));
        writeln!(out, "{}", local.path.display())?;
    }
    Ok(out.flush()?)
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Prints a JSON array.
    #[arg(long)]
    json: bool,
}

pub(super) fn list(args: ListArgs) -> Result<(), Exit> {
    let models = Hub::from_env()?.list()?;
    let mut out = term::out();
    if args.json {
        let json = models.iter().map(|model| {
            let seconds =
                |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            json!({
                "name": model.name,
                "path": model.path.to_string_lossy(),
                "bytes": model.bytes,
                "modified": model.modified.map(seconds),
                "commit": model.commit,
            })
        });
        writeln!(out, "{:#}", serde_json::Value::from_iter(json))?;
        return Ok(out.flush()?);
    }
    if models.is_empty() {
        term::note("no models; wgslm pull Qwen/Qwen3-0.6B-GGUF gets one");
        return Ok(());
    }
    let width = models.iter().map(|model| model.name.chars().count()).max().unwrap_or(0).max(4);
    writeln!(out, "{:<width$}  {:>9}  CAME", "NAME", "SIZE")?;
    for model in &models {
        let came =
            model.modified.and_then(|time| time.elapsed().ok()).map_or("?".to_owned(), |ago| term::ago(ago.as_secs()));
        writeln!(out, "{:<width$}  {:>9}  {came}", model.name, memory::bytes(model.bytes))?;
    }
    Ok(out.flush()?)
}

#[derive(Debug, clap::Args)]
pub(super) struct RmArgs {
    /// Names as wgslm list shows them; ORG/REPO alone: everything of this repository.
    #[arg(required = true)]
    model: Vec<String>,
    /// Does not ask.
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn rm(args: RmArgs) -> Result<(), Exit> {
    let hub = Hub::from_env()?;
    for model in &args.model {
        let Some(reference) = reference(&hub, model)? else {
            return Err(Exit::not_found(format!("{model} is not in the cache; wgslm list shows what is there")));
        };
        let found = hub.removable(&reference)?;
        if !args.yes && !confirmed(&reference, &found)? {
            term::note(&format!("{reference} stays"));
            continue;
        }
        let bytes = hub.remove(&reference)?;
        term::note(&format!("{reference} is removed: {} more free", memory::bytes(bytes)));
    }
    Ok(())
}

/// Asks whether models are to go.
fn confirmed(reference: &Reference, found: &[Cached]) -> Result<bool, Exit> {
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(Exit::usage(format!("{reference}: --yes removes it; without a terminal nobody can be asked")));
    }
    for model in found {
        term::note(&format!("{}  {}", model.name, memory::bytes(model.bytes)));
    }
    if found.is_empty() {
        term::note(&format!("{reference}: parts of downloads"));
    }
    let _ = write!(stderr(), "Remove? [y/N] ").and_then(|()| stderr().flush());
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).map_err(|e| Exit::failure(format!("stdin: {e}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// What the first word of `run` is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    Model,
    Prompt,
}

impl HubArg {
    /// Whether a word of the command line is a model or a prompt.
    pub(super) fn word(&self, word: &str) -> Result<Word, Exit> {
        let path = Path::new(word);
        let spaced = word.is_empty() || word.contains(char::is_whitespace);
        let is_file = path.is_file();
        let is_folder = path.is_dir() && holds_model(path);
        // Without HOME there is no cache; paths work as ever.
        let hub = self.hub();
        let endpoint = hub.as_ref().map_or("https://huggingface.co", Hub::endpoint);
        let parsed = Reference::parse(word, endpoint);
        if is_file || is_folder {
            if matches!(parsed, Ok(Some(Reference::Repo(_)))) && !is_plainly_a_path(word) && !word.contains("//") {
                return Err(Exit::usage(format!(
                    "{word} is here, and may be a repository: ./{word} is the one that is here, hf.co/{word} the other"
                )));
            }
            return Ok(Word::Model);
        }
        if spaced {
            return Ok(Word::Prompt);
        }
        if parsed?.is_some() {
            return Ok(Word::Model);
        }
        let lower = word.to_ascii_lowercase();
        if lower.ends_with(".gguf") || lower.ends_with(".safetensors") || is_plainly_a_path(word) && word.contains('/')
        {
            return Ok(Word::Model);
        }
        if hub.is_ok_and(|hub| hub.named(word).is_ok_and(|found| found.is_some())) {
            return Ok(Word::Model);
        }
        if looks_like_a_model(word) {
            let (advice, quoted) = (suggestion(word), quoted(word));
            return Err(Exit::not_found(format!(
                "{word} is neither a file nor a model in the cache; {advice}; as a prompt: wgslm run -p {quoted}"
            )));
        }
        Ok(Word::Prompt)
    }
}

/// A text as a shell takes it.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Whether a folder is one of a model.
fn holds_model(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok());
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .any(|name| [".gguf", ".safetensors", ".safetensors.index.json"].iter().any(|ending| name.ends_with(ending)))
}

/// Whether one word is the name that another tool has for a model: `llama3.2`, `qwen3:4b`. As a prompt, such a word would get a
/// story from the model that is compiled in, and nobody would know why.
fn looks_like_a_model(word: &str) -> bool {
    const FAMILIES: [&str; 22] = [
        "llama",
        "qwen",
        "gemma",
        "mistral",
        "mixtral",
        "ministral",
        "phi2",
        "phi3",
        "phi4",
        "phi-",
        "deepseek",
        "smollm",
        "granite",
        "falcon3",
        "gpt-oss",
        "gptoss",
        "codellama",
        "tinyllama",
        "olmo",
        "command-r",
        "glm4",
        "gpt2",
    ];
    let lower = word.to_ascii_lowercase();
    let plain = lower.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c));
    let numbered =
        lower.chars().any(|c| c.is_ascii_digit()) && lower.trim_end_matches(['.', ':']).contains(['.', ':', '-']);
    plain
        && lower.starts_with(|c: char| c.is_ascii_alphabetic())
        && (numbered || FAMILIES.iter().any(|family| lower.starts_with(family)))
}

/// What the hub did not have, with the spelling of a prompt.
pub(super) fn or_a_prompt(word: &str, exit: Exit) -> Exit {
    match exit {
        Exit::Failed { code: 3, message } => {
            Exit::not_found(format!("{message}; as a prompt: wgslm run -p {}", quoted(word)))
        }
        other => other,
    }
}

/// What the library says of a model that is not there, as an exit.
pub(super) fn of_open(error: Error) -> Exit {
    match &error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Exit::not_found(error.to_string()),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_tools_are_no_prompts() {
        for name in ["llama3.2", "llama3.2:1b", "qwen3:4b", "Mistral", "gpt-oss:20b", "phi3", "some-model-7b", "x1.y"] {
            assert!(looks_like_a_model(name), "{name}");
        }
        for prompt in
            ["Hello", "Hello!", "1+1", "why?", "42", "Note:", "well-known", "e.g.", "Once", "3.14", "B2B", "Olá", "v1."]
        {
            assert!(!looks_like_a_model(prompt), "{prompt}");
        }
    }

    #[test]
    fn prompts_are_quoted_for_the_shell() {
        assert_eq!(["and/or", "it's", "a b", ""].map(quoted), ["and/or", r"'it'\''s'", "'a b'", "''"]);
    }
}
