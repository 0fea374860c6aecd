//! Tokenizers and streams against references: llama.cpp's and Hugging Face's ids, hostile vocabularies.

use std::time::Duration;

use serde_json::Value;
use wgslm::text::{Origin, Segment, Special, Tokenizer, Utf8Stream};
use wgslm_test::gguf_vocab::{busy, gguf_tokenizer};
use wgslm_test::{data_bytes as read, data_json as json, fetched_bytes as model, hostile};

const VOCABS: [&str; 7] = ["llama-spm", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "refact", "bert-bge"];

fn vocab(name: &str) -> Tokenizer {
    gguf_tokenizer(&read(&format!("vocab-gguf/ggml-vocab-{name}.gguf"))).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of ids")
}

/// Counts the texts whose ids differ, and shows the first.
#[derive(Default)]
struct Tally {
    texts: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn check(&mut self, tokenizer: &Tokenizer, text: &str, special: Special, expected: &[u32]) {
        self.texts += 1;
        let got = tokenizer.encode(text, special).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        if got != expected {
            self.wrong.push(format!("{text:?}\n  gives   {got:?}\n  must be {expected:?}"));
        }
    }

    fn finish(self, name: &str, at_least: usize) {
        println!("{name}: {} texts, {} wrong", self.texts, self.wrong.len());
        assert!(self.texts >= at_least, "{name}: only {} texts", self.texts);
        assert!(self.wrong.is_empty(), "{name}: {} wrong, the first: {}", self.wrong.len(), self.wrong[0]);
    }
}

#[test]
fn llama_cpp_test_pairs() {
    for name in VOCABS {
        let tokenizer = vocab(name);
        let file = format!("vocab-gguf/ggml-vocab-{name}.gguf");
        let input = String::from_utf8(read(&format!("{file}.inp"))).unwrap();
        let output = String::from_utf8(read(&format!("{file}.out"))).unwrap();
        let mut tally = Tally::default();
        for (text, line) in input.split("\n__ggml_vocab_test__\n").zip(output.lines()) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            tally.check(&tokenizer, text, Special::Plain, &expected);
        }
        tally.finish(name, 40);
    }
}

