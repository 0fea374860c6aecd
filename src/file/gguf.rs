//! The header of a GGUF file, versions 2 and 3.
//!
//! ```text
//! "GGUF"  version u32  n_tensors u64  n_kv u64
//! n_kv      × (key string, type u32, value)              string = length u64, UTF-8
//! n_tensors × (name string, n_dims u32, dims u64 × n_dims, type u32, offset u64)
//! padding to general.alignment, then the tensors' bytes; offsets count from here
//! ```
//! Little-endian throughout. Source: ggml's `docs/gguf.md`.

use super::metadata::{Array, Metadata, Strings, Value};
use super::quoted;
use super::source::Prefix;
use super::tensor::{TensorInfo, TensorType};
use crate::quant::{BlockFormat, ggml};
use crate::{Error, Result};

/// A longer header is refused: the largest known (a vocabulary of 262,144 with scores and merges) take 20 MB.
const MAX_HEADER: u64 = 1 << 30;
/// Arrays in arrays deeper than this are refused.
const MAX_NESTING: u32 = 4;
/// Dimensions of a tensor, as in ggml.
const MAX_DIMS: u32 = 4;
/// Where tensors start if `general.alignment` does not say otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 64 << 10;
/// The least that a pair takes: an empty key, a type, a byte. And a tensor: an empty name, one dimension.
const MIN_PAIR: u64 = 8 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// A parsed header.
#[derive(Debug)]
pub(super) struct Header {
    pub meta: Metadata,
    pub tensors: Vec<TensorInfo>,
}

/// Parses the header of the file `name`, `len` bytes long, from its first bytes. `file` is its number in the model.
pub(super) fn parse(name: &str, file: usize, len: u64, bytes: &[u8]) -> Result<Prefix<Header>> {
    let mut reader = Reader { bytes, pos: 0, len };
    match header(&mut reader, file) {
        Ok(header) => Ok(Prefix::Done(header)),
        Err(Stop::More(least)) => Ok(Prefix::More(least)),
        Err(Stop::Unsupported(e)) => Err(e),
        Err(Stop::Bad { at, problem }) => Err(Error::malformed(name, at, problem)),
    }
}

/// Why parsing stops.
enum Stop {
    /// The bytes at hand end before the file does.
    More(u64),
    /// Well-formed, but not supported.
    Unsupported(Error),
    /// The file is wrong.
    Bad { at: u64, problem: String },
}

impl Stop {
    /// Says in what part of the header it happened.
    fn within(self, part: impl FnOnce() -> String) -> Self {
        match self {
            Self::Bad { at, problem } => Self::Bad { at, problem: format!("{}: {problem}", part()) },
            other => other,
        }
    }
}

type Parsed<T> = std::result::Result<T, Stop>;

/// A cursor that knows how long the file is, of which it may hold a first part only.
struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    len: u64,
}

impl<'a> Reader<'a> {
    fn bad<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(Stop::Bad { at: self.pos as u64, problem: problem.into() })
    }

    /// Bytes of the file after the cursor.
    fn remaining(&self) -> u64 {
        self.len.saturating_sub(self.pos as u64)
    }

    /// The next `n` bytes.
    fn take(&mut self, n: u64, what: &str) -> Parsed<&'a [u8]> {
        if n > self.remaining() {
            return self.bad(format!("{what}: {n} bytes, but only {} remaining (truncated?)", self.remaining()));
        }
        let end = self.pos as u64 + n; // at most `len`
        if end > MAX_HEADER {
            return self.bad(format!("{what}: {n} bytes make the header longer than {MAX_HEADER}"));
        }
        let taken = usize::try_from(end).ok().and_then(|end| self.bytes.get(self.pos..end));
        let taken = taken.ok_or(Stop::More(end))?;
        self.pos += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Parsed<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn str(&mut self, what: &str) -> Parsed<&'a str> {
        let n = self.u64(what)?;
        let start = self.pos as u64;
        let bytes = self.take(n, what)?;
        std::str::from_utf8(bytes)
            .map_err(|e| Stop::Bad { at: start + e.valid_up_to() as u64, problem: format!("{what} is not UTF-8") })
    }

    /// A claimed number of things, each of which takes `least` bytes or more, that must fit what remains.
    fn count(&mut self, least: u64, what: &str) -> Parsed<u64> {
        let n = self.u64(what)?;
        match n.checked_mul(least) {
            Some(bytes) if bytes <= self.remaining() => Ok(n),
            _ => self.bad(format!("{what} of {n}, which cannot fit the {} bytes remaining", self.remaining())),
        }
    }

    /// `count` numbers of `N` bytes.
    fn numbers<T, const N: usize>(&mut self, count: u64, from: impl Fn([u8; N]) -> T) -> Parsed<Vec<T>> {
        let bytes = self.take(count * N as u64, "array")?; // `count` was checked against what remains
        Ok(bytes.as_chunks().0.iter().map(|&number| from(number)).collect())
    }
}

