//! What builds the copy, and the tests that see a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde_json::{Value, json};

use crate::sites::Mutant;

/// The most that a file has.
const STAGES: usize = 3;

/// Less optimised than CI's: the build counts, too.
const ENVIRONMENT: [(&str, &str); 3] =
    [("CARGO_PROFILE_DEV_OPT_LEVEL", "1"), ("CARGO_INCREMENTAL", "0"), ("RUST_BACKTRACE", "0")];

/// Tests that read the source's text, which is another here.
const OF_TEXTS: &str = "test(/^(tidy|documents|wgsl::(list|reflection))::/)";
/// Tests of real models take minutes.
const REAL: &str = "test(/smollm2|gemma_3|real_models|likelihoods/)";
/// What runs differently on a device.
const ON_DEVICES: [&str; 6] = ["src/engine/", "src/exec/", "src/gpu/", "src/kv/", "src/ops/", "src/quant/"];
/// Of the tests on adapters those that see most in little time: programs of every op, models, single ops, decoding.
const OF_DEVICES: &str = "test(/gpu_programs_agree|tiny_models_match|kernels::(executor|single)::|^decode::/)";
const ON_ADAPTERS: &str = "test(/gpu|lavapipe|swiftshader/)";

fn bash(tree: &Path, script: &str, mutant: Option<u64>) -> Result<Output> {
    let mut command = Command::new("bash");
    command.args(["-c", &format!(". scripts/software-adapters; show_swiftshader; {script}")]).current_dir(tree);
    command.envs(ENVIRONMENT).env_remove("WGSLM_MUTANT").env("CARGO_TARGET_DIR", tree.join("../target"));
    if let Some(id) = mutant {
        command.env("WGSLM_MUTANT", id.to_string());
    }
    Ok(command.output()?)
}

/// The faults because of which the copy does not compile.
pub fn uncompiled(tree: &Path) -> Result<BTreeSet<u32>> {
    let output = bash(tree, "cargo check --quiet --lib --message-format=json", None)?;
    let call = Regex::new(r"crate::mutant\(([0-9]+)\)")?;
    let mut failed = BTreeSet::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(report) = serde_json::from_str::<Value>(line) else { continue };
        let message = &report["message"];
        if message["level"] != "error" {
            continue;
        }
        for span in message["spans"].as_array().into_iter().flatten().filter(|span| span["is_primary"] == true) {
            let text = fs::read_to_string(tree.join(span["file_name"].as_str().unwrap_or_default()))?;
            let end = span["byte_end"].as_u64().unwrap_or(0) as usize;
            // The last fault that begins before the error.
            if let Some(found) = call.captures_iter(&text[..end]).last() {
                failed.insert(found[1].parse()?);
            }
        }
    }
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() || !failed.is_empty(), "does not compile:\n{said}");
    Ok(failed)
}

