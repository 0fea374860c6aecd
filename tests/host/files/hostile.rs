//! Every file of `data/hostile` that is a model file, and every cut of a sound one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wgslm::file::{Access, ModelFile, json};
use wgslm::{Error, Result};

use super::open_bytes;
use wgslm_test::alloc::counted;
use wgslm_test::{data, data_bytes, hostile};

/// A case of index.json.
struct Case {
    entry: serde_json::Value,
    file: String,
    kind: String,
    class: String,
    expect: String,
    stage: String,
    hint: Vec<String>,
    parts: Vec<String>,
    symlink: Option<(String, String)>,
}

fn cases() -> Vec<Case> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let list = |value: &serde_json::Value| value.as_array().map_or(vec![], |all| all.iter().map(text).collect());
    let cases = hostile::cases().into_iter().map(|case| {
        let link = &case["setup"]["symlink"];
        Case {
            file: text(&case["file"]),
            kind: text(&case["kind"]),
            class: text(&case["class"]),
            expect: text(&case["expect"]),
            stage: text(&case["stage"]),
            hint: list(&case["hint"]),
            parts: list(&case["parts"]),
            symlink: link.is_object().then(|| (text(&link["path"]), text(&link["target"]))),
            entry: case,
        }
    });
    cases.collect()
}

/// A folder of this process alone.
fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("wgslm-hostile-{}", std::process::id()))
}

/// The file to open; one that is joined from pieces lies in a folder of its own, as does a folder with a symlink.
fn prepare(case: &Case) -> PathBuf {
    let Some((link, target)) = &case.symlink else { return hostile::path(&case.entry, &scratch()) };
    let root = scratch();
    let _ = std::fs::remove_dir_all(&root); // of an earlier process with this number
    for part in &case.parts {
        std::fs::create_dir_all(root.join(part).parent().unwrap()).unwrap();
        std::fs::copy(data("hostile").join(part), root.join(part)).unwrap();
    }
    let link = root.join(Path::new(&case.file).parent().unwrap()).join(link);
    let _ = std::fs::remove_file(&link);
    #[cfg(unix)]
    std::os::unix::fs::symlink(target, &link).unwrap();
    #[cfg(not(unix))]
    let _ = target; // the shard is then missing, which is refused as well
    root.join(&case.file)
}

/// Opens the case and checks the limits; reads the first bytes of every tensor of what opens.
fn open(case: &Case, path: &Path, access: Access) -> Result<ModelFile> {
    const MEMORY: usize = 64 << 20;
    let size = match case.parts.is_empty() {
        true => std::fs::metadata(path).unwrap().len(),
        false => {
            case.parts.iter().filter_map(|p| std::fs::metadata(data("hostile").join(p)).ok()).map(|m| m.len()).sum()
        }
    };
    // The best of ten: where many tests share a core, a try may wait for longer than it works.
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        let (result, held, _) = counted(|| ModelFile::open_as(path, access));
        best = best.min(start.elapsed());
        assert!(held < MEMORY + size as usize, "{}: held {held} bytes", case.file);
        if best < Duration::from_millis(100) {
            return result.inspect(touch);
        }
    }
    panic!("{}: took {best:?}", case.file);
}

/// Whatever opened must be readable.
fn touch(model: &ModelFile) {
    for tensor in model.tensors() {
        let mut first = vec![0; tensor.bytes.min(64) as usize];
        pollster::block_on(model.read(tensor, 0..first.len() as u64, &mut first)).unwrap();
        assert!(model.mapped(tensor).is_none_or(|all| all.len() as u64 == tensor.bytes));
    }
}

/// Whether a message has one of the hints, outside of the names of folders and files, which have them, too.
fn says(error: &Error, case: &Case) -> bool {
    let hints = &case.hint;
    let mut message = error.to_string();
    for name in case.file.split('/') {
        message = message.replace(name, "");
    }
    let message = message.to_lowercase();
    hints.is_empty() || hints.iter().any(|hint| message.contains(hint))
}

