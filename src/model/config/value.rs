//! The value of a hyper-parameter, whatever kind of file it comes from or goes to.

use std::fmt;

use crate::file::{self, Array};

/// A hyper-parameter's value.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    /// Something that no hyper-parameter is: a long list, a list of tables.
    Other(&'static str),
}

impl Value {
    pub(in crate::model) fn from_json(value: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match value {
            Json::Null => Self::Null,
            Json::Bool(v) => Self::Bool(*v),
            Json::Number(v) => match v.as_i128() {
                Some(v) => Self::Int(v),
                None => v.as_f64().map_or(Self::Other("a number out of range"), Self::Float),
            },
            Json::String(v) => Self::Text(v.clone()),
            Json::Array(v) => Self::List(v.iter().map(Self::from_json).collect()),
            Json::Object(v) if v.get("__float__").is_some_and(|v| v == "Infinity") => Self::Float(f64::INFINITY),
            Json::Object(_) => Self::Other("a table"),
        }
    }

    pub(in crate::model) fn from_gguf(value: &file::Value) -> Self {
        use file::Value as Gguf;
        const LONGEST: usize = 4096; // one a layer or one an expert
        fn ints<T: Copy + Into<i128>>(list: &[T]) -> Value {
            Value::List(list.iter().map(|&v| Value::Int(v.into())).collect())
        }
        fn floats<T: Copy + Into<f64>>(list: &[T]) -> Value {
            Value::List(list.iter().map(|&v| Value::Float(v.into())).collect())
        }
        match value {
            Gguf::U8(v) => Self::Int((*v).into()),
            Gguf::I8(v) => Self::Int((*v).into()),
            Gguf::U16(v) => Self::Int((*v).into()),
            Gguf::I16(v) => Self::Int((*v).into()),
            Gguf::U32(v) => Self::Int((*v).into()),
            Gguf::I32(v) => Self::Int((*v).into()),
            Gguf::U64(v) => Self::Int((*v).into()),
            Gguf::I64(v) => Self::Int((*v).into()),
            Gguf::F32(v) => Self::Float((*v).into()),
            Gguf::F64(v) => Self::Float(*v),
            Gguf::Bool(v) => Self::Bool(*v),
            Gguf::Str(v) => Self::Text(v.clone()),
            Gguf::Array(array) if array.len() > LONGEST => Self::Other("a long array"),
            Gguf::Array(array) => match array {
                Array::U8(v) => ints(v),
                Array::I8(v) => ints(v),
                Array::U16(v) => ints(v),
                Array::I16(v) => ints(v),
                Array::U32(v) => ints(v),
                Array::I32(v) => ints(v),
                Array::U64(v) => ints(v),
                Array::I64(v) => ints(v),
                Array::F32(v) => floats(v),
                Array::F64(v) => floats(v),
                Array::Bool(v) => Self::List(v.iter().map(|&v| Self::Bool(v)).collect()),
                Array::Str(v) => Self::List(v.iter().map(|v| Self::Text(v.to_owned())).collect()),
                Array::Array(_) => Self::Other("an array of arrays"),
            },
        }
    }

    /// As GGUF files have it; `float` says that the key holds floats, even if the value is an integer. None if no GGUF type
    /// fits.
    pub(in crate::model) fn to_gguf(&self, float: bool) -> Option<file::Value> {
        Some(match self {
            Self::Int(v) if float => file::Value::F32(*v as f32),
            Self::Int(v) => match u32::try_from(*v) {
                Ok(v) => file::Value::U32(v),
                Err(_) => file::Value::I64(i64::try_from(*v).ok()?),
            },
            Self::Float(v) => file::Value::F32(*v as f32),
            Self::Bool(v) => file::Value::Bool(*v),
            Self::Text(v) => file::Value::Str(v.clone()),
            Self::List(list) => {
                let each: Vec<_> = list.iter().map(|v| v.to_gguf(float)).collect::<Option<_>>()?;
                let bools = || each.iter().map(|v| matches!(v, file::Value::Bool(b) if *b)).collect();
                let ints =
                    || each.iter().map(|v| if let file::Value::U32(v) = v { i32::try_from(*v).ok() } else { None });
                let floats = || each.iter().map(|v| if let file::Value::F32(v) = v { Some(*v) } else { None });
                if !each.is_empty() && each.iter().all(|v| matches!(v, file::Value::Bool(_))) {
                    file::Value::Array(Array::Bool(bools()))
                } else if let Some(ints) = ints().collect::<Option<Vec<_>>>() {
                    file::Value::Array(Array::I32(ints))
                } else {
                    file::Value::Array(Array::F32(floats().collect::<Option<_>>()?))
                }
            }
            Self::Null | Self::Other(_) => return None,
        })
    }

    /// Whether it is, or all its elements are, what `text` says.
    pub(in crate::model) fn is(&self, text: &str) -> bool {
        match self {
            Self::Null | Self::Other(_) => false,
            Self::Bool(v) => v.to_string() == text,
            Self::Int(v) => text.parse() == Ok(*v),
            Self::Float(v) => text.parse() == Ok(*v),
            Self::Text(v) => v == text,
            Self::List(v) => v.iter().all(|v| v.is(text)),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v:?}"),
            Self::Text(v) => write!(f, "{:?}", v.chars().take(60).collect::<String>()),
            Self::List(v) => write!(f, "an array of {}", v.len()),
            Self::Other(what) => f.write_str(what),
        }
    }
}
