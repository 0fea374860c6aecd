//! The house rules that a machine can check: which module may use which, what a kernel's and an architecture's file may hold,
//! and that the documents name what is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wgslm::ops::KERNELS;
use wgslm::quant::BlockFormat;

/// Modules in the order of the import rule; those in one group may not use each other.
pub(crate) const ORDER: &[&[&str]] = &[
    &["error"],
    &["cpu", "wgsl"],
    &["quant"],
    &["gpu"],
    &["file"],
    &["ops"],
    &["model"],
    &["exec"],
    &["kv", "sample", "text"],
    &["engine", "convert", "hub"],
    &["chat", "driver"],
    &["language_model"],
    &["server"],
    &["cli", "web", "main"],
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files below a folder with an ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Code lines, without comments; unit tests at a file's end may use what they like.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    let lines = text[..end].lines().enumerate().map(|(i, line)| (i + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn rank(module: &str) -> Option<usize> {
    ORDER.iter().position(|group| group.contains(&module))
}

#[test]
fn modules_use_only_what_lies_left_of_them() {
    let src = root().join("src");
    let mut checked = 0;
    for path in files(&src, "rs") {
        let inside = path.strip_prefix(&src).expect("below src");
        let first = inside.components().next().expect("a component").as_os_str().to_string_lossy().into_owned();
        let module = first.trim_end_matches(".rs");
        if module == "lib" || module == "testing" || path.ends_with("tests.rs") {
            continue;
        }
        let own = rank(module).unwrap_or_else(|| panic!("{module} is not in the import rule"));
        for (line, text) in code(&read(&path)) {
            for used in text.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let Some(other) = rank(&used) else { continue };
                checked += 1;
                assert!(used == module || other < own, "{}:{line}: {module} may not use {used}", inside.display());
            }
        }
    }
    assert!(checked > 50, "only {checked} uses were seen");
}

#[test]
fn only_the_gpu_side_names_wgpu() {
    let src = root().join("src");
    for path in files(&src, "rs") {
        let inside = path.strip_prefix(&src).expect("below src").to_string_lossy().into_owned();
        if inside.starts_with("gpu/") || inside.starts_with("exec/gpu") {
            continue;
        }
        for (line, text) in code(&read(&path)) {
            assert!(!text.contains("wgpu::"), "{inside}:{line} names wgpu");
        }
    }
}

#[test]
fn unsafe_stands_where_the_architecture_says() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let (_, invariants) = architecture.split_once("\n## Invariants\n").expect("invariants");
    let (_, third) = invariants.split_once("\n3. ").expect("invariant 3");
    let (allowed, _) = third.split_once("\n4. ").expect("invariant 4");
    let src = root().join("src");
    for path in files(&src, "rs") {
        let inside = path.strip_prefix(&src).expect("below src").to_string_lossy().into_owned();
        let used =
            code(&read(&path)).any(|(_, l)| ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|u| l.contains(u)));
        assert!(!used || allowed.contains(&inside), "{inside} uses unsafe; invariant 3 does not name it");
    }
}

#[test]
fn every_kernel_and_decoder_file_is_listed_once() {
    let wgsl = root().join("wgsl");
    let stem = |p: &PathBuf| p.file_stem().expect("a name").to_string_lossy().into_owned();
    let here: Vec<_> = files(&wgsl, "wgsl").iter().filter(|p| p.parent() == Some(&wgsl)).map(stem).collect();
    let mut listed: Vec<_> = KERNELS.iter().map(|kernel| kernel.name.to_owned()).collect();
    listed.sort();
    assert_eq!(here, listed, "wgsl/ and ops/kernels.rs");
    let mut decoders: Vec<_> = files(&wgsl.join("quant"), "wgsl").iter().map(stem).collect();
    decoders.sort();
    let mut formats: Vec<_> = BlockFormat::ALL.iter().map(|f| f.info().name.to_lowercase()).collect();
    formats.sort();
    assert_eq!(decoders, formats, "wgsl/quant/ and quant/mod.rs");
}

