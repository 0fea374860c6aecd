//! Tokenizers and streams against references: the ids of llama.cpp, Hugging Face's tokenizers and SentencePiece.

use std::time::Duration;

use serde_json::Value;
use wgslm::text::{Origin, Segment, Special, Tokenizer, Utf8Stream};
use wgslm_test::gguf_vocab::{busy, gguf_tokenizer};
use wgslm_test::{data_json as json, fetched_bytes, fetched_json};

use crate::text::{Tally, ids};

const VOCABS: [&str; 7] = ["llama-spm", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "refact", "bert-bge"];

fn vocab(name: &str) -> Tokenizer {
    gguf_tokenizer(&fetched_bytes(&format!("vocab-gguf/ggml-vocab-{name}.gguf")))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn llama_cpp_test_pairs() {
    for name in VOCABS {
        let tokenizer = vocab(name);
        let file = format!("vocab-gguf/ggml-vocab-{name}.gguf");
        let input = String::from_utf8(fetched_bytes(&format!("{file}.inp"))).unwrap();
        let output = String::from_utf8(fetched_bytes(&format!("{file}.out"))).unwrap();
        let mut tally = Tally::default();
        for (text, line) in input.split("\n__ggml_vocab_test__\n").zip(output.lines()) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            tally.check(&tokenizer, text, Special::Plain, &expected);
        }
        tally.finish(name, 40);
    }
}

/// Our texts with their ids by another implementation; with control tokens parsed, where that differs.
fn reference(name: &str) -> Vec<(String, Vec<u32>, Option<Vec<u32>>)> {
    let texts: Vec<String> = serde_json::from_value(json("tokens/texts.json")).unwrap();
    let lines = json(&format!("tokens/{name}.json"));
    let lines = lines.as_array().unwrap();
    assert!(texts.len() >= 180 && lines.len() == texts.len(), "{name}: {} for {} texts", lines.len(), texts.len());
    texts.into_iter().zip(lines).map(|(text, line)| (text, ids(&line["ids"]), line.get("special").map(ids))).collect()
}

#[test]
fn texts_of_our_own_as_llama_cpp() {
    // Not BERT: llama.cpp keeps the first letter of a Hangul syllable only, and drops vowel signs of Indian scripts.
    for name in VOCABS.into_iter().filter(|name| *name != "bert-bge") {
        let tokenizer = vocab(name);
        let mut tally = Tally::default();
        for (text, expected, special) in reference(&format!("llama.cpp/{name}")) {
            // DeepSeek's list of letters lacks mathematical and small Armenian ones; here they are letters.
            if name == "deepseek-llm"
                && text.contains(|c| matches!(c, '\u{1d400}'..='\u{1d7ff}' | '\u{560}'..='\u{588}'))
            {
                continue;
            }
            tally.check(&tokenizer, &text, Special::Plain, &expected);
            // llama.cpp takes every token of this spelling for a control token; in Qwen's vocabulary it is a word.
            if name == "qwen2" && text.contains("</s>") {
                continue;
            }
            tally.check(&tokenizer, &text, Special::Parse, special.as_ref().unwrap_or(&expected));
        }
        tally.finish(name, 280);
    }
}

/// The tokenizer of a folder, as the GGUF file that `convert` writes has it.
fn through_gguf(json: Vec<u8>) -> Tokenizer {
    let tokenizer = Tokenizer::from_json(&json, None).unwrap();
    let texts = [("tokenizer.json".to_owned(), String::from_utf8(json).unwrap())].into();
    let mut pairs = wgslm::text::gguf_tokenizer(&texts, tokenizer.vocab_size() as u32).unwrap();
    pairs.push(("general.architecture".to_owned(), wgslm::file::Value::Str("llama".to_owned())));
    let file = wgslm::file::gguf_header(&pairs, &[]).unwrap();
    Tokenizer::of(&wgslm::file::ModelFile::from_bytes("tokenizer.gguf", file).unwrap()).unwrap()
}

/// `llama2.json` in the form of newer files, with more control tokens; tools/references/token_ids.py makes the same change.
fn metaspace(file: &mut Value) {
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] = serde_json::json!(
        {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false}
    );
    let more = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"];
    for (i, content) in more.into_iter().enumerate() {
        file["added_tokens"].as_array_mut().unwrap().push(serde_json::json!({
            "id": 32000 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        }));
    }
}

/// A tokenizer.json: gpt2, llama2 or llama2-metaspace.
pub(super) fn folder_tokenizer(name: &str) -> Vec<u8> {
    let mut file = fetched_json(&format!("tokenizers/{}.json", name.trim_end_matches("-metaspace")));
    if name == "llama2-metaspace" {
        metaspace(&mut file);
    }
    serde_json::to_vec(&file).unwrap()
}

