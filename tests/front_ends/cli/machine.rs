//! Ordinary machines: little memory, signals, terminals that obey what they are sent, streams that nobody reads.
#![cfg(unix)]

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use wgslm::model::{Model, SamplingDefaults};
use wgslm_test::{data, fetched};

use super::{F32, Q8_0, command, fails, ok, output, tempdir, text, with};

const WGSLM: &str = env!("CARGO_BIN_EXE_wgslm");

/// What `wgslm ARGS` shows on a terminal.
fn on_terminal(args: &[&str]) -> String {
    let pair = native_pty_system().openpty(PtySize { rows: 50, cols: 240, ..PtySize::default() }).unwrap();
    let mut command = CommandBuilder::new(WGSLM);
    command.args(args);
    command.env("NO_COLOR", "1");
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let mut seen = Vec::new();
    // Linux ends the stream with an error when the last writer has gone.
    let _ = pair.master.try_clone_reader().unwrap().read_to_end(&mut seen);
    child.wait().unwrap();
    String::from_utf8_lossy(&seen).into_owned()
}

/// Runs a line of a shell, in which `$0` is the program.
fn shell(line: &str) -> Output {
    Command::new("sh").args(["-c", line, WGSLM]).stdin(Stdio::null()).output().unwrap()
}

/// Whatever a file, a template or a model's name says, a terminal obeys none of it; a pipe gets every byte.
#[test]
fn nothing_steers_the_terminal() {
    const STEER: &str = "\x1b]0;owned\x07\x1b[2J\u{9b}31m\r\x08";
    let folder = tempdir("steer");
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let input = file("input.json", "[]");
    let raised = file("raise.jinja", &format!("{{{{ raise_exception('A{STEER}B') }}}}"));
    let said = file("say.jinja", &format!("A{STEER}B"));
    let named = folder.join(format!("A{STEER}B"));
    std::fs::create_dir(&named).unwrap();
    for entry in std::fs::read_dir(data("stories/hf-float32")).unwrap() {
        let entry = entry.unwrap().path();
        std::fs::copy(&entry, named.join(entry.file_name().unwrap())).unwrap();
    }
    let named = named.to_str().unwrap();
    let absent = format!("{named}/absent");
    for args in [
        &["template", "--input", &input, "--template", &raised][..],
        &["template", "--input", &input, "--template", &said],
        &["inspect", named],
        &["bench", "-m", named, "--device", "cpu", "-p", "4", "-n", "2", "-r", "1"],
        &["run", "-m", &absent, "x"],
    ] {
        let seen = on_terminal(args);
        let seen = seen.replace("\r\n", "\n");
        let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
        // A progress bar moves the cursor by itself, so what the text may not do is looked for by its words.
        let own =
            seen.replace(STEER, "").len() == seen.len() && !seen.contains("\x1b]") && !seen.contains("\x1b[2J\u{9b}");
        assert!(own && !seen.contains('\x07') && !seen.contains('\u{9b}'), "{args:?}: {seen:?}");
        assert!(args[0] == "bench" || !seen.contains(steers), "{args:?}: {seen:?}");
        // As it is shown by each: replaced, or as an escape.
        let named = seen.contains("A\u{fffd}") || seen.contains("A\\u{1b}");
        assert!(named, "{args:?}: {seen:?}");
    }
    // Jinja2 makes newlines of a source's carriage returns.
    let raw = format!("A{STEER}B").replace('\r', "\n");
    assert_eq!(ok(output(command(&["template", "--input", &input, "--template", &said]))), raw);
}

