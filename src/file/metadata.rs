//! The typed key-value pairs of a GGUF header.

use std::collections::BTreeMap;

use super::quoted;
use crate::{Error, Result};

/// A value, in the type that the file gives it.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Array),
}

/// An array, all of one type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(Strings),
    /// Arrays in an array; no known key uses them.
    Array(Vec<Array>),
}

/// A list of strings in one allocation: a vocabulary has a hundred thousand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
}

impl Strings {
    /// Space for `count` strings.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { text: String::new(), ends: Vec::with_capacity(count) }
    }

    /// Appends one; false if all of them together would pass 4 GiB.
    pub(super) fn push(&mut self, s: &str) -> bool {
        let end = u32::try_from(self.text.len() + s.len());
        self.ends.extend(end.ok());
        self.text.push_str(if end.is_ok() { s } else { "" });
        end.is_ok()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { *self.ends.get(i - 1)? as usize };
        self.text.get(start..end)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let s = &self.text[start..end as usize];
            start = end as usize;
            s
        })
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    /// # Panics
    /// If the strings together pass 4 GiB.
    fn from_iter<I: IntoIterator<Item = S>>(all: I) -> Self {
        let mut strings = Self::default();
        for s in all {
            assert!(strings.push(s.as_ref()), "more than 4 GiB of strings");
        }
        strings
    }
}

impl Value {
    /// The type, and a scalar's value, for messages: `an array of 312 strings`, `2 (u32)`.
    fn describe(&self) -> String {
        match self {
            Self::U8(v) => format!("{v} (u8)"),
            Self::I8(v) => format!("{v} (i8)"),
            Self::U16(v) => format!("{v} (u16)"),
            Self::I16(v) => format!("{v} (i16)"),
            Self::U32(v) => format!("{v} (u32)"),
            Self::I32(v) => format!("{v} (i32)"),
            Self::U64(v) => format!("{v} (u64)"),
            Self::I64(v) => format!("{v} (i64)"),
            Self::F32(v) => format!("{v:?} (f32)"),
            Self::F64(v) => format!("{v:?} (f64)"),
            Self::Bool(v) => format!("{v}"),
            Self::Str(v) => format!("the string {}", quoted(v)),
            Self::Array(v) => format!("an array of {} {}", v.len(), v.type_name()),
        }
    }

    /// The value as an integer, whatever its width.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl Array {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Str(v) => v.len(),
            Self::Array(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Bool(_) => "bool",
            Self::Str(_) => "strings",
            Self::Array(_) => "arrays",
        }
    }

    /// The elements as integers of type `T`, if they are integers and all fit.
    fn integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        fn fit<T: TryFrom<i128>, S: Copy + Into<i128>>(all: &[S]) -> Option<Vec<T>> {
            all.iter().map(|&v| T::try_from(v.into()).ok()).collect()
        }
        match self {
            Self::U8(v) => fit(v),
            Self::I8(v) => fit(v),
            Self::U16(v) => fit(v),
            Self::I16(v) => fit(v),
            Self::U32(v) => fit(v),
            Self::I32(v) => fit(v),
            Self::U64(v) => fit(v),
            Self::I64(v) => fit(v),
            _ => None,
        }
    }
}

/// A Rust type that metadata can be asked for.
pub trait FromValue<'a>: Sized {
    /// What was wanted, for messages.
    const WANTED: &'static str;
    /// The value, if it is of a fitting type and in range.
    fn from_value(value: &'a Value) -> Option<Self>;
}

/// Integers of any width that fit, and arrays of them.
macro_rules! integers {
    ($($int:ty: $one:literal, $many:literal;)*) => {$(
        impl FromValue<'_> for $int {
            const WANTED: &'static str = $one;
            fn from_value(value: &Value) -> Option<Self> {
                value.integer()?.try_into().ok()
            }
        }
        impl FromValue<'_> for Vec<$int> {
            const WANTED: &'static str = $many;
            fn from_value(value: &Value) -> Option<Self> {
                let Value::Array(array) = value else { return None };
                array.integers()
            }
        }
    )*};
}

integers! {
    u32: "an integer from 0 to 4294967295", "an array of integers from 0 to 4294967295";
    i32: "a 32-bit integer", "an array of 32-bit integers";
    u64: "an integer, not negative", "an array of integers, none negative";
}

/// Types that are a variant of [`Value`] or [`Array`], or can be borrowed from it.
macro_rules! variants {
    ($($ty:ty: $wanted:literal, $($pattern:pat => $value:expr),+;)*) => {$(
        impl<'a> FromValue<'a> for $ty {
            const WANTED: &'static str = $wanted;
            fn from_value(value: &'a Value) -> Option<Self> {
                match value {
                    $($pattern => Some($value),)+
                    _ => None,
                }
            }
        }
    )*};
}

variants! {
    f32: "a float", Value::F32(v) => *v, Value::F64(v) => *v as f32;
    bool: "a bool", Value::Bool(v) => *v;
    &'a str: "a string", Value::Str(v) => v;
    &'a Strings: "an array of strings", Value::Array(Array::Str(v)) => v;
    &'a [f32]: "an array of f32", Value::Array(Array::F32(v)) => v;
    &'a [bool]: "an array of bool", Value::Array(Array::Bool(v)) => v;
    &'a Array: "an array", Value::Array(v) => v;
}

/// All pairs of a header, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pairs: BTreeMap<String, Value>,
}

impl Metadata {
    /// The value of a key, if the key is there. An error if it has another type or is out of range.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.pairs.get(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => {
                Err(Error::Model(format!("metadata key {key} is {}; its type must be {}", value.describe(), T::WANTED)))
            }
        }
    }

    /// The value of a key that must be there.
    pub fn need<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| Error::Model(format!("metadata key {key} is missing; it must be {}", T::WANTED)))
    }

    /// An integer that must be there and fit.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.need(key)
    }

    /// A float that must be there.
    pub fn f32(&self, key: &str) -> Result<f32> {
        self.need(key)
    }

    /// A bool that must be there.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.need(key)
    }

    /// A string that must be there.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.need(key)
    }

    /// An array of strings that must be there.
    pub fn strings(&self, key: &str) -> Result<&Strings> {
        self.need(key)
    }

    /// The value as the file has it.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.pairs.get(key)
    }

    /// Adds or replaces a pair; the old value comes back.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.pairs.insert(key.into(), value)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}
