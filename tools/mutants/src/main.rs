//! Puts faults into a copy of the repository, and counts those that no test notices.
//!
//! ```sh
//! cargo run --manifest-path tools/mutants/Cargo.toml -- OUT [SEED [RUST [WGSL]]]
//! ```
//!
//! Chooses RUST faults in `src` and WGSL ones in `wgsl`, 36 and 24 if not given, at random from a SEED. All are compiled
//! at once, each under a condition on the environment variable `WGSLM_MUTANT`. Then the tests run for each: the quickest
//! for all, the next for those that are left, and so on. Run it again to go on: `OUT/mutants.json` has the faults,
//! `OUT/results.jsonl` what became of each, `OUT/logs` the output of the tests.
//!
//! A fault counts as caught if a test fails that passes without it. Texts that are not WGSL do not count.

mod sites;
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sites::Mutant;

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |n| n.parse().context("not a number"));
    let out = PathBuf::from(args.first().context("where? mutants OUT [SEED [RUST [WGSL]]]")?);
    fs::create_dir_all(&out)?;
    let out = out.canonicalize()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let tree = out.join("tree");
    let list = out.join("mutants.json");
    if !list.exists() {
        let mut random = fastrand::Rng::with_seed(number(1, 1)? as u64);
        let [rust, wgsl] = [number(2, 36)?, number(3, 24)?];
        // Some will not compile.
        let mut mutants = sites::rust(&root, &mut random, rust + rust / 4)?;
        mutants.extend(sites::wgsl(&root, &mut random, wgsl + wgsl / 4)?);
        let mut dropped = BTreeSet::new();
        loop {
            write_tree(&root, &tree, &mutants, &dropped)?;
            let failed = tests::uncompiled(&tree)?;
            if failed.is_empty() {
                break;
            }
            eprintln!("{} do not compile", failed.len());
            dropped.extend(failed);
        }
        tests::build(&tree)?;
        dropped.extend(tests::invalid(&tree, &mutants, &dropped)?);
        let of = |wgsl: bool, count: usize| {
            let left = mutants.iter().filter(|m| m.path.starts_with("wgsl") == wgsl && !dropped.contains(&m.id));
            left.take(count).collect::<Vec<_>>()
        };
        let kept: Vec<_> = [of(false, rust), of(true, wgsl)].concat().into_iter().map(Mutant::to_json).collect();
        fs::write(&list, serde_json::to_string_pretty(&kept)?)?;
    }
    let mutants: Vec<Value> = serde_json::from_str(&fs::read_to_string(&list)?)?;
    tests::run_all(&tree, &out, &mutants)?;
    let results = tests::results(&out)?;
    let caught = results.values().filter(|(caught, _)| *caught).count();
    println!("{caught} of {} caught", results.len());
    for mutant in
        mutants.iter().filter(|m| results.get(&m["id"].as_u64().unwrap_or(0)).is_some_and(|(caught, _)| !caught))
    {
        println!("escaped: {}:{}\n  {}\n  {}", mutant["path"], mutant["line"], mutant["old"], mutant["new"]);
    }
    Ok(())
}

/// The files that git knows, with all faults but those dropped, each under its condition.
fn write_tree(root: &Path, tree: &Path, mutants: &[Mutant], dropped: &BTreeSet<u32>) -> Result<()> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    ensure!(listed.status.success(), "git ls-files failed");
    for path in String::from_utf8(listed.stdout)?.split('\0').filter(|path| !path.is_empty()) {
        let from = root.join(path);
        if !from.is_file() {
            continue;
        }
        let mut bytes = fs::read(&from)?;
        let mut of_file: Vec<_> = mutants
            .iter()
            .filter(|m| m.path == path && !dropped.contains(&m.id) && !path.starts_with("wgsl"))
            .collect();
        of_file.sort_by_key(|m| std::cmp::Reverse(m.range.start));
        for mutant in of_file {
            bytes.splice(mutant.range.clone(), mutant.switched().into_bytes());
        }
        let text = match path {
            "src/lib.rs" => [String::from_utf8(bytes)?, switch(mutants, dropped)].concat(),
            "src/gpu/compose.rs" => {
                let mut text = String::from_utf8(bytes)?;
                for source in ["fragment.source", "kernel.source"] {
                    let old = format!("text.push_str({source})");
                    ensure!(text.contains(&old), "src/gpu/compose.rs composes texts in another way now");
                    text = text.replace(&old, &format!("text.push_str(&crate::mutant_text({source}))"));
                }
                text
            }
            _ => {
                write_if_other(&tree.join(path), &bytes)?;
                continue;
            }
        };
        write_if_other(&tree.join(path), text.as_bytes())?;
    }
    // Tests find the repository's root, and scripts ask git.
    if !tree.join(".git").exists() {
        let made = Command::new("git").args(["init", "--quiet"]).current_dir(tree).status()?;
        ensure!(made.success(), "git init failed");
    }
    Ok(())
}

/// What asks for the fault that is on.
fn switch(mutants: &[Mutant], dropped: &BTreeSet<u32>) -> String {
    let arms: String = mutants
        .iter()
        .filter(|m| m.path.starts_with("wgsl") && !dropped.contains(&m.id))
        .map(|m| {
            let file = format!("{:?}", format!("../{}", m.path));
            format!("        {} => (include_str!({file}), {:?}, {:?}),\n", m.id, m.range, m.new)
        })
        .collect();
    format!(
        r#"
static MUTANT: std::sync::LazyLock<u32> =
    std::sync::LazyLock::new(|| std::env::var("WGSLM_MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(u32::MAX));

#[allow(missing_docs, dead_code)]
pub(crate) fn mutant(id: u32) -> bool {{
    *MUTANT == id
}}

#[allow(missing_docs, clippy::all)]
pub(crate) fn mutant_text(source: &str) -> std::borrow::Cow<'_, str> {{
    let (file, range, new): (&str, std::ops::Range<usize>, &str) = match *MUTANT {{
{arms}        _ => return source.into(),
    }};
    if source != file {{
        return source.into();
    }}
    let mut text = source.to_owned();
    text.replace_range(range, new);
    text.into()
}}
"#
    )
}

fn write_if_other(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    let Some(folder) = path.parent() else { bail!("{} has no folder", path.display()) };
    fs::create_dir_all(folder)?;
    fs::write(path, bytes)?;
    Ok(())
}

impl Mutant {
    fn to_json(&self) -> Value {
        json!({ "id": self.id, "path": self.path, "line": self.line, "old": self.old, "new": self.new })
    }
}
