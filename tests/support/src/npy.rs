//! Arrays that numpy saved: `.npy`, and `.npz`, which is a zip of them.

use std::collections::HashMap;

/// An array.
pub struct Npy {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements; f64 holds every type that is used here.
    pub data: Vec<f64>,
}

impl Npy {
    /// The elements as ids.
    pub fn ids(&self) -> Vec<u32> {
        self.data.iter().map(|&v| v as u32).collect()
    }

    /// Row i of a matrix.
    pub fn row(&self, i: usize) -> &[f64] {
        let n = self.shape[1];
        &self.data[i * n..(i + 1) * n]
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

/// A `.npy`: magic, version, the length of a header that is a Python dictionary, the header, the elements.
pub fn npy(bytes: &[u8]) -> Npy {
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    assert_eq!(bytes[6], 1, "version");
    let start = 10 + usize::from(u16::from_le_bytes(number(bytes, 8)));
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    let value = |key: &str| header.split(&format!("'{key}': ")).nth(1).unwrap();
    assert!(value("fortran_order").starts_with("False"));
    let shape = value("shape").trim_start_matches('(').split(')').next().unwrap();
    let shape: Vec<usize> = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let body = &bytes[start..];
    let data: Vec<f64> = match value("descr").split('\'').nth(1).unwrap() {
        "<f4" => body.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b).into()).collect(),
        "<f8" => body.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        "<i4" => body.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
        other => panic!("elements of type {other}"),
    };
    assert_eq!(data.len(), shape.iter().product::<usize>());
    Npy { shape, data }
}

/// A `.npz`, by the names of its arrays.
pub fn npz(bytes: &[u8]) -> HashMap<String, Npy> {
    let u16_at = |at| usize::from(u16::from_le_bytes(number(bytes, at)));
    let u32_at = |at| u32::from_le_bytes(number(bytes, at)) as usize;
    let end = bytes.len() - 22; // the end of the central directory, without a comment
    assert_eq!(&bytes[end..end + 4], b"PK\x05\x06");
    let mut at = u32_at(end + 16);
    let mut arrays = HashMap::new();
    for _ in 0..u16_at(end + 10) {
        assert_eq!(&bytes[at..at + 4], b"PK\x01\x02");
        let (method, packed, local) = (u16_at(at + 10), u32_at(at + 20), u32_at(at + 42));
        let name = std::str::from_utf8(&bytes[at + 46..at + 46 + u16_at(at + 28)]).unwrap();
        let start = local + 30 + u16_at(local + 26) + u16_at(local + 28);
        let packed = &bytes[start..start + packed];
        let array = match method {
            0 => npy(packed),
            8 => npy(&miniz_oxide::inflate::decompress_to_vec(packed).unwrap()),
            other => panic!("{name}: compression {other}"),
        };
        arrays.insert(name.trim_end_matches(".npy").to_owned(), array);
        at += 46 + u16_at(at + 28) + u16_at(at + 30) + u16_at(at + 32);
    }
    arrays
}
