//! Texts, their methods and formats as Python has them.

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::{Budget, ITEM, invalid, too_large};
use super::python::{Number, number};

/// Widest number in a format string or a width argument.
const MAX_WIDTH: usize = 1024;

/// The characters of HTML as MarkupSafe writes them.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

pub(super) fn escaped(budget: &Budget, text: &str) -> Result<String, Error> {
    let escaped = escape(text);
    budget.bytes(escaped.len())?;
    Ok(escaped)
}

/// `text`, marked as HTML if `value` is: what Python calls `Markup`.
pub(super) fn like(value: &Value, text: String) -> Value {
    if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// How often to replace: without a number, or with a negative one, always.
pub(super) fn times(count: Option<&Value>) -> Result<Option<usize>, Error> {
    match count.filter(|count| !count.is_none()).map(number) {
        None => Ok(None),
        Some(Some(Number::Int(n))) => Ok(usize::try_from(n).ok()),
        Some(_) => Err(invalid("replace takes an integer for how often")),
    }
}

pub(super) fn replace(
    budget: &Budget,
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let times = text.matches(old).count().min(count.unwrap_or(usize::MAX));
    budget.bytes(text.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, times))
}

pub(super) fn join(
    budget: &Budget,
    items: impl Iterator<Item = Result<Value, Error>>,
    separator: &str,
) -> Result<String, Error> {
    let mut text = String::new();
    for (i, item) in items.enumerate() {
        if i > 0 {
            budget.bytes(separator.len())?;
            text.push_str(separator);
        }
        text.push_str(&budget.text(&item?)?);
    }
    Ok(text)
}

/// `str.title`: a letter after one is small, all others are capitals.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase().enumerate().flat_map(|(i, c)| capital(i, c))),
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// The first of the letters that a capital is made of is a capital: of `ß`, `Ss`.
pub(super) fn capital(i: usize, c: char) -> Vec<char> {
    if i == 0 { vec![c] } else { c.to_lowercase().collect() }
}

pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(|c| c.to_uppercase().enumerate().flat_map(|(i, c)| capital(i, c)));
    first.chain(chars.as_str().to_lowercase().chars()).collect()
}

