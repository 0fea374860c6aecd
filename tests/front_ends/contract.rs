//! The command line as a contract: what is said, on which stream, with which exit code. Each snapshot is a transcript of cases.
//!
//! After an intended change: `INSTA_UPDATE=always cargo nextest run --test front_ends contract`, and read the difference.
#![cfg(target_os = "linux")] // elsewhere the system has other words

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wgslm_test::data;

const MODEL: &str = "stories.gguf";

/// A folder with a model, where nothing is downloaded and no setting of the user's counts.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("contract-{name}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::copy(data("stories/stories-q8_0.gguf"), dir.join(MODEL)).unwrap();
        Self(dir)
    }

    /// A case as a reader would have typed it, and all that came back.
    fn case(&self, line: &str, vars: &[(&str, &str)], stdin: &str) -> String {
        let args = words(line);
        let mut command = Command::new(env!("CARGO_BIN_EXE_wgslm"));
        command.args(&args).current_dir(&self.0).env_clear();
        command.env("HOME", &self.0).env("HF_HUB_OFFLINE", "1").envs(vars.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Who does not read its stdin may be gone.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        let mut said = String::new();
        let vars: String = vars.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        writeln!(said, "$ {vars}wgslm {line}").unwrap();
        for (stream, mark) in [(&output.stdout, "  "), (&output.stderr, "! ")] {
            let text = std::str::from_utf8(stream).unwrap_or_else(|_| panic!("not UTF-8: {line}"));
            assert!(!text.contains('\x1b') && !text.contains("panicked"), "{line}: {text}");
            for shown in text.replace(&*self.0.to_string_lossy(), "HERE").lines() {
                writeln!(said, "{}", format!("{mark}{shown}").trim_end()).unwrap();
            }
        }
        writeln!(said, "? {}", output.status.code().map_or("a signal".to_owned(), |code| code.to_string())).unwrap();
        said
    }

    fn cases(&self, lines: &[&str]) -> String {
        lines.iter().map(|line| self.case(line, &[], "")).collect()
    }
}

/// The words of a line, single quotes as in a shell.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Every option of `run` that takes a number, and what it does not take.
const NUMBERS: &[&str] = &[
    "-n",
    "-c",
    "--threads",
    "--temp",
    "--top-k",
    "--top-p",
    "--min-p",
    "--typical",
    "--repeat-penalty",
    "--repeat-last-n",
    "--mirostat",
    "--seed",
    "--logprobs",
    "--xtc-probability",
    "--dry-multiplier",
];

/// Compares a transcript with the snapshot of its name.
macro_rules! assert_said {
    ($said:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($said) })
    };
}

#[test]
fn help() {
    let commands = [
        "run",
        "pull",
        "list",
        "rm",
        "logits",
        "template",
        "tokenize",
        "convert",
        "embed",
        "inspect",
        "devices",
        "doctor",
        "completions",
        "man",
        "verify",
    ];
    let mut all: Vec<String> = ["--help", "-h", "help", "", "--version", "-V"].map(str::to_owned).to_vec();
    all.extend(commands.iter().map(|command| format!("{command} --help")));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_said!(Place::new("help").cases(&all));
}

#[test]
fn commands_of_other_programs() {
    let place = Place::new("commands");
    assert_said!(place.cases(&[
        "chat",
        "generate x",
        "server --port 80",
        "download a/b",
        "remove a/b",
        "delete a/b",
        "models",
        "info x",
        "quantize x y",
        "embedding",
        "rerank",
        "benchmark",
        "ppl",
        "gpus",
        "check",
        "login",
        "ps",
        "stop x",
        "detokenize",
        "completion bash",
        "version",
        "rum",
        "pul a/b",
        "lits",
        "inspekt x",
        "frobnicate",
        "Chat",
        "-x",
        "--frobnicate",
        "ls --frobnicate"
    ]));
}

