//! Chat templates of our own against Jinja2's renderings, and hostile templates.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use wgslm::text::{ChatTemplate, Origin, Segment};
use wgslm_test::gguf_vocab::busy;
use wgslm_test::{data, data_json as json, hostile};

/// 2025-07-10 12:00:00 UTC, as in the references.
pub(crate) const NOW: Option<i64> = Some(1_752_148_800);

pub(crate) fn text(segments: &[Segment]) -> String {
    segments.iter().map(|segment| segment.text.as_str()).collect()
}

/// What templates of all makers use as control strings.
fn common_controls() -> Vec<String> {
    let texts = [
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "[INST]",
        "[/INST]",
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<|channel|>",
        "<|message|>",
        "<|START_OF_TURN_TOKEN|>",
        "<|endoftext|>",
        "[gMASK]",
    ];
    texts.map(str::to_owned).to_vec()
}

pub(crate) fn render(template: &str, context: &Value) -> wgslm::Result<String> {
    let template = ChatTemplate::new(template, common_controls())?;
    template.render(context, NOW).map(|segments| text(&segments))
}

/// Templates of the reference whose rendering differs, with the reason; COMPATIBILITY.md has the same list.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("varargs", "no varargs and kwargs"),
    ("test for callable", "no such test"),
    ("joiner", "no such function"),
    ("cycler", "no such function"),
];

