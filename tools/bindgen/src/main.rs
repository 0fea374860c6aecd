//! bindgen IN.wasm FOLDER NAME: writes NAME.js, NAME.d.ts and NAME_bg.wasm for an ES module.
//! bindgen --plain-simd IN.wasm OUT.wasm: writes a module without relaxed SIMD.

mod plain_simd;

use std::path::Path;
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &*args.iter().map(String::as_str).collect::<Vec<_>>() {
        ["--plain-simd", input, output] => plain_simd::write(Path::new(input), Path::new(output)),
        [input, folder, name] => {
            let mut bindgen = Bindgen::new();
            bindgen.remove_name_section(true).remove_producers_section(true);
            let web =
                bindgen.input_path(input).out_name(name).typescript(true).omit_default_module_path(false).web(true);
            web.and_then(|bindgen| bindgen.generate(folder))
        }
        _ => {
            eprintln!("usage: bindgen IN.wasm FOLDER NAME | bindgen --plain-simd IN.wasm OUT.wasm");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bindgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}
