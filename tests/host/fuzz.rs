//! The fuzz targets of `fuzz/` over their corpus: each input, and each mutated a few hundred times. Nothing may panic.

use std::fs;
use std::path::Path;

use wgslm_test::Rng;
use wgslm_test::fuzz::TARGETS;

/// Inputs of each target, beside the corpus.
const MUTATED: usize = 4000;

/// Numbers and signs that parsers are sensitive to.
const PIECES: &[&[u8]] = &[
    &[0xff],
    &[0; 8],
    &[0xff; 8],
    b"-1",
    b"4294967296",
    b"1e999",
    b"null",
    b"{}",
    b"[[[[[[[[",
    b"{{ ",
    b"{% for i in range(9) %}",
    b"|length",
    b"\\u0000",
    "\u{e9}\u{1f600}".as_bytes(),
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Breaks an input in one place.
fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let at = rng.below(input.len() + 1);
    match rng.below(6) {
        0 if at < input.len() => input[at] ^= 1 << rng.below(8),
        1 if at < input.len() => input[at] = rng.word() as u8,
        2 => drop(input.splice(at..at, PIECES[rng.below(PIECES.len())].iter().copied())),
        3 => drop(input.drain(at..(at + rng.below(40)).min(input.len()))),
        4 => {
            let from = rng.below(other.len() + 1);
            let piece = &other[from..(from + rng.below(60)).min(other.len())];
            drop(input.splice(at..at, piece.iter().copied()));
        }
        _ => input.truncate(at),
    }
}

fn run(index: usize) {
    let (name, target) = TARGETS[index];
    let corpus = corpus(name);
    assert!(corpus.len() >= 5, "{name}: {} inputs in its corpus", corpus.len());
    corpus.iter().for_each(|input| target(input));
    let mut rng = Rng(17 + index as u64);
    for _ in 0..MUTATED {
        let mut input = corpus[rng.below(corpus.len())].clone();
        for _ in 0..=rng.below(4) {
            mutate(&mut input, &corpus[rng.below(corpus.len())], &mut rng);
        }
        target(&input);
    }
}

#[test]
fn gguf() {
    run(0);
}

#[test]
fn folder() {
    run(1);
}

#[test]
fn tokenizer() {
    run(2);
}

#[test]
fn template() {
    run(3);
}

#[test]
fn tuning() {
    run(4);
}

#[test]
fn sampling() {
    run(5);
}

#[test]
fn every_target_has_a_program_and_a_test() {
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["gguf", "folder", "tokenizer", "template", "tuning", "sampling"]);
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
    for name in names {
        let program = format!("fuzz_targets/{name}.rs");
        assert!(manifest.contains(&format!("path = \"{program}\"")), "{name} is not in fuzz/Cargo.toml");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(program);
        assert!(fs::read_to_string(source).unwrap().contains(&format!("fuzz::{name}(")), "{name}");
    }
}
