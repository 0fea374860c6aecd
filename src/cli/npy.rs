//! NumPy's file format, version 1.0, for arrays of f32.

use std::io::{self, Write};

/// Writes an array (rows, columns) in C order.
pub(super) fn write(out: &mut impl Write, columns: usize, data: &[f32]) -> io::Result<()> {
    let rows = data.len() / columns.max(1);
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length take 10 bytes; data begins at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for chunk in data.chunks(4096) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|x| x.to_le_bytes()).collect();
        out.write_all(&bytes)?;
    }
    out.flush()
}
