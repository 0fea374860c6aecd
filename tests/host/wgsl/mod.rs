//! Every composed module, through the validators of all targets: naga to SPIR-V, MSL and HLSL, and Tint for browsers.

mod list;
mod reflection;

use std::path::Path;
use std::process::Command;

use naga::back::pipeline_constants::process_overrides;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use wgslm::gpu::compose::{compose, lib::LIB};
use wgslm::gpu::{Kernel, KernelSource};
use wgslm::ops::KERNELS;
use wgslm_test::modules;

/// Every kernel with every choice of fragments: (name, whether it uses subgroups, the side of its cooperative matrices, text).
fn texts() -> Vec<(String, bool, Option<u32>, String)> {
    let text = |kernel: Kernel| {
        let label = modules::name(&kernel).replace('/', "-").replace(' ', "+");
        let cooperative = modules::cooperative(&kernel);
        (label, modules::uses_subgroups(&kernel), cooperative, compose(&kernel).expect("composes"))
    };
    modules::all().into_iter().map(text).collect()
}

#[test]
fn every_module_is_valid_and_translates_to_every_target() {
    let modules = texts();
    assert!(modules.len() > 50, "{} modules", modules.len());
    for (label, subgroups, cooperative, text) in &modules {
        let module =
            naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{label}: {}", e.emit_to_string(text)));
        // A module may use what its tier promises, and nothing else.
        // unpack2x16float is in WebGPU's core; naga counts it as a capability.
        let core = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let subgroups = *subgroups || cooperative.is_some();
        let mut caps = core;
        caps.set(Capabilities::SUBGROUP, subgroups);
        caps.set(Capabilities::SHADER_FLOAT16, text.contains("enable f16;"));
        caps.set(Capabilities::COOPERATIVE_MATRIX, cooperative.is_some());
        let mut validator = Validator::new(ValidationFlags::all(), caps);
        if subgroups {
            validator
                .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
                .subgroup_operations(naga::valid::SubgroupOperationSet::all());
        }
        let info = validator.validate(&module).unwrap_or_else(|e| panic!("{label}: {}", e.emit_to_string(text)));
        let storage =
            module.global_variables.iter().filter(|(_, v)| matches!(v.space, naga::AddressSpace::Storage { .. }));
        assert!(storage.count() <= 8, "{label} has more than 8 storage bindings");
        let entries: Vec<_> = module.entry_points.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(entries, [label.split('+').next().unwrap()], "one entry point, named as the file");
        // Arrays in workgroup memory take their length from it.
        let threads = text.contains("override WG").then(|| ("WG".to_owned(), 8.0));
        let constants = threads.into_iter().collect();
        // With its entry point, as wgpu does it: what it does not use falls away.
        let entry = (naga::ShaderStage::Compute, entries[0].to_owned());
        let (module, info) = process_overrides(&module, &info, Some((entry.0, &entry.1)), &constants)
            .unwrap_or_else(|e| panic!("{label}: {e}"));

        // Cooperative matrices are of Vulkan 1.3.
        let lang_version = if cooperative.is_some() { (1, 6) } else { (1, 1) };
        let options = naga::back::spv::Options { fake_missing_bindings: true, lang_version, ..Default::default() };
        let words = naga::back::spv::write_vec(&module, &info, &options, None);
        let words = words.unwrap_or_else(|e| panic!("{label}, SPIR-V: {e}"));
        if cooperative.is_some() {
            spirv_val(label, &words);
        }
        if *cooperative == Some(16) {
            continue; // not of Metal
        }
        let options = naga::back::msl::Options { lang_version: (2, 4), ..Default::default() };
        naga::back::msl::write_string(&module, &info, &options, &Default::default())
            .unwrap_or_else(|e| panic!("{label}, MSL: {e}"));
        if cooperative.is_some() {
            continue; // not of DirectX
        }
        // f16 is of 6.2.
        let options =
            naga::back::hlsl::Options { shader_model: naga::back::hlsl::ShaderModel::V6_2, ..Default::default() };
        let mut hlsl = String::new();
        naga::back::hlsl::Writer::new(&mut hlsl, &options, &Default::default())
            .write(&module, &info, None)
            .unwrap_or_else(|e| panic!("{label}, HLSL: {e}"));
    }
}

/// Modules that no adapter here runs also go through the validator of Khronos (`scripts/test` installs it). Its rules for
/// Vulkan would refuse naga's strides of arrays in workgroup memory, which are in all modules, so it applies those of SPIR-V.
fn spirv_val(label: &str, words: &[u32]) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{label}.spv"));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&path, bytes).expect("a module is written");
    let problem = match Command::new("spirv-val").args(["--target-env", "spv1.6"]).arg(&path).output() {
        Ok(done) if done.status.success() => return,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let old = problem.contains("Invalid capability operand") || problem.contains("No such file");
    assert!(old && std::env::var("CI").as_deref() != Ok("true"), "{label}, spirv-val: {problem}");
    eprintln!("skipped: spirv-val is missing, or too old: {problem}");
}

#[test]
fn every_module_passes_the_validator_of_chromium() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tint");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for modules");
    for (label, subgroups, _, text) in texts().into_iter().filter(|(_, _, cooperative, _)| cooperative.is_none()) {
        let text = if subgroups { format!("enable subgroups;\n{text}") } else { text };
        std::fs::write(folder.join(format!("{label}.wgsl")), text).expect("a module is written");
    }
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tint");
    if !checker.join("node_modules").exists() {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "Tint is missing: npm ci --prefix tests/tint --ignore-scripts"
        );
        eprintln!("skipped: npm ci --prefix tests/tint --ignore-scripts installs Tint");
        return;
    }
    let output = Command::new("node").arg(checker.join("check.mjs")).arg(&folder).output().expect("node runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn headers_say_what_a_reader_needs() {
    for KernelSource { name, source, .. } in KERNELS {
        let mut lines = source.lines();
        let first = lines.next().unwrap_or_default();
        assert!(first.starts_with(&format!("//! {name}: ")), "{name}: its first line is its formula: {first}");
        let header: Vec<_> = source.lines().take_while(|l| l.starts_with("//!")).collect();
        assert!(header.iter().any(|l| l.contains("f32") || l.contains('(')), "{name}: shapes");
        assert!(header.iter().any(|l| l.starts_with("//! grid: ")), "{name}: grid");
        assert!(header.iter().any(|l| l.starts_with("//! source: ")), "{name}: where its method is from");
    }
    for fragment in LIB {
        let name = fragment.name.trim_start_matches("lib/");
        assert!(fragment.source.starts_with(&format!("//! {name}: ")), "{}", fragment.name);
    }
}

/// Chromium does not reset a variable without an initialiser in each iteration of a loop, as the standard requires.
#[test]
fn variables_in_functions_have_a_value() {
    for (name, source) in KERNELS
        .iter()
        .map(|kernel| (kernel.name, kernel.source))
        .chain(LIB.iter().map(|fragment| (fragment.name, fragment.source)))
    {
        for line in source.lines().filter(|line| line.trim_start().starts_with("var ")) {
            assert!(line.contains('='), "{name}: {line}");
        }
    }
}
