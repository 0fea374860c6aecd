//! `wgslm inspect`.

use serde_json::Value;

use super::{Q8_0, command, fails, ok, output, tempdir};
use wgslm_test::{data, hostile};

fn inspect(path: &std::path::Path, args: &[&str]) -> std::process::Output {
    let mut command = command(&["inspect"]);
    command.arg(path).args(args);
    output(command)
}

#[test]
fn a_model_says_what_it_is() {
    let about: Value = serde_json::from_str(&ok(inspect(&data(Q8_0), &["--json", "--tensors"]))).unwrap();
    assert_eq!(about["format"], "GGUF");
    assert_eq!(about["parameters"], 260_032);
    assert_eq!(about["metadata"]["general.architecture"], "llama");
    assert_eq!(about["metadata"]["tokenizer.ggml.tokens"]["length"], 512);
    assert_eq!(about["tokenizer"]["tokens"], 512);
    let model = &about["model"];
    assert_eq!((&model["architecture"], &model["layers"]), (&"llama".into(), &5.into()));
    // 5 layers, 4 heads of 8, keys and values in 16 bits.
    let memory = model["memory"].as_array().unwrap().last().unwrap();
    assert_eq!((&memory["context"], &memory["cache_bytes"]), (&512.into(), &(512 * 5 * 4 * 16 * 2).into()));
    let bytes: u64 = about["types"].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(about["bytes"], bytes);
    assert_eq!(about["list"].as_array().unwrap().len(), about["tensors"]);

    let text = ok(inspect(&data(Q8_0), &[]));
    for word in ["Q8_0", "llama, 5 layers", "512 tokens, bos 1", "context       512", "general.architecture = llama"] {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    ok(inspect(&data("stories/hf-float32"), &[]));
}

#[test]
fn what_cannot_be_run_can_be_looked_at() {
    // The names and values of a file steer no terminal.
    let path = tempdir("inspect").join("strange.gguf");
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let pair = |key: &str, value: &str| [&text(key)[..], &8u32.to_le_bytes(), &text(value)].concat();
    let pairs = [pair("general.architecture", "nobody\x1b[31m"), pair("a\nb", "c\x07")].concat();
    std::fs::write(&path, [&b"GGUF\x03\0\0\0"[..], &0u64.to_le_bytes(), &2u64.to_le_bytes(), &pairs].concat()).unwrap();
    let shown = ok(inspect(&path, &[]));
    assert!(shown.contains("cannot be run") && shown.contains("a\\nb"), "{shown}");
    assert!(!shown.contains(['\x1b', '\x07']));
}

#[test]
fn damaged_files_are_refused() {
    let (mut seen, folder, cases) = (0, tempdir("joined"), hostile::cases());
    let stored = std::fs::read_dir(data("hostile")).unwrap().map(|entry| entry.unwrap().path());
    let joined = cases.iter().filter(|case| case["pieces"].is_array()).map(|case| hostile::path(case, &folder));
    for path in stored.chain(joined) {
        if path.extension().is_some_and(|e| e == "gguf") {
            let output = inspect(&path, &[]);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1 | 5)), "{}: {code:?}", path.display());
            assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{}", path.display());
            seen += 1;
        }
    }
    println!("{seen} files");
    assert!(seen >= 176, "the data is not all there: {seen}");
    fails(inspect(std::path::Path::new("nowhere.gguf"), &[]), 3, &["nowhere.gguf"]);
    fails(inspect(&data("text/stories.txt"), &[]), 5, &["not a GGUF file"]);
}

#[test]
fn a_part_that_is_missing_is_named() {
    let folder = tempdir("parts");
    let part = |no: u32| format!("g-ok-split3-0000{no}-of-00003.gguf");
    for no in [1, 3] {
        std::fs::copy(data(&format!("hostile/{}", part(no))), folder.join(part(no))).unwrap();
    }
    fails(inspect(&folder.join(part(1)), &[]), 3, &[&part(2)]);
    std::fs::copy(data(&format!("hostile/{}", part(2))), folder.join(part(2))).unwrap();
    for no in 1..=3 {
        let whole: Value = serde_json::from_str(&ok(inspect(&folder.join(part(no)), &["--json"]))).unwrap();
        assert!(whole["tensors"].as_u64().unwrap() > 3);
    }
}
