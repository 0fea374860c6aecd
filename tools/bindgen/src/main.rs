//! bindgen IN.wasm FOLDER NAME: writes NAME.js, NAME.d.ts and NAME_bg.wasm for an ES module.

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, folder, name] = args.as_slice() else {
        eprintln!("usage: bindgen IN.wasm FOLDER NAME");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    bindgen.remove_name_section(true).remove_producers_section(true);
    let web = bindgen.input_path(input).out_name(name).typescript(true).omit_default_module_path(false).web(true);
    match web.and_then(|bindgen| bindgen.generate(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bindgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}
