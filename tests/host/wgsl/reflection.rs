//! What Rust passes to kernels is what the WGSL takes, by naga's reflection: the fields of `struct Params`, the overrides.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use naga::{AddressSpace, Module, ScalarKind, TypeInner};
use wgslm::gpu::ParamsLayout;
use wgslm::gpu::compose::{compose, lib::LIB, overrides, set_constants};
use wgslm::ops::KERNELS;

use wgslm_test::modules;

/// A field: its name, its type, the byte where it begins.
type Field = (String, &'static str, usize);

fn parsed(text: &str) -> Module {
    naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)))
}

fn ty(inner: &TypeInner) -> &'static str {
    match inner {
        TypeInner::Scalar(scalar) => match (scalar.kind, scalar.width) {
            (ScalarKind::Bool, _) => "bool",
            (ScalarKind::Uint, 4) => "u32",
            (ScalarKind::Float, 4) => "f32",
            other => panic!("{other:?}: neither bool nor u32 nor f32"),
        },
        other => panic!("{other:?}: no scalar"),
    }
}

/// The fields of a module's uniform struct, and its bytes.
fn uniform(module: &Module) -> Option<(Vec<Field>, usize)> {
    let (_, variable) = module.global_variables.iter().find(|(_, v)| v.space == AddressSpace::Uniform)?;
    let TypeInner::Struct { members, span } = &module.types[variable.ty].inner else { panic!("no struct") };
    let field = |member: &naga::StructMember| {
        (member.name.clone().unwrap_or_default(), ty(&module.types[member.ty].inner), member.offset as usize)
    };
    Some((members.iter().map(field).collect(), *span as usize))
}

/// How the parameters that an op passes to a kernel differ from those that a module of it takes.
fn difference(params: ParamsLayout, text: &str) -> Option<String> {
    let fields: Vec<Field> = params.fields.iter().map(|f| (f.name.to_owned(), f.ty, f.offset)).collect();
    let Some((wgsl, span)) = uniform(&parsed(text)) else { return Some("no uniform struct".to_owned()) };
    let same = (&fields, params.size) == (&wgsl, span);
    (!same).then(|| format!("{} bytes of {fields:?} in Rust, {span} bytes of {wgsl:?} in WGSL", params.size))
}

#[test]
fn parameters_lie_where_kernels_read_them() {
    let rust: BTreeMap<_, _> = KERNELS.iter().map(|kernel| (kernel.name, kernel.params)).collect();
    let mut seen = BTreeSet::new();
    for kernel in modules::all() {
        let text = compose(&kernel).expect("composes");
        let difference = difference(rust[kernel.name], &text);
        assert!(difference.is_none(), "{}: {}", modules::name(&kernel), difference.unwrap_or_default());
        seen.insert(kernel.name);
    }
    assert_eq!(seen.len(), KERNELS.len());
}

/// A field of another type, name or place is a difference, and so is one more or less.
#[test]
fn a_wrong_parameter_is_a_difference() {
    let norm = KERNELS.iter().find(|kernel| kernel.name == "norm").expect("a kernel");
    let at = norm.source.find("struct Params").expect("its parameters");
    let end = norm.source.find("@group(0) @binding(1)").expect("its second binding");
    let declared = &norm.source[at..end];
    assert_eq!(difference(norm.params, declared), None);
    for (from, to) in [
        ("struct Params {", "struct Params { more: u32,"),
        ("    n: u32,", "    n: f32,"),
        ("rows_at: u32,", "at_rows: u32,"),
        ("stride: u32,", ""),
    ] {
        assert!(declared.contains(from), "{from}");
        assert!(difference(norm.params, &declared.replacen(from, to, 1)).is_some(), "{from} became {to}");
    }
}

/// All Rust files below a folder, with their text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a file");
                files.push((path, text));
            }
        }
    }
    files
}

/// The table of kernels names every struct of parameters that is declared, and no op hides one from it.
#[test]
fn every_struct_of_parameters_has_a_kernel() {
    let (mut declared, mut listed) = (0, BTreeSet::new());
    for (path, text) in sources("src/ops") {
        declared += text.matches("\nparams! {").count();
        let plain = text.lines().find(|line| line.starts_with("struct ") && line.contains("Params"));
        assert!(plain.is_none(), "{}: {plain:?} is not declared by params!", path.display());
        if path.ends_with("src/ops/kernels.rs") {
            let params =
                |line: &str| Some(line.split_once(" = \"")?.1.split_once("\", ")?.1.trim_end_matches(';').to_owned());
            listed.extend(text.lines().filter_map(params));
        }
    }
    assert!(declared > 20, "{declared} structs of parameters");
    assert_eq!(declared, listed.len(), "structs declared by params!, and those that kernels.rs names: {listed:?}");
}

/// `Kernel::set` is checked against declarations that are found by their lines: naga finds the same.
#[test]
fn overrides_are_those_that_naga_finds() {
    let mut known = BTreeSet::new();
    for kernel in modules::all() {
        let text = compose(&kernel).expect("composes");
        let module = parsed(&text);
        // Lengths of arrays that are expressions of overrides are overrides without a name.
        let named = module.overrides.iter().filter_map(|(_, o)| Some((o.name.clone()?, o.ty)));
        let found: BTreeSet<_> = named.map(|(name, of)| (name, ty(&module.types[of].inner).to_owned())).collect();
        let owned = |(name, of): (&str, &str)| (name.to_owned(), of.to_owned());
        let constants: BTreeSet<_> =
            set_constants(kernel.source).chain(LIB.iter().flat_map(|f| set_constants(f.source))).map(owned).collect();
        let lines: BTreeSet<_> = overrides(&text).map(owned).collect();
        assert_eq!(lines, found, "{}", modules::name(&kernel));
        known.extend(lines.into_iter().chain(constants).map(|(name, _)| name));
    }
    let mut set = 0;
    for (path, text) in sources("src/ops") {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for name in code.split(".set(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(known.contains(name), "{}: no kernel has the override {name}", path.display());
            set += 1;
        }
    }
    assert!(set > 50, "{set} overrides are set");
}
