//! Loops over f32 that the compiler turns into vector instructions.
//!
//! **One order of summation**, and a product and a sum each rounded to f32 (no fused multiply-add). It depends on the length
//! alone and is the same for one row and for several, so a row gives the same bits alone, in a prompt, and on every CPU. The
//! wider forms of a loop are the same source compiled for more features, chosen at run time. Closures within them keep those
//! features, the functions that call closures (`map`, `from_fn`) do not: what is quick has loops.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

/// Running sums of a sum.
const LANES: usize = 32;

/// Compiles a function for the features that CPUs of the last ten years have, beside the plain one, and picks at run time.
macro_rules! widened {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<const $c:ident: usize>)? ($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $body:ident;) => {
        $(#[$doc])*
        #[inline]
        $vis fn $name $(<const $c: usize>)? ($($arg: $ty),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
                fn avx512 $(<const $c: usize>)? ($($arg: $ty),*) $(-> $out)? { $body($($arg),*) }
                #[target_feature(enable = "avx2,f16c")]
                fn avx2 $(<const $c: usize>)? ($($arg: $ty),*) $(-> $out)? { $body($($arg),*) }
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                    // SAFETY: the CPU has them.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                    // SAFETY: the CPU has them.
                    return unsafe { avx2($($arg),*) };
                }
            }
            #[cfg(target_arch = "wasm32")]
            {
                #[target_feature(enable = "simd128")]
                fn simd128 $(<const $c: usize>)? ($($arg: $ty),*) $(-> $out)? { $body($($arg),*) }
                simd128($($arg),*)
            }
            #[cfg(not(target_arch = "wasm32"))]
            {
                $body($($arg),*)
            }
        }
    };
}
pub(crate) use widened;

widened! {
    /// `acc[i] += by * x[i]`
    pub(crate) fn add_scaled(acc: &mut [f32], by: f32, x: &[f32]) = add_scaled_body;
}

widened! {
    /// `acc[i] += a[i] * b[i]`
    pub(crate) fn add_products(acc: &mut [f32], a: &[f32], b: &[f32]) = add_products_body;
}

widened! {
    /// `out = keep * out + a m`: out (rows, width), m (inner, width), and `a[r * row + i * inner]` at row r and column i of a.
    ///
    /// Terms are added one after another, so an element has the same bits whatever others are computed with it.
    pub(crate) fn add_matmul(out: &mut [f32], keep: f32, a: &[f32], strides: Strides, m: &[f32], width: usize) = add_matmul_body;
}

widened! {
    /// A step of a state s (k, v) that decays and learns u: `s ← keep s + key uᵀ`, `out = query s`.
    pub(crate) fn recur(s: &mut [f32], keep: f32, key: &[f32], query: &[f32], u: &[f32], out: &mut [f32]) = recur_body;
}

widened! {
    /// `x[i] *= by`
    pub(crate) fn scale(x: &mut [f32], by: f32) = scale_body;
}

widened! {
    /// The largest, or `least` if none is larger; NaN counts for nothing.
    pub(crate) fn maximum(x: &[f32], least: f32) -> f32 = maximum_body;
}

widened! {
    /// `x[i] = e^(x[i] - max)`: a few units in the last place from exact; 0 where it is below 2^-126.
    pub(crate) fn exp_below(x: &mut [f32], max: f32) = exp_below_body;
}

widened! {
    /// The sums of weights `e^(x[i] - max)`, each as exact as those of [`exp_below`], and of `weight * (max - x[i])`.
    pub(crate) fn weigh(x: &[f32], max: f32) -> [f64; 2] = weigh_body;
}

widened! {
    /// `x[i] = e^x[i]` in f64 for x of at most 0: two units in the last place from exact; 0 where it is below 2^-1022.
    pub(crate) fn exp_of_negatives(x: &mut [f64]) = exp_of_negatives_body;
}

widened! {
    /// `x[i] = x[i] / (1 + e^-x[i])`
    pub(crate) fn silu(x: &mut [f32]) = silu_body;
}

