//! The library's part in scripts/bench-bindings: MODEL THREADS TOKENS, and a prompt in each line of stdin. Prints how many tokens
//! came after each, and the seconds that took.

use std::time::Instant;

use wgslm::exec::DeviceChoice;
use wgslm::{GenerateOptions, LanguageModel, Options, Sampling, block_on};

fn main() {
    let args: Vec<_> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    // Run as a test, it has nothing to do.
    let [model, threads, tokens] = &args[..] else { return };
    let threads = Some(threads.parse().expect("how many threads"));
    let max_tokens = Some(tokens.parse().expect("how many tokens"));
    let options = Options { device: DeviceChoice::Cpu, threads, context: 1024, ..Options::default() };
    let mut model = block_on(LanguageModel::open(model.as_str(), &options, &mut |_| {})).expect("a model");
    let sampling = Some(Sampling { temperature: 0.0, ..Sampling::default() });
    let options = GenerateOptions { sampling, max_tokens, ..GenerateOptions::default() };
    for prompt in std::io::stdin().lines() {
        let begun = Instant::now();
        let mut answer = model.stream(&prompt.expect("UTF-8"), &options).expect("a prompt");
        answer.by_ref().for_each(|piece| drop(piece.expect("text")));
        let generated = answer.end().expect("it has ended").1.generated;
        println!("{generated} {}", begun.elapsed().as_secs_f64());
    }
}