#[test]
fn options_of_other_programs() {
    let place = Place::new("options");
    let options = [
        "-ngl 99",
        "--n-gpu-layers 99",
        "--gpu-layers=99",
        "-fa",
        "--flash-attn on",
        "-hf org/repo",
        "--hf-repo org/repo",
        "-mu https://x/y.gguf",
        "-ctk q8_0",
        "--cache-type-v f16",
        "-sm row",
        "-ts 1,1",
        "-mg 0",
        "-b 512",
        "-ub 512",
        "-np 4",
        "-tb 4",
        "--mlock",
        "--numa distribute",
        "--mmap",
        "-cnv",
        "-no-cnv",
        "-i",
        "-sys x",
        "-f file",
        "--file file",
        "-e",
        "--jinja",
        "--chat-template chatml",
        "--grammar x",
        "--json-schema {}",
        "-j {}",
        "--lora x",
        "--mmproj x",
        "--image x",
        "-md x",
        "--color",
        "--no-display-prompt",
        "--rope-scaling yarn",
        "--ignore-eos",
        "--keepalive 5m",
        "--nowordwrap",
        "--samplers top_k",
        "--stop x",
        "-r x",
        "--frobnicate",
        "-Z",
    ];
    let lines: Vec<String> = options.iter().map(|option| format!("run -m {MODEL} Hi {option}")).collect();
    let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    // The same letters mean something to other commands.
    lines.extend(["bench -r 0", "convert -f x", "pull -ngl 1 a/b", "tokenize --flash-attn"]);
    assert_said!(place.cases(&lines));
}

#[test]
fn numbers_out_of_range() {
    let place = Place::new("numbers");
    let mut lines = Vec::new();
    for option in NUMBERS {
        for value in ["-2", "x", "99999999999999999999999"] {
            lines.push(format!("run -m {MODEL} Hi --json {option} {value}"));
        }
    }
    for option in [
        "--temp nan",
        "--temp inf",
        "--temp 101",
        "--top-p 0",
        "--top-p 1.01",
        "--min-p nan",
        "--logit-bias 5",
        "--logit-bias x=1",
        "--logit-bias 5=nan",
        "--device moon",
        "--device -1",
        "--numerics rough",
        "--kv-type q1",
        "--quantize Q9",
        "--logprobs 21",
    ] {
        lines.push(format!("run -m {MODEL} Hi --json {option}"));
    }
    lines.push(format!("run -m {MODEL} Hi --logprobs 3"));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_said!(place.cases(&lines));
}

#[test]
fn models_that_are_not_there() {
    let place = Place::new("models");
    fs::create_dir(place.0.join("empty")).unwrap();
    fs::write(place.0.join("text.gguf"), "not a model").unwrap();
    fs::write(place.0.join("notes.txt"), "not a model").unwrap();
    assert_said!(place.cases(&[
        "run llama3.2",
        "run llama3.2:1b Hi",
        "run qwen3 Hi",
        "run -m mistral Hi",
        "run org/repo Hi",
        "run -m org/repo:Q4_K_M Hi",
        "run and/or",
        "run hf.co/org Hi",
        "run https://example.org/ Hi",
        "run https://example.org/x.gguf Hi",
        "run -m missing.gguf Hi",
        "run ./missing.gguf",
        "run empty -n 4 --temp 0 --device cpu",
        "run -m empty Hi",
        "run -m text.gguf Hi",
        "run text.gguf",
        "run notes.txt",
        "run Once upon",
        "run Once upon a time",
        "run -m stories.gguf a b",
        "run -m stories.gguf a -p b",
        "run a b -p c",
        "show org/repo",
        "inspect nothing",
        "convert nothing -o x.gguf",
        "convert org/repo -o x.gguf",
        "pull",
        "pull llama3.2",
        "pull stories.gguf",
        "pull org/repo",
        "pull org/repo:",
        "pull a/b/c",
        "pull https://me:secret@example.org/x.gguf",
        "rm",
        "rm org/repo",
        "rm -y llama3.2",
        "rm -y org/repo:Q4_0",
        "list",
        "list --json",
        "tokenize -m org/repo",
        "embed -m nothing x",
        "bench -m nothing",
        "perplexity -m nothing -f notes.txt",
        "doctor -m nothing"
    ]));
}

