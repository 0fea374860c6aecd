//! The header of a safetensors file: an 8-byte length, then JSON: name → dtype, shape, offsets. The `safetensors`
//! crate checks the table (sizes, order, no holes); what comes before and after it is checked here.

use std::collections::HashMap;
use std::fmt;

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo as Entry};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::source::Prefix;
use super::tensor::{TensorInfo, TensorType};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// A longer header is refused; the largest known are below 10 MB.
const MAX_HEADER: u64 = 64 << 20;
/// The length before the header.
const PREFIX: u64 = 8;

/// Parses the header of the file `name`, `len` bytes long, from its first bytes. `file` is its number in the model.
pub(super) fn parse(name: &str, file: usize, len: u64, bytes: &[u8]) -> Result<Prefix<Vec<TensorInfo>>> {
    if len < PREFIX {
        return Err(Error::malformed(
            name,
            0,
            format!("{len} bytes are too short for a safetensors header (truncated?)"),
        ));
    }
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(Prefix::More(PREFIX)) };
    let header_len = u64::from_le_bytes(*length);
    if header_len > len - PREFIX {
        return Err(Error::malformed(name, 0, "the header length points beyond the end of the file (truncated?)"));
    }
    if header_len > MAX_HEADER {
        return Err(Error::malformed(name, 0, format!("a header length above {MAX_HEADER}")));
    }
    let data = PREFIX + header_len;
    let json = usize::try_from(header_len).ok().and_then(|n| rest.get(..n));
    let Some(json) = json else { return Ok(Prefix::More(data)) };
    table(name, file, json, data, len).map(Prefix::Done)
}

/// The table of tensors; their bytes start at `data`.
fn table(name: &str, file: usize, json: &[u8], data: u64, len: u64) -> Result<Vec<TensorInfo>> {
    let bad = |problem: String| Error::malformed(name, PREFIX, problem);
    let json = std::str::from_utf8(json).map_err(|_| bad("the header is not JSON: not UTF-8".into()))?;
    let Table(entries) = serde_json::from_str(json).map_err(|e| bad(format!("header, JSON: {e}")))?;
    // The crate checks that sorted entries follow each other without holes and that sizes follow from shapes.
    let checked = Metadata::new(None, entries.clone());
    let checked = checked.map_err(|e| bad(format!("header: shape, size or offset: {e}")))?;
    let needed = data + checked.data_len() as u64;
    if needed != len {
        let problem =
            format!("the size of the data should end the file at {needed}, but it ends at {len} (truncated?)");
        return Err(Error::malformed(name, data, problem));
    }
    let tensor = |(name, entry): (String, Entry)| {
        let (start, end) = entry.data_offsets;
        TensorInfo {
            name,
            ty: type_of(entry.dtype),
            shape: entry.shape.iter().map(|&d| d as u64).collect(),
            file,
            offset: data + start as u64,
            bytes: (end - start) as u64,
        }
    };
    Ok(entries.into_iter().map(tensor).collect())
}

fn type_of(dtype: Dtype) -> TensorType {
    TensorType::Block(match dtype {
        Dtype::F32 => BlockFormat::F32,
        Dtype::F16 => BlockFormat::F16,
        Dtype::BF16 => BlockFormat::BF16,
        Dtype::BOOL => return TensorType::Other("BOOL"),
        Dtype::U8 => return TensorType::Other("U8"),
        Dtype::I8 => return TensorType::Other("I8"),
        Dtype::F8_E4M3 => return TensorType::Other("F8_E4M3"),
        Dtype::F8_E5M2 => return TensorType::Other("F8_E5M2"),
        Dtype::U16 => return TensorType::Other("U16"),
        Dtype::I16 => return TensorType::Other("I16"),
        Dtype::U32 => return TensorType::Other("U32"),
        Dtype::I32 => return TensorType::Other("I32"),
        Dtype::U64 => return TensorType::Other("U64"),
        Dtype::I64 => return TensorType::Other("I64"),
        Dtype::F64 => return TensorType::Other("F64"),
        _ => return TensorType::Other("a rare dtype"),
    })
}

/// The entries in the order of their offsets, those of one name twice, too: `ModelFile` refuses them.
struct Table(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = Table;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Table, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<HashMap<String, String>>()?;
            } else {
                entries.push((name, map.next_value::<Entry>()?));
            }
        }
        entries.sort_by_key(|(_, entry)| entry.data_offsets);
        Ok(Table(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header that a file of terabytes has the bytes for is refused by its length; the largest that is taken is asked for.
    #[test]
    fn headers_have_a_limit() {
        let parsed = |header: u64| parse("large.safetensors", 0, 1 << 42, &header.to_le_bytes());
        assert!(matches!(parsed(MAX_HEADER), Ok(Prefix::More(data)) if data == PREFIX + MAX_HEADER));
        for header in [MAX_HEADER + 1, 1 << 40] {
            let error = parsed(header).err().expect("too long").to_string();
            assert!(error.contains("header length above"), "{error}");
        }
    }
}
