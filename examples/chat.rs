//! A conversation; each line of stdin is a message: cargo run --example chat [MODEL]
use std::io::{BufRead, Write};

use wgslm::model::ModelSource;
use wgslm::{Conversation, GenerateOptions, LanguageModel, Options, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source: ModelSource = match std::env::args().nth(1) {
        Some(path) => path.into(),
        None => wgslm::TINY.into(),
    };
    let mut model = block_on(wgslm::open(source, &Options::default()))?;
    let mut chat = model.conversation()?;
    for line in std::io::stdin().lock().lines() {
        chat.say(line?);
        if let Err(error) = answer(&mut model, &mut chat) {
            eprintln!("{error}"); // a message that is too long for the context, for example
            chat.unsay();
        }
    }
    Ok(())
}

/// Prints an answer, which becomes a message of the conversation. Its earlier turns are not computed again.
fn answer(model: &mut LanguageModel, chat: &mut Conversation) -> wgslm::Result<()> {
    // The oldest turns are forgotten when the context is full; the system message never is.
    let options = GenerateOptions { max_tokens: Some(256), shift: true, ..GenerateOptions::default() };
    for piece in model.chat_stream(chat, &options)? {
        print!("{}", piece?);
        std::io::stdout().flush().expect("stdout is open");
    }
    println!();
    Ok(())
}
