//! What is left of the bytes that a rendering may make, and texts that are charged to it.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::json::float;

/// Bytes that every template may make, and those that each byte of the input adds.
const BYTES: u64 = 8 << 20;
const BYTES_PER_BYTE: u64 = 64;
/// What each value of the input adds: templates copy lists of messages, once a message.
const BYTES_PER_VALUE: u64 = 16 << 10;
/// What an item of a list costs.
pub(super) const ITEM: usize = std::mem::size_of::<Value>();
/// What a single write costs beyond its bytes.
const WRITE: usize = 64;
/// Containers put into containers: nesting is dropped recursively, so this bounds the stack.
const NESTS: u64 = 4096;
/// What it costs to look at an item of a list.
const STEP: usize = 8;
/// Containers in one another that are printed or compared: both recurse.
const MAX_DEPTH: usize = 128;

/// How large the input is: what the limits grow with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) values: u64,
    pub(crate) bytes: u64,
}

/// What is left of the bytes and nestings that a rendering may make.
#[derive(Clone)]
pub(super) struct Budget(Arc<(AtomicU64, AtomicU64)>);

impl Budget {
    pub(super) fn new(size: Size) -> Self {
        let input =
            size.bytes.saturating_mul(BYTES_PER_BYTE).saturating_add(size.values.saturating_mul(BYTES_PER_VALUE));
        let bytes = input.saturating_add(BYTES);
        Self(Arc::new((AtomicU64::new(bytes), AtomicU64::new(NESTS + size.values))))
    }

    fn take(counter: &AtomicU64, n: u64, what: &str) -> Result<(), Error> {
        let left = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(n));
        left.map(drop).map_err(|_| too_large(what))
    }

    /// Charges `n` bytes.
    pub(super) fn bytes(&self, n: usize) -> Result<(), Error> {
        Self::take(&self.0.0, n as u64, "the text that the template makes is too large: over its memory limit")
    }

    /// Charges a container in a container.
    pub(super) fn nest(&self) -> Result<(), Error> {
        Self::take(&self.0.1, 1, "the template nests too many lists: over its limit")
    }

    /// Charges looking at everything in `value`, which must not nest too deeply.
    pub(super) fn walk(&self, value: &Value) -> Result<(), Error> {
        self.walk_at(value, 0)
    }

    fn walk_at(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.bytes(text.len() / 8);
        }
        if value.as_object().is_none() {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(too_large("a list nests too deeply: over the nesting limit"));
        }
        let map = value.kind() == ValueKind::Map;
        for item in value.try_iter().into_iter().flatten() {
            self.bytes(STEP)?;
            if map {
                self.walk_at(&value.get_item(&item)?, depth + 1)?;
            }
            self.walk_at(&item, depth + 1)?;
        }
        Ok(())
    }

    /// Charges a list of what is in `value`.
    pub(super) fn items(&self, value: &Value) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.bytes(text.len().saturating_mul(ITEM));
        }
        match value.as_object().map(|_| value.len()) {
            None => Ok(()),
            Some(Some(n)) => self.bytes(n.saturating_mul(ITEM)),
            Some(None) => value.try_iter().into_iter().flatten().try_for_each(|_| self.bytes(ITEM)),
        }
    }

    /// `value` as text, charged; stops as soon as the budget is spent.
    pub(super) fn text(&self, value: &Value) -> Result<String, Error> {
        if let Some(text) = value.as_str() {
            self.bytes(text.len())?;
            return Ok(text.to_owned());
        }
        let mut out = Charged { text: String::new(), budget: self };
        if !value.is_undefined() {
            self.walk(value)?;
            represent(value, 0, &mut out)?;
        }
        Ok(out.text)
    }
}

/// Collects text as long as the budget lasts.
pub(super) struct Charged<'a> {
    pub(super) text: String,
    pub(super) budget: &'a Budget,
}

impl fmt::Write for Charged<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // A list that holds itself many times prints in many small writes: their number counts as well.
        self.budget.bytes(s.len() + WRITE).map_err(|_| fmt::Error)?;
        self.text.push_str(s);
        Ok(())
    }
}

/// A pair of `groupby` as a tuple with a list: minijinja's list is lazy.
pub(super) fn group(value: &Value) -> Option<Value> {
    let grouper = value.get_attr("grouper").ok().filter(|grouper| !grouper.is_undefined())?;
    let list: Vec<Value> = value.get_attr("list").ok()?.try_iter().ok()?.collect();
    Some(Value::from(Tuple::from(vec![grouper, Value::from(list)])))
}

/// Writes what Python's `repr` does. minijinja writes floats, what is undefined and escaped text in other ways.
fn represent(value: &Value, depth: usize, out: &mut Charged<'_>) -> Result<(), Error> {
    let full = |_| too_large("a value is too large to print: over the memory limit");
    if depth > MAX_DEPTH {
        return Err(too_large("a list nests too deeply: over the nesting limit"));
    }
    let items = |out: &mut Charged<'_>, ends: [&str; 2]| {
        out.write_str(ends[0]).map_err(full)?;
        for (i, item) in value.try_iter()?.enumerate() {
            if i > 0 {
                out.write_str(", ").map_err(full)?;
            }
            represent(&item, depth + 1, out)?;
            if value.kind() == ValueKind::Map {
                out.write_str(": ").map_err(full)?;
                represent(&value.get_item(&item)?, depth + 1, out)?;
            }
        }
        out.write_str(ends[1]).map_err(full)
    };
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined").map_err(full),
        ValueKind::Number if !value.is_integer() => {
            let x = f64::try_from(value.clone())?;
            let text = if x.is_finite() { float(x) } else { x.to_string().to_lowercase() };
            out.write_str(&text).map_err(full)
        }
        ValueKind::String if value.is_safe() => write!(out, "Markup({value:?})").map_err(full),
        ValueKind::String => write!(out, "{value:?}").map_err(full),
        ValueKind::Seq if value.is_tuple() && value.len() == Some(1) => items(out, ["(", ",)"]),
        ValueKind::Seq if value.is_tuple() => items(out, ["(", ")"]),
        ValueKind::Seq => match group(value) {
            Some(pair) => represent(&pair, depth + 1, out),
            None => items(out, ["[", "]"]),
        },
        ValueKind::Map if value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace")) => {
            items(out, ["<Namespace {", "}>"])
        }
        ValueKind::Map => items(out, ["{", "}"]),
        // Python writes `range(0, 3)`, `dict_keys(['a'])`, or an address.
        ValueKind::Iterable => Err(invalid("a range or a view of a dictionary is printed; `list` makes a list of it")),
        _ => write!(out, "{value}").map_err(full),
    }
}

pub(super) fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

pub(super) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}