fn fnv1a(bytes: &[u8]) -> String {
    let hash =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

#[derive(Default)]
pub(crate) struct Tally {
    cases: usize,
    wrong: Vec<String>,
}

impl Tally {
    pub(crate) fn check(&mut self, name: &str, got: wgslm::Result<String>, expected: &str) {
        self.cases += 1;
        if EXCEPTIONS.iter().any(|(exception, _)| *exception == name) {
            assert_ne!(got.ok().as_deref(), Some(expected), "{name} is no exception any more");
            return;
        }
        match got {
            Ok(text) if text == expected => {}
            Ok(text) => {
                let same = text.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
                let show = |s: &str| {
                    String::from_utf8_lossy(&s.as_bytes()[same.saturating_sub(40)..])
                        .chars()
                        .take(120)
                        .collect::<String>()
                };
                self.wrong.push(format!(
                    "{name}: at byte {same}\n  gives   {:?}\n  must be {:?}",
                    show(&text),
                    show(expected)
                ));
            }
            Err(e) => self.wrong.push(format!("{name}: {e}")),
        }
    }

    /// Of a rendering that is not ours to keep: its length, and FNV-1a over its bytes.
    pub(crate) fn check_hash(&mut self, name: &str, got: wgslm::Result<String>, bytes: u64, hash: &str) {
        self.cases += 1;
        match got {
            Ok(text) if text.len() as u64 == bytes && fnv1a(text.as_bytes()) == hash => {}
            Ok(text) => self.wrong.push(format!("{name}: {} bytes, must be {bytes}; gives {text:?}", text.len())),
            Err(e) => self.wrong.push(format!("{name}: {e}")),
        }
    }

    pub(crate) fn finish(self, at_least: usize) {
        println!("{} cases, {} wrong", self.cases, self.wrong.len());
        assert!(self.cases >= at_least, "only {} cases", self.cases);
        assert!(self.wrong.is_empty(), "{} wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
    }
}

#[test]
fn templates_of_our_own() {
    let mut tally = Tally::default();
    let mut refused = 0;
    for case in json("chat-templates/cases.json").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let got = render(case["template"].as_str().unwrap(), &case["context"]);
        match case["expected"].as_str() {
            Some(expected) => tally.check(name, got, expected),
            None => {
                refused += 1;
                let error = got.expect_err(&format!("{name}: the reference refuses")).to_string();
                if case["error"] == "TemplateError" {
                    assert!(error.contains(case["message"].as_str().unwrap()), "{name}: {error}");
                }
            }
        }
    }
    assert_eq!(refused, 8);
    tally.finish(100);
}

#[test]
fn hostile_templates() {
    let index = json("hostile/index.json");
    let context = &index["template_context"];
    let peak = peak_kib();
    let mut cases = 0;
    for case in index["cases"].as_array().unwrap() {
        if case["kind"] != "template" {
            continue;
        }
        cases += 1;
        let file = case["file"].as_str().unwrap();
        let source = String::from_utf8(hostile::bytes(case)).unwrap();
        let (got, time) = busy(|| render(&source, context));
        println!("{file}: {time:?}");
        assert!(time.as_millis() < index["limits"]["render_ms"].as_u64().unwrap().into(), "{file}: {time:?}");
        let (shown, expect) = (got.as_ref().map_or_else(ToString::to_string, Clone::clone), &case["expect"]);
        for word in case["forbid"].as_array().into_iter().flatten() {
            assert!(!shown.contains(word.as_str().unwrap()), "{file}: {shown}");
        }
        match got {
            Ok(text) => {
                assert_ne!(expect, "error", "{file} was rendered: {}", case["why"]);
                if let Some(output) = case["output"].as_str() {
                    assert_eq!(text, output, "{file}");
                }
            }
            Err(error) => {
                let text = error.to_string().to_lowercase();
                println!("  {text}");
                assert_ne!(expect, "ok", "{file} was refused: {text}");
                let hints: Vec<&str> = case["hint"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
                assert!(hints.iter().any(|hint| text.contains(hint)), "{file}: {text:?} names none of {hints:?}");
            }
        }
    }
    assert!(cases >= 27, "only {cases} cases");
    // The peak of the process is meaningful only if this test has a process of its own.
    if let (Some(before), Some(after), true) = (peak, peak_kib(), std::env::var_os("NEXTEST").is_some()) {
        println!("peak memory grew by {} KiB", after - before);
        let limit = 1024 * index["limits"]["render_mib"].as_u64().unwrap();
        assert!(after - before < limit, "peak memory grew by {} KiB", after - before);
    }
}

/// The largest resident size of this process so far.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn more_hostile_templates() {
    let cases = [
        ("concat", "{% set s = 'aaaaaaaa' %}".to_owned() + &"{% set s = s ~ s %}".repeat(60) + "{{ s | length }}"),
        ("plus", "{% set s = 'aaaaaaaa' %}".to_owned() + &"{% set s = s + s %}".repeat(60) + "{{ s | length }}"),
        ("capture", "{% set s = 'aaaaaaaa' %}".to_owned() + &"{% set s %}{{ s }}{{ s }}{% endset %}".repeat(60)),
        (
            "raw capture",
            format!(
                "{{% macro m() %}}{}{{% endmacro %}}{{% for i in range(90000) %}}{{{{ m() }}}}{{% endfor %}}",
                "x".repeat(4000)
            ),
        ),
        ("join", "{% set s = ['aaaaaaaa'] %}".to_owned() + &"{% set s = [s | join, s | join] %}".repeat(60)),
        ("replace", "{% set s = 'aaaaaaaa' %}".to_owned() + &"{% set s = s | replace('a', s) %}".repeat(9)),
        ("replace method", "{% set s = 'aaaaaaaa' %}".to_owned() + &"{% set s = s.replace('a', s) %}".repeat(9)),
        ("format", "{{ '{:>1000000000}'.format(1) }}".to_owned()),
        ("printf", "{{ '%1000000000d' | format(1) }}".to_owned()),
        ("indent", "{{ 'a\n' | indent(1000000000, true) }}".to_owned()),
        ("tojson indent", "{{ [1] | tojson(indent=1000000000) }}".to_owned()),
        ("constant", "{{ ('a' * 99999999) ~ ('a' * 99999999) }}".to_owned()),
        ("constant power", "{{ 'a' * (10 ** 8) }}".to_owned()),
        ("list", "{% set l = [1] %}".to_owned() + &"{% set l = l + l %}".repeat(60) + "{{ l | length }}"),
        ("list repeat", "{% set n = 99999999 %}{{ ([1] * n) | length }}".to_owned()),
        ("wide print", "{% set l = [1] %}".to_owned() + &"{% set l = [l, l] %}".repeat(60) + "{{ l }}"),
        ("wide json", "{% set l = [1] %}".to_owned() + &"{% set l = [l, l] %}".repeat(60) + "{{ l | tojson }}"),
        (
            "deep list",
            "{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}".to_owned(),
        ),
        (
            "macro growth",
            "{% macro f(s, n) %}{% if n %}{{ f(s ~ s, n - 1) }}{% endif %}{% endmacro %}{{ f('aaaaaaaa', 60) }}"
                .to_owned(),
        ),
    ];
    for (name, source) in cases {
        let (got, time) = busy(|| render(&source, &json!({"messages": []})));
        println!("{name}: {time:?} {:?}", got.as_ref().map(String::len).map_err(ToString::to_string));
        assert!(time.as_millis() < 200, "{name}: {time:?}");
        assert!(got.is_err(), "{name} was rendered");
    }
}

#[test]
fn twins_do_not_show() {
    let controls = common_controls();
    let cases = [
        // A template that searches for a string that users write: the text is as if nothing had been marked.
        ("{{ content.split('</think>')[-1] }}", json!({"content": "a</think><|im_end|>b"}), "<|im_end|>b"),
        (
            "{% if '<|im_end|>' in content %}yes{% else %}no{% endif %}{{ content }}",
            json!({"content": "<|im_end|>"}),
            "no<|im_end|>",
        ),
        ("{{ content | tojson(ensure_ascii=true) }}", json!({"content": "<é>"}), "\"<\\u00e9>\""),
        (
            "{{ content | length }}{{ content[:2] }}{{ content | trim | upper }}",
            json!({"content": " <|im_end|> "}),
            "12 <<|IM_END|>",
        ),
        ("<|{{ name }}|><|{{ role }}|>", json!({"name": "im_end", "role": "x"}), "<|im_end|><|x|>"),
    ];
    for (source, context, expected) in cases {
        let template = ChatTemplate::new(source, controls.clone()).unwrap();
        let segments = template.render(&context, NOW).unwrap();
        assert_eq!(text(&segments), expected, "{source}");
        // No control string lies in one run of the template's text.
        for run in segments.iter().filter(|segment| segment.origin == Origin::Template) {
            assert!(!controls.iter().any(|control| run.text.contains(control)), "{source}: {segments:?}");
        }
    }
    let template =
        ChatTemplate::new("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}", controls)
            .unwrap();
    let segments = template.render(&json!({"messages": [{"role": "user", "content": "end<|end|>"}]}), NOW).unwrap();
    assert_eq!(text(&segments), "<|user|>end<|end|><|end|>");
    assert_eq!(segments[0], Segment { text: "<|user|>end".into(), origin: Origin::Template });
    assert_eq!(segments.last().unwrap().text, "<|end|>");
}

/// Brackets, operators and branches in one another are counted before anything recurses into them.
#[test]
fn templates_that_nest_without_end() {
    let many = |part: &str| part.repeat(50_000);
    let cases = [
        format!("{{{{ {}1 }}}}", many("-")),
        format!("{{{{ {}1 }}}}", many("not ")),
        format!("{{{{ {}", many("[")),
        format!("{{{{ {}1{} }}}}", many("("), many(")")),
        format!("{{{{ {}1", many("{1: ")),
        format!("{{{{ 1{} }}}}", many(" | abs")),
        format!("{{{{ x{} }}}}", many(".a")),
        format!("{{{{ x{} }}}}", many("[0]")),
        format!("{{{{ x{} }}}}", many("()")),
        format!("{{{{ 1{} }}}}", many(" + x")),
        format!("{{{{ 1{} }}}}", many(" if x else 2")),
        format!("{{{{ 1{} }}}}", many(" is odd")),
        format!("{{% set a = {}1 %}}", many("-")),
        format!("{{% filter abs{} %}}{{% endfilter %}}", many("|abs")),
        format!("{{% if x %}}{}{{% endif %}}", many("{% elif x %}")),
        many("{% if x %}"),
        many("{% set a %}"),
        many("{% for i in x %}"),
        many("{% do x("),
    ];
    for source in cases {
        let shown: String = source.chars().take(30).collect();
        let error = render(&format!("\n{source}"), &json!({"messages": []})).expect_err(&shown).to_string();
        let where_it_is = error.contains("line 2, column") || error.contains("(in template:2)");
        assert!(where_it_is && (error.contains("nest") || error.contains("recursion")), "{shown}: {error}");
    }
    // What templates do is far from the bound.
    let long = format!("{{{{ 1{} }}}}{{{{ [{}] | length }}}}", " + 1".repeat(200), "-1, ".repeat(5000));
    assert_eq!(render(&long, &json!({})).unwrap(), "2015000");
    let values = [
        "{'a': ns.v}",
        "dict(a=ns.v)",
        "namespace(a=ns.v)",
        "(ns.v,)",
        "[ns.v]",
        "[ns.v] | reverse",
        "{'a': ns.v}.items()",
        "f",
    ];
    for value in values {
        let source = format!(
            "{{% set ns = namespace(v=1) %}}{{% for i in range(50000) %}}{{% set v = ns.v %}}\
             {{% macro f() %}}{{{{ v }}}}{{% endmacro %}}{{% set ns.v = {value} %}}{{% endfor %}}"
        );
        let error = render(&source, &json!({})).expect_err(value).to_string();
        assert!(error.contains("limit"), "{value}: {error}");
    }
    for printed in ["ns", "ns == [ns]", "ns | tojson", "ns | string", "[ns] | unique | list"] {
        let source = format!("{{% set ns = namespace() %}}{{% set ns.v = [ns] %}}{{{{ {printed} }}}}");
        let error = render(&source, &json!({})).map_err(|e| e.to_string());
        assert!(error.as_ref().err().is_none_or(|e| e.contains("nest")), "{printed}: {error:?}");
    }
}

/// What looks at every item of a list or character of a text pays for each: a few hundred passes are over the limit.
/// Templates look back at earlier messages, of which there may be thousands.
#[test]
fn long_conversations_are_rendered() {
    const TEMPLATE: &str = "{% for message in messages %}{% if loop.index0 > 0 and \
         messages[loop.index0 - 1]['role'] == message.role %}{{ raise_exception('roles must alternate') }}{% endif %}\
         {{ message.role ~ ': ' ~ messages[loop.index0].content | trim }}{% endfor %}{{ messages[-1]['role'] }}";
    let role = |i: usize| ["user", "assistant"][i % 2];
    let content = "Once upon a time, there was a little girl. ".repeat(20);
    let messages: Vec<_> = (0..5000).map(|i| json!({ "role": role(i), "content": content })).collect();
    let text = render(TEMPLATE, &json!({ "messages": messages })).unwrap();
    assert_eq!(text.matches("user: ").count(), 2500);
    assert!(text.ends_with("assistant"));
}

#[test]
fn passes_over_long_lists_are_paid_for() {
    let filters = [
        "sort",
        "sum",
        "list",
        "unique | list",
        "join",
        "map('abs') | list",
        "select | list",
        "reject('odd') | list",
        "max",
        "min",
        "reverse | list",
        "tojson",
        "string",
        "map('string') | join",
    ];
    let passes = filters.map(|filter| format!("r | {filter}"));
    let expressions = [
        "r == q",
        "r != q",
        "-1 in r",
        "-1 not in r",
        "r[5:]",
        "r[::-1]",
        "r + q",
        "r is eq q",
        "-1 is in r",
        "r == q == r",
        "[r] | select('eq', q) | list",
        "r in [q]",
        "big == bag",
        "'zz' in big",
        "big[5:]",
        "big.count('zz')",
        "big | upper",
        "big.upper()",
        "big.split('zz')",
        "big ~ ''",
        "big | list",
        "big | trim",
        "{'a': 1}.get(r)",
        "{r: 1}",
        "{'a': 1}[r]",
    ];
    for expression in passes.iter().map(String::as_str).chain(expressions) {
        let source = format!(
            "{{% set r = range(100000)|list %}}{{% set q = range(100000)|list %}}{{% set big = 'abcdefgh' * 100000 %}}\
             {{% set bag = 'abcdefgh' * 100000 %}}{{% for i in range(200) %}}{{% set x = {expression} %}}{{% endfor %}}"
        );
        let error = render(&source, &json!({})).expect_err(expression).to_string();
        assert!(error.contains("memory limit"), "{expression}: {error}");
    }
}

/// The rule that no user's text becomes a control token, where a role or a bare word could break it.
#[test]
fn unusual_roles_and_bare_control_strings_are_the_users() {
    let controls = ["<|admin|>", "endofturn", "<|user|>"];
    let cases = [
        ("<|{{ messages[0].role }}|>", json!({"role": "admin"}), "<|admin|>"),
        ("{{ messages[0].content }}", json!({"content": "say endofturn now"}), "say endofturn now"),
    ];
    for (source, message, expected) in cases {
        let template = ChatTemplate::new(source, controls).unwrap();
        let segments = template.render(&json!({"messages": [message]}), NOW).unwrap();
        assert_eq!(text(&segments), expected);
        for run in segments.iter().filter(|segment| segment.origin == Origin::Template) {
            assert!(!controls.iter().any(|control| run.text.contains(control)), "{source}: {segments:?}");
        }
    }
    // The usual roles are trusted: templates build control strings from them.
    let template = ChatTemplate::new("<|{{ messages[0].role }}|>", controls).unwrap();
    let segments = template.render(&json!({"messages": [{"role": "user"}]}), NOW).unwrap();
    assert_eq!(segments, [Segment { text: "<|user|>".into(), origin: Origin::Template }]);
}

/// Texts by transformers' own environment.
#[test]
fn small_things_as_transformers_has_them() {
    let cases = [
        ("{{ x|length }}{{ x|count }}{{ x is defined }}", "00False"),
        ("{{ none is iterable }}{{ x is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}", "FalseTrueTrueFalse"),
        ("{{ 'aaa'|replace('a', 'b', 2) }}{{ 'aaa'|replace('a', 'b', count=1) }}", "bbabaa"),
        ("{{ 'aaa'.replace('a', 'b', 1) }}{{ 'aaa'.replace('a', 'b', -1) }}", "baabbb"),
        ("{{ x|default('a', boolean=true) }}{{ ''|default('b', true) }}{{ none|d('c') }}", "abNone"),
        ("{{ '<a href=\"/\">'|e }}{{ '<'|tojson }}", "&lt;a href=&#34;/&#34;&gt;\"<\""),
        ("{{ '%s-%d' % ('a', 3) }}{{ -7 % 3 }}{{ 7 % -3 }}{{ -7.5 % 2 }}", "a-32-20.5"),
        ("{{ 1e21 }} {{ 1e-7 }} {{ 2.0 }}{% set f = 1e16 %} {{ f ~ '' }}", "1e+21 1e-07 2.0 1e+16"),
        ("{{ [1, 2, 3, 4][3:0:-2] }}{{ 'abc'[::-1] }}{{ (1, 2)[:1] }}", "[4, 2]cba(1,)"),
        ("{{ {'a': 1}.copy() }}{{ 'a b_c-d'|wordcount }}", "{'a': 1}3"),
        ("a\r\nb\rc", "a\nb\nc"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &json!({})).unwrap(), expected, "{source}");
    }
    for source in ["{{ none|length }}", "{{ 1|length }}", "{{ 1 % 0 }}", "{{ 'a'|replace('a', 'b', 'c') }}"] {
        assert!(render(source, &json!({})).is_err(), "{source}");
    }
}

