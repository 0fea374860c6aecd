//! Which sentences are alike: cargo run --example embed [MODEL], an encoder or any other model.
use wgslm::engine::EmbedOptions;
use wgslm::exec::Numerics;
use wgslm::model::ModelSource;
use wgslm::{Embedder, Options, block_on};

const TEXTS: [&str; 3] = ["A man is eating food.", "Someone has lunch.", "The dog ran into the garden."];

fn main() -> wgslm::Result<()> {
    let source: ModelSource = match std::env::args().nth(1) {
        Some(path) => path.into(),
        None => wgslm::TINY.into(),
    };
    let options = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let run = Options { numerics: Numerics::Exact, ..Options::default() };
    let mut embedder = block_on(Embedder::open(source, &options, &run, &mut |_| {}))?;

    // Several texts a step; the vectors have length 1, so their product is the cosine of the angle between them.
    let vectors = block_on(embedder.embed(&TEXTS))?;
    for (i, (text, vector)) in TEXTS.iter().zip(&vectors).enumerate() {
        for (other, with) in TEXTS.iter().zip(&vectors).skip(i + 1) {
            let cosine: f32 = vector.iter().zip(with).map(|(a, b)| a * b).sum();
            println!("{cosine:.3}  {text} | {other}");
        }
    }
    Ok(())
}
