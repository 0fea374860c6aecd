//! The order in which a dot product on the CPU is summed: 32 running sums, sum j over the products i with
//! `i mod 32 = j`, then halves added pairwise (16 + 16, 8 + 8, ...). It depends on the length alone, it is the same
//! for every format, and the compiler turns it into vector instructions of whatever width the target has.

/// Running sums; also the block of most formats.
pub(super) const LANES: usize = 32;

/// `sums[j] += w[j] * x[j]`, a product and a sum each rounded to f32.
#[inline(always)]
pub(super) fn add(sums: &mut [f32; LANES], w: &[f32; LANES], x: &[f32; LANES]) {
    for j in 0..LANES {
        sums[j] += w[j] * x[j];
    }
}

/// The 32 sums as one.
#[inline]
pub(super) fn total(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            sums[j] += sums[j + half];
        }
        half /= 2;
    }
    sums[0]
}

/// The dot product of a row of blocks of a multiple of 32: `decode` writes a block's weights.
#[inline(always)]
pub(super) fn dot_blocks<const BYTES: usize, const WEIGHTS: usize>(
    row: &[u8],
    x: &[f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) -> f32 {
    let mut sums = [0.0; LANES];
    let mut w = [0.0; WEIGHTS];
    for (block, x) in row.as_chunks().0.iter().zip(x.as_chunks::<WEIGHTS>().0) {
        decode(block, &mut w);
        w.as_chunks().0.iter().zip(x.as_chunks().0).for_each(|(w, x)| add(&mut sums, w, x));
    }
    total(sums)
}

/// The dot product of a row of single numbers of `BYTES` bytes: `decode` converts up to 32 of them.
#[inline(always)]
pub(super) fn dot_numbers<const BYTES: usize>(
    row: &[u8],
    x: &[f32],
    decode: impl Fn(&[[u8; BYTES]], &mut [f32]),
) -> f32 {
    let mut sums = [0.0; LANES];
    let mut w = [0.0; LANES];
    let numbers = row.as_chunks().0;
    let (whole, x_tail) = x.as_chunks();
    for (numbers, x) in numbers.chunks_exact(LANES).zip(whole) {
        decode(numbers, &mut w);
        add(&mut sums, &w, x);
    }
    let tail = &numbers[whole.len() * LANES..];
    decode(tail, &mut w[..tail.len()]);
    for ((sum, w), x) in sums.iter_mut().zip(&w).zip(x_tail) {
        *sum += w * x;
    }
    total(sums)
}
