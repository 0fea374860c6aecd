//! Search by meaning: cargo run --example search [QUERY] [FILE] [MODEL], over the lines of a file, by an encoder or any model.
use wgslm::engine::EmbedOptions;
use wgslm::model::ModelSource;
use wgslm::{Embedder, Options, Result, block_on};

const LINES: &str = "The cat slept on the warm stove all day.\nThe train to the coast leaves at noon.\n\
                     Bread rises faster in a warm kitchen.\nTwo goals in the last minute won the match.";
/// Texts that are embedded together.
const BATCH: usize = 64;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let query = args.next().unwrap_or_else(|| "When can I travel to the sea?".to_owned());
    let lines = args.next().map_or_else(|| Ok(LINES.to_owned()), std::fs::read_to_string);
    let lines = lines.map_err(|e| wgslm::Error::argument("file", e.to_string()))?;
    let lines: Vec<&str> = lines.lines().filter(|line| !line.trim().is_empty()).collect();
    let source: ModelSource = args.next().map_or(wgslm::TINY.into(), ModelSource::from);
    let options = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let mut embedder = block_on(Embedder::open(source, &options, &Options::default(), &mut |_| {}))?;

    // The index: a vector of length 1 for each line, one after the other. It is all that would be kept on disk.
    let width = embedder.width() as usize;
    let mut index: Vec<f32> = Vec::with_capacity(lines.len() * width);
    for batch in lines.chunks(BATCH) {
        index.extend(block_on(embedder.embed(batch))?.concat());
    }
    let query = block_on(embedder.embed(&[query.as_str()]))?.remove(0);

    let cosine = |vector: &[f32]| vector.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>();
    let mut found: Vec<(f32, &str)> = index.chunks(width).map(cosine).zip(lines).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (similarity, line) in found.iter().take(3) {
        println!("{similarity:.3}  {line}");
    }
    Ok(())
}