#[test]
fn an_architecture_is_canonical_ops_on_one_page() {
    let arch = root().join("src/model/arch");
    for path in files(&arch, "rs") {
        let text = read(&path);
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name == "mod.rs" {
            continue;
        }
        assert!(text.lines().count() <= 150, "{name} has more than 150 lines");
        for word in ["Epi", "Pre::", "RopeKv", "BlockFormat", "F16", "gpu", "cpu", "exec"] {
            let found = code(&text).find(|(_, l)| l.contains(word));
            assert!(found.is_none(), "{name} names {word}: {found:?}");
        }
    }
}

#[test]
fn nothing_speaks_of_where_it_was_made() {
    for (path, text) in texts().into_iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
        for folder in ["/work/", "/root/"] {
            assert!(!text.contains(folder), "{} contains {folder}", path.display());
        }
        assert!(!words(&text).contains(" this session "), "{} contains \"this session\"", path.display());
    }
}

/// The files that git knows, from the root on.
fn tracked() -> Vec<String> {
    let git = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output().expect("git");
    assert!(git.status.success(), "this is not a clone: {}", String::from_utf8_lossy(&git.stderr));
    let listed = String::from_utf8(git.stdout).expect("names in UTF-8");
    listed.split_terminator('\0').map(str::to_owned).collect()
}

/// All texts that people write here, wherever they stand: what git knows, without data and what programs write.
fn texts() -> Vec<(PathBuf, String)> {
    let written = |name: &String| {
        let data = ["tests/data/", "assets/", "fuzz/corpus/"].iter().any(|folder| name.starts_with(folder));
        !data && !["lock", "lock.json", "svg", "png"].iter().any(|end| name.ends_with(end))
    };
    let texts: Vec<_> = tracked()
        .into_iter()
        .filter(written)
        .map(|name| root().join(name))
        .filter(|path| path.is_file()) // what is deleted is known to git until it is committed
        .map(|path| (path.clone(), read(&path)))
        .collect();
    for known in [".ci/run", "CHANGELOG.md", "Cargo.toml", "scripts/test", "tools/README.md", "web/src/index.ts"] {
        assert!(texts.iter().any(|(path, _)| path.ends_with(known)), "{known} is not looked at");
    }
    texts
}

/// Programs outside the workspace have lock files of their own, which no build of the workspace brings up to date.
#[test]
fn lock_files_hold_what_the_library_needs() {
    let mut needed = Vec::new();
    let mut section = String::new();
    for line in read(&root().join("Cargo.toml")).lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
        } else if section == "dependencies" || section.ends_with(".dependencies") {
            let (name, how) = line.split_once(" = ").unwrap_or_default();
            if !name.is_empty() && !name.starts_with('#') && !how.contains("optional = true") {
                needed.push(name.to_owned());
            }
        }
    }
    assert!(["wgpu", "memmap2"].iter().all(|name| needed.iter().any(|n| n == name)), "found {needed:?}");
    let package = "name = \"wgslm\"\n";
    let mut checked = 0;
    for file in tracked().iter().filter(|file| file.ends_with("Cargo.lock")) {
        let lock = read(&root().join(file));
        let Some((_, entry)) = lock.split_once(package) else { continue }; // a tool that does not use the library
        let entry = entry.split("[[package]]").next().expect("an entry");
        for name in &needed {
            // With a version where the file has several of them.
            let held = [format!("\"{name}\""), format!("\"{name} ")].iter().any(|quoted| entry.contains(quoted));
            assert!(held, "{file} lacks {name}: cargo metadata --manifest-path {}", file.replace(".lock", ".toml"));
        }
        checked += 1;
    }
    assert!(checked >= 3, "the workspace, fuzz and examples/desktop: {checked}");
}

/// A runner that finds no test of a name fails, but nobody sees that before the workflow runs.
#[test]
fn workflows_name_tests_that_exist() {
    let models = read(&root().join("tests/device/models/mod.rs"));
    let mut named = 0;
    for path in files(&root().join(".github"), "yml") {
        let text = read(&path);
        for name in text.split("test(=").skip(1).filter_map(|rest| rest.split(')').next()) {
            let test = name.strip_prefix("models::gpu::").unwrap_or_else(|| panic!("{name} in {}", path.display()));
            assert!(models.contains(&format!("::{test},")), "{name} in {}", path.display());
            named += 1;
        }
        assert!(!text.contains("test(/"), "{}: patterns may match nothing", path.display());
    }
    assert!(named >= 2);
}

