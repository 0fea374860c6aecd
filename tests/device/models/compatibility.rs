//! The table of architectures in COMPATIBILITY.md is true: each fixture is opened as a folder, through a GGUF file of our own,
//! and loaded on a GPU. (Other tests, which walk the same list, check the logits.)

use std::collections::BTreeMap;

use wgslm::exec::{Limits, Numerics};
use wgslm::model::Model;

use super::golden::converted;
use super::runner::Device;
use super::{Gpu, open, tiny_models};
use wgslm_test::data;

const START: &str =
    "<!-- architectures: written by the test `the_table_of_architectures_is_current`, with WGSLM_BLESS=1 -->\n";
const END: &str = "<!-- end -->";

/// What is said of one architecture.
#[derive(Default)]
struct Line {
    fixtures: Vec<String>,
    /// Why some cannot be written as GGUF, by fixture.
    no_gguf: Vec<String>,
    /// Why some do not run on a GPU, by fixture.
    no_gpu: Vec<(String, String)>,
}

/// The part of a message that says what is missing.
fn reason(error: &wgslm::Error) -> String {
    let text = error.to_string();
    let end = ["in a GGUF file", "is not supported", ";"].iter().filter_map(|end| text.find(end)).min();
    text[..end.unwrap_or(text.len())].trim_end().to_owned()
}

fn no_gpu(model: &Model) -> Option<String> {
    let limits = Limits { rows: 8, seqs: 1, outs: 1, block: 16, blocks: 4, context: 64, in_flight: 1, checkpoints: 0 };
    Gpu::load(model, Numerics::Fast, limits).err().map(|e| reason(&e).replace(" on the GPU", " has no kernel"))
}

fn table() -> String {
    let mut lines = BTreeMap::<String, Line>::new();
    for (name, _) in tiny_models() {
        let path = data("tiny-models").join(&name);
        let model = open(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let line = lines.entry(model.arch.to_owned()).or_default();
        line.no_gguf.extend(converted(&path).err().map(|e| format!("not `{name}`: {}", reason(&e))));
        line.no_gpu.extend(no_gpu(&model).map(|reason| (format!("not `{name}`: {reason}"), reason)));
        line.fixtures.push(format!("`{name}`"));
    }
    let mut out =
        String::from("| `model_type` | safetensors | GGUF | CPU | GPU | fixtures |\n|---|---|---|---|---|---|\n");
    for names in wgslm::model::architectures() {
        let arch = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let Some(line) = lines.get(names[0]) else {
            out += &format!("| {arch} | untested | untested | untested | untested | none |\n");
            continue;
        };
        let gguf = if line.no_gguf.is_empty() { "yes".to_owned() } else { line.no_gguf.join("; ") };
        let gpu = match &line.no_gpu[..] {
            [] => "yes".to_owned(),
            [(_, reason), ..] if line.no_gpu.len() == line.fixtures.len() => reason.clone(),
            some => some.iter().map(|(named, _)| named.as_str()).collect::<Vec<_>>().join("; "),
        };
        out += &format!("| {arch} | yes | {gguf} | yes | {gpu} | {} |\n", line.fixtures.join(", "));
    }
    out
}

#[test]
fn the_table_of_architectures_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/COMPATIBILITY.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (before, rest) = document.split_once(START).expect("the table's start");
    let (old, after) = rest.split_once(END).expect("the table's end");
    let new = table();
    if std::env::var_os("WGSLM_BLESS").is_some() {
        std::fs::write(path, format!("{before}{START}{new}{END}{after}")).unwrap();
    } else {
        assert_eq!(old, new, "COMPATIBILITY.md: WGSLM_BLESS=1 writes the table anew");
    }
}
