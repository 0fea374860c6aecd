//! Calls of tools, as the templates of several families write them.

use serde_json::{Map, Value};

/// How a model's template writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen.
    Tagged,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.
    Functions,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM-4.5.
    Keys,
    /// `{"name": …, "parameters": {…}}` as the whole answer: Llama 3.
    Bare,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// A message to `functions.NAME` on a channel: gpt-oss.
    Channels,
}

pub(super) const MISTRAL: &str = "[TOOL_CALLS]";
const MISTRAL_ARGS: &str = "[ARGS]";
pub(super) const PYTHON: &str = "<|python_tag|>";
pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const CHANNEL: &str = "<|channel|>";
const FUNCTION: [&str; 2] = ["<function=", "</function>"];
const PARAMETER: [&str; 2] = ["<parameter=", "</parameter>"];
const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
const VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];

/// Those that may be control tokens, and say what the text around them is.
pub(super) const MARKS: [&str; 9] = [MISTRAL, MISTRAL_ARGS, PYTHON, OPEN, CLOSE, KEY[0], KEY[1], VALUE[0], VALUE[1]];

impl CallFormat {
    /// That of a template; none if it knows no tools.
    pub(super) fn of_template(source: &str) -> Option<Self> {
        if source.contains(CHANNEL) {
            Some(Self::Channels)
        } else if source.contains(MISTRAL) {
            Some(Self::Mistral)
        } else if source.contains(OPEN) {
            Some(if source.contains(KEY[0]) {
                Self::Keys
            } else if source.contains(FUNCTION[0]) {
                Self::Functions
            } else {
                Self::Tagged
            })
        } else if source.contains("tools") && (source.contains("<|eot_id|>") || source.contains(PYTHON)) {
            Some(Self::Bare)
        } else {
            None
        }
    }

    /// Whether a call stands between `<tool_call>` and `</tool_call>`.
    pub(super) fn is_tagged(self) -> bool {
        matches!(self, Self::Tagged | Self::Functions | Self::Keys)
    }
}

/// A tool that the model calls.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Its name.
    pub name: String,
    /// By their names, with the types that the tool's schema has.
    pub arguments: Map<String, Value>,
}

/// The calls in a text without its outer marks; none if it is no call. On channels the text has no name in it.
pub(super) fn parse(format: CallFormat, text: &str, tools: &[Value]) -> Option<Vec<ToolCall>> {
    match format {
        CallFormat::Tagged => one(text, "arguments").map(|call| vec![call]),
        // Models that have seen both forms mix them up.
        CallFormat::Functions => functions(text, tools).or_else(|| one(text, "arguments").map(|call| vec![call])),
        CallFormat::Keys => keys(text, tools).or_else(|| one(text, "arguments")).map(|call| vec![call]),
        CallFormat::Bare => bare(text),
        CallFormat::Mistral => mistral(text),
        CallFormat::Channels => None,
    }
}

/// A name, as templates and schemas have them.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "<>{}\"".contains(c))
}

/// `<function=NAME>`, and its parameters, each on lines of its own. The last marks may be missing.
fn functions(text: &str, tools: &[Value]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix(FUNCTION[0])?.split_once('>')?;
        if !is_name(name) {
            return None;
        }
        let mut arguments = Map::new();
        rest = after.trim_start();
        while let Some(parameter) = rest.strip_prefix(PARAMETER[0]) {
            let (key, value) = parameter.split_once('>')?;
            let (value, after) = match value.split_once(PARAMETER[1]) {
                Some(found) => found,
                // It ends where the next one begins, or the call does.
                None => {
                    let ends = [PARAMETER[0], FUNCTION[1]].into_iter().filter_map(|mark| value.find(mark));
                    value.split_at(ends.min().unwrap_or(value.len()))
                }
            };
            // The lines around it are none of it.
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.to_owned(), argument(value, schema(tools, name, key)));
            rest = after.trim_start();
        }
        rest = match rest.strip_prefix(FUNCTION[1]) {
            Some(after) => after.trim_start(),
            None if rest.is_empty() => rest,
            None => return None,
        };
        calls.push(ToolCall { name: name.to_owned(), arguments });
    }
    (!calls.is_empty()).then_some(calls)
}

