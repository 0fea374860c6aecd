//! Writes small GGUF files, so that what has only been published as a folder is tested as GGUF, too.

/// A metadata value.
pub enum Meta<'a> {
    U32(u32),
    F32(f32),
    Str(&'a str),
    Bool(bool),
}

/// A tensor of f32, dimensions outermost first.
pub struct Tensor {
    pub name: String,
    pub shape: Vec<u64>,
    pub data: Vec<f32>,
}

/// The bytes of a file, version 3.
pub fn gguf(meta: &[(String, Meta<'_>)], tensors: &[Tensor]) -> Vec<u8> {
    const ALIGNMENT: usize = 32;
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    let text = |out: &mut Vec<u8>, s: &str| {
        out.extend((s.len() as u64).to_le_bytes());
        out.extend(s.as_bytes());
    };
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, value) in meta {
        text(&mut out, key);
        match value {
            Meta::U32(v) => out.extend([4u32.to_le_bytes(), v.to_le_bytes()].concat()),
            Meta::F32(v) => out.extend([6u32.to_le_bytes(), v.to_le_bytes()].concat()),
            Meta::Bool(v) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*v));
            }
            Meta::Str(v) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, v);
            }
        }
    }
    let mut offset = 0;
    for tensor in tensors {
        assert_eq!(tensor.shape.iter().product::<u64>(), tensor.data.len() as u64, "{}", tensor.name);
        text(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(0u32.to_le_bytes()); // F32
        out.extend((offset as u64).to_le_bytes());
        offset += (tensor.data.len() * 4).next_multiple_of(ALIGNMENT);
    }
    for tensor in tensors {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        tensor.data.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }
    out
}