/// How the snippets of a file of `tools/template_fuzz` come out.
#[derive(Default)]
struct Snippets {
    equal: usize,
    refused: usize,
    excepted: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

/// Renders the snippets of a file. Its first line has the context and the exceptions, with what each may do; the others
/// are a template, what transformers makes of it, and the exception that the template falls under.
fn snippets(file: &str) -> Snippets {
    let mut lines = file.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let head = lines.next().unwrap();
    let mut found = Snippets::default();
    for name in head["exceptions"].as_object().unwrap().keys() {
        found.excepted.insert(name.clone(), 0);
    }
    for line in lines {
        let source = line[0].as_str().unwrap();
        let got =
            ChatTemplate::new(source, [] as [&str; 0]).and_then(|template| template.render(&head["context"], NOW));
        let got = got.map(|segments| text(&segments));
        let exception = line[2].as_str();
        let may = exception.map(|name| head["exceptions"][name].as_str().unwrap());
        match (&got, line[1].as_str()) {
            (Ok(text), Some(expected)) if text == expected => found.equal += 1,
            (Err(_), None) => found.refused += 1,
            // What is excepted is refused, unless the exception says that the text differs.
            (Err(_), _) if may.is_some() => *found.excepted.get_mut(exception.unwrap()).unwrap() += 1,
            (Ok(_), _) if may == Some("differs") => *found.excepted.get_mut(exception.unwrap()).unwrap() += 1,
            (_, expected) => found.wrong.push(format!("{source:?}\n  gives   {got:?}\n  must be {expected:?}")),
        }
    }
    found
}

/// Random templates as transformers' own environment renders them; `WGSLM_TEMPLATE_SNIPPETS` names a file with more.
#[test]
fn random_templates_as_transformers_has_them() {
    let given = std::env::var_os("WGSLM_TEMPLATE_SNIPPETS").map(PathBuf::from);
    let path = given.clone().unwrap_or_else(|| data("chat-templates/snippets.jsonl"));
    let found = snippets(&std::fs::read_to_string(path).unwrap());
    println!("{} equal, {} refused by both, excepted: {:?}", found.equal, found.refused, found.excepted);
    assert!(found.wrong.is_empty(), "{} differ:\n{}", found.wrong.len(), found.wrong.join("\n"));
    assert!(found.equal >= 500, "only {} are equal", found.equal);
    for (name, count) in found.excepted {
        assert!(count > 0 || given.is_some(), "{name} is no exception any more");
    }
}