widened! {
    /// `x[i] = 1 / (1 + e^-x[i])`
    pub(crate) fn sigmoid(x: &mut [f32]) = sigmoid_body;
}

widened! {
    /// `x[i] = tanh(x[i])`
    pub(crate) fn tanh(x: &mut [f32]) = tanh_body;
}

widened! {
    /// `x[i] = x[i] (1 + tanh(√(2/π) (x[i] + 0.044715 x[i]³))) / 2`
    pub(crate) fn gelu_tanh(x: &mut [f32]) = gelu_tanh_body;
}

widened! {
    /// `x[i] = x[i] erfc(-x[i] / √2) / 2`
    pub(crate) fn gelu_erf(x: &mut [f32]) = gelu_erf_body;
}

/// Where the elements of a matrix lie.
#[derive(Clone, Copy)]
pub(crate) struct Strides {
    /// From a row to the next.
    pub(crate) row: usize,
    /// From a column to the next.
    pub(crate) inner: usize,
}

/// The sum of `f(x[i])`: term i goes to running sum `i mod 32`, then halves are added pairwise.
pub(crate) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (whole, tail) = x.as_chunks::<LANES>();
    for x in whole {
        for j in 0..LANES {
            sums[j] += f(x[j]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail) {
        *sum += f(*x);
    }
    total(&sums)
}

#[inline(always)]
fn add_scaled_body(acc: &mut [f32], by: f32, x: &[f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += by * x;
    }
}

#[inline(always)]
fn add_products_body(acc: &mut [f32], a: &[f32], b: &[f32]) {
    for ((acc, a), b) in acc.iter_mut().zip(a).zip(b) {
        *acc += a * b;
    }
}

#[inline(always)]
fn add_matmul_body(out: &mut [f32], keep: f32, a: &[f32], strides: Strides, m: &[f32], width: usize) {
    if m.is_empty() {
        return scale_body(out, keep);
    }
    let (mut rows, mut first) = (out, 0);
    while rows.len() >= 4 * width {
        let (four, rest) = rows.split_at_mut(4 * width);
        add_rows::<4>(four, keep, &a[first * strides.row..], strides, m, width);
        (rows, first) = (rest, first + 4);
    }
    for (r, row) in rows.chunks_exact_mut(width).enumerate() {
        add_rows::<1>(row, keep, &a[(first + r) * strides.row..], strides, m, width);
    }
}

/// Some rows of [`add_matmul`].
#[inline(always)]
fn add_rows<const R: usize>(out: &mut [f32], keep: f32, a: &[f32], strides: Strides, m: &[f32], width: usize) {
    let mut column = 0;
    while column + 32 <= width {
        add_block::<R, 32>(out, keep, a, strides, m, (width, column));
        column += 32;
    }
    if column + 16 <= width {
        add_block::<R, 16>(out, keep, a, strides, m, (width, column));
        column += 16;
    }
    if column < width {
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let out = &mut out[column..];
            scale_body(out, keep);
            for (i, m) in m.chunks_exact(width).enumerate() {
                add_scaled_body(out, a[r * strides.row + i * strides.inner], &m[column..]);
            }
        }
    }
}

