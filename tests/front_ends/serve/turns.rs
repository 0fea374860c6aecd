//! Second turns: what was computed for the first is not computed again, whatever the template looks like.

use serde_json::{Value, json};

use super::client::Server;
use crate::cli::machine::with_template;

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const HEADERS: &str = "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + \
    m.content | trim + '<|eot_id|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
/// Thoughts stay in the conversation.
const THOUGHTS: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}\
    {% if m.role == 'assistant' %}{{ '<think>\n' + (m.reasoning_content or '') }}\
    {% if m.content %}{{ '\n</think>\n\n' + m.content }}{% endif %}\
    {% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";

#[test]
fn second_turns_reuse_the_first_with_three_families() {
    let story = "The little dog went to the park with his friend and they played all day. ".repeat(16);
    for (name, template, thinks) in
        [("chatml", CHATML, false), ("headers", HEADERS, false), ("thoughts", THOUGHTS, true)]
    {
        let model = with_template(&format!("serve-{name}"), template);
        let server = Server::start(&[model.to_str().unwrap()]);
        for path in ["/v1/chat/completions", "/api/chat"] {
            let mut messages = vec![json!({ "role": "user", "content": format!("{path} {story}") })];
            let mut last = 0.0;
            for turn in 0..3 {
                let hits = server.metric("prefix_cache_hits_total");
                let (message, prompt) = if path == "/api/chat" {
                    let options = json!({ "num_predict": 12, "seed": 3, "temperature": 2.0 });
                    let body = json!({ "model": "default", "messages": messages, "options": options, "stream": false });
                    let answer = server.post(path, &body).json();
                    (answer["message"].clone(), answer["prompt_eval_count"].as_f64().unwrap())
                } else {
                    // What is sampled at this temperature is hardly ever what its text is encoded as.
                    let body = json!({ "messages": messages, "max_tokens": 12, "seed": 3, "temperature": 2 });
                    let answer = server.post(path, &body).json();
                    (answer["choices"][0]["message"].clone(), answer["usage"]["prompt_tokens"].as_f64().unwrap())
                };
                server.idle();
                let reused = server.metric("prefix_cache_hits_total") - hits;
                // The new question is none of what could be known.
                let known = last + 12.0;
                if turn > 0 {
                    assert!(reused >= 0.95 * known, "{name} {path} turn {turn}: {reused} of {known}, prompt {prompt}");
                }
                last = prompt;
                let thought = message.get("reasoning_content").or(message.get("thinking")).and_then(Value::as_str);
                assert_eq!(thought.is_some_and(|thought| !thought.is_empty()), thinks, "{message}");
                messages.push(message);
                messages.push(json!({ "role": "user", "content": "And?" }));
            }
        }
    }
}
