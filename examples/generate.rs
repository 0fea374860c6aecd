//! Continues a text, piece by piece: cargo run --example generate [MODEL [PROMPT]]
use std::io::Write;

use wgslm::exec::Progress;
use wgslm::model::ModelSource;
use wgslm::{GenerateOptions, LanguageModel, Options, Sampling, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let source: ModelSource = match args.next() {
        Some(path) => path.into(),
        None => wgslm::TINY.into(),
    };
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".to_owned());

    // Where it runs, and how far it is: wherever the model fits; `DeviceChoice::Cpu` would keep it off the GPU.
    let options = Options { context: 1024, ..Options::default() };
    let mut progress = |progress| {
        if let Progress::Loading(done, all) = progress {
            eprint!("\rloading {} of {} MB", done / 1_000_000, all / 1_000_000);
        }
    };
    let mut model = block_on(LanguageModel::open(source, &options, &mut progress))?;
    eprintln!("\r{} on {}", model.model().name, model.device());

    // The same seed gives the same text.
    let sampling = Sampling { temperature: 0.7, seed: 42, ..Sampling::default() };
    let options = GenerateOptions { sampling: Some(sampling), max_tokens: Some(64), ..GenerateOptions::default() };
    print!("{prompt}");
    let mut answer = model.stream(&prompt, &options)?;
    for piece in answer.by_ref() {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();
    if let Some((finish, usage)) = answer.end() {
        eprintln!("{} tokens, ended by {}", usage.generated, finish.name());
    }
    Ok(())
}