/// C columns of R rows, whose sums are in registers: each vector of m is loaded once for all rows.
#[inline(always)]
fn add_block<const R: usize, const C: usize>(
    out: &mut [f32],
    keep: f32,
    a: &[f32],
    strides: Strides,
    m: &[f32],
    (width, column): (usize, usize),
) {
    let mut sums = [[0.0f32; C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let out = &out[r * width + column..][..C];
        for j in 0..C {
            sums[j] = keep * out[j];
        }
    }
    for (i, m) in m.chunks_exact(width).enumerate() {
        let m = &m[column..][..C];
        for (r, sums) in sums.iter_mut().enumerate() {
            let by = a[r * strides.row + i * strides.inner];
            for j in 0..C {
                sums[j] += by * m[j];
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        out[r * width + column..][..C].copy_from_slice(sums);
    }
}

/// Columns of a state that are learnt and summed in registers.
const COLUMNS: usize = 32;

#[inline(always)]
fn recur_body(s: &mut [f32], keep: f32, key: &[f32], query: &[f32], u: &[f32], out: &mut [f32]) {
    let width = u.len();
    let mut column = 0;
    while column < width {
        let columns = COLUMNS.min(width - column);
        let (mut learnt, mut sums) = ([0.0f32; COLUMNS], [0.0f32; COLUMNS]);
        learnt[..columns].copy_from_slice(&u[column..column + columns]);
        for ((s, k), q) in s.chunks_exact_mut(width).zip(key).zip(query) {
            if let Some(s) = s[column..].first_chunk_mut::<COLUMNS>() {
                for j in 0..COLUMNS {
                    s[j] = keep * s[j] + k * learnt[j];
                    sums[j] += q * s[j];
                }
            } else {
                for (j, s) in s[column..].iter_mut().enumerate() {
                    *s = keep * *s + k * learnt[j];
                    sums[j] += q * *s;
                }
            }
        }
        out[column..column + columns].copy_from_slice(&sums[..columns]);
        column += columns;
    }
}

#[inline(always)]
fn scale_body(x: &mut [f32], by: f32) {
    x.iter_mut().for_each(|x| *x *= by);
}

#[inline(always)]
fn maximum_body(x: &[f32], least: f32) -> f32 {
    let mut largest = [least; LANES];
    let (whole, tail) = x.as_chunks::<LANES>();
    for x in whole {
        for j in 0..LANES {
            largest[j] = if x[j] > largest[j] { x[j] } else { largest[j] };
        }
    }
    largest.into_iter().chain(tail.iter().copied()).fold(least, |largest, x| if x > largest { x } else { largest })
}

#[inline(always)]
fn exp_below_body(x: &mut [f32], max: f32) {
    for x in x {
        *x = exp(*x - max);
    }
}

#[inline(always)]
fn weigh_body(x: &[f32], max: f32) -> [f64; 2] {
    /// Long enough that loops over it are not unrolled, but vectors.
    const BLOCK: usize = 256;
    const SUMS: usize = 8;
    /// Its weight is 0.
    const DEEP: f32 = 128.0;
    let [mut sums, mut depths] = [[0.0f64; SUMS]; 2];
    for part in x.chunks(BLOCK) {
        let [mut below, mut weights] = [[DEEP; BLOCK], [0.0; BLOCK]];
        for (below, x) in below.iter_mut().zip(part) {
            let d = max - *x;
            *below = if d < DEEP { d } else { DEEP };
        }
        for i in 0..BLOCK {
            weights[i] = exp(-below[i]);
        }
        for i in 0..BLOCK {
            below[i] *= weights[i];
        }
        for part in weights.as_chunks::<SUMS>().0 {
            for i in 0..SUMS {
                sums[i] += f64::from(part[i]);
            }
        }
        for part in below.as_chunks::<SUMS>().0 {
            for i in 0..SUMS {
                depths[i] += f64::from(part[i]);
            }
        }
    }
    [sums.iter().sum(), depths.iter().sum()]
}

/// `e^x` for x up to 88, branch-free: `2^n e^r` with n whole and |r| <= ln 2 / 2, where the polynomial is that of the Cephes
/// library's `expf`. NaN stays.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LOWEST: f32 = -87.336_55; // ln 2^-126
    let whole = x * std::f32::consts::LOG2_E + ROUND;
    let n = whole - ROUND;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4; // ln 2 in two parts, so that the first product is exact
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let power = f32::from_bits((whole.to_bits() << 23).wrapping_add(127 << 23));
    let y = (p * (r * r) + r + 1.0) * power;
    if x < LOWEST { 0.0 } else { y }
}

/// As [`exp`], with a Taylor polynomial that is exact to f64 for |r| <= ln 2 / 2.
#[inline(always)]
fn exp_of_negatives_body(x: &mut [f64]) {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    const LOWEST: f64 = -708.396_418_532_264_1; // ln 2^-1022
    for x in x {
        let clamped = if *x < LOWEST { LOWEST } else { *x };
        let whole = clamped * std::f64::consts::LOG2_E + ROUND;
        let n = whole - ROUND;
        let r = clamped - n * 6.931_471_803_691_238e-1 - n * 1.908_214_929_270_587_7e-10; // ln 2 in two parts
        let mut p = 1.0 / 6_227_020_800.0; // 1 / 13!
        for c in [
            1.0 / 479_001_600.0,
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5_040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ] {
            p = p * r + c;
        }
        let power = f64::from_bits((whole.to_bits() << 52).wrapping_add(1023 << 52));
        *x = if *x < LOWEST { 0.0 } else { p * power };
    }
}

#[inline(always)]
fn silu_body(x: &mut [f32]) {
    for x in x {
        *x *= logistic(*x);
    }
}

#[inline(always)]
fn sigmoid_body(x: &mut [f32]) {
    for x in x {
        *x = logistic(*x);
    }
}

/// `1 / (1 + e^-x)`, by an exponential that cannot overflow.
#[inline(always)]
fn logistic(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// Near 0 by the polynomial of the Cephes library's `tanhf`, elsewhere by an exponential.
#[inline(always)]
fn tanh_body(x: &mut [f32]) {
    for x in x {
        let square = *x * *x;
        let mut p = -5.704_988_7e-3;
        for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
            p = p * square + c;
        }
        let near = p * square * *x + *x;
        let e = exp(-2.0 * x.abs());
        let far = ((1.0 - e) / (1.0 + e)).copysign(*x);
        *x = if x.abs() < 0.625 { near } else { far };
    }
}

/// `(1 + tanh u) / 2 = 1 / (1 + e^-2u)`: no cancellation where x is negative.
#[inline(always)]
fn gelu_tanh_body(x: &mut [f32]) {
    for x in x {
        let u = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2 * (*x + 0.044_715 * *x * *x * *x);
        *x *= logistic(2.0 * u);
    }
}

/// With the Chebyshev fit of erfc in Numerical Recipes (2nd edition, 6.2), whose relative error stays below 1.2e-7
/// everywhere.
#[inline(always)]
fn gelu_erf_body(x: &mut [f32]) {
    const FIT: [f32; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ];
    for x in x {
        let t = 1.0 / (1.0 + 0.5 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
        let mut p = 0.0;
        for c in FIT {
            p = p * t + c;
        }
        let erfc = t * exp(p - 0.5 * *x * *x); // of |x| / √2
        *x *= 0.5 * (if *x > 0.0 { 2.0 - erfc } else { erfc });
    }
}

/// Halves added pairwise. Each loop has a length that the compiler knows.
#[inline(always)]
fn total(sums: &[f32; LANES]) -> f32 {
    let (mut a, mut b, mut c) = ([0.0f32; LANES / 2], [0.0f32; LANES / 4], [0.0f32; LANES / 8]);
    for j in 0..LANES / 2 {
        a[j] = sums[j] + sums[j + LANES / 2];
    }
    for j in 0..LANES / 4 {
        b[j] = a[j] + a[j + LANES / 4];
    }
    for j in 0..LANES / 8 {
        c[j] = b[j] + b[j + LANES / 8];
    }
    (c[0] + c[2]) + (c[1] + c[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_within_three_units_of_the_last_place() {
        let mut x: Vec<f32> = (0..200_000).map(|i| i as f32 * -0.0005).collect();
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x + 0.25).exp()).collect();
        exp_below(&mut x, -0.25);
        for (y, exact) in x.iter().zip(exact) {
            assert!((f64::from(*y) - exact).abs() <= 3.6e-7 * exact + 1.2e-38, "{y} for {exact}");
        }
        let mut special = [0.0, -1e30, f32::NEG_INFINITY, f32::NAN];
        exp_below(&mut special, 0.0);
        assert_eq!(special[..3], [1.0, 0.0, 0.0]);
        assert!(special[3].is_nan());
    }

    #[test]
    fn weights_sum_to_those_of_f64() {
        for len in [1, 15, 16, 17, 5000] {
            for spread in [0.0f32, 3.0, 40.0, 1e30, f32::MAX] {
                let x: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin() * spread).collect();
                let max = maximum(&x, f32::NEG_INFINITY);
                let below = || x.iter().map(|x| f64::from(max) - f64::from(*x));
                let exact = [below().map(|d| (-d).exp()).sum(), below().map(|d| (-d).exp() * d).sum::<f64>()];
                for (sum, exact) in weigh(&x, max).into_iter().zip(exact) {
                    assert!((sum - exact).abs() <= 4e-7 * exact + 1e-36, "{sum} for {exact} of {len} up to {spread}");
                }
            }
        }
    }

    #[test]
    fn exponentials_in_f64_are_within_two_units_of_the_last_place() {
        let exact: Vec<f64> = (0..200_000).map(|i| f64::from(i) * -0.0036).collect();
        let mut x = exact.clone();
        exp_of_negatives(&mut x);
        for (y, x) in x.iter().zip(exact) {
            let exact = if x < -708.396_5 { 0.0 } else { x.exp() };
            assert!((y - exact).abs() <= 4.5e-16 * exact, "{y} for e^{x}");
        }
        let mut special = [0.0, -1e300, f64::NEG_INFINITY];
        exp_of_negatives(&mut special);
        assert_eq!(special, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn the_largest_is_found_at_any_place() {
        for n in [0, 1, 31, 32, 33, 64, 100] {
            for at in 0..n {
                let mut x: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 9.0).collect();
                x[(at + 1) % n] = f32::NAN;
                x[at] = 3.0;
                assert_eq!(maximum(&x, f32::MIN), 3.0);
                assert_eq!(maximum(&x, 4.0), 4.0);
            }
            assert_eq!(maximum(&vec![f32::NEG_INFINITY; n], f32::MIN), f32::MIN);
        }
    }

    fn numbers(n: usize, by: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * by % 101) as f32 - 50.0) * 0.013).collect()
    }

    #[test]
    fn matrices_are_summed_term_by_term_in_any_shape() {
        for (rows, inner, width) in
            [(1, 1, 1), (3, 0, 40), (4, 7, 32), (5, 16, 33), (9, 128, 64), (16, 5, 100), (128, 16, 31)]
        {
            let (a, m, before) = (numbers(rows * inner, 37), numbers(inner * width, 53), numbers(rows * width, 29));
            for keep in [1.0, 0.7] {
                let mut expected = before.clone();
                for (at, out) in expected.iter_mut().enumerate() {
                    let (r, c) = (at / width, at % width);
                    *out = (0..inner).fold(keep * *out, |sum, i| sum + a[r * inner + i] * m[i * width + c]);
                }
                let mut out = before.clone();
                add_matmul(&mut out, keep, &a, Strides { row: inner, inner: 1 }, &m, width);
                assert_eq!(out, expected, "{rows} x {inner} x {width}");
                let transposed: Vec<f32> = (0..a.len()).map(|i| a[i % rows * inner + i / rows]).collect();
                let mut out = before.clone();
                add_matmul_body(&mut out, keep, &transposed, Strides { row: 1, inner: rows }, &m, width);
                assert_eq!(out, expected, "{rows} x {inner} x {width}, plain, transposed");
            }
        }
    }

    #[test]
    fn a_state_decays_learns_and_answers_in_any_shape() {
        for (k, v) in [(1, 1), (3, 40), (128, 64), (16, 33)] {
            let (before, u) = (numbers(k * v, 37), numbers(v, 41));
            let (key, query) = (numbers(k, 53), numbers(k, 29));
            let (mut s, mut out) = (before.clone(), vec![f32::NAN; v]);
            recur(&mut s, 0.7, &key, &query, &u, &mut out);
            for (at, (s, before)) in s.iter().zip(before).enumerate() {
                assert_eq!(*s, 0.7 * before + key[at / v] * u[at % v], "{k} x {v}");
            }
            for (c, out) in out.iter().enumerate() {
                let expected = (0..k).fold(0.0, |sum, i| sum + query[i] * s[i * v + c]);
                assert_eq!(*out, expected, "{k} x {v}");
            }
        }
    }
}
