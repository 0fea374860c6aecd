//! JSON as Python's `json.dumps` writes it: `tojson` of chat templates.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use crate::text::template::Twins;

/// How to write.
pub(crate) struct Json {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
    twins: Option<Twins>,
}

impl Json {
    /// The arguments of the filter, by place or by name, in the order that transformers gives them.
    pub(crate) fn from_args(args: &[Value], twins: Option<Twins>) -> Result<Self, Error> {
        let (args, options): (&[Value], Kwargs) = from_args(args)?;
        if args.len() > 4 {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let arg = |i: usize, name: &str| {
            let named = options.get::<Option<Value>>(name)?.or_else(|| args.get(i).cloned());
            Ok::<_, Error>(named.filter(|value| !value.is_none()))
        };
        let ascii = arg(0, "ensure_ascii")?.is_some_and(|ascii| ascii.is_true());
        let indent = match arg(1, "indent")? {
            None => None,
            Some(value) => Some(match (value.as_str(), value.as_i64()) {
                (Some(text), _) if text.len() <= 64 => text.to_owned(),
                (None, Some(width)) if width <= 64 => " ".repeat(usize::try_from(width).unwrap_or_default()),
                _ => return Err(bad("indent is too large, or neither a number nor a text")),
            }),
        };
        let (item, key) = match arg(2, "separators")? {
            Some(two) => {
                let two: Vec<Value> = two.try_iter()?.collect();
                match two.iter().map(Value::as_str).collect::<Vec<_>>()[..] {
                    [Some(item), Some(key)] => (item.to_owned(), key.to_owned()),
                    _ => return Err(bad("separators are two texts")),
                }
            }
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        };
        let sort = arg(3, "sort_keys")?.is_some_and(|sort| sort.is_true());
        options.assert_all_used()?;
        Ok(Self { ascii, indent, item, key, sort, twins })
    }
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {}", what.into()))
}

/// Writes `value`; `out` refuses when too much has been written.
pub(crate) fn write_value(value: &Value, json: &Json, depth: usize, out: &mut impl Write) -> Result<(), Error> {
    if depth > 100 {
        return Err(bad("too deep: over the nesting limit"));
    }
    let full = |_| bad("too large: over the memory limit");
    match value.kind() {
        ValueKind::None => out.write_str("null").map_err(full),
        ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" }).map_err(full),
        ValueKind::Number if value.is_integer() => write!(out, "{value}").map_err(full),
        ValueKind::Number => {
            let x = f64::try_from(value.clone())?;
            out.write_str(&float(x)).map_err(full)
        }
        ValueKind::String => write_text(value.as_str().unwrap_or_default(), json, out),
        ValueKind::Iterable => Err(bad("a range or a view of a dictionary; `list` makes a list of it")),
        ValueKind::Seq => {
            let items: Vec<Value> = super::budget::group(value).as_ref().unwrap_or(value).try_iter()?.collect();
            write_items(json, depth, ('[', ']'), items.len(), out, |i, out| match items.get(i) {
                Some(item) => write_value(item, json, depth + 1, out),
                None => Ok(()),
            })
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if json.sort {
                keys.sort();
            }
            write_items(json, depth, ('{', '}'), keys.len(), out, |i, out| {
                let Some(key) = keys.get(i) else { return Ok(()) };
                match key.as_str() {
                    Some(text) => write_text(text, json, out)?,
                    None => {
                        let mut text = String::new();
                        write_value(key, json, depth + 1, &mut text)?;
                        write_text(&text, json, out)?;
                    }
                }
                out.write_str(&json.key).map_err(|_| bad("too large: over the memory limit"))?;
                write_value(&value.get_item(key)?, json, depth + 1, out)
            })
        }
        kind => Err(bad(format!("{kind} is not JSON serializable"))),
    }
}

fn write_items<W: Write>(
    json: &Json,
    depth: usize,
    (open, close): (char, char),
    n: usize,
    out: &mut W,
    mut item: impl FnMut(usize, &mut W) -> Result<(), Error>,
) -> Result<(), Error> {
    let full = |_| bad("too large: over the memory limit");
    let line = |out: &mut W, depth: usize| match json.indent.as_deref().filter(|_| n > 0) {
        Some(indent) => write!(out, "\n{}", indent.repeat(depth)),
        None => Ok(()),
    };
    out.write_char(open).map_err(full)?;
    for i in 0..n {
        if i > 0 {
            out.write_str(&json.item).map_err(full)?;
        }
        line(out, depth + 1).map_err(full)?;
        item(i, out)?;
    }
    line(out, depth).map_err(full)?;
    out.write_char(close).map_err(full)
}

fn write_text(text: &str, json: &Json, out: &mut impl Write) -> Result<(), Error> {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\0'..='\x1f' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            '\u{7f}' if json.ascii => quoted.push_str("\\u007f"),
            _ if json.ascii && !c.is_ascii() => match json.twins.as_ref().and_then(|twins| twins.original(c)) {
                // The twin of an ASCII character is written as that character would be.
                Some(original) if original.is_ascii() => quoted.push(c),
                other => {
                    for unit in other.unwrap_or(c).encode_utf16(&mut [0; 2]) {
                        quoted.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            },
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    out.write_str(&quoted).map_err(|_| bad("too large: over the memory limit"))
}

/// A float as Python writes it: `1.0`, `1e-05`, `1e+16`.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let cases =
            [(1.0, "1.0"), (0.1, "0.1"), (1e-5, "1e-05"), (1e16, "1e+16"), (0.0001, "0.0001"), (-2.5e-7, "-2.5e-07")];
        for (x, text) in cases {
            assert_eq!(float(x), text);
        }
    }
}
