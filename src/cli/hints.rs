//! The command line's arguments, and what helps somebody who used those of another program.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};

use super::Args;
use super::term;

/// Options of llama.cpp, ollama and others, and what does the same here.
const OPTIONS: &[(&[&str], &str)] = &[
    (
        &["-ngl", "--n-gpu-layers", "--gpu-layers", "--num-gpu", "-ngld"],
        "a model runs on the GPU or on the CPU as a whole; --device gpu, --device cpu; without it, on a real GPU where there is one",
    ),
    (&["-fa", "--flash-attn", "--flash-attention"], "attention is always of this kind; leave it out"),
    (
        &["-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url", "-mr", "--docker-repo"],
        "-m takes names and addresses, too: -m ORG/REPO:Q4_K_M",
    ),
    (&["-hft", "--hf-token"], "HF_TOKEN in the environment, or hf auth login, gives the token"),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], "--kv-type f32, f16 or q8 is for keys and values alike"),
    (
        &["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"],
        "one device runs a model: --device N, see wgslm devices",
    ),
    (&["-dev", "--list-devices"], "wgslm devices lists them, and --device N takes one"),
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size", "-np", "--parallel", "-cb", "--cont-batching"],
        "batches are made as the device can do them; leave it out",
    ),
    (&["-tb", "--threads-batch"], "--threads N is for prompts and answers alike"),
    (
        &[
            "--mlock",
            "--numa",
            "-nkvo",
            "--no-kv-offload",
            "-kvu",
            "--kv-unified",
            "--no-warmup",
            "--warmup",
            "--no-repack",
            "-nr",
            "-op-offload",
        ],
        "there is nothing to switch here; leave it out",
    ),
    (&["--mmap"], "files are mapped unless --no-mmap is given"),
    (
        &["-cnv", "--conversation", "-i", "--interactive", "--interactive-first", "-if", "-ins", "--instruct"],
        "without a prompt, on a terminal, run is a conversation",
    ),
    (
        &["-no-cnv", "--no-conversation", "-st", "--single-turn"],
        "with a prompt, run answers once; --raw continues it as it is",
    ),
    (&["-sys", "--system-prompt", "-sysf", "--system-prompt-file"], "--system TEXT"),
    (
        &["-f", "--file", "-bf", "--binary-file", "--prompt-file"],
        "stdin is read after the prompt: wgslm run \"Summarise this\" < FILE",
    ),
    (&["-e", "--escape", "--no-escape"], "prompts are taken as they are; the shell's $'…' knows \\n"),
    (
        &["--jinja", "--no-jinja", "--chat-template", "--chat-template-file"],
        "the model's own chat template is used; wgslm template shows what it makes of messages, --raw leaves it out",
    ),
    (
        &["--grammar", "--grammar-file", "--json-schema", "-j", "-jf", "--json-schema-file", "--format"],
        "answers cannot be held to a grammar yet; --json prints the answer as one JSON object",
    ),
    (
        &["--lora", "--lora-scaled", "--control-vector"],
        "adapters are not supported; a model that they were merged into works",
    ),
    (
        &["--mmproj", "-mm", "--image", "--audio", "--mmproj-url"],
        "images and sound are not supported; models answer texts",
    ),
    (
        &["-md", "--model-draft", "--draft", "--draft-max", "--draft-min"],
        "there is no speculative decoding from the command line",
    ),
    (
        &["--color", "-co", "--no-color", "--simple-io"],
        "colours are for terminals alone, and NO_COLOR=1 turns them off",
    ),
    (
        &["--no-display-prompt", "--verbose-prompt", "-sp", "--special"],
        "pipes get the answer and nothing else; --json has the prompt's ids",
    ),
    (
        &["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"],
        "the model's files say how its positions are scaled",
    ),
    (
        &["--ignore-eos"],
        "--logit-bias TOKEN=-100 makes the model's last token unlikely; wgslm tokenize shows its number",
    ),
    (
        &[
            "--keepalive",
            "--keep",
            "--nowordwrap",
            "--hidethinking",
            "--think",
            "--insecure",
            "--context-shift",
            "--no-context-shift",
        ],
        "leave it out; wgslm run --help has all options, --shift is for conversations that fill the context",
    ),
    (
        &["--samplers", "--sampling-seq", "--top-nsigma", "--top-n-sigma", "--dynatemp-range"],
        "the samplers that there are stand in wgslm run --help, and their order in COMPATIBILITY.md",
    ),
    (&["--stop", "-r", "--reverse-prompt"], "answers end where the model ends them; -n N bounds their length"),
];

