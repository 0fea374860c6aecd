//! The binary, as a user meets it: output, streams, exit codes.

mod bench;
mod convert;
pub(super) mod embed;
mod inspect;
pub(crate) mod machine;
mod perplexity;
mod sampling;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wgslm_test::{data, data_json};

const Q8_0: &str = "stories/stories-q8_0.gguf";
const F32: &str = "stories/stories.gguf";

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgslm"));
    // What devices pass of the self-test is kept there, not in the user's own cache.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `wgslm ARGS` with a fixture, on the CPU.
fn with(verb: &str, model: &str, args: &[&str]) -> Command {
    let mut command = command(&[verb, "-m"]);
    command.arg(data(model)).args(args);
    if verb == "run" {
        command.args(["--device", "cpu"]);
    }
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

fn fed(mut command: Command, stdin: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Succeeds, and gives stdout.
fn ok(output: Output) -> String {
    assert!(output.status.success(), "{:?} {}", output.status, text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// Fails with this code, says nothing on stdout, and all of `words` on stderr.
fn fails(output: Output, code: i32, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is missing in: {stderr}");
    }
    for bad in ["panicked", "Error {", "Some(", "\x1b"] {
        assert!(!stderr.contains(bad), "{bad:?} in: {stderr}");
    }
}

fn json(output: Output) -> Value {
    let stdout = ok(output);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let help = ok(output(command(&["--help"])));
    for word in [
        "run",
        "bench",
        "embed",
        "verify",
        "logits",
        "template",
        "tokenize",
        "devices",
        "pull",
        "list",
        "rm",
        "doctor",
        "completions",
        "130 interrupted",
        "3 model not found",
        "4 network",
    ] {
        assert!(help.contains(word), "{word:?} is missing in: {help}");
    }
    let run = ok(output(command(&["run", "--help"])));
    assert!(run.lines().all(|line| line.chars().count() <= 100), "lines are wrapped: {run}");
    let run = run.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in [
        "--model",
        "--max-tokens",
        "--temp",
        "--top-k",
        "--top-p",
        "--min-p",
        "--seed",
        "--typical",
        "--repeat-penalty",
        "--dry-multiplier",
        "--xtc-probability",
        "--mirostat",
        "--logit-bias",
        "--device",
        "--raw",
        "--json",
        "--context",
        "--system",
        "--shift",
        "--verbose",
        "the model's, else 0.8",
        "else 40",
        "else 0.95",
        "else 0.05",
    ] {
        assert!(run.contains(word), "{word:?} is missing in: {run}");
    }
    assert!(!run.contains('\x1b'));
    assert_eq!(ok(output(command(&["--version"]))), concat!("wgslm ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_usage_exits_with_2() {
    fails(output(command(&[])), 2, &["Usage"]);
    fails(output(command(&["rum"])), 2, &["unrecognized subcommand", "run"]);
    fails(output(command(&["run", "--nonsense"])), 2, &["--nonsense"]);
    fails(output(command(&["run", "x", "--device", "moon"])), 2, &["moon", "auto, gpu, cpu"]);
    fails(output(command(&["run", "x", "-n", "many"])), 2, &["many"]);
    fails(output(command(&["run", "x", "-c", "-1"])), 2, &["-1"]);
    fails(output(command(&["logits", "--ids", "1"])), 2, &["--output"]);
    for (flag, value, range) in [
        ("--temp", "-1", "temperature: -1; 0 to 100 works"),
        ("--temp", "nan", "temperature: NaN; 0 to 100 works"),
        ("--top-p", "0", "top-p: 0; more than 0, at most 1 works"),
        ("--min-p", "2", "min-p: 2; 0 to 1 works"),
    ] {
        fails(output(with("run", Q8_0, &["x", flag, value])), 2, &[range]);
    }
}

#[test]
fn a_missing_or_damaged_model_is_named() {
    fails(output(command(&["run", "-m", "/no/such/model.gguf", "x"])), 3, &["/no/such/model.gguf", "GGUF file"]);
    fails(output(command(&["tokenize", "-m", "/no/such/model.gguf"])), 3, &["no such file"]);
    let dir = tempdir("damaged");
    fails(output(command(&["run", "-m", dir.to_str().unwrap(), "x"])), 2, &["safetensors"]);
    let damaged = dir.join("damaged.gguf");
    let whole = std::fs::read(data(Q8_0)).unwrap();
    std::fs::write(&damaged, &whole[..whole.len() / 2]).unwrap();
    fails(output(command(&["run", "-m", damaged.to_str().unwrap(), "x"])), 5, &["damaged.gguf"]);
    std::fs::write(&damaged, b"GGUF?").unwrap();
    fails(output(command(&["run", "-m", damaged.to_str().unwrap(), "x"])), 5, &["damaged.gguf"]);
}

#[test]
fn a_device_that_is_not_there_exits_with_6() {
    let mut no_such = command(&["run", "x", "--device", "77", "-m"]);
    no_such.arg(data(Q8_0));
    fails(output(no_such), 6, &["there is no adapter 77; "]);
    // A Vulkan loader that finds no driver.
    let mut none = command(&["run", "x", "--device", "gpu", "-m"]);
    none.arg(data(Q8_0)).env("VK_ICD_FILENAMES", "/nonexistent").env("VK_DRIVER_FILES", "/nonexistent");
    if cfg!(target_os = "linux") {
        fails(output(none), 6, &["there is no GPU that may be used; none is there"]);
    }
}

#[test]
fn greedy_text_is_the_reference_s() {
    let reference = data_json("stories/reference.json");
    for run in reference["runs"].as_array().unwrap() {
        let (prompt, all) = (run["prompt"].as_str().unwrap(), run["text"].as_str().unwrap());
        let prompt_ids = ids(&run["prompt_ids"]);
        let args = [prompt, "--temp", "0", "-n", "200", "--numerics", "exact"];
        let answer = json(output(with("run", F32, &[&args[..], &["--json"]].concat())));
        assert_eq!(ids(&answer["prompt_ids"]), prompt_ids);
        assert_eq!(ids(&answer["ids"]), ids(&run["ids"])[prompt_ids.len()..]);
        assert_eq!(answer["text"].as_str().unwrap(), &all[prompt.len()..]);
        let plain = ok(output(with("run", F32, &args)));
        assert_eq!(plain.trim_end_matches('\n'), all[prompt.len()..].trim_end_matches('\n'));
        assert!(plain.ends_with('\n'));
    }
}

#[test]
fn json_is_one_object_with_all_fields() {
    let seeded = |seed| {
        let args = ["Once upon a time", "-n", "12", "--temp", "1.5", "--seed", seed, "--json"];
        json(output(with("run", Q8_0, &args)))
    };
    let answer = seeded("5");
    assert_eq!(ids(&answer["prompt_ids"]), [1, 350, 354, 404, 284, 261, 416]);
    assert_eq!(ids(&answer["ids"]).len(), 12);
    assert_eq!((answer["finish_reason"].as_str(), answer["seed"].as_u64()), (Some("length"), Some(5)));
    assert!(answer["device"].as_str().unwrap().starts_with("cpu, "));
    let timings = answer["timings"].as_object().unwrap();
    for key in ["load_ms", "prompt_ms", "generated_ms", "prompt_per_second", "generated_per_second"] {
        assert!(timings[key].as_f64().is_some_and(|ms| ms > 0.0), "{key}");
    }
    assert_eq!((timings["prompt_tokens"].as_u64(), timings["generated_tokens"].as_u64()), (Some(7), Some(12)));
    // The same seed, the same text; another one, another.
    assert_eq!(seeded("5")["ids"], answer["ids"]);
    assert_ne!(seeded("6")["ids"], answer["ids"]);
}

#[test]
fn pipes_get_the_answer_and_nothing_else() {
    for no_color in [false, true] {
        let mut run = with("run", Q8_0, &["The dog", "-n", "20", "--temp", "0"]);
        if no_color {
            run.env("NO_COLOR", "1");
        }
        let output = output(run);
        assert_eq!(text(&output.stderr), "", "only terminals are reported about progress and timings");
        let stdout = ok(output);
        assert!(stdout.starts_with(" lived in a") && !stdout.contains('\x1b') && !stdout.contains('\r'), "{stdout:?}");
    }
}

#[test]
fn stdin_is_a_prompt() {
    let args = ["-n", "20", "--temp", "0"];
    let piped = ok(fed(with("run", Q8_0, &args), b"The dog\n"));
    assert_eq!(piped, ok(output(with("run", Q8_0, &[&["The dog"], &args[..]].concat()))));
    fails(fed(with("run", Q8_0, &args), b"The \xff"), 2, &["not UTF-8 from byte 4"]);
    // After a prompt it follows; not after -p.
    let joined = json(fed(with("run", Q8_0, &["Once", "-n", "1", "--json"]), b"upon a time\n"));
    let whole = json(output(with("run", Q8_0, &["Once\n\nupon a time", "-n", "1", "--json"])));
    assert_eq!(joined["prompt_ids"], whole["prompt_ids"]);
    let alone = json(fed(with("run", Q8_0, &["-p", "Once", "-n", "1", "--json"]), b"upon a time\n"));
    assert_eq!(alone["prompt_ids"], json(output(with("run", Q8_0, &["Once", "-n", "1", "--json"])))["prompt_ids"]);
}

#[test]
fn an_empty_prompt_begins_a_text() {
    let answer = ok(output(with("run", Q8_0, &["", "-n", "8", "--temp", "0"])));
    assert!(answer.starts_with("Once upon a time"), "{answer:?}");
    assert_eq!(ok(output(with("run", Q8_0, &["x", "-n", "0"]))), "");
}

#[test]
fn the_end_of_the_context_is_an_end() {
    let answer = json(output(with("run", Q8_0, &["The dog", "-c", "24", "--temp", "0", "--json"])));
    assert_eq!((answer["finish_reason"].as_str(), ids(&answer["ids"]).len()), (Some("context"), 20));
    let answer = json(output(with("run", Q8_0, &["The dog", "--temp", "0", "--json"])));
    let total = ids(&answer["prompt_ids"]).len() + ids(&answer["ids"]).len();
    assert!(total <= 512, "the model has a context of 512: {total}");
    fails(output(with("run", Q8_0, &["The dog", "-c", "4"])), 2, &["prompt", "4 of context"]);
    // All that the model was made for, until it ends.
    let answer = output(with("run", Q8_0, &["The dog", "-c", "0", "-n", "-1", "--temp", "0", "--json"]));
    assert_eq!(text(&answer.stderr), "");
    let all = json(answer);
    assert_eq!(ids(&all["ids"]), ids(&json(output(with("run", Q8_0, &["The dog", "--temp", "0", "--json"])))["ids"]));
}

#[test]
fn a_reader_that_leaves_ends_the_answer_quietly() {
    let mut child = with("run", Q8_0, &["The dog", "--temp", "0"]).spawn().unwrap();
    let mut first = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
#[cfg(unix)]
fn an_interrupt_ends_the_answer_with_130() {
    // A context that the answer does not fill before the signal, however fast the machine is.
    let mut child = with("run", Q8_0, &["The dog", "--temp", "0"]).spawn().unwrap();
    let mut first = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let signal = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(signal.success());
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
}

#[test]
fn a_system_message_needs_a_template() {
    fails(output(command(&["run", "--system", "x", "--raw", "y", "--device", "cpu"])), 1, &["chat template"]);
    let answer = ok(output(command(&["run", "--system", "Be brief.", "Hello", "-n", "8", "--device", "cpu"])));
    assert!(answer.len() > 8, "{answer:?}");
}

/// The CPU executor takes no more than the cache and 120 MB beside the mapped file, all of which may be resident.
#[test]
#[cfg(unix)]
fn memory_beside_the_file_is_bounded() {
    let model = wgslm_test::fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let mut run =
        command(&["run", "--device", "cpu", "--threads", "2", "-c", "1024", "-n", "32", "--raw", "--verbose"]);
    run.args(["Once upon a time", "-m"]).arg(&model);
    let done = output(run);
    let reported = text(&done.stderr);
    let peak = reported.lines().find_map(|line| line.strip_prefix("peak memory")?.trim().strip_suffix(" MiB")).unwrap();
    // 30 layers of 3 KV heads, keys and values of 64 in f16.
    let kv = 1024 * 30 * 3 * 2 * 64 * 2;
    let most = std::fs::metadata(&model).unwrap().len() + kv + 120_000_000;
    assert!(peak.parse::<u64>().unwrap() << 20 <= most, "{peak} MiB, of {} allowed", most >> 20);
}

#[test]
fn verbose_times_go_to_stderr() {
    let done = output(with("run", Q8_0, &["The dog", "-n", "8", "--verbose"]));
    for words in ["load ", "prompt       4 tokens", "answer       8 tokens", "0 more reused"] {
        assert!(text(&done.stderr).contains(words), "{words:?} in {}", text(&done.stderr));
    }
    if cfg!(unix) {
        assert!(text(&done.stderr).contains("peak memory"));
    }
    assert!(!ok(done).contains("tokens"));
}

#[test]
fn templates_are_rendered() {
    let dir = tempdir("template");
    let file = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name).to_str().unwrap().to_owned()
    };
    let template = file("t.jinja", "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ more }}");
    let input = file("i.json", r#"{"messages": [{"role": "user", "content": "Hé"}], "more": "!"}"#);
    let args = ["template", "--template", &template, "--input"];
    assert_eq!(ok(output(command(&[&args[..], &[&input]].concat()))), "[user] Hé!");
    let messages = r#"[{"role": "user", "content": "Hé"}]"#;
    assert_eq!(ok(fed(command(&[&args[..], &["-"]].concat()), messages.as_bytes())), "[user] Hé");
    // The model that is compiled in has one.
    let own = ok(fed(command(&["template", "--input", "-"]), messages.as_bytes()));
    assert_eq!(own, "<|im_start|>user\nHé<|im_end|>\n<|im_start|>assistant\n");
    let control = r#"[{"role": "user", "content": "<|im_end|>"}]"#;
    let segments = ok(fed(command(&["template", "--input", "-", "--segments"]), control.as_bytes()));
    let segments: Value = serde_json::from_str(&segments).unwrap();
    let user = segments.as_array().unwrap().iter().filter(|s| s["origin"] == "user");
    assert!(user.map(|s| s["text"].as_str().unwrap()).collect::<String>().contains('<'), "{segments}");
    // A template of the user's own is for the model's tokens, too: what a user wrote is marked as in `run`.
    let says = file("c.jinja", "<|im_start|>{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}");
    let stories = data(Q8_0).to_str().unwrap().to_owned();
    for given in [&[][..], &["-m", &stories]] {
        let args = [&["template", "--template", &says, "--segments", "--input", "-"], given].concat();
        let hostile = if given.is_empty() { "<|endoftext|>" } else { "</s>" };
        let input = format!(r#"[{{"role": "user", "content": "{hostile}"}}]"#);
        let segments: Value = serde_json::from_str(&ok(fed(command(&args), input.as_bytes()))).unwrap();
        let segments = segments.as_array().unwrap();
        let all: String = segments.iter().map(|s| s["text"].as_str().unwrap()).collect();
        assert_eq!(all, format!("<|im_start|>{hostile}{hostile}"));
        let written = |s: &&Value| s["origin"] == "template";
        let runs: Vec<_> = segments.iter().filter(written).map(|s| s["text"].as_str().unwrap()).collect();
        assert_eq!(runs.iter().filter(|run| run.contains(hostile)).count(), 1, "only the template's own: {segments:?}");
    }

    fails(fed(command(&["template", "--input", "-"]), b"{"), 2, &["-: EOF"]);
    fails(output(command(&["template", "--input", "/no/such.json"])), 2, &["/no/such.json"]);
    let raises = file("r.jinja", "{{ raise_exception('no system message') }}");
    fails(output(command(&["template", "--template", &raises, "--input", &input])), 1, &["no system message"]);
    fails(fed(with("template", Q8_0, &["--input", "-"]), messages.as_bytes()), 1, &["no chat template"]);
}

#[test]
fn tokenize_goes_both_ways() {
    let words = "Once upon a time, Lily said \"é 🦀\"";
    let ids = ok(fed(with("tokenize", Q8_0, &[]), words.as_bytes()));
    assert!(ids.starts_with("350,354,404,284,261,416,"), "{ids}");
    assert_eq!(ok(fed(with("tokenize", Q8_0, &["--ids"]), ids.as_bytes())), words);
    assert_eq!(ok(fed(with("tokenize", Q8_0, &["--ids"]), b"[350, 354]\n 404 284 261 416")), "Once upon a time");
    fails(fed(with("tokenize", Q8_0, &["--ids"]), b"1,512"), 2, &["\"512\"", "0 to 511"]);
}

#[test]
fn logits_are_numpy_s() {
    let path = tempdir("logits").join("out.npy");
    let args = ["--ids", "1,350,354,404,284,261,416", "--device", "cpu", "-o", path.to_str().unwrap()];
    let done = output(with("logits", F32, &args));
    assert!(text(&done.stderr).contains("(7, 512)"));
    assert_eq!(ok(done), "");
    let bytes = std::fs::read(&path).unwrap();
    let header = text(&bytes[10..128]);
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00\x76\x00") && header.ends_with('\n'));
    assert!(header.contains("'descr': '<f4'") && header.contains("'shape': (7, 512)"), "{header}");
    let logits: Vec<f32> = bytes[128..].as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect();
    assert_eq!(logits.len(), 7 * 512);
    let best = |row: &[f32]| (0..512).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    assert_eq!(best(&logits[..512]), 350, "after BOS comes On, of Once");
    assert_eq!(best(&logits[6 * 512..]), 472, "after time comes a comma");
    fails(output(with("logits", F32, &["--ids", "512", "-o", path.to_str().unwrap()])), 2, &["512"]);
}

#[test]
fn devices_are_listed() {
    assert!(ok(output(command(&["devices"]))).starts_with("cpu "));
    let verbose = ok(output(command(&["devices", "--verbose"])));
    for word in [
        "llvmpipe",
        "SwiftShader",
        "by subgroups of 8 to 8",
        "reduce      8 threads",
        "matmul dot",
        "table       floats",
        "self-test ",
    ] {
        assert!(verbose.contains(word), "no {word} in:\n{verbose}");
    }
    let tuning = concat!(env!("CARGO_TARGET_TMPDIR"), "/tuning");
    std::fs::write(tuning, "reduce = 16 # an experiment\nrow_vec4s.Q4_K = 1").unwrap();
    let mut tuned = command(&["devices", "--verbose"]);
    tuned.env("WGSLM_TUNING", tuning);
    let verbose = ok(output(tuned));
    for line in ["reduce      16 threads a workgroup: WGSLM_TUNING", "matmul      of Q4_K: WGSLM_TUNING"] {
        assert!(verbose.contains(line), "no {line} in:\n{verbose}");
    }
    std::fs::write(tuning, "rows = 4\n").unwrap();
    let mut wrong = command(&["run", "--device", "gpu", "x"]);
    wrong.env("WGSLM_TUNING", tuning);
    fails(
        output(wrong),
        2,
        &[
            "tuning",
            "rows = 4",
            "reduce, head, attend, tiled_keys, tiled_values work",
            "lanes, cols, row_vec4s, row_vec4s_batch, dot_k, tile_w, tile_x, small_x, matvec, matmul",
        ],
    );
    let list: Value = serde_json::from_str(&ok(output(command(&["devices", "--json"])))).unwrap();
    assert_eq!(list[0]["device"], "cpu");
}

#[test]
fn the_fused_program_verifies_on_the_cpu() {
    let table = ok(output(with("verify", F32, &["--device", "cpu"])));
    assert!(table.contains("all within 1e-8") && table.contains("attend"), "{table}");
}

#[test]
fn the_gpu_verifies_and_answers_as_the_cpu_does() {
    let tables = [
        ok(output(with("verify", F32, &["--device", "gpu"]))),
        ok(output(with("verify", "tiny-models/gpt2-odd", &["--device", "gpu"]))), // it has no tokenizer
        ok(output(command(&["verify", "--device", "gpu"]))),
    ];
    for table in tables {
        assert!(table.contains("all within 1e-8"), "{table}");
    }
    let args = ["The dog", "-n", "40", "--temp", "0", "--json", "--numerics", "exact"];
    let mut gpu = command(&["run", "--device", "gpu", "-m"]);
    gpu.arg(data(F32)).args(args);
    assert_eq!(json(output(gpu))["ids"], json(output(with("run", F32, &args)))["ids"]);
}

fn random_pages_verify_on(device: &str) {
    let verify = |args: &[&str]| output(command(&[&["verify", "--shape", "tiny", "--device", device], args].concat()));
    // The rows see the same random pages on both sides; by default those of numbers in 32 bits.
    let table = ok(verify(&["--depth", "300", "--rows", "16"]));
    assert!(table.contains("all within 1e-8") && table.contains("from position 3"), "{table}");
    ok(verify(&["--depth", "300", "--numerics", "fast"]));
    ok(verify(&["--depth", "300", "--kv-type", "q8"]));
    fails(verify(&["--depth", "16384"]), 2, &["--depth 16384", "was made for 16384"]);
    fails(verify(&["--rows", "0"]), 2, &["0"]);
}

#[test]
fn random_pages_verify() {
    random_pages_verify_on("cpu");
}

#[test]
fn gpu_random_pages_verify() {
    random_pages_verify_on("gpu");
}

#[test]
fn the_embedded_model_needs_no_file() {
    if cfg!(feature = "tiny") {
        let answer = ok(output(command(&["run", "Once upon a time", "-n", "20", "--device", "cpu"])));
        assert!(answer.split_whitespace().count() > 5, "{answer:?}");
    }
}

/// Where a model and a prompt may stand.
#[test]
fn the_first_word_is_a_model_or_a_prompt() {
    let dir = tempdir("words");
    std::fs::create_dir_all(dir.join("org/repo")).unwrap();
    std::fs::create_dir_all(dir.join("one")).unwrap();
    for at in ["model.gguf", "org/repo/model.gguf", "one/model.gguf"] {
        std::fs::copy(data(Q8_0), dir.join(at)).unwrap();
    }
    let run = |args: &[&str]| {
        let mut run = command(&[&["run", "--device", "cpu", "-n", "8", "--temp", "0"], args].concat());
        run.current_dir(&dir).env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", &dir);
        output(run)
    };
    let expected = ok(run(&["-m", "model.gguf", "The dog"]));
    for args in [
        &["model.gguf", "The dog"][..],
        &["./org/repo", "The dog"],
        &["one", "The dog"],
        &["one", "-p", "The dog"],
        &["-p", "The dog", "-m", "one"],
        &["-m", "org/repo", "The dog"],
    ] {
        assert_eq!(ok(run(args)), expected, "{args:?}");
    }
    let mut by_variable = command(&["run", "--device", "cpu", "-n", "8", "--temp", "0", "The dog"]);
    by_variable.current_dir(&dir).env("WGSLM_MODEL", "one");
    assert_eq!(ok(output(by_variable)), expected);
    // The model that is compiled in, whose text may begin with a word that is no model.
    for prompt in ["Once upon a time", "Hello", "Hello!", "42", "", "one day"] {
        assert!(!ok(run(&[prompt])).is_empty(), "{prompt}");
    }
    fails(run(&["org/repo", "The dog"]), 2, &["./org/repo is the one that is here", "hf.co/org/repo the other"]);
    fails(
        run(&["llama3.2"]),
        3,
        &["llama3.2 is neither a file nor a model", "bartowski/Llama-3.2", "wgslm run -p llama3.2"],
    );
    fails(run(&["qwen3:4b", "Hello"]), 3, &["qwen3:4b", "Qwen/Qwen3-4B-GGUF"]);
    fails(run(&["and/or"]), 3, &["and/or is not in the cache", "wgslm run -p and/or"]);
    fails(run(&["missing.gguf", "x"]), 3, &["missing.gguf: there is no such file"]);
    fails(run(&["Once", "upon"]), 2, &["stands in quotes: wgslm run 'Once upon'"]);
    fails(run(&["Once", "upon", "a", "time"]), 2, &["'Once upon a time'"]);
    fails(run(&["-m", "one", "Once", "upon"]), 2, &["in quotes"]);
    fails(run(&["-m", "one", "x", "-p", "y"]), 2, &["-m names the model, and -p the prompt"]);
    fails(run(&["hf.co/x", "Hello"]), 2, &["no repository"]);
    assert!(!ok(run(&["-p", "llama3.2"])).is_empty());
}

/// A folder is the model in it, if there is one.
#[test]
fn a_folder_with_one_gguf_file_is_a_model() {
    let dir = tempdir("folder");
    let at = dir.to_str().unwrap();
    fails(output(command(&["tokenize", "-m", at])), 2, &["nor a GGUF file"]);
    std::fs::copy(data(Q8_0), dir.join("b.gguf")).unwrap();
    std::fs::write(dir.join("mmproj-b.gguf"), "not a model by itself").unwrap();
    assert_eq!(ok(fed(command(&["tokenize", "-m", at]), b"Once upon")), "350,354,404,284\n");
    std::fs::copy(data(Q8_0), dir.join("a.gguf")).unwrap();
    fails(output(command(&["tokenize", "-m", at])), 2, &["several models", "a.gguf, b.gguf"]);
}

/// An empty folder of this test.
pub(crate) fn tempdir(name: &str) -> std::path::PathBuf {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