/// Builds all tests.
pub fn build(tree: &Path) -> Result<()> {
    let output =
        bash(tree, "cargo nextest run --locked --no-run && cargo build --locked --example kernel_cases", None)?;
    ensure!(output.status.success(), "the tests do not build:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The faults whose texts are not WGSL.
pub fn invalid(tree: &Path, mutants: &[Mutant], dropped: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
    let check = "cargo nextest run --locked --test host -E 'test(every_module_is_valid)'";
    let mut invalid = BTreeSet::new();
    for mutant in mutants.iter().filter(|m| m.path.starts_with("wgsl") && !dropped.contains(&m.id)) {
        if !bash(tree, check, Some(mutant.id.into()))?.status.success() {
            invalid.insert(mutant.id);
        }
    }
    Ok(invalid)
}

/// The lists of fragments that kernels name.
fn uses(tree: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(tree.join("wgsl"))? {
        let path = entry?.path();
        let Some(kernel) = path.file_stem().filter(|_| path.is_file()) else { continue };
        let text = fs::read_to_string(&path)?;
        let list = text.lines().find_map(|line| line.strip_prefix("//! use:")).unwrap_or("");
        let parts = list.split(',').map(|part| part.trim().to_owned()).collect();
        all.push((kernel.to_string_lossy().into_owned(), parts));
    }
    Ok(all)
}

/// The kernels that a file of `wgsl` is a part of.
fn kernels(tree: &Path, path: &str) -> Result<Vec<String>> {
    let name = path.trim_start_matches("wgsl/").trim_end_matches(".wgsl");
    if !name.contains('/') {
        return Ok(vec![name.to_owned()]);
    }
    if name.starts_with("quant/") {
        return Ok(["embed", "matvec", "matmul", "expert_linear"].map(str::to_owned).to_vec());
    }
    let uses = uses(tree)?;
    let having = |fits: &dyn Fn(&str) -> bool| -> Vec<String> {
        let users = uses.iter().filter(|(_, parts)| parts.iter().any(|part| fits(part)));
        users.map(|(kernel, _)| kernel.clone()).collect()
    };
    let mut users = having(&|part| part == name || part == "<kv>" && name.contains("kv"));
    if users.is_empty() {
        // It fills a slot: `lib/sums_subgroup` that of `sums`.
        let slot = name.trim_start_matches("lib/").split('_').next().unwrap_or_default();
        users = having(&|part| part.trim_matches(['<', '>']) == slot);
    }
    Ok(users)
}

/// The commands that see a fault in a file, the quickest first.
fn stages(tree: &Path, path: &str) -> Result<Vec<String>> {
    let nextest = "cargo nextest run --locked";
    let on_adapters = format!("{nextest} --profile ci --fail-fast --test device -E '{OF_DEVICES}'");
    if path.starts_with("wgsl/") {
        let kernels = kernels(tree, path)?;
        if kernels.is_empty() {
            return Ok(vec![on_adapters]);
        }
        let cases = "timeout 900 ../target/debug/examples/kernel_cases";
        let all: Vec<_> = kernels.iter().map(|kernel| format!("{cases} {kernel}")).collect();
        return Ok(vec![format!("export WGSLM_TEST_ADAPTER=llvmpipe; {}", all.join(" && ")), on_adapters]);
    }
    let host = "--lib --test alloc --test front_ends --test host";
    let mut stages = vec![
        format!("{nextest} --profile check {host} -E 'not {OF_TEXTS}'"),
        format!("{nextest} --profile ci --fail-fast --test device -E 'not {ON_ADAPTERS} & not {REAL}'"),
    ];
    // Models are read, and texts made, alike for all executors.
    if ON_DEVICES.iter().any(|folder| path.starts_with(folder)) {
        stages.push(on_adapters);
    }
    Ok(stages)
}

/// What became of each fault so far: whether a stage caught it, and how many it has been through.
pub fn results(out: &Path) -> Result<BTreeMap<u64, (bool, usize)>> {
    let text = fs::read_to_string(out.join("results.jsonl")).unwrap_or_default();
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let result: Value = serde_json::from_str(line)?;
        let id = result["id"].as_u64().context("a result without an id")?;
        let (caught, stages) = results.entry(id).or_insert((false, 0));
        *caught |= result["caught"] == true;
        *stages += 1;
    }
    Ok(results)
}

/// Runs the tests for each fault that is not caught yet, after once without any: the quickest stage for all, then the next.
pub fn run_all(tree: &Path, out: &Path, mutants: &[Value]) -> Result<()> {
    fs::create_dir_all(out.join("logs"))?;
    let sound = out.join("sound");
    if !sound.exists() {
        for path in ["src/gpu/compose.rs", "wgsl/softmax.wgsl"] {
            for stage in stages(tree, path)? {
                let output = bash(tree, &stage, None)?;
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "fails without any fault: {stage}\n{said}");
            }
        }
        fs::write(&sound, "")?;
    }
    for round in 0..STAGES {
        let known = results(out)?;
        let mut queue = Vec::new();
        for mutant in mutants.iter().rev() {
            let (id, path) = (mutant["id"].as_u64().context("no id")?, mutant["path"].as_str().context("no path")?);
            let (caught, through) = known.get(&id).copied().unwrap_or_default();
            if let Some(stage) = stages(tree, path)?.get(round).filter(|_| !caught && through <= round) {
                queue.push((id, format!("{path}:{}", mutant["line"]), stage.clone()));
            }
        }
        let queue = Mutex::new(queue);
        let work = || -> Result<()> {
            loop {
                let next = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
                let Some((id, place, stage)) = next else { return Ok(()) };
                run(tree, out, id, &place, &stage)?;
            }
        };
        // Many tests wait for one that is long.
        std::thread::scope(|scope| {
            let other = scope.spawn(work);
            work().and(other.join().unwrap_or_else(|_| bail!("a thread panicked")))
        })?;
    }
    Ok(())
}

/// Runs one stage for one fault, and writes down what it gave.
fn run(tree: &Path, out: &Path, id: u64, place: &str, stage: &str) -> Result<()> {
    let start = Instant::now();
    let output = bash(tree, stage, Some(id))?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    fs::write(out.join(format!("logs/{id}.txt")), &said)?;
    let failed = Regex::new(r"(?m)^ *(?:\x1b\[[0-9;]*m)*(?:FAIL|TIMEOUT|SIG[A-Z]+|ABORT).*$")?;
    let by = (!output.status.success())
        .then(|| failed.find(&said).map_or_else(|| stage.to_owned(), |line| line.as_str().trim().to_owned()));
    let seconds = start.elapsed().as_secs();
    eprintln!("{place}: {} ({seconds} s)", by.as_deref().unwrap_or("passes"));
    let result = json!({ "id": id, "caught": by.is_some(), "by": by, "seconds": seconds });
    let mut file = fs::OpenOptions::new().create(true).append(true).open(out.join("results.jsonl"))?;
    // One call, so that lines of two threads stay whole.
    file.write_all(format!("{result}\n").as_bytes())?;
    Ok(())
}
