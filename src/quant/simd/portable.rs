//! Plain code.

use super::super::q8::LANES;
use super::Arithmetic;

pub(super) struct Portable;

impl Arithmetic for Portable {
    const BIAS: u8 = 0;
    type Products = [i32; 2];
    const NOTHING: [i32; 2] = [0; 2];
    type Quads = [u8; 4 * LANES];
    type Ints = [i32; LANES];
    type Floats = [f32; LANES];

    #[inline(always)]
    fn products(q: &[u8; 32], x: &[i8; 32]) -> [i32; 2] {
        let mut sums = [0; 2];
        for (half, sum) in sums.iter_mut().enumerate() {
            for j in 16 * half..16 * half + 16 {
                *sum += i32::from(q[j] as i8) * i32::from(x[j]);
            }
        }
        sums
    }

    #[inline(always)]
    fn across(rows: &[[i32; 2]; LANES]) -> [[i32; LANES]; 2] {
        [0, 1].map(|half| rows.map(|row| row[half]))
    }

    #[inline(always)]
    fn columns(rows: &[[u8; 32]; LANES], out: &mut [[u8; 4 * LANES]; 8]) {
        for (r, row) in rows.iter().enumerate() {
            for (out, q) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                out.as_chunks_mut().0[r] = *q;
            }
        }
    }

    #[inline(always)]
    fn quads(q: &[u8; 4 * LANES]) -> [u8; 4 * LANES] {
        *q
    }

    #[inline(always)]
    fn dot4(mut sum: [i32; LANES], q: [u8; 4 * LANES], x: &[i8; 4]) -> [i32; LANES] {
        for (sum, q) in sum.iter_mut().zip(q.as_chunks::<4>().0) {
            for j in 0..4 {
                *sum += i32::from(q[j] as i8) * i32::from(x[j]);
            }
        }
        sum
    }

    #[inline(always)]
    fn ints(x: i32) -> [i32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn add_ints(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|l| a[l] + b[l])
    }

    #[inline(always)]
    fn to_floats(x: [i32; LANES]) -> [f32; LANES] {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    fn floats(x: f32) -> [f32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn load(x: &[f32; LANES]) -> [f32; LANES] {
        *x
    }

    #[inline(always)]
    fn store(x: [f32; LANES], out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(always)]
    fn add(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|l| a[l] + b[l])
    }

    #[inline(always)]
    fn sub(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|l| a[l] - b[l])
    }

    #[inline(always)]
    fn mul(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|l| a[l] * b[l])
    }

    #[inline(always)]
    fn lookup(table: &[i8; 16], q: [u8; 32]) -> [i8; 32] {
        q.map(|q| table[usize::from(q & 15)])
    }
}
