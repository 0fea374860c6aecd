//! One model, several threads, each with its own question: cargo run --example threads [MODEL]
use std::thread;

use wgslm::driver::{GenerationEvent, ServeOptions};
use wgslm::model::ModelSource;
use wgslm::{GenerateOptions, LanguageModel, Options, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source: ModelSource = match std::env::args().nth(1) {
        Some(path) => path.into(),
        None => wgslm::TINY.into(),
    };
    // Four answers at a time; more wait until one of them has ended.
    let options = Options { context: 1024, seqs: 4, ..Options::default() };
    let model = block_on(LanguageModel::open(source, &options, &mut |_| {}))?;
    let (model, driver) = model.serve(ServeOptions::default());

    let prompts = ["Once upon a time", "The dog", "One day, a girl", "Tom and Mia", "In the garden"];
    thread::scope(|scope| {
        for prompt in prompts {
            let model = model.clone();
            scope.spawn(move || {
                let run = GenerateOptions { max_tokens: Some(24), ..GenerateOptions::default() };
                let mut generation = model.generate(prompt, &run).expect("the queue takes five");
                let mut text = String::from(prompt);
                // Whoever loses interest drops the generation, and its place is free.
                while let Some(event) = generation.wait() {
                    match event {
                        GenerationEvent::Token { text: piece, .. } => text += &piece,
                        GenerationEvent::Finished { text: rest, reason, usage, .. } => {
                            println!("{text}{rest} [{} tokens, {}]", usage.generated, reason.name());
                        }
                    }
                }
            });
        }
    });
    let metrics = model.handle().metrics();
    let seconds = metrics.time_to_first_token.quantile(0.5);
    eprintln!("{} tokens; half of the answers began within {seconds} s", metrics.generation_tokens);
    drop(model);
    driver.join().expect("the driver ends when nobody can ask any more");
    Ok(())
}
