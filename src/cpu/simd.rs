//! Loops over f32 that the compiler turns into vector instructions.
//!
//! **One order of summation**: product i goes to running sum `i mod 32`, a product and a sum each rounded to f32 (no fused
//! multiply-add), then halves are added pairwise. It depends on the length alone and is the order of `quant`'s dot
//! products, so a row gives the same bits alone, in a prompt, and on every CPU. The wider forms of a loop are the same
//! source compiled for more features, chosen at run time; hand-written forms for other arithmetic (8-bit activations) belong
//! here, too.
#![allow(unsafe_code, reason = "code compiled for features of the CPU is called once they were found")]

/// Running sums of a dot product.
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
            $body($($arg),*)
        }
    };
}

widened! {
    /// `w · x` for W rows of weights at a time: x is loaded once for all.
    pub(crate) fn dots<const W: usize>(w: [&[f32]; W], x: &[f32]) -> [f32; W] = dots_body;
}

widened! {
    /// `acc[i] += by * x[i]`
    pub(crate) fn add_scaled(acc: &mut [f32], by: f32, x: &[f32]) = add_scaled_body;
}

/// `w · x`
pub(crate) fn dot(w: &[f32], x: &[f32]) -> f32 {
    dots([w], x)[0]
}

/// The sum of `f(x[i])`, in the same order as a dot product.
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
    total(sums)
}

#[inline(always)]
fn dots_body<const W: usize>(w: [&[f32]; W], x: &[f32]) -> [f32; W] {
    let mut sums = [[0.0f32; LANES]; W];
    let (x_whole, x_tail) = x.as_chunks::<LANES>();
    let w_whole = w.map(|w| &w.as_chunks::<LANES>().0[..x_whole.len()]);
    for (i, x) in x_whole.iter().enumerate() {
        for (sums, w) in sums.iter_mut().zip(&w_whole) {
            let w = &w[i];
            for j in 0..LANES {
                sums[j] += w[j] * x[j];
            }
        }
    }
    for (sums, w) in sums.iter_mut().zip(w) {
        for ((sum, w), x) in sums.iter_mut().zip(&w[x_whole.len() * LANES..]).zip(x_tail) {
            *sum += w * x;
        }
    }
    sums.map(total)
}

#[inline(always)]
fn add_scaled_body(acc: &mut [f32], by: f32, x: &[f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += by * x;
    }
}

#[inline(always)]
fn total(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            sums[j] += sums[j + half];
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::BlockFormat;

    #[test]
    fn the_order_is_that_of_quantised_rows() {
        for n in [1usize, 31, 32, 63, 65, 257, 1024] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
            let w: Vec<f32> = (0..n).map(|i| ((i * 53 % 97) as f32 - 48.0) * 0.021).collect();
            let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
            let expected = BlockFormat::F32.dot(&bytes, &x);
            assert_eq!(dot(&w, &x).to_bits(), expected.to_bits(), "n = {n}");
            assert_eq!(dots_body([w.as_slice()], &x)[0].to_bits(), expected.to_bits(), "plain form, n = {n}");
            assert_eq!(dots([&w, &x, &w, &x], &x)[2].to_bits(), expected.to_bits(), "four rows, n = {n}");
        }
    }
}
