//! A model of which each token is known before: calls of tools and thoughts, which no small model makes by itself.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::cli::tempdir;

/// Tokens of the vocabulary, and elements of a row: each token has one of its own.
const TOKENS: usize = 288;
/// Before them each byte has a token.
const BYTES: usize = 256;

/// A format of calls, the pieces of one, and what a template of it has in it.
pub(super) const FORMATS: [(&str, &[&str], &str); 3] = [
    ("hermes", &["\n{\"name\": \"weather\", ", "\"arguments\": {\"city\": \"Rome\", \"days\": 2}}\n"], ""),
    (
        "functions",
        &[
            "\n<function=weather>\n<parameter=city>\nRome\n</parameter>",
            "\n<parameter=days>\n2\n</parameter>\n</function>\n",
        ],
        "<function=",
    ),
    (
        "keys",
        &[
            "weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>",
            "\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n",
        ],
        "<arg_key>",
    ),
];

/// A folder with a model. Asked with tools, it thinks `I look.`, says `Let me see.` and makes a call of these pieces; otherwise,
/// and with a result, it says `It is sunny.`
pub(super) fn model(name: &str, call: &[&str], hint: &str) -> PathBuf {
    let mut with_tools = vec!["<go-tools>", "<think>", "I look.", "</think>", "Let me see.", "<tool_call>"];
    with_tools.extend(call);
    with_tools.extend(["</tool_call>", "<eos>"]);
    let without = ["<go>", "It is ", "sunny.", "<eos>"];
    let mut texts: Vec<String> = Vec::new();
    let mut next = vec![0; TOKENS];
    for chain in [with_tools.as_slice(), &without] {
        let mut last = None;
        for text in chain {
            let known = texts.iter().position(|known| known == text);
            let id = BYTES + known.unwrap_or(texts.len());
            if known.is_none() {
                texts.push((*text).to_owned());
            }
            if let Some(last) = last.replace(id) {
                next[last] = id;
            }
        }
    }
    let end = BYTES + texts.iter().position(|text| text == "<eos>").unwrap();
    next.iter_mut().filter(|next| **next == 0).for_each(|next| *next = end);
    (texts.len()..TOKENS - BYTES).for_each(|i| texts.push(format!("<unused-{i}>")));

    let folder = tempdir(name);
    let write = |file: &str, text: &[u8]| std::fs::write(folder.join(file), text).unwrap();
    let template = format!(
        "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}\
        {{% if tools and messages[-1].role != 'tool' %}}{{{{ tools | tojson }}}}<go-tools>{{% else %}}<go>{{% endif %}}\
        {{# <tool_call> </think> {hint} #}}"
    );
    write("chat_template.jinja", template.as_bytes());
    write("tokenizer.json", tokenizer(&texts).to_string().as_bytes());
    write("tokenizer_config.json", br#"{"eos_token": "<eos>", "add_bos_token": false}"#);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": TOKENS, "vocab_size": TOKENS,
        "num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 9, "head_dim": 32,
        "intermediate_size": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false, "eos_token_id": end,
    });
    write("config.json", config.to_string().as_bytes());
    write("model.safetensors", &weights(&next));
    folder
}

/// Bytes as GPT-2 writes them, and texts that are one token each.
fn tokenizer(texts: &[String]) -> Value {
    let shown = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let letter =
        |byte: u8| if shown(byte) { char::from(byte) } else { char::from_u32(others.next().unwrap()).unwrap() };
    let letters: Vec<char> = (0..=255).map(letter).collect();
    let vocab: Map<String, Value> = letters.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let added = |(i, text): (usize, &String)| {
        json!({ "id": BYTES + i, "content": text, "special": text == "<eos>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false })
    };
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "added_tokens": texts.iter().enumerate().map(added).collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
}

/// A layer that adds nothing: the logits of a token are 1 at the one that follows it, but for a factor.
fn weights(next: &[usize]) -> Vec<u8> {
    let one_at = |at: &dyn Fn(usize) -> usize| {
        let mut matrix = vec![0f32; TOKENS * TOKENS];
        (0..TOKENS).for_each(|token| matrix[at(token)] = 1.0);
        matrix
    };
    let zeros = |rows: usize, n: usize| (vec![rows, n], vec![0f32; rows * n]);
    let ones = || (vec![TOKENS], vec![1f32; TOKENS]);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), (vec![TOKENS; 2], one_at(&|token| token * TOKENS + token))),
        ("lm_head.weight".to_owned(), (vec![TOKENS; 2], one_at(&|token| next[token] * TOKENS + token))),
        ("model.norm.weight".to_owned(), ones()),
    ];
    let mut add = |name: &str, tensor| tensors.push((format!("model.layers.0.{name}.weight"), tensor));
    ["input_layernorm", "post_attention_layernorm"].iter().for_each(|name| add(name, ones()));
    ["q_proj", "k_proj", "v_proj", "o_proj"]
        .iter()
        .for_each(|name| add(&format!("self_attn.{name}"), zeros(TOKENS, TOKENS)));
    ["gate_proj", "up_proj"].iter().for_each(|name| add(&format!("mlp.{name}"), zeros(32, TOKENS)));
    add("mlp.down_proj", zeros(TOKENS, 32));
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (shape, values)) in &tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
