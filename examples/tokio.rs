//! One model that an async service asks: cargo run --example tokio [MODEL]
//!
//! The model runs on a thread of its own; tasks await its events. Nothing of it depends on the runtime.
use std::time::Duration;

use tokio::time::timeout;
use wgslm::driver::{GenerationEvent, ServeOptions};
use wgslm::model::ModelSource;
use wgslm::{Error, GenerateOptions, LanguageModel, Options, ServedModel};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source: ModelSource = match std::env::args().nth(1) {
        Some(path) => path.into(),
        None => wgslm::TINY.into(),
    };
    let options = Options { context: 1024, seqs: 4, ..Options::default() };
    let model = LanguageModel::open(source, &options, &mut |_| {}).await?;
    // A client that comes when eight wait already learns when to ask again.
    let (model, driver) = model.serve(ServeOptions { queue_requests: 8, ..ServeOptions::default() });

    let clients = (0..6).map(|i| tokio::spawn(client(model.clone(), i))).collect::<Vec<_>>();
    for client in clients {
        println!("{}", client.await??);
    }
    drop(model);
    tokio::task::spawn_blocking(move || driver.join()).await?.expect("the driver ends when nobody can ask any more");
    Ok(())
}

async fn client(model: ServedModel, number: u32) -> Result<String, Error> {
    let run = GenerateOptions { max_tokens: Some(24), ..GenerateOptions::default() };
    let mut generation = model.generate(["The cat", "A boy", "Mia"][number as usize % 3], &run)?;
    let mut text = format!("client {number}: ");
    // A client that waits for a minute at most: the generation is dropped then, and ends.
    while let Ok(Some(event)) = timeout(Duration::from_secs(60), generation.next_event()).await {
        match event {
            GenerationEvent::Token { text: piece, .. } => text += &piece,
            GenerationEvent::Finished { text: rest, reason, .. } => text += &format!("{rest} [{}]", reason.name()),
        }
    }
    Ok(text)
}