/// A stream that is closed or full ends nothing but what is written there.
#[test]
fn streams_may_be_closed_or_full() {
    let model = data(Q8_0);
    let model = model.to_str().unwrap();
    for (line, code) in [
        ("\"$0\" run -m /no/such/model x 2>/dev/full".to_owned(), 3),
        ("\"$0\" run -m /no/such/model x 2>&-".to_owned(), 3),
        (format!("\"$0\" run -m '{model}' --device cpu -n 4 --verbose x 2>/dev/full"), 0),
        (format!("\"$0\" run -m '{model}' --device cpu -n 4 x >/dev/full"), 1),
        (format!("\"$0\" inspect '{model}' >/dev/full 2>/dev/full"), 1),
        (format!("\"$0\" run -m '{model}' --device cpu -n 4 x >/dev/full 2>&-"), 1),
    ] {
        let done = shell(&line);
        assert_eq!(done.status.code(), Some(code), "{line}: {}", text(&done.stderr));
    }
}

/// With any amount of memory, there is an answer or an error that says what is missing.
#[test]
#[cfg(target_os = "linux")]
fn little_memory_for_smollm2_is_an_error() {
    let model = fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let mut answered = 0;
    for kib in (1..=20).map(|i| 110_000 + i * 22_000) {
        let run = format!("ulimit -v {kib}; exec \"$0\" run --device cpu -t 2 -n 2 Hi -m '{}'", model.display());
        let done = shell(&run);
        let stderr = text(&done.stderr);
        let code = done.status.code();
        assert!(matches!(code, Some(0 | 1 | 7)) && !stderr.contains("panicked"), "{kib} KiB: {code:?} {stderr}");
        assert!(code == Some(0) || stderr.starts_with("error: "), "{kib} KiB: {stderr}");
        answered += usize::from(code == Some(0));
    }
    assert!((1..20).contains(&answered), "{answered} of 20 answered");
}

/// A context that no machine has the memory for.
#[test]
#[cfg(target_os = "linux")]
fn a_context_without_memory_is_an_error() {
    let mut file = std::fs::read(data(Q8_0)).unwrap();
    let key = b"llama.context_length\x04\0\0\0";
    let at = file.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    file[at..at + 4].copy_from_slice(&(1u32 << 30).to_le_bytes());
    let path = tempdir("context").join("long.gguf");
    std::fs::write(&path, &file).unwrap();
    let path = path.display();
    let done = shell(&format!("ulimit -v 8000000; exec \"$0\" run --device cpu -c 1000000000 -n 2 Hi -m '{path}'"));
    fails(done, 7, &["the KV cache of a layer: needs ", " MiB of memory", "--context"]);
    // More than the model was made for is not taken silently.
    let mut short = command(&["run", "--device", "cpu", "-c", "999999999", "-n", "2", "Hi", "-m"]);
    let short = output({
        short.arg(data(Q8_0));
        short
    });
    assert!(text(&short.stderr).contains("--context 999999999") && text(&short.stderr).contains("512"), "{short:?}");
    ok(short);
}

