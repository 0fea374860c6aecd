//! Programs in C and C++ against the library that was built, with all warnings, under AddressSanitizer and UBSan.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo put the library: beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder").to_path_buf();
    let name = format!("{}wgslm_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    assert!(folder.join(&name).exists(), "{name} is not in {}", folder.display());
    folder
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{command:?}: {}\n{text}", out.status);
    text
}

/// Compiles a program, and runs it.
fn program(name: &str, source: &str, compiler: &str, flags: &[&str], args: &[&str]) -> String {
    program_with(name, source, compiler, flags, args, "detect_leaks=1")
}

fn program_with(name: &str, source: &str, compiler: &str, flags: &[&str], args: &[&str], sanitizer: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = folder.join("tests/programs").join(source);
    let library = library();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread"]).args(flags);
    command.arg("-I").arg(folder.join("include")).arg(source).arg("-o").arg(&out);
    command.arg("-L").arg(&library).arg("-lwgslm_c");
    run(&mut command);
    run(Command::new(&out).args(args).env("ASAN_OPTIONS", sanitizer).env("LD_LIBRARY_PATH", &library))
}

const SANITIZERS: &str = "-fsanitize=address,undefined";

#[test]
#[cfg(target_os = "linux")]
fn c_programs_run_under_sanitizers() {
    let said = program("all", "all.c", "cc", &["-std=c11", "-D_GNU_SOURCE", SANITIZERS], &["3"]);
    assert!(said.ends_with("all is well\n"), "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn cpp_programs_run_under_sanitizers() {
    let said = program("classes", "classes.cpp", "c++", &["-std=c++17", SANITIZERS], &[]);
    assert!(said.ends_with("all is well\n"), "{said}");
}

/// The program that the documentation begins with.
#[test]
#[cfg(target_os = "linux")]
fn the_documented_program_runs() {
    let text = include_str!("../../../docs/c.md");
    let code = text.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("answer.c");
    std::fs::write(&source, code).expect("it can be written");
    // On the machine's own device: drivers of GPUs leak.
    let source = source.to_str().expect("UTF-8");
    let said = program_with("answer", source, "cc", &["-std=c11", SANITIZERS], &[], "detect_leaks=0");
    assert!(said.len() > 60, "{said}");
}

/// A thousand models that were opened and freed took no memory.
#[test]
#[cfg(target_os = "linux")]
fn a_thousand_models_leave_nothing() {
    let said = program("cycles", "all.c", "cc", &["-std=c11", "-D_GNU_SOURCE"], &["1000"]);
    let grown = said.split(' ').nth(3).and_then(|kib| kib.parse::<i64>().ok()).expect("how much it took");
    assert!(grown < 4096, "{said}");
}
