//! `wgslm convert`.

use super::{F32, Q8_0, command, fails, ok, output, tempdir};
use wgslm_test::data;

#[test]
fn random_weights_are_written_and_run() {
    let out = tempdir("convert-shape").join("tiny.gguf");
    let convert = |args: &[&str]| output(command(&[&["convert", "-o", out.to_str().unwrap()], args].concat()));
    assert_eq!(ok(convert(&["--shape", "tiny", "-t", "Q4_K_M"])), "");
    let bench = ["bench", "-m", out.to_str().unwrap(), "--device", "cpu", "-p", "4", "-n", "2", "-r", "1"];
    assert!(ok(output(command(&bench))).contains("| tiny Q4_K_M |"));
    fails(convert(&["--shape", "tiny", "-t", "Q4_0"]), 2, &["it exists", "--force"]);
    fails(convert(&["--shape", "tiny", "-f"]), 2, &["--type"]);
    fails(convert(&["-f"]), 2, &["SOURCE"]);
    let source = data(Q8_0);
    fails(convert(&["--shape", "tiny", "-t", "Q4_0", "-f", source.to_str().unwrap()]), 2, &["--shape"]);
}

#[test]
fn convert_writes_files_that_run() {
    let folder = tempdir("convert");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let convert = |source: &str, name: &str, more: &[&str]| {
        let mut command = command(&["convert"]);
        command.arg(data(source)).args(["-o", &path(name)]).args(more);
        output(command)
    };
    let answer = |model: &str| {
        ok(output(command(&["run", "-m", model, "--device", "cpu", "--temp", "0", "-n", "20", "Once upon"])))
    };
    // The same numbers, so the same answer. (The folder has no tokenizer; its logits are compared elsewhere.)
    ok(convert(F32, "file.gguf", &["-t", "F32"]));
    assert_eq!(answer(&path("file.gguf")), answer(data(F32).to_str().unwrap()));
    ok(convert("stories/hf-float32", "folder.gguf", &[]));
    // Smaller types: as small as they say, and they run.
    let size = |name: &str| std::fs::metadata(path(name)).unwrap().len() as f64;
    for (to, bits) in [("q8_0", 8.5), ("F16", 16.0), ("Q4_K_M", 8.5), ("BF16", 16.0)] {
        ok(convert(F32, to, &["--type", to]));
        assert!(size(to) < 1.4 * bits / 32.0 * size("file.gguf"), "{to}: {} bytes", size(to));
        answer(&path(to));
    }
    // What exists is kept, what is quantised stays so unless somebody insists, and nothing half done is left.
    fails(convert(F32, "F16", &[]), 2, &["it exists", "--force"]);
    fails(convert(Q8_0, "again", &["-t", "Q4_0"]), 1, &["quantised already", "--requantize"]);
    fails(convert("stories", "none", &[]), 2, &["several models", "stories-q8_0.gguf"]);
    fails(convert(F32, "none", &["-t", "Q7"]), 2, &["Q7", "Q4_K_M"]);
    ok(convert(Q8_0, "again", &["-t", "Q4_0", "--requantize"]));
    ok(convert(F32, "F16", &["--force"]));
    let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["BF16", "F16", "Q4_K_M", "again", "file.gguf", "folder.gguf", "q8_0"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