/// A file that shrinks while it is mapped ends the program with a word; read piece by piece, it is an error like others.
#[test]
#[cfg(target_os = "linux")]
fn smollm2_that_shrinks_is_reported() {
    let folder = tempdir("shrinks");
    let (model, out) = (folder.join("model.gguf"), folder.join("out.gguf"));
    for (option, words) in [(None, "--no-mmap"), (Some("--no-mmap"), "model.gguf")] {
        std::fs::copy(fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf"), &model).unwrap();
        let mut convert = command(&["convert", "-f", "-t", "Q4_K_M", "--requantize", "--threads", "1", "-o"]);
        let child = convert.arg(&out).arg(&model).args(option).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while files_of(&folder).len() < 2 {
            assert!(Instant::now() < deadline, "it does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(1 << 20).unwrap();
        let done = child.wait_with_output().unwrap();
        let stderr = text(&done.stderr);
        assert!(matches!(done.status.code(), Some(1 | 5)) && stderr.contains(words), "{done:?}");
        files_of(&folder).iter().for_each(|name| std::fs::remove_file(folder.join(name)).unwrap());
    }
    // What is read piece by piece is the same.
    let answer = |option: &[&str]| {
        let mut run = command(&["run", "--device", "cpu", "--temp", "0", "-n", "8", "The dog", "-m"]);
        run.arg(data(Q8_0)).args(option);
        ok(output(run))
    };
    assert_eq!(answer(&["--no-mmap"]), answer(&[]));
}

/// A pipe in the place of the self-test's results is not waited for.
#[test]
fn a_pipe_is_no_file_of_results() {
    let cache = tempdir("pipe");
    std::fs::create_dir(cache.join("wgslm")).unwrap();
    let pipe = cache.join("wgslm/devices.tsv");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut run = command(&["run", "--device", "cpu", "-n", "2", "x", "-m"]);
    run.arg(data(Q8_0)).env("XDG_CACHE_HOME", &cache);
    ok(output(run));
}

/// Without a runtime folder, as in containers and by ssh, drivers say nothing on our stderr.
#[test]
fn gpu_drivers_are_quiet() {
    for folder in [None, Some(""), Some("relative")] {
        let mut devices = command(&["devices"]);
        match folder {
            None => devices.env_remove("XDG_RUNTIME_DIR"),
            Some(folder) => devices.env("XDG_RUNTIME_DIR", folder),
        };
        let done = output(devices);
        assert_eq!(text(&done.stderr), "", "{folder:?}");
        assert!(ok(done).contains("\n0 "), "an adapter is looked for");
    }
}

/// `wgslm convert` that takes a while, to `out`.
fn long_conversion(out: &Path) -> Command {
    let mut convert = command(&["convert", "-t", "Q4_K_M", "--requantize", "--threads", "1", "-o"]);
    convert.arg(out).arg(fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    convert
}

fn files_of(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Waits until a conversion has made its file.
fn until_it_begins(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while files_of(folder).is_empty() {
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Signals that ask for the end leave nothing half done.
#[test]
fn an_interrupted_conversion_of_smollm2_leaves_nothing() {
    let folder = tempdir("interrupted");
    for signal in ["-INT", "-TERM", "-HUP"] {
        let child = long_conversion(&folder.join("out.gguf")).spawn().unwrap();
        until_it_begins(&folder);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(130), "{signal}: {}", text(&done.stderr));
        assert!(files_of(&folder).is_empty(), "{signal}: {:?}", files_of(&folder));
    }
    // What is to survive its terminal does, as nohup promises.
    let out = folder.join("kept.gguf");
    let conversion = long_conversion(&out);
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", WGSLM]).args(conversion.get_args());
    let child = nohup.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until_it_begins(&folder);
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success() && files_of(&folder) == ["kept.gguf"], "{done:?}");
}

/// Only files are replaced, and only one of two conversions gets a name.
#[test]
fn conversions_of_smollm2_replace_files_alone() {
    let folder = tempdir("replace");
    let convert = |out: &Path| {
        let mut convert = command(&["convert", "-f", "-o"]);
        convert.arg(out).arg(data(F32));
        output(convert)
    };
    let device = Path::new("/dev/null");
    fails(convert(device), 2, &["/dev/null", "not replaced"]);
    assert!(std::fs::symlink_metadata(device).unwrap().file_type().is_char_device());
    let (target, link) = (folder.join("target"), folder.join("link"));
    std::fs::write(&target, "kept").unwrap();
    symlink(&target, &link).unwrap();
    fails(convert(&link), 2, &["link", "not replaced"]);
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "kept");
    fails(convert(&folder), 2, &["not replaced"]);
    fails(convert(&folder.join("absent/out.gguf")), 2, &["absent", "no such folder"]);

    let out = folder.join("out.gguf");
    let both = [(); 2].map(|()| long_conversion(&out).spawn().unwrap());
    let codes = both.map(|child| child.wait_with_output().unwrap().status.code());
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    let mut left = files_of(&folder);
    left.sort();
    assert_eq!(left, ["link", "out.gguf", "target"]);
}

/// What a model's makers recommend for sampling is read from a folder, and from the GGUF file that convert makes of it.
#[test]
fn recommended_sampling_is_kept() {
    let folder = tempdir("sampling");
    for entry in std::fs::read_dir(data("stories/hf-float32")).unwrap() {
        let entry = entry.unwrap().path();
        std::fs::copy(&entry, folder.join(entry.file_name().unwrap())).unwrap();
    }
    let config = r#"{"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": null, "repetition_penalty": 1.25}"#;
    std::fs::write(folder.join("generation_config.json"), config).unwrap();
    let out = folder.join("out.gguf");
    let mut convert = command(&["convert", "-o"]);
    convert.arg(&out).arg(&folder);
    ok(output(convert));
    let expected = SamplingDefaults {
        temperature: Some(0.5),
        top_k: Some(20),
        top_p: Some(0.75),
        repeat_penalty: Some(1.25),
        ..SamplingDefaults::default()
    };
    for path in [&folder, &out] {
        let file = wgslm::file::ModelFile::open(path).unwrap();
        assert_eq!(pollster::block_on(Model::open(file)).unwrap().sampling, expected, "{}", path.display());
    }
}

/// The embedded model's file with another chat template.
pub(crate) fn with_template(folder: &str, template: &str) -> std::path::PathBuf {
    let mut file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny.gguf")).unwrap();
    let key = b"tokenizer.chat_template\x08\0\0\0";
    let at = file.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    let length = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    // Tensors stay aligned; a comment is no text.
    let spaces = (length as isize - template.len() as isize - 4).rem_euclid(32) as usize;
    let padded = format!("{template}{{#{}#}}", " ".repeat(spaces));
    let new = [&(padded.len() as u64).to_le_bytes(), padded.as_bytes()].concat();
    file.splice(at..at + 8 + length, new);
    let path = tempdir(folder).join("model.gguf");
    std::fs::write(&path, file).unwrap();
    path
}

/// A parser's stack ends long before a template does: that is an error, not the end of the program.
#[test]
fn a_deep_template_in_a_file_is_an_error() {
    for (folder, word) in [("minuses", "-"), ("nots", "not "), ("brackets", "[")] {
        let path = with_template(folder, &format!("{{{{ {}1 }}}}", word.repeat(100_000)));
        let path = path.to_str().unwrap();
        fails(output(with("run", path, &["-n", "2", "Hi"])), 1, &["chat template", "deep"]);
    }
    // The file itself is sound.
    let path = with_template("plain", "{{ messages[0].content }}");
    ok(output(with("run", path.to_str().unwrap(), &["-n", "2", "Hi"])));
}

/// Where the system has no more threads, one does all the work, and says so. (Threads whose stacks fit in no memory stand in
/// for RLIMIT_NPROC, which does not bind root.)
#[test]
#[cfg(target_os = "linux")]
fn one_thread_does_all_where_there_are_no_more() {
    let folder = tempdir("threads");
    let mut made = Vec::new();
    for stack in [None, Some("200000000000000")] {
        let scarce = |mut command: Command| {
            stack.map(|bytes| command.env("RUST_MIN_STACK", bytes));
            output(command)
        };
        let out = folder.join(format!("{}.gguf", stack.is_some()));
        let mut convert = command(&["convert", "-t", "Q4_0", "--requantize", "--threads", "4", "-o"]);
        convert.arg(&out).arg(data(Q8_0));
        ok(scarce(convert));
        let mut run =
            command(&["run", "--device", "cpu", "-t", "4", "-n", "8", "--temp", "0", "--verbose", "Hi", "-m"]);
        run.arg(&out);
        let done = scarce(run);
        assert_eq!(text(&done.stderr).contains("cpu, 1 thread\n"), stack.is_some(), "{done:?}");
        made.push((ok(done), std::fs::read(&out).unwrap()));
    }
    assert!(made[0] == made[1]);
}
