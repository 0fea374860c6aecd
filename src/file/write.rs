//! Writing GGUF files, version 3.

use super::metadata::{Array, Value};
use super::quoted;
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Every tensor begins at a multiple of this, counted from the start of the data.
const ALIGNMENT: u64 = 32;

/// A tensor of a file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<u64>,
    /// How its rows are stored.
    pub format: BlockFormat,
}

impl NewTensor {
    /// Its bytes. Fails where its rows do not divide into blocks.
    pub fn bytes(&self) -> Result<u64> {
        let (&k, outer) =
            self.shape.split_last().ok_or_else(|| Error::argument(quoted(&self.name), "no dimensions"))?;
        let row = self.format.row_bytes(k)?;
        let bytes = outer.iter().try_fold(row, |bytes, &d| bytes.checked_mul(d));
        bytes.ok_or_else(|| Error::argument(quoted(&self.name), "its size passes 64 bits"))
    }
}

/// The start of a GGUF file: everything before the tensors' bytes. These follow in the order of `tensors`, each padded
/// with zeros by [`padding`].
pub fn gguf_header(metadata: &[(String, Value)], tensors: &[NewTensor]) -> Result<Vec<u8>> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut out, key);
        out.extend(type_of(value).to_le_bytes());
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_text(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(tensor.format.info().ggml_type.to_le_bytes());
        out.extend(offset.to_le_bytes());
        let bytes = tensor.bytes()?;
        let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        offset = end.ok_or_else(|| Error::argument(quoted(&tensor.name), "the file's size passes 64 bits"))?;
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    Ok(out)
}

/// Zeros that follow so many bytes.
pub fn padding(bytes: u64) -> usize {
    (bytes.next_multiple_of(ALIGNMENT) - bytes) as usize
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn type_of(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Str(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::Str(v) => put_text(out, v),
        Value::Array(v) => put_array(out, v),
    }
}

/// The type of the elements, their number, and the elements.
fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put<T: Copy, const N: usize>(out: &mut Vec<u8>, ty: u32, all: &[T], bytes: impl Fn(T) -> [u8; N]) {
        head(out, ty, all.len());
        all.iter().for_each(|&v| out.extend(bytes(v)));
    }
    fn head(out: &mut Vec<u8>, ty: u32, len: usize) {
        out.extend(ty.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    }
    match array {
        Array::U8(v) => put(out, 0, v, u8::to_le_bytes),
        Array::I8(v) => put(out, 1, v, i8::to_le_bytes),
        Array::U16(v) => put(out, 2, v, u16::to_le_bytes),
        Array::I16(v) => put(out, 3, v, i16::to_le_bytes),
        Array::U32(v) => put(out, 4, v, u32::to_le_bytes),
        Array::I32(v) => put(out, 5, v, i32::to_le_bytes),
        Array::F32(v) => put(out, 6, v, f32::to_le_bytes),
        Array::Bool(v) => put(out, 7, v, |b| [u8::from(b)]),
        Array::Str(v) => {
            head(out, 8, v.len());
            v.iter().for_each(|text| put_text(out, text));
        }
        Array::Array(v) => {
            head(out, 9, v.len());
            v.iter().for_each(|inner| put_array(out, inner));
        }
        Array::U64(v) => put(out, 10, v, u64::to_le_bytes),
        Array::I64(v) => put(out, 11, v, i64::to_le_bytes),
        Array::F64(v) => put(out, 12, v, f64::to_le_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{ModelFile, Strings};

    #[test]
    fn what_is_written_is_read() {
        let strings: Strings = ["a", "", "ü"].into_iter().collect();
        let values = [
            Value::U8(1),
            Value::I8(-1),
            Value::U16(2),
            Value::I16(-2),
            Value::U32(3),
            Value::I32(-3),
            Value::U64(1 << 40),
            Value::I64(-1 << 40),
            Value::F32(0.5),
            Value::F64(-0.25),
            Value::Bool(true),
            Value::Str("text".into()),
            Value::Array(Array::Str(strings)),
            Value::Array(Array::Bool(vec![true, false])),
            Value::Array(Array::F32(vec![1.0, 2.0])),
            Value::Array(Array::I32(vec![-1, 7])),
            Value::Array(Array::Array(vec![Array::U8(vec![1]), Array::U64(vec![2])])),
        ];
        let metadata: Vec<_> = values.into_iter().enumerate().map(|(i, v)| (format!("k{i}"), v)).collect();
        let tensor = |name: &str, shape: &[u64], format| NewTensor { name: name.into(), shape: shape.into(), format };
        let tensors = [tensor("a", &[3], BlockFormat::F32), tensor("b", &[2, 3, 32], BlockFormat::Q8_0)];
        let mut file = gguf_header(&metadata, &tensors).unwrap();
        for tensor in &tensors {
            let bytes = tensor.bytes().unwrap();
            file.extend(std::iter::repeat_n(7, bytes as usize));
            file.resize(file.len() + padding(bytes), 0);
        }
        let read = ModelFile::from_bytes("written", file).unwrap();
        for (key, value) in &metadata {
            assert_eq!(read.gguf().unwrap().value(key), Some(value));
        }
        for (read, written) in read.tensors().iter().zip(&tensors) {
            assert_eq!(
                (&read.name, &read.shape, read.format().unwrap()),
                (&written.name, &written.shape, written.format)
            );
        }
        assert!(tensor("c", &[2, 33], BlockFormat::Q8_0).bytes().is_err());
    }
}