/// `scripts/kernels NAME` has something to run, whatever the kernel.
#[test]
fn every_kernel_has_cases() {
    for kernel in KERNELS {
        let cases = wgslm_test::cases::of_kernel(kernel.name);
        assert!(!cases.is_empty(), "{} has no cases in tests/support/src/cases/by_kernel.rs", kernel.name);
    }
}

/// Former words of this project, and the field's words to use instead.
const NOT_OURS: &[(&str, &str)] = &[
    // Phases and sampling.
    ("prompt row", "prefill row"),
    ("prompt rows", "prefill rows"),
    ("generated row", "decode row"),
    ("generated rows", "decode rows"),
    ("role prompt", "Phase::Prefill"),
    ("role generated", "Phase::Decode"),
    ("draw", "sample"),
    ("draws", "samples"),
    ("drawn", "sampled"),
    ("drawing", "sampling"),
    ("drew", "sampled"),
    // Numbers and their types.
    ("fours", "vec4s, or rows per workgroup"),
    ("halves to", "f16 to"),
    ("of halves", "of f16"),
    ("rotates halves", "rotate-half"),
    ("whole number", "integer"),
    ("whole numbers", "integers"),
    ("eight bit", "int8, or 8-bit"),
    ("eight bits", "int8, or 8 bits"),
    ("is no number", "is NaN"),
    ("no number", "NaN, or not a number"),
    ("no whole number", "not a multiple"),
    ("no multiple of", "not a multiple of"),
    ("wild", "extreme"),
    ("less one", "zero-centred"),
    // Matmul.
    ("matrix times vector", "mat-vec"),
    ("matrix times matrix", "mat-mat"),
    ("products of halves", "f16 matmul"),
    ("form of product", "kernel variant"),
    ("form of products", "kernel variant"),
    ("forms of product", "kernel variants"),
    ("forms of products", "kernel variants"),
    ("products form", "kernel variant"),
    ("cooperative products", "cooperative matrices"),
    ("small matrices that", "cooperative matrices that"),
    ("order of a sum", "reduction order"),
    ("order of the sum", "reduction order"),
    ("order of sums", "reduction order"),
    ("canonical geometry", "deterministic reduction"),
    // Attention, caches and recurrent ops.
    ("merge splits", "reduce splits"),
    ("merges splits", "reduces splits"),
    ("merge the splits", "reduce the splits"),
    ("splits are merged", "splits are reduced"),
    ("merged splits", "reduced splits"),
    ("attend merge", "attend_reduce"),
    ("both sides true", "bidirectional"),
    ("sees both sides", "is bidirectional"),
    ("see both sides", "are bidirectional"),
    ("path of drafts", "ancestors of a draft"),
    ("paths of drafts", "ancestors of drafts"),
    ("way of drafts", "ancestors of a draft"),
    ("in front", "before"),
    ("behind", "after, past or outside"),
    ("takes away", "removes"),
    ("taken away", "removed"),
    ("tap", "an element of the kernel"),
    ("taps", "kernel size"),
    ("room", "capacity"),
    ("rooms", "capacities"),
    // Steps, submissions and threads.
    ("under way", "in flight"),
    ("runs ahead", "is in flight"),
    ("run ahead", "be in flight"),
    ("ran ahead", "was in flight"),
    ("far ahead", "in flight"),
    ("verdict", "self-test result"),
    ("verdicts", "self-test results"),
    ("stamp", "completion marker"),
    ("stamps", "completion markers"),
    ("pace", "submission pacing"),
    ("paces", "submission pacing"),
    ("team", "thread pool"),
    ("teams", "thread pools"),
    ("a host s device", "an external device"),
    ("the host s device", "the external device"),
    ("face", "front end"),
    ("faces", "front ends"),
    // Anything.
    ("tell", "report, or say"),
    ("tells", "reports, or says"),
    ("telling", "reporting"),
    ("told", "reported"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("wished", "requested"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("mending", "fixing"),
    ("go round", "work around"),
    ("goes round", "works around"),
    ("gone round", "worked around"),
    ("went round", "worked around"),
    ("at home", "where it belongs"),
];

/// Names that were former words of this project, as they were written.
const NOT_OUR_NAMES: &[(&str, &str)] =
    &[("NEVER", "MASK_VALUE"), ("K_FOURS", "THREADS_PER_KEY"), ("Telling", "reports")];

/// Where those words mean something else.
const OTHER_MEANINGS: &[&str] = &[
    "draws a progress bar",
    "draws a session",
    "draw target",
    "public behind the feature",
    "behind rustyline",
    "closure behind the pointer",
    "worker behind promises",
    "how far the second is behind",
    "leaves behind",
    "hugging face",
    "gemma team",
    "glm team",
    "qwen team",
    "team olmo",
    "tells a story",
    "tells stories",
    "tells short stories",
    "tell short stories",
    "tell me", // a story
];

/// `text` in lower case, with single spaces for all that is no letter or digit: identifiers are words apart, too.
fn words(text: &str) -> String {
    let mut words = String::from(" ");
    let mut before = ' ';
    for c in text.chars() {
        if c.is_alphanumeric() {
            if c.is_uppercase() && before.is_lowercase() {
                words.push(' '); // DrawEntry is two words
            }
            words.extend(c.to_lowercase());
        } else if !words.ends_with(' ') {
            words.push(' ');
        }
        before = c;
    }
    words + " "
}

/// The former words in a text, each with what stands before it and what to say instead. Signs and ends of lines count for
/// nothing, those of comments neither: a word that stands over the end of a line is found, too.
fn former_words(text: &str) -> Vec<String> {
    let names = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names = names.flat_map(|name| NOT_OUR_NAMES.iter().filter(move |(former, _)| *former == name));
    let mut found: Vec<_> = names.map(|(name, instead)| format!("\"{name}\"; say \"{instead}\"")).collect();
    let text = OTHER_MEANINGS.iter().fold(words(text), |text, other| text.replace(&format!(" {other} "), " … "));
    for (word, instead) in NOT_OURS {
        for (at, _) in text.match_indices(&format!(" {word} ")) {
            let start = text[..at].char_indices().rev().nth(30).map_or(0, |(start, _)| start);
            found.push(format!("\"…{} {word}\"; say \"{instead}\"", &text[start..at]));
        }
    }
    found
}

/// A document without its blocks of plain text: samples of what models write.
fn without_samples(text: &str) -> String {
    let blocks = text.split("```text\n");
    blocks
        .enumerate()
        .map(|(i, block)| if i == 0 { block } else { block.split_once("```").map_or("", |b| b.1) })
        .collect()
}

#[test]
fn texts_say_what_the_field_says() {
    let mut found = Vec::new();
    for (path, text) in texts() {
        // The list itself, and the English of children's stories.
        if path.ends_with("tests/host/tidy.rs") || path.ends_with("tools/tiny_model/corpus.py") {
            continue;
        }
        let text = if path.ends_with("tools/README.md") { without_samples(&text) } else { text };
        found.extend(former_words(&text).into_iter().map(|word| format!("{}: {word}", path.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn former_words_are_found() {
    assert_eq!(words("fn pick_drawn(x: DrawEntry) // K_FOURS"), " fn pick drawn x draw entry k fours ");
    let found = |text: &str, word: &str| assert!(former_words(text).iter().any(|f| f.contains(word)), "{text}");
    found("struct DrawEntry;", "draw");
    found("/// There is room\n/// for a row.", "room");
    found("//! Steps that are under\n//! way when it ends.", "under way");
    found("# Ids are sampled; a matrix\n# times vector follows.", "matrix times vector");
    found("- One under\n  way.", "under way");
    found("const NEVER: f32 = -1e30;", "NEVER");
    for text in ["It never ends.", "Hugging\n// Face's sandbox", "a bathroom", "It tells stories."] {
        assert_eq!(former_words(text), [""; 0], "{text}");
    }
}
