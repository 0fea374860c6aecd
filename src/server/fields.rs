//! The fields of a request, each taken by its name and checked: type, range, and whether it does anything here.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::failure::{Failure, Outcome};

/// An object of a request, and where in it it stands. `null` is as good as absent.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The object of a body.
    pub(super) fn parse(body: &[u8]) -> Outcome<Self> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, path: String::new() }),
            Ok(other) => Err(Failure::invalid("body", format!("it is {}; an object works", kind(&other)))),
            Err(error) => Err(Failure::invalid("body", format!("no JSON: {error}"))),
        }
    }

    /// An object inside of a request.
    pub(super) fn within(path: impl Into<String>, value: Value) -> Outcome<Self> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(Failure::invalid(path, format!("it is {}; an object works", kind(&other)))),
        }
    }

    /// Where a field stands.
    pub(super) fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// What is left.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.map
    }

    fn wrong(&self, name: &str, value: &Value, works: &str) -> Failure {
        Failure::invalid(self.at(name), format!("it is {}; {works} works", kind(value)))
    }

    /// A field that must be there.
    pub(super) fn needed<T>(&self, name: &str, value: Option<T>) -> Outcome<T> {
        value.ok_or_else(|| Failure {
            code: Some("missing_required_parameter"),
            ..Failure::invalid(self.at(name), "it is missing")
        })
    }

    pub(super) fn text(&mut self, name: &str) -> Outcome<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, &other, "a string")),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Outcome<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(name, &other, "true or false")),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Outcome<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(name, &other, "a list")),
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Outcome<Option<Self>> {
        self.take(name).map(|value| Self::within(self.at(name), value)).transpose()
    }

    /// A number in a range.
    pub(super) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Outcome<Option<f32>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let (least, most) = (range.start(), range.end());
        let works = format!("a number from {least} to {most}");
        let Some(number) = value.as_f64() else { return Err(self.wrong(name, &value, &works)) };
        if !range.contains(&number) {
            return Err(Failure::invalid(self.at(name), format!("{value}; {least} to {most} works")));
        }
        Ok(Some(number as f32))
    }

    /// A number that is more than 0 and at most 1.
    pub(super) fn part(&mut self, name: &str) -> Outcome<Option<f32>> {
        let part = self.number(name, 0.0..=1.0)?;
        if part.is_some_and(|part| part <= 0.0) {
            return Err(Failure::invalid(self.at(name), "0; more than 0, at most 1 works"));
        }
        Ok(part)
    }

    /// An integer in a range.
    pub(super) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Outcome<Option<i64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let (least, most) = (range.start(), range.end());
        let works = format!("an integer from {least} to {most}");
        // Some clients write 1.0.
        let float = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64);
        let integer = value.as_i64().or_else(float);
        match integer {
            Some(integer) if range.contains(&integer) => Ok(Some(integer)),
            _ if value.is_number() => Err(Failure::invalid(self.at(name), format!("{value}; {works}"))),
            _ => Err(self.wrong(name, &value, &works)),
        }
    }

    /// An integer from 0 or 1 on, as counts are.
    pub(super) fn count(&mut self, name: &str, range: RangeInclusive<u32>) -> Outcome<Option<u32>> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        Ok(self.integer(name, range)?.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// A string or several, as `stop` has them: at most `most`, none of them empty or long.
    pub(super) fn texts(&mut self, name: &str, most: usize) -> Outcome<Vec<String>> {
        /// Each is compared with an answer's end at every token.
        const BYTES: usize = 1024;
        let texts = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(texts)) => texts
                .into_iter()
                .map(|text| match text {
                    Value::String(text) => Ok(text),
                    other => Err(self.wrong(name, &other, "a list of strings")),
                })
                .collect::<Outcome<_>>()?,
            Some(other) => return Err(self.wrong(name, &other, "a string, or a list of strings,")),
        };
        if texts.len() > most {
            return Err(Failure::invalid(self.at(name), format!("{} strings; at most {most} work", texts.len())));
        }
        if texts.iter().any(String::is_empty) {
            return Err(Failure::invalid(self.at(name), "an empty string; one with a character or more works"));
        }
        if let Some(long) = texts.iter().map(String::len).find(|bytes| *bytes > BYTES) {
            return Err(Failure::invalid(self.at(name), format!("a string of {long} bytes; up to {BYTES} work")));
        }
        Ok(texts)
    }

    /// A field that is known and does nothing here, unless it has one of these values, which ask for nothing.
    pub(super) fn refuse(&mut self, name: &str, harmless: &[Value], instead: &str) -> Outcome<()> {
        match self.take(name) {
            None => Ok(()),
            Some(value) if harmless.contains(&value) => Ok(()),
            Some(_) => Err(Failure::unsupported(self.at(name), instead)),
        }
    }

    /// Fields that change nothing about an answer, whatever they say.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }
}

/// What a value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn numbers_keep_to_their_ranges() {
        for (json, expected) in [
            (r#"{"x": 0.5}"#, Some(Some(0.5))),
            (r#"{"x": null}"#, Some(None)),
            ("{}", Some(None)),
            (r#"{"x": -0.1}"#, None),
            (r#"{"x": 2.1}"#, None),
            (r#"{"x": 1e300}"#, None),
            (r#"{"x": "1"}"#, None),
            (r#"{"x": true}"#, None),
            (r#"{"x": [1]}"#, None),
        ] {
            assert_eq!(fields(json).number("x", 0.0..=2.0).ok(), expected, "{json}");
        }
        for (json, expected) in [
            (r#"{"x": 3}"#, Some(Some(3))),
            (r#"{"x": 3.0}"#, Some(Some(3))),
            (r#"{"x": 3.5}"#, None),
            (r#"{"x": -1}"#, None),
            (r#"{"x": 11}"#, None),
            (r#"{"x": 18446744073709551616}"#, None),
            (r#"{"x": "3"}"#, None),
        ] {
            assert_eq!(fields(json).count("x", 0..=10).ok(), expected, "{json}");
        }
        assert_eq!(fields(r#"{"x": 0}"#).part("x").unwrap_err().message, "x: 0; more than 0, at most 1 works");
        for json in ["{\"x\": NaN}", "{\"x\": 1e999}", "[]", "", "{", "\u{0}"] {
            assert_eq!(Fields::parse(json.as_bytes()).unwrap_err().status, 400, "{json}");
        }
    }

    #[test]
    fn what_does_nothing_is_refused_by_name() {
        let mut all = fields(r#"{"store": true, "n": {"deep": 1}}"#);
        let error = all.refuse("store", &[false.into()], "nothing is stored").unwrap_err();
        assert_eq!(error.message, "store is not supported; nothing is stored");
        let mut deep = all.object("n").unwrap().unwrap();
        assert_eq!(deep.flag("deep").unwrap_err().message, "n.deep: it is a number; true or false works");
        assert!(fields(r#"{"store": false}"#).refuse("store", &[false.into()], "").is_ok());
    }
}
