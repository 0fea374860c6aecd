//! What tests of text need: the tokenizer of a GGUF file, read without the code under test, and a clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use wgslm::text::{GgufVocab, Tokenizer};
use wgslm::{Error, Result};

/// A metadata value.
#[derive(Debug)]
pub enum Value<'a> {
    Int(i128),
    Float(f64),
    Str(&'a [u8]),
    List(u32, Vec<Value<'a>>),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        let end = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes = bytes.ok_or_else(|| Error::malformed("gguf", self.at as u64, "cut"))?;
        self.at += bytes.len();
        Ok(bytes)
    }
    fn int(&mut self, n: u64) -> Result<u64> {
        let mut word = [0; 8];
        word[..n as usize].copy_from_slice(self.take(n)?);
        Ok(u64::from_le_bytes(word))
    }
    fn string(&mut self) -> Result<&'a [u8]> {
        let n = self.int(8)?;
        self.take(n)
    }
    fn value(&mut self, kind: u32) -> Result<Value<'a>> {
        Ok(match kind {
            0 | 7 => Value::Int(self.int(1)?.into()),
            1 => Value::Int((self.int(1)? as i8).into()),
            2 => Value::Int(self.int(2)?.into()),
            3 => Value::Int((self.int(2)? as i16).into()),
            4 => Value::Int(self.int(4)?.into()),
            5 => Value::Int((self.int(4)? as i32).into()),
            6 => Value::Float(f32::from_bits(self.int(4)? as u32).into()),
            8 => Value::Str(self.string()?),
            9 => {
                let kind = self.int(4)? as u32;
                let n = self.int(8)?;
                Value::List(kind, (0..n).map(|_| self.value(kind)).collect::<Result<_>>()?)
            }
            10 => Value::Int(self.int(8)?.into()),
            11 => Value::Int((self.int(8)? as i64).into()),
            12 => Value::Float(f64::from_bits(self.int(8)?)),
            _ => return Err(Error::malformed("gguf", self.at as u64, format!("type {kind}"))),
        })
    }
}

/// The metadata of a GGUF file and the rows of its embedding.
pub fn metadata(bytes: &[u8]) -> Result<(HashMap<String, Value<'_>>, Option<u64>)> {
    let mut reader = Reader { bytes, at: 8 };
    let (tensors, n) = (reader.int(8)?, reader.int(8)?);
    let mut map = HashMap::new();
    for _ in 0..n {
        let key = String::from_utf8_lossy(reader.string()?).into_owned();
        let kind = reader.int(4)? as u32;
        map.insert(key, reader.value(kind)?);
    }
    let mut rows = None;
    for _ in 0..tensors {
        let name = reader.string()?;
        let dims = reader.int(4)?;
        let dims: Vec<u64> = (0..dims).map(|_| reader.int(8)).collect::<Result<_>>()?;
        reader.take(12)?;
        if name == b"token_embd.weight" {
            rows = dims.last().copied();
        }
    }
    Ok((map, rows))
}

/// The tokenizer of a GGUF file.
pub fn gguf_tokenizer(bytes: &[u8]) -> Result<Tokenizer> {
    let (map, rows) = metadata(bytes)?;
    let get = |key: &str| map.get(&format!("tokenizer.ggml.{key}"));
    let wrong = |key: &str| Error::malformed("gguf", None, format!("tokenizer.ggml.{key} has the wrong type"));
    let string = |key: &str| match get(key) {
        None => Ok(None),
        Some(Value::Str(s)) => std::str::from_utf8(s).map(Some).map_err(|_| wrong(key)),
        Some(_) => Err(wrong(key)),
    };
    let int = |key: &str| match get(key) {
        None => Ok(None),
        Some(&Value::Int(n)) => i64::try_from(n).map(Some).map_err(|_| wrong(key)),
        Some(_) => Err(wrong(key)),
    };
    let list = |key: &str| match get(key) {
        None => Ok(None),
        Some(Value::List(_, values)) => Ok(Some(values)),
        Some(_) => Err(wrong(key)),
    };
    let strings = |key: &str| {
        let Some(values) = list(key)? else { return Ok(None) };
        values
            .iter()
            .map(|v| if let Value::Str(s) = v { Ok(*s) } else { Err(wrong(key)) })
            .collect::<Result<_>>()
            .map(Some)
    };
    let flag = |key: &str| int(key).map(|n| n.map(|n| n != 0));
    Tokenizer::from_gguf(GgufVocab {
        model: string("model")?.unwrap_or_default(),
        pre: string("pre")?,
        tokens: strings("tokens")?.unwrap_or_default(),
        scores: match list("scores")? {
            None => None,
            Some(values) => Some(
                values
                    .iter()
                    .map(|v| if let Value::Float(x) = v { Ok(*x as f32) } else { Err(wrong("scores")) })
                    .collect::<Result<_>>()?,
            ),
        },
        types: match list("token_type")? {
            None => None,
            Some(values) => Some(
                values
                    .iter()
                    .map(|v| if let Value::Int(n) = v { Ok(*n as i32) } else { Err(wrong("token_type")) })
                    .collect::<Result<_>>()?,
            ),
        },
        merges: strings("merges")?,
        bos: int("bos_token_id")?,
        eos: int("eos_token_id")?,
        eot: int("eot_token_id")?,
        eom: int("eom_token_id")?,
        unk: int("unknown_token_id")?,
        pad: int("padding_token_id")?,
        sep: int("seperator_token_id")?,
        cls: int("cls_token_id")?,
        mask: int("mask_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        rows,
    })
}

/// How long `f` keeps this thread busy; waiting for a processor that others use does not count (where the system reports).
pub fn busy<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let on_cpu = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
    };
    let (start, before) = (Instant::now(), on_cpu());
    let result = f();
    let time = on_cpu().zip(before).map_or_else(|| start.elapsed(), |(after, before)| after - before);
    (result, time)
}