/// Commands of other programs, and what does the same here.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["chat", "generate", "ask", "complete", "llama-cli", "main", "talk", "infer"],
        "wgslm run is a conversation, or with a prompt one answer",
    ),
    (&["server", "start", "api", "llama-server"], "wgslm serve is the server"),
    (&["download", "get", "fetch", "install", "add"], "wgslm pull downloads a model"),
    (&["remove", "delete", "del", "uninstall"], "wgslm rm removes a model"),
    (&["models", "cache", "tags"], "wgslm list lists the models that are here"),
    (&["info", "describe", "card", "metadata"], "wgslm show shows what a model's files say"),
    (&["quantize", "quantise", "create", "import", "export"], "wgslm convert writes GGUF files of any type"),
    (&["embedding", "embeddings", "rerank"], "wgslm embed turns texts into vectors, and pairs into scores"),
    (&["benchmark", "llama-bench", "speed"], "wgslm bench measures speed"),
    (&["ppl", "eval", "evaluate"], "wgslm perplexity measures how well a model predicts a text"),
    (&["gpus", "gpu", "device", "adapters"], "wgslm devices lists what models can run on"),
    (&["check", "diagnose", "info-system", "status"], "wgslm doctor looks for problems"),
    (&["login", "logout", "auth"], "HF_TOKEN in the environment, or Hugging Face's hf auth login, gives a token"),
    (&["ps", "stop", "unload", "load"], "no model stays loaded after its command"),
    (&["detokenize", "tokens", "encode"], "wgslm tokenize turns text into ids, with --ids the reverse"),
    (&["completion"], "wgslm completions bash, zsh, fish, powershell or elvish"),
    (&["update", "upgrade", "version"], "wgslm --version says the version"),
];

/// The command line's arguments. What clap says of a mistake is followed by what would work here.
pub(super) fn parse() -> Result<Args, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    // -hf would be -h, and print the help.
    let swallowed = |word: &&OsString| ["-hf", "-hfr", "-hff", "-hft"].iter().any(|option| *word == option);
    let swallowed = words.iter().skip(1).take_while(|word| *word != "--").find(swallowed);
    if let Some(hint) = swallowed.and_then(|word| option_hint(None, &word.to_string_lossy())) {
        return Err(failed(&words, &hint));
    }
    let error = match Args::try_parse_from(&words) {
        Ok(args) => return Ok(args),
        Err(error) => error,
    };
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => command_hint(words.get(1)),
        ErrorKind::UnknownArgument
        | ErrorKind::InvalidValue
        | ErrorKind::ValueValidation
        // -mu is -m with a value, once more.
        | ErrorKind::ArgumentConflict
        | ErrorKind::TooManyValues
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::NoEquals => {
            let options = words.iter().skip(2).take_while(|word| *word != "--").map(|word| word.to_string_lossy());
            let all = Args::command();
            let command = words.get(1).and_then(|name| all.find_subcommand(name));
            options.filter(|word| word.starts_with('-')).find_map(|word| option_hint(command, &word))
        }
        _ => None,
    };
    if let Some(hint) = hint {
        return Err(failed(&words, &hint));
    }
    // Help and version are no errors, and go to stdout. Where it cannot be written nothing is left to say.
    let _ = error.print();
    Err(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)))
}

/// Prints a mistake with its hint, as clap prints its own.
fn failed(words: &[OsString], hint: &str) -> ExitCode {
    let command = words.get(1).and_then(|word| word.to_str());
    let known = command.filter(|name| Args::command().find_subcommand(name).is_some());
    let help = known.map_or("wgslm --help".to_owned(), |name| format!("wgslm {name} --help"));
    term::error(&format!("{hint}\n\nFor more information, try '{help}'."));
    ExitCode::from(2)
}

/// What does here what an option does elsewhere. An option that the command has is none of those.
fn option_hint(command: Option<&Command>, word: &str) -> Option<String> {
    let name = word.split('=').next().unwrap_or(word);
    if command.is_some_and(|command| has(command, name)) {
        return None;
    }
    let (_, hint) = OPTIONS.iter().find(|(names, _)| names.contains(&name))?;
    Some(format!("{name}: {hint}"))
}

/// Whether a command has an option, by its long or its short name.
fn has(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long)),
        None => arg.get_short().is_some_and(|short| name == format!("-{short}")),
    })
}

fn command_hint(word: Option<&OsString>) -> Option<String> {
    let word = word?.to_str()?;
    let (_, hint) = COMMANDS.iter().find(|(names, _)| names.contains(&word.to_ascii_lowercase().as_str()))?;
    Some(format!("{word}: no such command; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hint for what works would never be seen, or mislead.
    #[test]
    fn no_hint_is_for_what_there_is() {
        let command = Args::command();
        let run = command.find_subcommand("run").unwrap();
        for (names, hint) in OPTIONS {
            assert!(!hint.is_empty() && !hint.ends_with('.'), "{hint}");
            for name in *names {
                assert!(!has(run, name), "run has {name}");
            }
        }
        for (names, _) in COMMANDS {
            for name in *names {
                assert!(command.find_subcommand(name).is_none(), "{name} is a command");
            }
        }
    }

    #[test]
    fn hints_name_commands_and_options_that_there_are() {
        let command = Args::command();
        for (_, hint) in OPTIONS.iter().chain(COMMANDS) {
            let mut words = hint.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            while let Some(word) = words.next() {
                if word == "wgslm" {
                    let name = words.next().unwrap_or_default();
                    assert!(
                        name.starts_with('-') || command.find_subcommand(name).is_some(),
                        "wgslm {name} in {hint:?}"
                    );
                }
            }
        }
    }
}