#[test]
fn tokenizer_json() {
    for (name, gguf) in ["gpt2", "llama2", "llama2-metaspace"].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let file = folder_tokenizer(name);
        let tokenizer = if gguf { through_gguf(file) } else { Tokenizer::from_json(&file, None).unwrap() };
        let mut tally = Tally::default();
        // If a text begins with a space, this form adds none; SentencePiece, which GGUF files follow, does.
        let added = |text: &str| gguf && name == "llama2-metaspace" && text.starts_with([' ', '\u{2581}']);
        for (text, expected, special) in reference(&format!("tokenizers/{name}")) {
            if added(&text) {
                continue;
            }
            // The unknown token is not a control token here, but is one there.
            if gguf || !text.contains("<unk>") || name == "gpt2" {
                tally.check(&tokenizer, &text, Special::Plain, &expected);
            }
            // SentencePiece puts a space before what follows a control token as well.
            let Some(special) = special.filter(|_| !gguf || name == "gpt2") else { continue };
            tally.check(&tokenizer, &text, Special::Parse, &special);
            if name == "gpt2" {
                assert_eq!(tokenizer.decode(&expected, false), text);
            }
        }
        tally.finish(name, 165);
    }
}

#[test]
fn real_models() {
    let models = [
        ("tokenizers/bert-bge", "vocab-gguf/ggml-vocab-bert-bge.gguf"),
        ("tokenizers/smollm2", "models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("sentencepiece/gemma3", "models/gemma-3-270m-q4_k_m.gguf"),
    ];
    for (name, file) in models {
        let tokenizer = gguf_tokenizer(&fetched_bytes(file)).unwrap();
        let mut tally = Tally::default();
        for (text, expected, special) in reference(name) {
            // GGUF files mark the words of BERT's vocabularies with it, so that it parts words here.
            if name == "tokenizers/bert-bge" && text.contains('\u{2581}') {
                continue;
            }
            // SentencePiece takes this character for a space, also in runs of spaces that are one token; llama.cpp does not.
            if name == "sentencepiece/gemma3" && [" \u{2581}", "\u{2581} "].iter().any(|both| text.contains(both)) {
                continue;
            }
            tally.check(&tokenizer, &text, Special::Plain, &expected);
            tally.check(&tokenizer, &text, Special::Parse, special.as_ref().unwrap_or(&expected));
        }
        tally.finish(name, 250);
    }
}

#[test]
fn end_of_generation() {
    let eog = |name| vocab(name).eog().to_vec();
    assert_eq!(eog("llama-bpe"), [128001, 128009]);
    assert_eq!(eog("qwen2"), [151643, 151645]);
    assert_eq!(eog("llama-spm"), [2]);
    assert_eq!(eog("gpt-2"), [50256]);
}

#[test]
fn long_inputs_are_not_quadratic() {
    let gpt2_json = Tokenizer::from_json(&folder_tokenizer("gpt2"), None).unwrap();
    let tokenizers = [
        ("llama-spm", vocab("llama-spm")),
        ("gpt-2", vocab("gpt-2")),
        ("llama-bpe", vocab("llama-bpe")),
        ("deepseek-llm", vocab("deepseek-llm")),
        ("bert-bge", vocab("bert-bge")),
        ("tokenizer.json", gpt2_json),
    ];
    for (name, tokenizer) in tokenizers {
        for (what, unit) in [
            ("a", "a"),
            ("spaces", " "),
            ("lines", "\n"),
            ("space, line", " \n"),
            ("digits", "1"),
            ("accents", "a\u{301}"),
            ("marks", "!"),
            ("words", "word "),
        ] {
            let text = unit.repeat((1 << 20) / unit.len());
            let (ids, time) = busy(|| tokenizer.encode(&text, Special::Plain).unwrap());
            println!("{name}, 1 MiB of {what}: {} ids in {time:?}", ids.len());
            assert!(time < Duration::from_secs(3), "{name}, 1 MiB of {what}: {time:?}");
            if name != "bert-bge" {
                assert_eq!(tokenizer.decode(&ids, false), text, "{name}, {what}");
            }
        }
    }
}

/// A small generator of repeatable numbers (xorshift64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

fn segment(text: &str, origin: Origin) -> Segment {
    Segment { text: text.to_owned(), origin }
}

fn squeeze(text: &str) -> String {
    text.replace(' ', "")
}

#[test]
fn users_make_no_control_tokens() {
    let mut tokenizers: Vec<(String, Tokenizer)> =
        VOCABS.iter().filter(|name| **name != "bert-bge").map(|name| (name.to_string(), vocab(name))).collect();
    for name in ["gpt2", "llama2", "llama2-metaspace"] {
        tokenizers.push((format!("{name}.json"), Tokenizer::from_json(&folder_tokenizer(name), None).unwrap()));
    }
    for file in ["models/SmolLM2-135M-Instruct.Q4_1.gguf", "models/gemma-3-270m-q4_k_m.gguf"] {
        tokenizers.push((file.to_owned(), gguf_tokenizer(&fetched_bytes(file)).unwrap()));
    }
    let mut rng = Rng(0x1234_5678_9ABC_DEF1);
    let rounds = 10_000usize.div_ceil(tokenizers.len());
    for (name, tokenizer) in &tokenizers {
        let all = 0..tokenizer.vocab_size() as u32;
        let control: Vec<u32> = all.filter(|&id| tokenizer.is_control(id)).collect();
        let texts: Vec<&str> =
            control.iter().map(|&id| std::str::from_utf8(tokenizer.piece(id).unwrap()).unwrap()).collect();
        let filler = ["a", " ", "\n", "Hello", "中", "🦀", "<", "|", ">", "[", "]", "é", "<|", "|>", "_end", "0x0A>"];
        for _ in 0..rounds {
            let user: String = (0..1 + rng.below(8))
                .map(|_| {
                    let text = if rng.below(2) == 0 { rng.pick(&texts) } else { rng.pick(&filler) };
                    let mut cut = rng.below(4 * text.len()).min(text.len());
                    while !text.is_char_boundary(cut) {
                        cut += 1;
                    }
                    &text[..cut]
                })
                .collect();
            let first = rng.pick(&control);
            let opening = std::str::from_utf8(tokenizer.piece(first).unwrap()).unwrap();
            let (head, tail) = opening.split_at(1); // all control strings begin with an ASCII character
            let segments = [
                segment(opening, Origin::Template),
                segment(&user, Origin::User),
                segment(opening, Origin::Template),
                segment(head, Origin::User), // with what follows, a control string across the border
                segment(tail, Origin::Template),
            ];
            let ids = tokenizer.encode_segments(&segments).unwrap();
            let got: Vec<u32> = ids.iter().copied().filter(|&id| tokenizer.is_control(id)).collect();
            // A control string may begin with the template's and end in the user's text; it must not be found either.
            assert_eq!(got.len(), 2, "{name}: {segments:?} gives {ids:?}");
            let whole: String = segments.iter().map(|s| s.text.as_str()).collect();
            let mut stream = Utf8Stream::new();
            let streamed: String = ids.iter().map(|&id| stream.push(tokenizer.piece(id).unwrap())).collect();
            let streamed = streamed + &stream.finish();
            match name.as_str() {
                // Encoding puts a space before the text; decoding takes it away again.
                "llama-spm" => assert_eq!(tokenizer.decode(&ids, false), whole, "{name}"),
                // Here only where there is none yet, so that decoding cannot know.
                "llama2.json" | "llama2-metaspace.json" => assert_eq!(squeeze(&streamed), squeeze(&whole), "{name}"),
                _ => {
                    assert_eq!(streamed, whole, "{name}");
                    assert_eq!(tokenizer.decode(&ids, false), whole, "{name}");
                }
            }
            let plain = tokenizer.encode(&user, Special::Plain).unwrap();
            assert!(!plain.iter().any(|&id| tokenizer.is_control(id)), "{name}: {user:?}");
            let decoded = tokenizer.decode(&plain, false);
            let lost = if name == "llama2-metaspace.json" { user.strip_prefix(' ') } else { None };
            assert!(decoded == user || Some(decoded.as_str()) == lost, "{name}: {user:?} comes back as {decoded:?}");
        }
    }
}

#[test]
fn borders_do_not_show_in_the_ids() {
    let mut rng = Rng(0xFEDC_BA98_7654_3211);
    let texts = json("tokens/texts.json");
    // Those without control strings, which a template would mean.
    let texts = texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    let text = texts.filter(|text| !text.contains('<')).collect::<Vec<_>>().join("\n");
    for name in ["llama-spm", "gpt-2", "llama-bpe", "qwen2"] {
        let tokenizer = vocab(name);
        let whole = tokenizer.encode(&text, Special::Plain).unwrap();
        for _ in 0..20 {
            let mut rest = text.as_str();
            let mut segments = Vec::new();
            while !rest.is_empty() {
                let mut cut = 1 + rng.below(rest.len().min(60));
                while !rest.is_char_boundary(cut) {
                    cut += 1;
                }
                let origin = if rng.below(2) == 0 { Origin::User } else { Origin::Template };
                segments.push(segment(&rest[..cut], origin));
                rest = &rest[cut..];
            }
            assert_eq!(tokenizer.encode_segments(&segments).unwrap(), whole, "{name}");
        }
    }
}
