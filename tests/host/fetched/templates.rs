//! Chat templates of real models against Jinja2's renderings, and texts that try to become control tokens.

use serde_json::json;
use wgslm::text::{ChatTemplate, Special, Tokenizer};
use wgslm_test::gguf_vocab::gguf_tokenizer;
use wgslm_test::{data_json as json, fetched_bytes};

use super::text::folder_tokenizer;
use crate::templates::{NOW, Tally, render, text};

#[test]
fn templates_of_real_models() {
    let contexts = json("chat-templates/contexts.json");
    let mut tally = Tally::default();
    let mut refused = 0;
    for case in json("chat-templates/expected.json").as_array().unwrap() {
        let (file, context) = (case["template"].as_str().unwrap(), case["context"].as_str().unwrap());
        let source = String::from_utf8(fetched_bytes(&format!("chat-templates/{file}"))).unwrap();
        let got = render(&source, &contexts[context]);
        match case["fnv1a"].as_str() {
            Some(hash) => tally.check_hash(&format!("{file} {context}"), got, case["bytes"].as_u64().unwrap(), hash),
            None => {
                refused += 1;
                let error = got.expect_err(&format!("{file} {context}: the reference refuses")).to_string();
                if case["error"] == "TemplateError" {
                    assert!(error.contains(case["message"].as_str().unwrap()), "{file} {context}: {error}");
                }
            }
        }
    }
    assert_eq!(refused, 5);
    tally.finish(240);
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

#[test]
fn users_make_no_control_tokens_in_chats() {
    let chatml =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}";
    let llama2 = "{% for m in messages %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' + eos_token }}{% endfor %}";
    let file = |name: &str| String::from_utf8(fetched_bytes(&format!("chat-templates/{name}"))).unwrap();
    let mut models: Vec<(&str, Tokenizer, Vec<String>)> = Vec::new();
    let templates = [
        ("llama-spm", vec![llama2.to_owned()]),
        ("gpt-2", vec![llama2.to_owned(), chatml.to_owned()]),
        ("llama-bpe", vec![file("meta-llama-Llama-3.2-3B-Instruct.jinja")]),
        ("qwen2", vec![file("Qwen-Qwen2.5-7B-Instruct.jinja"), file("Qwen-Qwen3-0.6B.jinja")]),
        ("deepseek-llm", vec![file("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja")]),
        ("refact", vec![chatml.to_owned()]),
    ];
    for (name, templates) in templates {
        let bytes = fetched_bytes(&format!("vocab-gguf/ggml-vocab-{name}.gguf"));
        models.push((name, gguf_tokenizer(&bytes).unwrap(), templates));
    }
    // With the control tokens of Mistral's templates.
    let metaspace = Tokenizer::from_json(&folder_tokenizer("llama2-metaspace"), None).unwrap();
    models.push((
        "llama2-metaspace.json",
        metaspace,
        vec![llama2.to_owned(), file("Mistral-Small-3.2-24B-Instruct-2506.jinja")],
    ));
    let smollm2 = gguf_tokenizer(&fetched_bytes("models/SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    models.push(("smollm2", smollm2, vec![chatml.to_owned()]));
    let gemma3 = gguf_tokenizer(&fetched_bytes("models/gemma-3-270m-q4_k_m.gguf")).unwrap();
    models.push(("gemma3", gemma3, vec![file("google-gemma-2-2b-it.jinja")]));
    let rounds = 10_000usize.div_ceil(models.iter().map(|(_, _, templates)| templates.len()).sum());
    let mut rng = Rng(0x0DDB_1A5E_5BAD_5EED);
    let mut texts = 0;
    for (name, tokenizer, sources) in &models {
        let controls: Vec<&str> = tokenizer.control_texts().filter(|text| !text.is_empty()).collect();
        let filler =
            ["a", " ", "\n", "Hello", "中", "🦀", "<", "|", ">", "[", "]", "é", "<|", "|>", "im_end", "</think>"];
        for source in sources {
            let template = ChatTemplate::for_tokenizer(source, tokenizer).unwrap();
            let prompt = |content: &str| {
                let context =
                    json!({"messages": [{"role": "user", "content": content}], "add_generation_prompt": true});
                let segments = template.render(&context, NOW).unwrap_or_else(|e| panic!("{name}: {content:?}: {e}"));
                let ids = tokenizer.encode_segments(&segments).unwrap();
                let control: Vec<u32> = ids.iter().copied().filter(|&id| tokenizer.is_control(id)).collect();
                (text(&segments), ids, control)
            };
            let (harmless, _, expected) = prompt("xyz");
            for _ in 0..rounds {
                texts += 1;
                let content: String = (0..1 + rng.below(8))
                    .map(|_| {
                        let part = if rng.below(2) == 0 { rng.pick(&controls) } else { rng.pick(&filler) };
                        let (mut from, mut to) = (0, part.len());
                        if rng.below(4) == 0 {
                            (from, to) = (rng.below(part.len()), rng.below(part.len() + 1));
                        }
                        while !part.is_char_boundary(from) {
                            from -= 1;
                        }
                        while !part.is_char_boundary(to) {
                            to += 1;
                        }
                        part.get(from..to).unwrap_or("x")
                    })
                    .collect();
                let (whole, ids, control) = prompt(&content);
                assert_eq!(control, expected, "{name}: {content:?} in {whole:?}");
                assert!(
                    whole == harmless.replace("xyz", &content) || whole == harmless.replace("xyz", content.trim()),
                    "{whole:?}"
                );
                if *name != "llama2-metaspace.json" {
                    assert_eq!(tokenizer.decode(&ids, false), whole, "{name}: {content:?}");
                }
                let plain = tokenizer.encode(&content, Special::Plain).unwrap();
                assert!(!plain.iter().any(|&id| tokenizer.is_control(id)), "{name}: {content:?}");
            }
        }
    }
    assert!(texts >= 10_000, "only {texts}");
}