/// `NAME`, and pairs of keys and values.
fn keys(text: &str, tools: &[Value]) -> Option<ToolCall> {
    let at = text.find(KEY[0]).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(at);
    let name = name.trim();
    if !is_name(name) {
        return None;
    }
    let mut arguments = Map::new();
    while !rest.trim_start().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix(KEY[0])?.split_once(KEY[1])?;
        let (value, after) = after.trim_start().strip_prefix(VALUE[0])?.split_once(VALUE[1])?;
        let key = key.trim();
        arguments.insert(key.to_owned(), argument(value, schema(tools, name, key)));
        rest = after;
    }
    Some(ToolCall { name: name.to_owned(), arguments })
}

/// What a tool says about an argument.
fn schema<'a>(tools: &'a [Value], name: &str, key: &str) -> Option<&'a Value> {
    let function = tools.iter().map(|tool| &tool["function"]).find(|function| function["name"] == name)?;
    function["parameters"]["properties"].get(key)
}

/// An argument that was written without a sign of its type: what may be a text is one, all else is JSON if it can be.
fn argument(text: &str, schema: Option<&Value>) -> Value {
    let json = || match text.trim() {
        // As Python writes them.
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        trimmed => serde_json::from_str(trimmed).ok(),
    };
    let value = match schema.map(may_be_text) {
        Some(Some(true)) => None,
        Some(Some(false)) => json(),
        // Nobody says what it is: quotes are then part of a text.
        Some(None) | None => json().filter(|value| !value.is_string()),
    };
    value.unwrap_or_else(|| text.into())
}

/// Whether a schema takes a text; none if it does not say.
fn may_be_text(schema: &Value) -> Option<bool> {
    match &schema["type"] {
        Value::String(kind) => return Some(kind == "string"),
        Value::Array(kinds) => return Some(kinds.iter().any(|kind| kind == "string")),
        _ => {}
    }
    if let Some(values) = schema["enum"].as_array() {
        return Some(values.iter().any(Value::is_string));
    }
    let any = ["anyOf", "oneOf"].into_iter().find_map(|name| schema[name].as_array())?;
    let all: Vec<Option<bool>> = any.iter().map(may_be_text).collect();
    if all.contains(&Some(true)) { Some(true) } else { all.contains(&Some(false)).then_some(false) }
}

/// A call as an object.
fn one(text: &str, arguments: &str) -> Option<ToolCall> {
    call_of(serde_json::from_str(text.trim()).ok()?, arguments)
}

fn call_of(value: Value, arguments: &str) -> Option<ToolCall> {
    let Value::Object(mut call) = value else { return None };
    let Some(Value::String(name)) = call.remove("name") else { return None };
    let given = call.remove(arguments).or_else(|| call.remove("arguments")).or_else(|| call.remove("parameters"));
    let arguments = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        Some(_) => return None,
    };
    Some(ToolCall { name, arguments })
}

/// `{…}`, several apart by `;`.
fn bare(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let text = text.strip_prefix(PYTHON).unwrap_or(text);
    let mut calls = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut rest = text;
    while let Some(value) = values.next() {
        calls.push(call_of(value.ok()?, "parameters")?);
        rest = rest.get(values.byte_offset()..)?.trim_start();
        rest = rest.strip_prefix(';').unwrap_or(rest).trim_start();
        values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    }
    (!calls.is_empty()).then_some(calls)
}

