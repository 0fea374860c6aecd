//! Plain code.
#![allow(unsafe_code, reason = "loads from places that the caller vouches for")]

use super::vector::Vector;

/// One part.
#[repr(align(16))]
#[derive(Clone, Copy)]
pub(super) struct Portable([u8; 16]);

impl Portable {
    #[inline(always)]
    fn bytes(self, other: Self, f: impl Fn(u8, u8) -> u8) -> Self {
        let mut out = self;
        for (out, x) in out.0.iter_mut().zip(other.0) {
            *out = f(*out, x);
        }
        out
    }

    #[inline(always)]
    fn get(self) -> [i32; 4] {
        bytemuck::cast(self.0)
    }

    #[inline(always)]
    fn map(self, f: impl Fn(i32) -> i32) -> Self {
        let [a, b, c, d] = self.get();
        Self(bytemuck::cast([f(a), f(b), f(c), f(d)]))
    }
}

#[inline(always)]
fn both(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Vector for Portable {
    const PARTS: usize = 1;
    const BIAS: u8 = 0;
    type Floats = [f32; 4];

    #[inline(always)]
    unsafe fn load(at: *const u8, _: usize) -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { at.cast::<[u8; 16]>().read() })
    }

    #[inline(always)]
    unsafe fn gather(at: *const u8, step: usize) -> Self {
        // SAFETY: as the caller says.
        let word = |i: usize| unsafe { at.add(i * step).cast::<[u8; 4]>().read() };
        Self(bytemuck::cast([word(0), word(1), word(2), word(3)]))
    }

    #[inline(always)]
    unsafe fn floats_at(at: *const u8) -> [f32; 4] {
        // SAFETY: as the caller says.
        let bytes = unsafe { at.cast::<[[u8; 4]; 4]>().read() };
        bytes.map(f32::from_le_bytes)
    }

    #[inline(always)]
    unsafe fn f16s_at(at: *const u8) -> [f32; 4] {
        // SAFETY: as the caller says.
        let bytes = unsafe { at.cast::<[[u8; 2]; 4]>().read() };
        bytes.map(|bytes| super::super::f16_at(&bytes, 0))
    }

    #[inline(always)]
    unsafe fn bf16s_at(at: *const u8) -> [f32; 4] {
        // SAFETY: as the caller says.
        let bytes = unsafe { at.cast::<[[u8; 2]; 4]>().read() };
        bytes.map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16))
    }

    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        Self(std::array::from_fn(|i| bytes[i]))
    }

    #[inline(always)]
    fn to_bytes(self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn spread(bytes: &[i8; 16]) -> Self {
        Self(bytemuck::cast(*bytes))
    }

    #[inline(always)]
    fn word(x: i32) -> Self {
        Self(bytemuck::cast([x; 4]))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.bytes(other, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self.bytes(other, |a, b| a | b)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let (a, b) = (self.get(), other.get());
        Self(bytemuck::cast([a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]))
    }

    #[inline(always)]
    fn add_bytes(self, other: Self) -> Self {
        self.bytes(other, u8::wrapping_add)
    }

    #[inline(always)]
    fn shl(self, n: u32) -> Self {
        self.map(|x| x << n)
    }

    #[inline(always)]
    fn shr(self, n: u32) -> Self {
        self.map(|x| (x as u32 >> n) as i32)
    }

    #[inline(always)]
    fn sar(self, n: u32) -> Self {
        self.map(|x| x >> n)
    }

    #[inline(always)]
    fn low_words(self, other: Self) -> Self {
        let (a, b) = (self.get(), other.get());
        Self(bytemuck::cast([a[0], b[0], a[1], b[1]]))
    }

    #[inline(always)]
    fn high_words(self, other: Self) -> Self {
        let (a, b) = (self.get(), other.get());
        Self(bytemuck::cast([a[2], b[2], a[3], b[3]]))
    }

    #[inline(always)]
    fn low_pairs(self, other: Self) -> Self {
        let (a, b) = (self.get(), other.get());
        Self(bytemuck::cast([a[0], a[1], b[0], b[1]]))
    }

    #[inline(always)]
    fn high_pairs(self, other: Self) -> Self {
        let (a, b) = (self.get(), other.get());
        Self(bytemuck::cast([a[2], a[3], b[2], b[3]]))
    }

    #[inline(always)]
    fn shuffle(self, places: Self) -> Self {
        self.bytes(places, |_, place| self.0[usize::from(place & 15)])
    }

    #[inline(always)]
    fn set(self, bits: Self, to: u8) -> Self {
        self.bytes(bits, |x, bit| if x & bit != 0 { to } else { 0 })
    }

    #[inline(always)]
    fn dot(sum: Self, q: Self, x: Self) -> Self {
        let mut products = [0i16; 16];
        for (product, (q, x)) in products.iter_mut().zip(q.0.into_iter().zip(x.0)) {
            *product = i16::from(q as i8) * i16::from(x as i8);
        }
        let mut out = sum.get();
        for (out, products) in out.iter_mut().zip(products.as_chunks::<4>().0) {
            *out += products.iter().map(|x| i32::from(*x)).sum::<i32>();
        }
        Self(bytemuck::cast(out))
    }

    #[inline(always)]
    fn dot_signed(sum: Self, q: Self, x: Self) -> Self {
        Self::dot(sum, q, x)
    }

    #[inline(always)]
    fn floats(self) -> [f32; 4] {
        self.get().map(|x| x as f32)
    }

    #[inline(always)]
    fn f16_to_f32(self) -> [f32; 4] {
        self.get().map(|x| super::super::f16_at(&x.to_le_bytes(), 0))
    }

    #[inline(always)]
    fn as_floats(self) -> [f32; 4] {
        bytemuck::cast(self.0)
    }

    #[inline(always)]
    fn float(x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    fn load_floats(x: &[f32]) -> [f32; 4] {
        [x[0], x[1], x[2], x[3]]
    }

    #[inline(always)]
    fn store_floats(x: [f32; 4], out: &mut [f32]) {
        out.copy_from_slice(&x);
    }

    #[inline(always)]
    fn add_floats(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        both(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub_floats(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        both(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul_floats(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        both(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn add_product_floats(sum: [f32; 4], a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        // A fused product would be a call of a library's function on CPUs without one.
        both(sum, Self::mul_floats(a, b), |a, b| a + b)
    }

    #[inline(always)]
    fn total(x: [f32; 4]) -> f32 {
        (x[0] + x[2]) + (x[1] + x[3])
    }
}