#[test]
fn hostile_files_end_as_their_index_says() {
    let mut seen = [0; 4];
    for case in cases().iter().filter(|case| case.kind == "gguf" || case.kind == "safetensors") {
        let path = prepare(case);
        for access in [Access::Mapped, Access::Read] {
            let result = open(case, &path, access);
            match (case.stage.as_str(), case.expect.as_str(), &result) {
                ("container", "error", Ok(_)) => panic!("{}: opened", case.file),
                (_, "ok" | "nan", Err(e)) => panic!("{}: {e}", case.file),
                (_, _, Err(e)) => {
                    assert!(says(e, case), "{}: `{e}` has none of {:?}", case.file, case.hint);
                    assert!(!e.to_string().contains("root:"), "{}: reports what is in another file: {e}", case.file);
                }
                (_, _, Ok(_)) => {}
            }
            // Paths out of a folder are refused here, whatever the later stages would say.
            assert!(case.class != "shard-path" && case.class != "shard-map" || result.is_err(), "{}", case.file);
            seen[usize::from(case.stage == "container") * 2 + usize::from(result.is_err())] += 1;
        }
    }
    let _ = std::fs::remove_dir_all(scratch());
    println!("container: {} refused, {} read; later stages: {} refused, {} read", seen[3], seen[2], seen[1], seen[0]);
    assert!(seen[3] >= 2 * 80 && seen[2] >= 2 * 4, "the data is not all there: {seen:?}");
}

#[test]
fn broken_json_is_refused() {
    let mut refused = 0;
    for case in cases().iter().filter(|case| case.kind == "config") {
        let bytes = hostile::bytes(&case.entry);
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let (result, held, _) = counted(|| json::parse::<serde_json::Map<_, _>>(&case.file, &text));
        assert!(held < 64 << 20, "{}: held {held} bytes", case.file);
        let wrong = matches!(case.class.as_str(), "json" | "duplicate-key" | "not-finite" | "nesting");
        assert_eq!(result.is_err(), wrong, "{}", case.file);
        if let Err(e) = result {
            assert!(says(&e, case), "{}: `{e}` has none of {:?}", case.file, case.hint);
            refused += 1;
        }
    }
    assert!(refused >= 6, "the data is not all there: {refused}");
}

/// Cuts `file` after every byte of its first `header` bytes.
fn cut_everywhere(file: &str, header: usize) {
    let whole = data_bytes(file);
    assert!(open_bytes(file, whole.clone()).is_ok());
    for cut in 0..=header {
        match open_bytes(file, whole[..cut].to_vec()) {
            Err(Error::Malformed { .. }) => {}
            Err(other) => panic!("{file} cut after {cut} bytes: {other}"),
            Ok(_) => panic!("{file} cut after {cut} bytes opened"),
        }
    }
}

#[test]
fn a_header_cut_at_any_byte_is_refused() {
    for (file, length) in [
        ("hostile/g-ok-full-baseline.gguf", 8800),
        ("hostile/d-ok-folder-baseline/model.safetensors", 2016),
        ("stories/stories-q8_0.gguf", 14400),
    ] {
        let model = ModelFile::open(&data(file)).unwrap();
        let header = model.tensors().iter().map(|t| t.offset).min().unwrap();
        assert_eq!(header, length, "{file}");
        cut_everywhere(file, header as usize);
    }
}

#[test]
fn pipes_and_folders_are_refused_at_once() {
    for path in ["/dev/null", "/dev/zero", "/nowhere/model.gguf"] {
        assert!(ModelFile::open(Path::new(path)).is_err(), "{path}");
    }
    // Which of several models is meant nobody can know.
    let e = ModelFile::open(&data("hostile")).err().unwrap().to_string();
    assert!(e.contains("one by its own path works"), "{e}");
    let e = ModelFile::open(&data("../../src")).err().unwrap().to_string();
    assert!(e.contains("model.safetensors"), "{e}");
}
