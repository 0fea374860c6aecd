//! JSON from outside: strict where the usual parser is lenient.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::{Error, Result};

/// Objects and arrays in each other deeper than this are refused.
const MAX_DEPTH: u32 = 64;

/// Parses `text`, the contents of the file `what`. An error for what is not JSON, for nesting deeper than 64, for NaN
/// and numbers beyond f64, and for duplicate keys of one object, since readers differ in which one counts.
pub fn parse<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    let at = |e: serde_json::Error| Error::malformed(what, byte_offset(text, &e), format!("JSON: {e}"));
    let mut checker = serde_json::Deserializer::from_str(text);
    Check { depth: MAX_DEPTH }.deserialize(&mut checker).map_err(at)?;
    checker.end().map_err(at)?;
    serde_json::from_str(text).map_err(at)
}

/// Where an error is, counted in bytes from the start.
fn byte_offset(text: &str, e: &serde_json::Error) -> u64 {
    let before: usize = text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(str::len).sum();
    (before + e.column().saturating_sub(1)) as u64
}

/// Walks a value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Check {
    depth: u32,
}

impl Check {
    fn deeper<E: serde::de::Error>(self) -> std::result::Result<Self, E> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| E::custom(format!("nested deeper than {MAX_DEPTH}")))?;
        Ok(Self { depth })
    }
}

impl<'de> DeserializeSeed<'de> for Check {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format!("duplicate key {}", super::quoted(&key))));
            }
            keys.insert(key);
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}
