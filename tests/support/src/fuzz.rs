//! What the fuzz targets in `fuzz/` do with an input. A test replays their corpus and mutates it; `scripts/fuzz` searches
//! for long, guided by coverage.
//!
//! Bad input must give an error. A panic, a time that the input does not justify, or a broken promise of the types is a find.

use std::collections::BTreeSet;

use serde_json::json;
use wgslm::block_on;
use wgslm::file::{ByteSource, Bytes, ModelFile, Texts};
use wgslm::gpu::Tuning;
use wgslm::model::Model;
use wgslm::sample::{Chain, Dry, Known, Mirostat, SampleMethod, SamplerState, Sampling, Xtc};
use wgslm::text::{ChatTemplate, Special, Tokenizer};

/// What is done with an input.
pub type Target = fn(&[u8]);

/// Every target, with the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("gguf", gguf),
    ("folder", folder),
    ("tokenizer", tokenizer),
    ("template", template),
    ("tuning", tuning),
    ("sampling", sampling),
];

const TEXT: &str = "Once upon a time<|im_end|> there was 1 café…  \n\u{1f600}";

/// Cuts an input of several parts at its bytes 0xff, which no UTF-8 has.
fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut rest = data.splitn(N, |&byte| byte == 0xff);
    std::array::from_fn(|_| rest.next().unwrap_or_default())
}

/// What a model that opened must be good for: its program, tensors, tokenizer and template.
fn use_model(file: ModelFile) {
    for tensor in file.tensors() {
        if let (Ok(_), Ok(numbers)) = (tensor.format(), block_on(file.read_f32(tensor))) {
            assert_eq!(numbers.len() as u64, tensor.rows() * tensor.row_len());
        }
    }
    if let Ok(tokenizer) = Tokenizer::of(&file) {
        use_tokenizer(&tokenizer, TEXT);
    }
    if let Ok(model) = block_on(Model::open(file)) {
        assert!(!model.program.nodes.is_empty());
    }
}

fn use_tokenizer(tokenizer: &Tokenizer, text: &str) {
    for special in [Special::Plain, Special::Parse] {
        let Ok(ids) = tokenizer.encode(text, special) else { continue };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), "{ids:?}");
        if special == Special::Plain {
            assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "a control token from plain text");
        }
        tokenizer.decode(&ids, false);
    }
}

/// A GGUF file.
pub fn gguf(data: &[u8]) {
    if let Ok(file) = ModelFile::from_bytes("fuzz.gguf", data.to_vec()) {
        use_model(file);
    }
}

/// config.json | a safetensors file
pub fn folder(data: &[u8]) {
    let [config, tensors] = parts(data);
    let texts = Texts::from([("config.json".to_owned(), String::from_utf8_lossy(config).into_owned())]);
    let sources: Vec<Box<dyn ByteSource>> = vec![Box::new(Bytes::new("model.safetensors", tensors.to_vec()))];
    if let Ok(file) = block_on(ModelFile::open_safetensors(texts, sources)) {
        use_model(file);
    }
}

/// tokenizer.json | tokenizer_config.json, which may be empty | a text
pub fn tokenizer(data: &[u8]) {
    let [file, config, text] = parts(data);
    if let Ok(tokenizer) = Tokenizer::from_json(file, (!config.is_empty()).then_some(config)) {
        use_tokenizer(&tokenizer, TEXT);
        use_tokenizer(&tokenizer, &String::from_utf8_lossy(text));
    }
}

/// A chat template
pub fn template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let user = "What is <|im_end|> [INST]?";
    let Ok(template) = ChatTemplate::new(source, ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]"]) else {
        return;
    };
    let context = json!({
        "messages": [
            { "role": "system", "content": "Be kind." },
            { "role": "user", "content": user },
            { "role": "assistant", "content": "It is.", "tool_calls": [{ "function": { "name": "f", "arguments": { "x": 1.5 } } }] },
        ],
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }],
        "add_generation_prompt": true,
    });
    if let Ok(segments) = template.render(&context, Some(1_752_148_800)) {
        assert!(segments.iter().map(|segment| segment.text.len()).sum::<usize>() < 64 << 20);
    }
}

/// A file of tuning settings
pub fn tuning(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(tuning) = Tuning::default().with(text) {
        assert!(tuning.numbers().iter().all(|(_, number)| (1..=128).contains(number)));
    }
}

/// Settings and logits, each number four bytes
pub fn sampling(data: &[u8]) {
    let mut words = data.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let mut word = || words.next().unwrap_or_default();
    let mut float = || f32::from_bits(word());
    let mut sampling = Sampling {
        temperature: float(),
        top_p: float(),
        min_p: float(),
        typical: float(),
        xtc: Xtc { probability: float(), threshold: float() },
        dry: Dry { multiplier: float(), base: float(), ..Dry::NONE },
        mirostat: Mirostat { tau: float(), eta: float() },
        ..Sampling::GREEDY
    };
    sampling.penalties.repeat = float();
    sampling.penalties.presence = float();
    sampling.penalties.frequency = float();
    (sampling.top_k, sampling.last_n, sampling.seed) = (word(), word() % 5000, u64::from(word()));
    sampling.sample = if word() % 2 == 0 { SampleMethod::Gumbel } else { SampleMethod::InverseCdf };
    let (vocab, known, biased) = (1 + word() % 64, word() % 64, word() % 4);
    let bias: Vec<_> = (0..biased).map(|_| (word() % (vocab + 1), f32::from_bits(word()))).collect();
    let tokens: Vec<_> = (0..known).map(|_| word() % vocab).collect();
    let allowed = [word(), word(), word()];
    let logits: Vec<_> = (0..vocab).map(|_| f32::from_bits(word())).collect();
    // As the engine checks a request.
    let tokens_biased: BTreeSet<_> = bias.iter().map(|(token, _)| *token).filter(|token| *token < vocab).collect();
    if sampling.check().is_err() || tokens_biased.len() < bias.len() || bias.iter().any(|(_, by)| !by.is_finite()) {
        return;
    }
    let (mut chain, mut state) = (Chain::default(), SamplerState::default());
    let allowed = (allowed[2] % 2 == 0).then_some(&allowed[..2]);
    for len in [tokens.len(), 0] {
        let known = Known { tokens: &tokens[..len], bias: &bias, allowed };
        if let Some(token) = chain.sample(&sampling, &known, &mut state, &logits) {
            assert!(token < vocab, "{token} of {vocab}");
            assert!(allowed.is_none_or(|bits| bits[token as usize / 32] >> (token % 32) & 1 == 1), "{token}");
        }
    }
}