/// `str.splitlines`.
pub(super) fn lines(text: &str) -> Vec<&str> {
    let end =
        |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(end) {
        let (line, tail) = rest.split_at(at);
        lines.push(line);
        let mut tail_chars = tail.chars();
        tail_chars.next();
        rest = tail.strip_prefix("\r\n").unwrap_or(tail_chars.as_str());
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

pub(super) fn indent(budget: &Budget, text: &str, width: usize, first: bool, blank: bool) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(too_large("an indentation is too large"));
    }
    budget.bytes(text.len().saturating_add(text.matches('\n').count().saturating_add(1).saturating_mul(width)))?;
    let space = " ".repeat(width);
    let text = format!("{text}\n");
    let lines = lines(&text).into_iter().enumerate().map(|(i, line)| {
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented { format!("{space}{line}") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// What is put into a text that is marked as HTML would have to be escaped.
pub(super) fn check_format(value: &Value, format: &str) -> Result<(), Error> {
    match value.is_safe() {
        true => Err(invalid("values are put into a text that is marked as HTML; this is not supported")),
        false => check_widths(format),
    }
}

/// The arguments of a format: lists as the texts that Python makes of them.
pub(super) fn format_args(budget: &Budget, format: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    let text = |value: &Value| match value.kind() {
        ValueKind::Map if format.contains("%(") => budget.walk(value).map(|()| value.clone()),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Undefined => {
            budget.text(value).map(Value::from)
        }
        ValueKind::Number if i64::try_from(value.clone()).is_ok_and(|n| n.unsigned_abs() > 1 << 53) => {
            Err(invalid("an integer beyond 2^53 in a format"))
        }
        _ => budget.walk(value).map(|()| value.clone()),
    };
    let one = |arg: &Value| match arg.is_kwargs() {
        false => text(arg),
        true => {
            let named = Kwargs::try_from(arg.clone())?;
            let named = named.args().map(|name| Ok((name.to_owned(), text(&named.peek::<Value>(name)?)?)));
            Ok(Value::from(named.collect::<Result<Kwargs, Error>>()?))
        }
    };
    args.iter().map(one).collect()
}

/// A width in a format string pads to as many characters.
pub(super) fn check_widths(format: &str) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in numbers {
        if digits.parse::<usize>().map_or(true, |width| width > MAX_WIDTH) {
            return Err(too_large("a width in a format string is too large"));
        }
    }
    match format.contains('*') {
        true => Err(invalid("a format string takes its width from an argument; this is not supported")),
        false => Ok(()),
    }
}

/// Python's methods on strings, lists and dictionaries; those that change them in place are refused as in Hugging
/// Face's sandbox.
pub(super) fn call_method(
    budget: &Budget,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        budget.bytes(text.len() / 8)?;
        if value.is_safe() {
            return call_markup_method(budget, state, text, method, args);
        }
        let arg = |i: usize| args.get(i).and_then(Value::as_str);
        match (method, args) {
            ("replace", [_, _]) | ("replace", [_, _, _]) => {
                let (Some(old), Some(new)) = (arg(0), arg(1)) else {
                    return Err(invalid("replace needs two texts"));
                };
                return replace(budget, text, old, new, times(args.get(2))?).map(Value::from);
            }
            ("join", [list]) => {
                budget.items(list)?;
                return join(budget, list.try_iter()?.map(Ok), text).map(Value::from);
            }
            ("format", _) => {
                check_format(value, text)?;
                // `{0[1]}` and `{x.y}` look into what they are given.
                let args = if text.contains(['[', '.']) { args.to_vec() } else { format_args(budget, text, args)? };
                let text = minijinja::formatting::format(minijinja::formatting::FormatStyle::StrFormat, text, &args)?;
                budget.bytes(text.len())?;
                return Ok(Value::from(text));
            }
            ("capitalize", []) => return Ok(Value::from(capitalize(text))),
            ("title", []) => return Ok(Value::from(title(text))),
            ("splitlines", []) => {
                budget.bytes(text.len())?;
                return Ok(lines(text).into_iter().map(Value::from).collect());
            }
            ("split", [] | [_] | [_, _]) => return split(budget, text, args),
            ("rsplit", [_, _]) => {
                let (Some(by), Some(n)) = (arg(0).filter(|by| !by.is_empty()), args.get(1).and_then(|n| n.as_usize()))
                else {
                    return Err(invalid("rsplit needs a text and a number"));
                };
                let mut parts: Vec<Value> = text.rsplitn(n.saturating_add(1), by).map(Value::from).collect();
                parts.reverse();
                return Ok(Value::from(parts));
            }
            ("removeprefix", [_]) => {
                return Ok(Value::from(arg(0).and_then(|p| text.strip_prefix(p)).unwrap_or(text)));
            }
            ("removesuffix", [_]) => {
                return Ok(Value::from(arg(0).and_then(|s| text.strip_suffix(s)).unwrap_or(text)));
            }
            ("partition", [_]) => {
                let by = arg(0).filter(|by| !by.is_empty()).ok_or_else(|| invalid("partition needs a text"))?;
                let parts = text.split_once(by).map_or([text, "", ""], |(before, after)| [before, by, after]);
                return Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())));
            }
            ("index", [_]) => {
                let at = arg(0).and_then(|part| text.find(part));
                let at = at.ok_or_else(|| invalid("substring not found"))?;
                return Ok(Value::from(text.get(..at).map_or(0, |head| head.chars().count())));
            }
            _ => {}
        }
    }
    if let ("get", [key, default]) = (method, args)
        && value.kind() == ValueKind::Map
    {
        budget.walk(key)?;
        let found = value.as_object().and_then(|object| object.get_value(key));
        return Ok(found.unwrap_or_else(|| default.clone()));
    }
    if let ("copy", []) = (method, args)
        && value.kind() == ValueKind::Map
    {
        budget.items(value)?;
        budget.nest()?;
        return minijinja::functions::dict(Some(value.clone()), Kwargs::from_iter::<[(String, Value); 0]>([]));
    }
    if matches!(
        method,
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "update" | "setdefault" | "sort" | "reverse"
    ) && value.as_object().is_some()
    {
        return Err(Error::new(
            ErrorKind::UnknownMethod,
            format!("method {method} changes a value in place; that is unsafe and refused"),
        ));
    }
    args.iter().chain([value]).try_for_each(|arg| budget.walk(arg))?;
    let result = unknown_method_callback(state, value, method, args)?;
    if let Some(text) = result.as_str() {
        budget.bytes(text.len())?;
    }
    Ok(result)
}

/// A method of a text that is marked as HTML: what it gives is marked, and what replaces a part is escaped.
pub(super) fn call_markup_method(
    budget: &Budget,
    state: &mut State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let mut args = args.to_vec();
    if matches!(method, "format" | "format_map" | "join") {
        return Err(invalid(format!("{method} of a text that is marked as HTML; this is not supported")));
    }
    if let Some(new) = args.get_mut(1).filter(|new| method == "replace" && !new.is_safe())
        && let Some(text) = new.as_str()
    {
        *new = Value::from(escaped(budget, text)?);
    }
    let result = call_method(budget, state, &Value::from(text), method, &args)?;
    let mark = |value: &Value| Value::from_safe_string(value.to_string());
    match result.kind() {
        ValueKind::String => Ok(mark(&result)),
        ValueKind::Seq => {
            let parts: Vec<Value> = result.try_iter()?.map(|part| mark(&part)).collect();
            Ok(if result.is_tuple() { Value::from(Tuple::from(parts)) } else { Value::from(parts) })
        }
        _ => Ok(result),
    }
}

/// `str.split`: by spaces, or by a text, at most `n` times.
pub(super) fn split(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    budget.bytes(text.len())?;
    let limit = match args.get(1).map(|n| i64::try_from(n.clone())) {
        None => usize::MAX,
        Some(Ok(n)) => usize::try_from(n).unwrap_or(usize::MAX),
        Some(Err(_)) => return Err(invalid("split needs an integer")),
    };
    let mut parts: Vec<&str> = Vec::new();
    match args.first().filter(|by| !by.is_none() && !by.is_undefined()).map(Value::as_str) {
        Some(Some("")) | Some(None) => return Err(invalid("split needs a text that is not empty")),
        Some(Some(by)) => parts.extend(text.splitn(limit.saturating_add(1), by)),
        None => {
            let mut rest = text.trim_start();
            while !rest.is_empty() && parts.len() < limit {
                let (word, tail) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                parts.push(word);
                rest = tail.trim_start();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    budget.bytes(parts.len().saturating_mul(ITEM))?;
    Ok(parts.into_iter().collect())
}
