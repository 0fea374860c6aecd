//! `wgslm embed`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wgslm::engine::{EmbedOptions, Embedder};
use wgslm::exec::{DeviceChoice, Numerics, Options};
use wgslm::file::ModelFile;

use super::{command, fails, fed, ok, text};
use wgslm_test::data;

/// A fixture with a tokenizer beside it: `[PAD]`, `[CLS]`, `[SEP]`, `[UNK]`, then words w4 to w102.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(fixture: &str, test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wgslm-embed-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        copy(&data("tiny-models").join(fixture), &path);
        let mut vocab = json!({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3});
        (4..103).for_each(|id| vocab[format!("w{id}")] = id.into());
        let special = |id: u32, text: &str| {
            json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false})
        };
        let token = |text: &str, id: u32| json!({"SpecialToken": {"id": text, "type_id": id}});
        let sequence = |name: &str, id: u32| json!({"Sequence": {"id": name, "type_id": id}});
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [special(0, "[PAD]"), special(1, "[CLS]"), special(2, "[SEP]"), special(3, "[UNK]")],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [token("[CLS]", 0), sequence("A", 0), token("[SEP]", 0)],
                "pair": [token("[CLS]", 0), sequence("A", 0), token("[SEP]", 0), sequence("B", 1), token("[SEP]", 1)],
                "special_tokens": {
                    "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                    "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]},
                },
            },
            "model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        });
        std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        Self(path)
    }

    fn embed(&self, args: &[&str], stdin: &str) -> std::process::Output {
        let mut command = command(&["embed", "--device", "cpu", "-m"]);
        command.arg(&self.0).args(args);
        fed(command, stdin.as_bytes())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            std::fs::create_dir_all(&to).unwrap();
            copy(&from, &to);
        } else if entry.file_name() != "golden.npz" {
            // Read and written: the data may be read-only, and a folder that is copied so could not be removed.
            std::fs::write(to, std::fs::read(from).unwrap()).unwrap();
        }
    }
}

fn vectors(stdout: &str) -> Vec<Vec<f64>> {
    let vector = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    stdout.lines().map(vector).collect()
}

fn length(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// What the library gives for the same.
fn library(folder: &Folder) -> Embedder {
    let file = ModelFile::open(&folder.0).unwrap();
    let cpu = Options { device: DeviceChoice::Cpu, numerics: Numerics::Exact, ..Options::default() };
    pollster::block_on(Embedder::open(file, &EmbedOptions::default(), &cpu, &mut |_| {})).unwrap()
}

#[test]
fn a_line_gives_a_vector() {
    let folder = Folder::new("nomicbert-rope", "lines");
    let stdin = "\"w7 w8 w9\"\n\n{\"text\": \"w40\", \"id\": 3}\n{\"text\": \"\"}\n\"w7 nowhere w9\"";
    let output = folder.embed(&[], stdin);
    assert_eq!(text(&output.stderr), "");
    let stdout = ok(output);
    let tokens: Vec<_> =
        stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [5, 3, 2, 5]);
    let all = vectors(&stdout);
    assert!(all.iter().all(|v| v.len() == 40 && (length(v) - 1.0).abs() < 1e-6));

    let mut library = library(&folder);
    assert_eq!((library.width(), library.scores()), (40, false));
    let inputs = ["w7 w8 w9", "w40", "", "w7 nowhere w9"].map(|text| library.text(text).unwrap());
    assert_eq!(inputs[0].ids, [1, 7, 8, 9, 2]);
    let expected = pollster::block_on(library.run(&inputs)).unwrap();
    for (ours, theirs) in all.iter().zip(expected) {
        assert!(ours.iter().zip(theirs).all(|(a, b)| *a as f32 == b), "printed as it is");
    }

    // From a file, and each line alone, the same to the last digit.
    let file = folder.0.join("lines.jsonl");
    std::fs::write(&file, stdin).unwrap();
    assert_eq!(ok(folder.embed(&["--input", file.to_str().unwrap()], "")), stdout);
    let alone: String = stdin.lines().map(|line| ok(folder.embed(&[], line))).collect();
    assert_eq!(alone, stdout);
}

#[test]
fn pooling_and_normalisation_can_be_chosen() {
    let folder = Folder::new("nomicbert-rope", "choice");
    let run = |args: &[&str]| vectors(&ok(folder.embed(args, "\"w7 w8 w9 w10\""))).remove(0);
    let mean = run(&["--pool", "mean", "--normalize"]);
    assert_eq!(mean, run(&[]));
    let plain = run(&["--no-normalize"]);
    let norm = length(&plain);
    assert!((norm - 1.0).abs() > 1e-2);
    assert!(plain.iter().zip(&mean).all(|(a, b)| (a / norm - b).abs() < 1e-6));
    let (cls, last) = (run(&["--pool", "cls"]), run(&["--pool", "last"]));
    assert!(cls != mean && last != mean && cls != last);
    fails(folder.embed(&["--pool", "max"], ""), 2, &["mean, cls and last work"]);
    fails(folder.embed(&["--normalize", "--no-normalize"], ""), 2, &["cannot be used with"]);
}