#[test]
fn answers() {
    let place = Place::new("answers");
    let with = |args: &str| format!("run -m {MODEL} --device cpu --temp 0 {args}");
    let mut said = String::new();
    for (args, stdin) in [
        ("'The dog' -n 12", ""),
        ("'The dog' -n 0", ""),
        ("-n 12", "The dog\n"),
        ("The -n 12", "dog"),
        ("-p 'The dog' -n 12", "not read"),
        ("'The dog' -n 12 --raw", ""),
        ("'The dog' -n 12 --system x", ""),
        ("'The dog' -n 12 -c 4", ""),
    ] {
        said += &place.case(&with(args), &[], stdin);
    }
    said += &place.case(&format!("run {MODEL} 'The dog' --device cpu --temp 0 -n 12"), &[], "");
    said += &place.case("run . 'The dog' --device cpu --temp 0 -n 12", &[], "");
    said += &place.case(&format!("tokenize -m {MODEL}"), &[], "Once upon a time");
    said += &place.case(&format!("tokenize -m {MODEL} --ids"), &[], "350,354");
    said += &place.case(&format!("tokenize -m {MODEL} --ids"), &[], "512");
    said += &place.case("template --input -", &[], r#"[{"role": "user", "content": "Hello"}]"#);
    said += &place.case("template --input -", &[], "{");
    said += &place.case(&format!("inspect {MODEL}"), &[], "");
    said += &place.case(&format!("convert {MODEL} -t Q9 -o x.gguf"), &[], "");
    said += &place.case(&format!("convert {MODEL} -t Q8_0 -o {MODEL}"), &[], "");
    assert_said!(said);
}

#[test]
fn variables_stand_for_options() {
    let place = Place::new("variables");
    let args = "run 'The dog' -n 8 --temp 0 --device cpu";
    let mut said = String::new();
    for vars in [
        &[("WGSLM_MODEL", MODEL)][..],
        &[("WGSLM_MODEL", "missing.gguf")],
        &[("WGSLM_MODEL", MODEL), ("WGSLM_SYSTEM", "x")],
    ] {
        said += &place.case(args, vars, "");
    }
    for (name, value) in [
        ("WGSLM_DEVICE", "moon"),
        ("WGSLM_NUMERICS", "rough"),
        ("WGSLM_KV_TYPE", "q1"),
        ("WGSLM_THREADS", "0"),
        ("WGSLM_CONTEXT", "x"),
        ("WGSLM_MAX_TOKENS", "-3"),
        ("WGSLM_TEMP", "hot"),
        ("WGSLM_TOP_K", "-1"),
        ("WGSLM_TOP_P", "7"),
        ("WGSLM_MIN_P", "x"),
        ("WGSLM_SEED", "x"),
        ("WGSLM_REPEAT_PENALTY", "x"),
        ("WGSLM_TUNING", "missing"),
        ("HF_ENDPOINT", "nowhere"),
    ] {
        let model = if name == "HF_ENDPOINT" { "org/repo" } else { MODEL };
        said += &place.case(
            &format!("run -m {model} Hi --json"),
            &[(name, value), ("VK_DRIVER_FILES", "/nonexistent"), ("VK_ICD_FILENAMES", "/nonexistent")]
                [..if name == "WGSLM_TUNING" { 3 } else { 1 }],
            "",
        );
    }
    // What the line says counts more.
    said += &place.case(
        &format!("{args} -m {MODEL}"),
        &[("WGSLM_MODEL", "missing.gguf"), ("WGSLM_DEVICE", "moon"), ("WGSLM_TEMP", "5")],
        "",
    );
    assert_said!(said);
}

#[test]
fn completions_and_manual() {
    let place = Place::new("completions");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let said = place.case(&format!("completions {shell}"), &[], "");
        for word in ["pull", "doctor", "max-tokens", "? 0"] {
            assert!(said.contains(word), "{shell}: {word}");
        }
        assert!(!said.contains("\n! "), "{shell}: something on stderr");
    }
    let mut said = place.cases(&["completions", "completions csh", "man", "man pages", "man stories.gguf"]);
    let mut pages: Vec<_> = fs::read_dir(place.0.join("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    said += &pages.join("\n");
    assert_said!(said);
    let page = fs::read_to_string(place.0.join("pages/wgslm-run.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("max\\-tokens"), "{page}");
    // A shell that is here reads its own.
    let bash = place.0.join("wgslm.bash");
    let script = Command::new(env!("CARGO_BIN_EXE_wgslm")).args(["completions", "bash"]).output().unwrap().stdout;
    fs::write(&bash, script).unwrap();
    if let Ok(status) = Command::new("bash").arg("-n").arg(&bash).status() {
        assert!(status.success());
    }
}

#[test]
fn doctor() {
    let place = Place::new("doctor");
    let no_driver = [("VK_DRIVER_FILES", "/nonexistent"), ("VK_ICD_FILENAMES", "/nonexistent")];
    let said = place.case("doctor", &no_driver, "");
    for words in [
        "ok wgslm",
        "ok CPU",
        "GPU",
        "0 models in HERE/.cache/huggingface/hub",
        "https://huggingface.co, offline, token none",
        "HERE/.cache/wgslm/devices.tsv",
        "? 0",
        "HF_HUB_OFFLINE=1",
    ] {
        assert!(said.contains(words), "{words:?} in {said}");
    }
    let json = |line: &str| -> serde_json::Value {
        let said = place.case(line, &no_driver, "");
        let shown: String =
            said.lines().filter_map(|line| line.strip_prefix("  ")).map(|line| line.to_owned() + "\n").collect();
        assert!(said.ends_with("? 0\n"), "{said}");
        serde_json::from_str(&shown).unwrap_or_else(|e| panic!("{e}: {said}"))
    };
    let report = json(&format!("doctor --json -m {MODEL}"));
    assert!(report["cpu"]["threads"].as_u64().unwrap() > 0 && report["hub"]["writable"] == true);
    assert_eq!(report["problems"], 0);
    assert_eq!(report["model"]["memory"][1]["context"], 512);
    assert!(report["model"]["weights"].as_u64().unwrap() > 250_000);
    if cfg!(target_os = "linux") {
        assert_eq!(report["adapters"].as_array().unwrap().len(), 0);
        for device in ["gpu", "7"] {
            let said = place.case(&format!("doctor --device {device}"), &no_driver, "");
            assert!(
                said.ends_with("? 6\n") && said.contains("!! device") && said.contains("-> --device cpu works"),
                "{said}"
            );
        }
        // A cache that cannot be used, and one that cannot be found.
        let said = place.case("doctor", &[("HF_HUB_CACHE", "/dev/null/x")], "");
        assert!(said.contains("it cannot be written") && said.contains("HF_HUB_CACHE=FOLDER"), "{said}");
    }
    let said = place.case("doctor --device cpu", &no_driver, "");
    assert!(said.ends_with("? 0\n"), "{said}");
}

/// Adapters, as far as their drivers say the same everywhere.
#[test]
fn doctor_sees_lavapipe() {
    let place = Place::new("doctor-lavapipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgslm"));
    command
        .args(["doctor", "--json"])
        .env("HF_HUB_CACHE", &place.0)
        .env("XDG_CACHE_HOME", &place.0)
        .stdin(Stdio::null());
    let report: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let adapters = report["adapters"].as_array().unwrap();
    let lavapipe =
        adapters.iter().find(|adapter| adapter["name"].as_str().unwrap().contains("llvmpipe")).expect("lavapipe");
    assert_eq!((lavapipe["kind"].as_str(), lavapipe["backend"].as_str()), (Some("software"), Some("vulkan")));
    assert!(
        lavapipe["limits"]["max_binding"].as_u64().unwrap() >= 128 << 20 && lavapipe["f16"].is_boolean(),
        "{lavapipe}"
    );
    assert!(lavapipe["driver"].as_str().unwrap().contains("Mesa") && lavapipe["subgroups"].is_array(), "{lavapipe}");
    let findings = report["findings"].as_array().unwrap();
    let advice = findings.iter().find(|f| f["found"].as_str().unwrap().contains("llvmpipe")).unwrap();
    assert!(
        advice["status"] == "warning" && advice["advice"].as_str().unwrap().contains("--device cpu is faster"),
        "{advice}"
    );
}