/// Two of the types of values, by their number.
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// The least bytes of an element: a string has its length, an array its type and its length.
const MIN_BYTES: [u64; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8];

fn header(r: &mut Reader, file: usize) -> Parsed<Header> {
    let magic = r.take(4, "magic")?;
    if magic != b"GGUF" {
        r.pos = 0;
        return r.bad(format!("not a GGUF file: its magic is {:?}", String::from_utf8_lossy(magic)));
    }
    let version = r.u32("version")?;
    match version {
        2 | 3 => {}
        0x0200_0000 | 0x0300_0000 => {
            return Err(Stop::Unsupported(Error::unsupported("big-endian GGUF", "a little-endian file would be")));
        }
        _ => {
            let what = format!("GGUF version {version}");
            return Err(Stop::Unsupported(Error::unsupported(what, "versions 2 and 3 are")));
        }
    }
    let n_tensors = r.count(MIN_TENSOR, "tensor count")?;
    let n_pairs = r.count(MIN_PAIR, "metadata key count")?;

    let mut meta = Metadata::default();
    for i in 0..n_pairs {
        pair(r, &mut meta).map_err(|e| e.within(|| format!("metadata key {} of {n_pairs}", i + 1)))?;
    }
    let alignment = match meta.value("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::U32(a)) if a.is_power_of_two() && u64::from(*a) <= MAX_ALIGNMENT => u64::from(*a),
        Some(Value::U32(a)) => {
            return r.bad(format!("general.alignment is {a}, not a power of two up to {MAX_ALIGNMENT}"));
        }
        Some(_) => return r.bad("general.alignment is of the wrong type: it must be a u32"),
    };

    let mut tensors = Vec::new();
    for i in 0..n_tensors {
        let tensor = tensor(r, file, alignment);
        tensors.push(tensor.map_err(|e| e.within(|| format!("tensor {} of {n_tensors}", i + 1)))?);
    }

    // The data starts at the next multiple of the alignment, a power of two.
    let data = (r.pos as u64).next_multiple_of(alignment);
    place(r, &mut tensors, data)?;
    Ok(Header { meta, tensors })
}

/// Turns offsets from the start of the data into offsets in the file, and checks that each tensor lies in the file
/// and that no two overlap. Gaps and any order are allowed.
fn place(r: &Reader, tensors: &mut [TensorInfo], data: u64) -> Parsed<()> {
    for t in tensors.iter_mut() {
        let end = data.checked_add(t.offset).and_then(|start| start.checked_add(t.bytes));
        if end.is_none_or(|end| end > r.len) {
            return r.bad(format!(
                "tensor {}: {} bytes at offset {} of the data, which starts at {data}, are beyond the end of the file at {} (truncated?)",
                quoted(&t.name), t.bytes, t.offset, r.len
            ));
        }
        t.offset += data;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_unstable_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if let [a, b] = pair
            && a.offset + a.bytes > b.offset
        {
            let (a, b) = (quoted(&a.name), quoted(&b.name));
            return r.bad(format!("tensors {a} and {b} overlap"));
        }
    }
    Ok(())
}

/// One metadata pair.
fn pair(r: &mut Reader, meta: &mut Metadata) -> Parsed<()> {
    let key = r.str("key")?;
    let value = value(r).map_err(|e| e.within(|| quoted(key)))?;
    match meta.insert(key, value) {
        None => Ok(()),
        Some(_) => r.bad(format!("duplicate key {}", quoted(key))),
    }
}

fn value(r: &mut Reader) -> Parsed<Value> {
    let ty = r.u32("value type")?;
    Ok(match ty {
        0 => Value::U8(u8::from_le_bytes(r.array("u8")?)),
        1 => Value::I8(i8::from_le_bytes(r.array("i8")?)),
        2 => Value::U16(u16::from_le_bytes(r.array("u16")?)),
        3 => Value::I16(i16::from_le_bytes(r.array("i16")?)),
        4 => Value::U32(u32::from_le_bytes(r.array("u32")?)),
        5 => Value::I32(i32::from_le_bytes(r.array("i32")?)),
        6 => Value::F32(f32::from_le_bytes(r.array("f32")?)),
        7 => match r.array("bool")? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => return r.bad(format!("{other} is no bool")),
        },
        STRING => Value::Str(r.str("string")?.to_owned()),
        ARRAY => Value::Array(array(r, 1)?),
        10 => Value::U64(u64::from_le_bytes(r.array("u64")?)),
        11 => Value::I64(i64::from_le_bytes(r.array("i64")?)),
        12 => Value::F64(f64::from_le_bytes(r.array("f64")?)),
        _ => return r.bad(format!("there is no value type {ty}")),
    })
}