#[test]
fn llama_cpp_further_strings() {
    let inputs = json("vocab-gguf/llamacpp-inputs.json");
    let outputs = json("vocab-gguf/llamacpp-tokens.json");
    for name in VOCABS {
        let tokenizer = vocab(name);
        let mut tally = Tally::default();
        for (set, expected) in outputs[format!("ggml-vocab-{name}.gguf")].as_object().unwrap() {
            for (text, expected) in inputs[set].as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
                let text = text.as_str().unwrap();
                // BERT cuts a Hangul syllable into its letters; llama.cpp keeps the first of them and loses the rest.
                if name == "bert-bge" && text.chars().any(|c| ('가'..='힣').contains(&c)) {
                    continue;
                }
                tally.check(&tokenizer, text, Special::Plain, &ids(expected));
            }
        }
        tally.finish(name, 20);
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

#[test]
fn tokenizer_json() {
    for (name, gguf) in [("gpt2", false), ("mistral03", false), ("gpt2", true), ("mistral03", true)] {
        let file = read(&format!("tokenizers/models/tokenizers/{name}.json"));
        let tokenizer = if gguf { through_gguf(file) } else { Tokenizer::from_json(&file, None).unwrap() };
        let mut tally = Tally::default();
        for set in ["small", "mixed", "utf8"] {
            let input = String::from_utf8(read(&format!("tokenizers/data/{set}_input.txt"))).unwrap();
            let text = |path: String| String::from_utf8(read(&path)).unwrap();
            // Where a text begins with a space, tokenizer.json adds none, and SentencePiece, which GGUF files follow, does.
            let kind = if gguf && name == "mistral03" { "sentencepiece" } else { "tokenizers" };
            let output = text(format!("tokenizers/data/{kind}/{set}_tokens_{name}.txt"));
            let inputs: Vec<String> = match set {
                "utf8" => vec![input],
                "small" => input.lines().map(|line| line.replace("\\n", "\n").replace("\\s", " ")).collect(),
                _ => input.lines().map(str::to_owned).collect(),
            };
            assert_eq!(inputs.len(), output.lines().count(), "{set}");
            for (text, line) in inputs.iter().zip(output.lines()) {
                let expected: Vec<u32> =
                    line.split(',').filter(|id| !id.trim().is_empty()).map(|id| id.trim().parse().unwrap()).collect();
                let special = if kind == "tokenizers" { Special::Parse } else { Special::Plain };
                tally.check(&tokenizer, text, special, &expected);
                if name == "gpt2" {
                    assert_eq!(&tokenizer.decode(&expected, false), text);
                }
            }
            let decoded = wgslm_test::data(&format!("tokenizers/data/tokenizers/{set}_output_{name}.txt"));
            if set == "utf8" && decoded.exists() {
                let expected: Vec<u32> = output.trim().split(',').map(|id| id.trim().parse().unwrap()).collect();
                let expected_text = std::fs::read_to_string(decoded).unwrap();
                assert_eq!(tokenizer.decode(&expected, false), expected_text);
            }
        }
        tally.finish(name, 140);
    }
}

#[test]
fn real_models() {
    let models = [("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("gemma3", "gemma-3-270m-q4_k_m.gguf")];
    for (name, file) in models {
        let bytes = model(file);
        let tokenizer = gguf_tokenizer(&bytes).unwrap();
        let mut tally = Tally::default();
        for case in json(&format!("real-models/{name}/tokens.json")).as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            tally.check(&tokenizer, text, Special::Plain, &ids(&case["plain"]));
            let special = case.get("special").unwrap_or(&case["plain"]);
            tally.check(&tokenizer, text, Special::Parse, &ids(special));
        }
        tally.finish(name, 150);
    }
}

#[test]
fn sentencepiece_ids() {
    let tokenizer = gguf_tokenizer(&read("stories/stories.gguf")).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos()), (512, Some(1), Some(2)));
    assert!(tokenizer.add_bos() && !tokenizer.add_eos());
    let mut tally = Tally::default();
    for case in json("stories/tokens.json").as_array().unwrap() {
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        tally.check(&tokenizer, text, Special::Plain, &expected);
        assert_eq!(tokenizer.decode(&expected, true), case["decoded"].as_str().unwrap(), "{text:?}");
    }
    tally.finish("stories", 20);
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
    let gpt2_json = Tokenizer::from_json(&read("tokenizers/models/tokenizers/gpt2.json"), None).unwrap();
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

#[test]
fn hostile_vocabularies() {
    let index = json("hostile/index.json");
    let limits = &index["limits"];
    let mut cases = 0;
    for case in index["cases"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let (kind, stage) = (case["kind"].as_str().unwrap(), case["stage"].as_str().unwrap_or(""));
        if stage != "tokenizer" || !matches!(kind, "gguf" | "tokenizer") {
            continue;
        }
        cases += 1;
        let bytes = hostile::bytes(case);
        let (loaded, time) = busy(|| match kind {
            "gguf" => gguf_tokenizer(&bytes),
            _ => Tokenizer::from_json(&bytes, None),
        });
        assert!(time.as_millis() < limits["load_ms"].as_u64().unwrap().into(), "{file}: {time:?} to load");
        let probe = &case["probe"];
        let outcome = loaded.and_then(|tokenizer| {
            let Some(text) = probe["text"].as_str() else { return Ok(()) };
            let text = text.repeat(probe["repeat"].as_u64().unwrap() as usize) + probe["suffix"].as_str().unwrap();
            let (ids, time) = busy(|| tokenizer.encode(&text, Special::Plain).map(drop));
            assert!(time.as_millis() < limits["probe_ms"].as_u64().unwrap().into(), "{file}: {time:?} to encode");
            ids
        });
        let expect = case["expect"].as_str().unwrap();
        match outcome {
            Ok(()) => assert_ne!(expect, "error", "{file} was accepted: {}", case["why"]),
            Err(error) => {
                let text = error.to_string().to_lowercase();
                println!("{file}: {text}");
                assert_ne!(expect, "ok", "{file} was refused: {text}");
                let hints: Vec<&str> = case["hint"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
                assert!(hints.iter().any(|hint| text.contains(hint)), "{file}: {text:?} names none of {hints:?}");
            }
        }
    }
    assert!(cases >= 45, "only {cases} cases");
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
    for name in ["gpt2", "mistral03"] {
        let file = read(&format!("tokenizers/models/tokenizers/{name}.json"));
        tokenizers.push((format!("{name}.json"), Tokenizer::from_json(&file, None).unwrap()));
    }
    for file in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
        tokenizers.push((file.to_owned(), gguf_tokenizer(&model(file)).unwrap()));
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
                "mistral03.json" => assert_eq!(squeeze(&streamed), squeeze(&whole), "{name}"),
                _ => {
                    assert_eq!(streamed, whole, "{name}");
                    assert_eq!(tokenizer.decode(&ids, false), whole, "{name}");
                }
            }
            let plain = tokenizer.encode(&user, Special::Plain).unwrap();
            assert!(!plain.iter().any(|&id| tokenizer.is_control(id)), "{name}: {user:?}");
            let decoded = tokenizer.decode(&plain, false);
            let lost = if name == "mistral03.json" { user.strip_prefix(' ') } else { None };
            assert!(decoded == user || Some(decoded.as_str()) == lost, "{name}: {user:?} comes back as {decoded:?}");
        }
    }
}

#[test]
fn borders_do_not_show_in_the_ids() {
    let mut rng = Rng(0xFEDC_BA98_7654_3211);
    let text = String::from_utf8(read("tokenizers/data/utf8_input.txt")).unwrap();
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