#[test]
fn pairs_of_texts_give_scores() {
    let folder = Folder::new("bert-rerank", "pairs");
    let stdin =
        "{\"query\": \"w7 w8\", \"document\": \"w9 w10 w11\"}\n{\"query\": \"w9 w10 w11\", \"document\": \"w7 w8\"}\n";
    let lines = ok(folder.embed(&[], stdin));
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut library = library(&folder);
    assert!(library.scores());
    let pair = library.pair("w7 w8", "w9 w10 w11").unwrap();
    assert_eq!((&pair.ids[..], &pair.types[..]), (&[1, 7, 8, 2, 9, 10, 11, 2][..], &[0, 0, 0, 0, 1, 1, 1, 1][..]));
    let expected = pollster::block_on(library.run(&[pair, library.pair("w9 w10 w11", "w7 w8").unwrap()])).unwrap();
    for (line, expected) in lines.iter().zip(&expected) {
        assert_eq!(line["score"].as_f64().unwrap() as f32, expected[0]);
        assert_eq!(line["tokens"], 8);
    }
    assert_ne!(expected[0], expected[1]);
    let works = ["line 1", "\"query\"", "\"document\""];
    fails(folder.embed(&[], "\"w7\""), 2, &works);
    fails(folder.embed(&[], "{\"query\": \"w7\"}"), 2, &works);
    fails(folder.embed(&["--pool", "cls"], ""), 2, &["scores of pairs"]);
}

#[test]
fn lines_that_do_not_fit_are_named() {
    let folder = Folder::new("nomicbert-rope", "wrong");
    for (stdin, words) in [
        ("{nothing", "line 1: not JSON"),
        ("[1, 2]", "{\"text\": \"…\"}"),
        ("{\"query\": \"a\", \"document\": \"b\"}", "{\"text\": \"…\"}"),
        ("{\"text\": 5}", "{\"text\": \"…\"}"),
    ] {
        fails(folder.embed(&[], stdin), 2, &["stdin, line 1", words]);
    }
    // What came before is done.
    let output = folder.embed(&[], "\"w7\"\nw8\n[7]\n\"w9\"\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("stdin, line 3"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 2);

    let long = format!("\"{}\"", ["w7"; 300].join(" "));
    fails(folder.embed(&[], &long), 2, &["line 1", "the text has 302 tokens, at most 256 fit; --truncate shortens it"]);
    fails(folder.embed(&["--context", "10"], "\"w7 w7 w7 w7 w7 w7 w7 w7 w7\""), 2, &["11 tokens, at most 10 fit"]);
    fails(folder.embed(&["--context", "257"], ""), 2, &["1 to 256 work"]);
    let cut = ok(folder.embed(&["--truncate"], &long));
    assert_eq!(serde_json::from_str::<Value>(&cut).unwrap()["tokens"], 256);
    let same = format!("\"{}\"", ["w7"; 254].join(" "));
    assert_eq!(ok(folder.embed(&[], &same)), cut);
    fails(folder.embed(&["--input", "/nowhere"], ""), 2, &["/nowhere"]);
    assert_eq!(ok(folder.embed(&[], "")), "");
}

/// A text is a text, whether JSON's signs are around it or not, in a line or on the command line.
#[test]
fn plain_lines_and_arguments_are_texts() {
    let folder = Folder::new("nomicbert-rope", "plain");
    let json = ok(folder.embed(&[], "\"w7 w8\"\n\"9\"\n"));
    assert_eq!(ok(folder.embed(&[], "w7 w8\r\n\n9\n")), json);
    assert_eq!(ok(folder.embed(&["w7 w8", "9"], "\"not read\"")), json);
    // Numbers have no more digits than 32 bits need.
    let digits =
        json.split(['[', ',', ']']).filter(|n| n.contains('.')).map(|n| n.chars().filter(char::is_ascii_digit).count());
    assert!(digits.max().unwrap() <= 13, "{json}");
    fails(folder.embed(&["w7", "--input", "x"], ""), 2, &["cannot be used with"]);
}

/// A decoder gives vectors, too; an encoder does not generate, and its error says what works.
#[test]
fn decoders_embed_and_encoders_do_not_talk() {
    let lines = fed(command(&["embed", "--device", "cpu"]), "\"Once upon a time\"\n\"A cat\"\n".as_bytes());
    let all = vectors(&ok(lines));
    assert_eq!(all.len(), 2);
    assert!((length(&all[0]) - 1.0).abs() < 1e-6);
    let folder = Folder::new("nomicbert-rope", "talk");
    for verb in [&["run", "--device", "cpu", "w7"][..], &["logits", "--device", "cpu", "--ids", "7", "-o", "x.npy"]] {
        let mut command = command(verb);
        command.arg("-m").arg(&folder.0);
        fails(command.output().unwrap(), 2, &["wgslm embed"]);
    }
}