fn array(r: &mut Reader, depth: u32) -> Parsed<Array> {
    let ty = r.u32("array type")?;
    let Some(&least) = MIN_BYTES.get(ty as usize) else {
        return r.bad(format!("there is no value type {ty} for an array"));
    };
    let count = r.count(least, "array count")?;
    Ok(match ty {
        0 => Array::U8(r.numbers(count, u8::from_le_bytes)?),
        1 => Array::I8(r.numbers(count, i8::from_le_bytes)?),
        2 => Array::U16(r.numbers(count, u16::from_le_bytes)?),
        3 => Array::I16(r.numbers(count, i16::from_le_bytes)?),
        4 => Array::U32(r.numbers(count, u32::from_le_bytes)?),
        5 => Array::I32(r.numbers(count, i32::from_le_bytes)?),
        6 => Array::F32(r.numbers(count, f32::from_le_bytes)?),
        7 => {
            let bytes = r.take(count, "array of bool")?;
            if let Some(other) = bytes.iter().find(|&&b| b > 1) {
                return r.bad(format!("{other} is no bool"));
            }
            Array::Bool(bytes.iter().map(|&b| b == 1).collect())
        }
        STRING => {
            // Space for no more than the bytes at hand can hold.
            let at_hand = r.bytes.len().saturating_sub(r.pos) / 8;
            let mut strings = Strings::with_capacity(at_hand.min(usize::try_from(count).unwrap_or(usize::MAX)));
            for i in 0..count {
                let s = r.str("string").map_err(|e| e.within(|| format!("array element {i}")))?;
                if !strings.push(s) {
                    return r.bad("array of more than 4 GiB of strings");
                }
            }
            Array::Str(strings)
        }
        ARRAY if depth == MAX_NESTING => return r.bad(format!("arrays are nested more than {MAX_NESTING} deep")),
        ARRAY => {
            let mut arrays = Vec::new();
            for i in 0..count {
                arrays.push(array(r, depth + 1).map_err(|e| e.within(|| format!("array element {i}")))?);
            }
            Array::Array(arrays)
        }
        10 => Array::U64(r.numbers(count, u64::from_le_bytes)?),
        11 => Array::I64(r.numbers(count, i64::from_le_bytes)?),
        _ => Array::F64(r.numbers(count, f64::from_le_bytes)?),
    })
}

/// One line of the tensor table; `offset` still counts from the start of the data.
fn tensor(r: &mut Reader, file: usize, alignment: u64) -> Parsed<TensorInfo> {
    let name = r.str("tensor name")?;
    shape_and_place(r, name, file, alignment).map_err(|e| e.within(|| quoted(name)))
}

fn shape_and_place(r: &mut Reader, name: &str, file: usize, alignment: u64) -> Parsed<TensorInfo> {
    let n_dims = r.u32("n_dims")?;
    if n_dims == 0 || n_dims > MAX_DIMS {
        return r.bad(format!("{n_dims} dimensions; there can be 1 to {MAX_DIMS}"));
    }
    let mut shape = Vec::new();
    for _ in 0..n_dims {
        shape.push(r.u64("dimension")?);
    }
    let id = r.u32("tensor type")?;
    let Some(ty) = ggml::by_id(id) else {
        return r.bad(format!("there is no tensor type {id}"));
    };
    let bytes = match bytes_of(&shape, ty) {
        Ok(bytes) => bytes,
        Err(problem) => return r.bad(problem),
    };
    let offset = r.u64("tensor offset")?;
    if !offset.is_multiple_of(alignment) {
        return r.bad(format!("offset {offset} does not keep the alignment of {alignment}"));
    }
    shape.reverse(); // GGUF has the row length first
    let ty = BlockFormat::from_ggml(id).map_or(TensorType::Other(ty.name), TensorType::Block);
    Ok(TensorInfo { name: name.to_owned(), ty, shape, file, offset, bytes })
}

