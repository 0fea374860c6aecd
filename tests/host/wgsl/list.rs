//! `docs/kernels.md`, made of the kernels' own headers, and that it is current.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use wgslm::gpu::compose::lib::LIB;
use wgslm::ops::KERNELS;

use wgslm_test::modules;

const HEAD: &str = "# Kernels

Made of the headers in `wgsl/` by the test `the_list_of_kernels_is_current`, with WGSLM_BLESS=1.
Change the headers, not this file.

- *Forms* are the fragments that may fill a slot of a kernel. `any block format` stands for one
  decoder of `wgsl/quant/` each.
- *Overrides* are pipeline constants with their defaults. Those of fragments are listed with the
  fragments, below.
- *Used by* names the files of `src/ops` that take the kernel.
- *Measured* is the share of a plain copy's rate in GB/s that `wgslm bench kernels` found, as
  BENCHMARKS.md has it.
";

/// A kernel's or fragment's header, by parts.
#[derive(Default)]
struct Header<'a> {
    formula: &'a str,
    shapes: Vec<&'a str>,
    grid: &'a str,
    uses: &'a str,
    source: &'a str,
    bench_only: &'a str,
    prose: Vec<&'a str>,
}

impl<'a> Header<'a> {
    fn of(text: &'a str) -> Self {
        let mut header = Self::default();
        let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
        for (i, line) in lines.enumerate() {
            let key = |key: &str| line.strip_prefix(key).map(str::trim);
            if i == 0 {
                header.formula = line.split_once(": ").map_or(line, |(_, formula)| formula);
            } else if let Some(grid) = key("grid:") {
                header.grid = grid;
            } else if let Some(uses) = key("use:") {
                header.uses = uses;
            } else if let Some(source) = key("source:") {
                header.source = source;
            } else if let Some(why) = key("bench only:") {
                header.bench_only = why;
            } else if header.grid.is_empty() {
                header.shapes.push(line);
            } else {
                header.prose.push(line);
            }
        }
        header
    }
}

/// `NAME = default (what it is)` for each override of a module.
fn overrides(text: &str) -> String {
    let one = |line: &str| {
        let (declared, comment) = line.split_once("//").unwrap_or((line, ""));
        let comment = comment.trim();
        let constant = declared.strip_prefix("const ").filter(|_| comment.starts_with("set:"));
        let (name, rest) = declared.strip_prefix("override ").or(constant)?.split_once(':')?;
        let default = rest.split_once('=')?.1.trim().trim_end_matches(';').trim_end_matches('u');
        let comment = comment.trim_start_matches("set:").trim();
        Some(if comment.is_empty() {
            format!("`{name}` = {default}")
        } else {
            format!("`{name}` = {default} ({comment})")
        })
    };
    text.lines().filter_map(one).collect::<Vec<_>>().join("; ")
}

/// The files of `src/ops` that name a kernel, without their endings: `attend/gpu`.
fn users(kernel: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let mut folders = vec![root.clone()];
    let mut users = Vec::new();
    let constant = format!("kernels::{}", kernel.to_uppercase());
    let names = |text: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        text.split(&constant).skip(1).any(ends)
    };
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of ops") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(&root).expect("a file of ops").with_extension("");
            let name = name.to_string_lossy().replace('\\', "/").trim_end_matches("/mod").to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read_to_string(path).is_ok_and(|text| names(&text)) {
                users.push(format!("`{name}`"));
            }
        }
    }
    users.sort();
    users
}

/// What BENCHMARKS.md says of a kernel, in the first table of single kernels: `RMS of 4096: 45 %; …`, and the device.
fn measured(kernel: &str, benchmarks: &str) -> String {
    let Some((_, section)) = benchmarks.split_once("\n## Single kernels on ") else { return String::new() };
    let section = section.split("\n## ").next().unwrap_or(section);
    let device = section.split(" (").next().unwrap_or_default();
    let one = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (name, form) = cells.first()?.split_once([' ', ','])?;
        let share = cells.last()?.strip_suffix(" %")?;
        (name == kernel).then(|| format!("{}: {share} %", form.trim()))
    };
    let shares: Vec<_> = section.lines().filter(|line| line.starts_with("| ")).filter_map(one).collect();
    if shares.is_empty() { String::new() } else { format!("{} ({device})", shares.join("; ")) }
}

fn list() -> String {
    let benchmarks = Path::new(env!("CARGO_MANIFEST_DIR")).join("BENCHMARKS.md");
    let benchmarks = fs::read_to_string(benchmarks).expect("BENCHMARKS.md");
    let mut out = HEAD.to_owned();
    let mut kernels = KERNELS.to_vec();
    kernels.sort_by_key(|kernel| kernel.name);
    for kernel in kernels {
        let (name, text) = (kernel.name, kernel.source);
        let header = Header::of(text);
        write!(out, "\n## {name}\n\n`{}`\n\n", header.formula).unwrap();
        let mut item = |what: &str, text: &str| {
            if !text.is_empty() {
                writeln!(out, "- {what}: {text}").unwrap();
            }
        };
        item("shapes", &format!("`{}`", header.shapes.join(" ")));
        item("grid", header.grid);
        item("overrides", &overrides(text));
        for slot in kernel.kernel().open_slots() {
            let names: Vec<_> = modules::choices(slot).iter().map(|f| f.name.trim_start_matches("lib/")).collect();
            item(
                &format!("forms, {slot}"),
                &if slot == "weights" { "any block format".into() } else { names.join(", ") },
            );
        }
        let shared = header.uses.split(',').map(str::trim).filter(|name| !name.starts_with('<'));
        item("fragments", &shared.collect::<Vec<_>>().join(", "));
        item("source", header.source);
        let users = users(name);
        assert!(!users.is_empty(), "{name}: no op takes it");
        item("used by", &users.join(", "));
        item("bench only", header.bench_only);
        item("measured", &measured(name, &benchmarks));
        let prose = header.prose.join("\n");
        if !prose.trim().is_empty() {
            writeln!(out, "\n{}", prose.trim()).unwrap();
        }
    }
    out.push_str("\n## Fragments\n\n| fragment | what it does | overrides |\n|---|---|---|\n");
    for fragment in LIB {
        let text = fragment
            .source
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(str::trim)
            .collect::<Vec<_>>()
            .join(" ");
        let what = text.split_once(": ").map_or(text.as_str(), |(_, what)| what).replace('|', "\\|");
        writeln!(out, "| {} | {} | {} |", fragment.name, what, overrides(fragment.source).replace('|', "\\|")).unwrap();
    }
    out
}

#[test]
fn the_list_of_kernels_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kernels.md");
    let new = list();
    if std::env::var_os("WGSLM_BLESS").is_some() {
        fs::write(&path, new).expect("docs/kernels.md is written");
    } else {
        let old = fs::read_to_string(&path).unwrap_or_default();
        assert!(old == new, "docs/kernels.md is not what the kernels' headers say: WGSLM_BLESS=1 writes it anew");
    }
}
