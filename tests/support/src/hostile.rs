//! The malformed files of `tests/data/hostile`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{data, data_bytes, data_json};

/// The cases of `index.json`, which says at its top what the fields mean.
pub fn cases() -> Vec<Value> {
    let Value::Array(cases) = data_json("hostile/index.json")["cases"].take() else { panic!("no cases") };
    cases
}

/// The bytes of a case's file; one that nests deeply is joined from the pieces that its case has.
pub fn bytes(case: &Value) -> Vec<u8> {
    let Some(pieces) = case["pieces"].as_array() else {
        return data_bytes(&format!("hostile/{}", file(case)));
    };
    let mut joined = Vec::new();
    for piece in pieces {
        let unit = match (piece["text"].as_str(), piece["hex"].as_str()) {
            (Some(text), None) => text.as_bytes().to_vec(),
            (None, Some(hex)) => unhex(hex),
            _ => panic!("{}: a piece has a text or hexadecimal bytes: {piece}", file(case)),
        };
        joined.extend(unit.repeat(piece["times"].as_u64().expect("times") as usize));
    }
    joined
}

/// Where a case's file is: among the fixtures, or in `folder`, where a joined one is written.
pub fn path(case: &Value, folder: &Path) -> PathBuf {
    if !case["pieces"].is_array() {
        return data("hostile").join(file(case));
    }
    let path = folder.join(file(case));
    fs::create_dir_all(folder).unwrap();
    fs::write(&path, bytes(case)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}

fn file(case: &Value) -> &str {
    case["file"].as_str().expect("a file")
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().as_chunks().0.iter().map(|&[high, low]| 16 * digit(high) + digit(low)).collect()
}