/// The size of a tensor of these dimensions, row length first.
fn bytes_of(dims: &[u64], ty: &ggml::GgmlType) -> std::result::Result<u64, String> {
    if dims.contains(&0) {
        return Err(format!("a dimension is zero: {dims:?}"));
    }
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(u64::from(ty.weights)) {
        return Err(format!("its row of {row} is not a multiple of the block of {} of {}", ty.weights, ty.name));
    }
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| i64::try_from(n).is_ok());
    count
        .and_then(|n| (n / u64::from(ty.weights)).checked_mul(u64::from(ty.bytes)))
        .ok_or_else(|| format!("dimensions {dims:?} of {} overflow", ty.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with a value of every type and one tensor, and 64 bytes of data.
    fn small_file() -> Vec<u8> {
        let string = |s: &str| [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat();
        let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &1u64.to_le_bytes(), &14u64.to_le_bytes()].concat();
        let mut pair = |key: &str, ty: u32, value: &[u8]| {
            file.extend([&string(key)[..], &ty.to_le_bytes(), value].concat());
        };
        for (ty, size) in [1, 1, 2, 2, 4, 4, 4, 1].into_iter().enumerate() {
            pair(&format!("k{ty}"), ty as u32, &[1, 0, 0, 0][..size]);
        }
        pair("string", STRING, &string("schön"));
        let head = |ty: u32, count: u64| [&ty.to_le_bytes()[..], &count.to_le_bytes()].concat();
        pair("strings", ARRAY, &[head(STRING, 2), string("a"), string("")].concat());
        pair("arrays", ARRAY, &[head(ARRAY, 1), head(4, 2), vec![1, 0, 0, 0, 2, 0, 0, 0]].concat());
        (10..13).for_each(|ty| pair(&format!("k{ty}"), ty, &[0; 8]));
        file.extend([&string("t")[..], &2u32.to_le_bytes(), &8u64.to_le_bytes(), &2u64.to_le_bytes()].concat());
        file.extend([&0u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
        file.resize(file.len().next_multiple_of(32) + 64, 7);
        file
    }

    /// A count of what cannot be there is refused where it stands, before anything is read for it.
    #[test]
    fn counts_are_checked_where_they_stand() {
        let mut file = small_file();
        let tensors = (file.len() as u64 / MIN_TENSOR) + 1;
        for (at, what, n) in
            [(8, "tensor count", tensors), (16, "metadata key count", file.len() as u64 / MIN_PAIR + 1)]
        {
            let before: [u8; 8] = file[at..at + 8].try_into().expect("eight bytes");
            for n in [n, u64::MAX] {
                file[at..at + 8].copy_from_slice(&n.to_le_bytes());
                let error = parse_prefix_of(&file, file.len()).err().expect("too many").to_string();
                assert!(error.contains(&format!("{what} of {n}")), "{error}");
            }
            file[at..at + 8].copy_from_slice(&before);
        }
        assert!(parse_prefix_of(&file, file.len()).is_ok());
    }

    fn parse_prefix_of(file: &[u8], n: usize) -> Result<Prefix<Header>> {
        parse("small.gguf", 0, file.len() as u64, &file[..n])
    }

    #[test]
    fn every_type_of_value_is_read() {
        let file = small_file();
        let Ok(Prefix::Done(header)) = parse_prefix_of(&file, file.len()) else { panic!("not read") };
        let meta = &header.meta;
        assert_eq!(meta.len(), 14);
        assert!((0..6).all(|ty| meta.u32(&format!("k{ty}")).unwrap() == 1));
        assert_eq!(meta.value("k6"), Some(&Value::F32(f32::from_bits(1))));
        assert!(meta.bool("k7").unwrap());
        assert_eq!(meta.str("string").unwrap(), "schön");
        assert_eq!(meta.strings("strings").unwrap().iter().collect::<Vec<_>>(), ["a", ""]);
        assert_eq!(meta.value("arrays"), Some(&Value::Array(Array::Array(vec![Array::U32(vec![1, 2])]))));
        let [t] = &header.tensors[..] else { panic!("{:?}", header.tensors) };
        assert_eq!((&t.shape[..], t.bytes, t.offset), (&[2, 8][..], 64, file.len() as u64 - 64));
    }

    #[test]
    fn a_first_part_asks_for_more_and_no_more_than_the_file() {
        let file = small_file();
        let done = (0..=file.len()).find(|&n| match parse_prefix_of(&file, n) {
            Ok(Prefix::Done(_)) => true,
            Ok(Prefix::More(least)) => {
                assert!(least > n as u64 && least <= file.len() as u64, "{least} after {n} bytes");
                false
            }
            Err(e) => panic!("after {n} bytes: {e}"),
        });
        let done = done.unwrap();
        assert!(done.next_multiple_of(32) + 64 == file.len(), "the data is not needed: {done}");
        assert!((done..file.len()).all(|n| matches!(parse_prefix_of(&file, n), Ok(Prefix::Done(_)))));
    }
}