/// `[{…}, …]`, or `name[ARGS]{…}`, which may repeat with its mark.
fn mistral(text: &str) -> Option<Vec<ToolCall>> {
    if let Ok(Value::Array(calls)) = serde_json::from_str(text.trim()) {
        return calls.into_iter().map(|call| call_of(call, "arguments")).collect();
    }
    let one = |call: &str| {
        let (name, arguments) = call.split_once(MISTRAL_ARGS).or_else(|| call.split_at_checked(call.find('{')?))?;
        let arguments = serde_json::from_str(arguments.trim()).ok()?;
        Some(ToolCall { name: name.trim().to_owned(), arguments }).filter(|call| !call.name.is_empty())
    };
    text.split(MISTRAL).filter(|call| !call.trim().is_empty()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_have_the_types_of_their_schemas() {
        for (schema, text, expected) in [
            (json!({ "type": "string" }), "12", json!("12")),
            (json!({ "type": "string" }), "\"a\"", json!("\"a\"")),
            (json!({ "type": ["string", "null"] }), "null", json!("null")),
            (json!({ "type": "integer" }), "12", json!(12)),
            (json!({ "type": "integer" }), "twelve", json!("twelve")),
            (json!({ "type": "boolean" }), "True", json!(true)),
            (json!({ "type": "boolean" }), " false\n", json!(false)),
            (json!({ "type": ["integer", "null"] }), "None", json!(null)),
            (json!({ "type": "array" }), "[1, \"a\"]", json!([1, "a"])),
            (json!({ "type": "object" }), "{\"a\": {}}", json!({ "a": {} })),
            (json!({ "enum": ["1", "2"] }), "1", json!("1")),
            (json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }), "1", json!("1")),
            (json!({ "anyOf": [{ "type": "number" }, { "type": "null" }] }), "1.5", json!(1.5)),
            (json!({ "description": "whatever" }), "1", json!(1)),
            (json!({}), "\"a\"", json!("\"a\"")),
            (json!({}), "a b\n", json!("a b\n")),
            (json!({}), "", json!("")),
        ] {
            assert_eq!(argument(text, Some(&schema)), expected, "{schema} {text}");
        }
        assert_eq!(argument("[1]", None), json!([1]));
    }

    #[test]
    fn functions_are_read_as_they_are_written() {
        let of = |text: &str| parse(CallFormat::Functions, text, &[]);
        let call = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!() };
            ToolCall { name: "f".to_owned(), arguments }
        };
        assert_eq!(of("<function=f>\n</function>"), Some(vec![call(json!({}))]));
        // A text keeps its lines, but for those around it.
        let text = "\n<function=f>\n<parameter=code>\n\n  if a < b:\n    <b>\n\n</parameter>\n</function>\n";
        assert_eq!(of(text), Some(vec![call(json!({ "code": "\n  if a < b:\n    <b>\n" }))]));
        // Marks that models leave out.
        let text = "<function=f>\n<parameter=a>\n1\n<parameter=b>\nx\n</function>";
        assert_eq!(of(text), Some(vec![call(json!({ "a": 1, "b": "x" }))]));
        assert_eq!(of("<function=f>\n<parameter=a>\n1"), Some(vec![call(json!({ "a": 1 }))]));
        assert_eq!(of("<function=f></function><function=f></function>"), Some(vec![call(json!({})); 2]));
        assert_eq!(of("{\"name\": \"f\", \"arguments\": {\"a\": 1}}"), Some(vec![call(json!({ "a": 1 }))]));
        for no_call in ["", "f", "<function=>", "<function=f", "<function=f> and more", "<function=a b></function>"] {
            assert_eq!(of(no_call), None, "{no_call}");
        }
    }

    #[test]
    fn keys_and_values_are_read_as_they_are_written() {
        let of = |text: &str| parse(CallFormat::Keys, text, &[]);
        let call = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!() };
            Some(vec![ToolCall { name: "f".to_owned(), arguments }])
        };
        assert_eq!(of("f"), call(json!({})));
        assert_eq!(of("f\n"), call(json!({})));
        let text = "f\n<arg_key>a</arg_key>\n<arg_value>{\"x\": 1}</arg_value>\n<arg_key>b</arg_key>\n<arg_value> y\n</arg_value>\n";
        assert_eq!(of(text), call(json!({ "a": { "x": 1 }, "b": " y\n" })));
        assert_eq!(of("f<arg_key>a</arg_key><arg_value></arg_value>"), call(json!({ "a": "" })));
        for no_call in
            ["", "a b", "f<arg_key>a", "f<arg_key>a</arg_key>", "f<arg_key>a</arg_key><arg_value>b", "{\"a\": 1}"]
        {
            assert_eq!(of(no_call), None, "{no_call}");
        }
    }
}
