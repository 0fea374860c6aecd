//! What the instruction sets have in common: vectors of one, two or four parts of 128 bits.

/// Bytes of a cache line.
const LINE: usize = 64;

/// A vector of parts, each of 16 bytes or four words of 32 bits. What is in here is inlined into bodies that are compiled for
/// the instructions; only they may call it.
pub(in super::super) trait Vector: Copy {
    /// Parts of 128 bits.
    const PARTS: usize;
    /// What is added to bytes with a sign before [`dot_signed`](Self::dot_signed): 128 where one side of the products has no
    /// sign, so that they come out too large by 128 times the other side; else 0.
    const BIAS: u8;
    /// Whether products are added in i16 first, since their sums in i32 take more instructions.
    const SHORT: bool = false;
    /// Whether groups of a block are unpacked by code of their own, with shifts that are constants: measured to pay, or not.
    const UNROLLED: bool = false;
    /// Bytes between what the low and the high half of a vector are loaded from, if both are of the same rows, so that there are
    /// `2 * PARTS`; else 0: `4 * PARTS` rows.
    const BLOCK: usize = 0;
    /// A float for each word.
    type Floats: Copy;

    /// 16 bytes to each part, from places `step` bytes apart, but for [`BLOCK`](Self::BLOCK).
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load(at: *const u8, step: usize) -> Self;
    /// Each word, from places `step` bytes apart, but for [`BLOCK`](Self::BLOCK).
    ///
    /// # Safety
    /// They can be read.
    unsafe fn gather(at: *const u8, step: usize) -> Self;
    /// The f16 in the low half of each word that [`gather`](Self::gather) reads.
    ///
    /// # Safety
    /// The words can be read.
    #[inline(always)]
    unsafe fn gather_f16s(at: *const u8, step: usize) -> Self::Floats {
        // SAFETY: as the caller says.
        unsafe { Self::gather(at, step) }.f16_to_f32()
    }
    /// Consecutive floats.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn floats_at(at: *const u8) -> Self::Floats;
    /// Consecutive f16.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn f16s_at(at: *const u8) -> Self::Floats;
    /// Consecutive bf16.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn bf16s_at(at: *const u8) -> Self::Floats;
    /// Fetches what lies there into the first cache; any address will do.
    fn fetch(_: *const u8) {}
    /// [`fetch`](Self::fetch) of so many bytes that begin `after` bytes after those of `w`, whether or not they are of the file.
    #[inline(always)]
    fn fetch_after(w: &[u8], after: usize, bytes: usize) {
        let from = w.as_ptr().wrapping_add(after);
        for line in 0..bytes.div_ceil(LINE) {
            Self::fetch(from.wrapping_add(LINE * line));
        }
    }
    /// Consecutive bytes, as many as there are.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// The reverse.
    fn to_bytes(self, out: &mut [u8]);
    /// The same bytes in each part.
    fn spread(bytes: &[i8; 16]) -> Self;
    /// The same in all words.
    fn word(x: i32) -> Self;

    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Adds words.
    fn add(self, other: Self) -> Self;
    /// Adds bytes.
    fn add_bytes(self, other: Self) -> Self;
    /// Shifts words left.
    fn shl(self, n: u32) -> Self;
    /// Shifts words right.
    fn shr(self, n: u32) -> Self;
    /// Shifts words right, with their sign.
    fn sar(self, n: u32) -> Self;
    /// The first two words of each part of both, in turns.
    fn low_words(self, other: Self) -> Self;
    /// The last two words of each part of both, in turns.
    fn high_words(self, other: Self) -> Self;
    /// The first two words of each part of one, then of the other.
    fn low_pairs(self, other: Self) -> Self;
    /// The last two words of each part of one, then of the other.
    fn high_pairs(self, other: Self) -> Self;
    /// `self[places[i]]` of the bytes of each part; places below 16.
    fn shuffle(self, places: Self) -> Self;
    /// `to` where a byte has the one bit of `bits`, else 0.
    fn set(self, bits: Self, to: u8) -> Self;

    /// `sum[i] += q[4 i] x[4 i] + ... + q[4 i + 3] x[4 i + 3]`; q below 64, x with a sign.
    fn dot(sum: Self, q: Self, x: Self) -> Self;
    /// The same with q of any sign, biased.
    fn dot_signed(sum: Self, q: Self, x: Self) -> Self;
    /// As [`dot`](Self::dot), but where sums are [short](Self::SHORT), each word of `sum` is two of them, in i16.
    #[inline(always)]
    fn dot_short(sum: Self, q: Self, x: Self) -> Self {
        Self::dot(sum, q, x)
    }

    /// Adds sums of [`dot_short`](Self::dot_short).
    #[inline(always)]
    fn add_short(self, other: Self) -> Self {
        self.add(other)
    }

    /// What sums of [`dot_short`](Self::dot_short) come to, in i32.
    #[inline(always)]
    fn long(self) -> Self {
        self
    }

    /// How many products of q of so many bits short sums hold: twice as many products of numbers up to 127 fit i16.
    #[inline(always)]
    fn short_sums(bits: u32) -> usize {
        match bits {
            ..=4 => 8,
            5 => 4,
            _ => 2,
        }
    }

    /// Words as integers.
    fn floats(self) -> Self::Floats;
    /// The f16 in the low half of each word.
    fn f16_to_f32(self) -> Self::Floats;
    /// Words as the bits of floats.
    fn as_floats(self) -> Self::Floats;
    /// The same in all floats.
    fn float(x: f32) -> Self::Floats;
    fn load_floats(x: &[f32]) -> Self::Floats;
    fn store_floats(x: Self::Floats, out: &mut [f32]);
    fn add_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `sum + a * b`, rounded once where the CPU can.
    fn add_product_floats(sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The sum of all: halves are added until one is left.
    fn total(x: Self::Floats) -> f32;
    /// [`total`](Self::total) of four.
    #[inline(always)]
    fn totals(x: [Self::Floats; 4]) -> [f32; 4] {
        let [a, b, c, d] = x;
        [Self::total(a), Self::total(b), Self::total(c), Self::total(d)]
    }

    /// The same in all bytes.
    #[inline(always)]
    fn byte(x: u8) -> Self {
        Self::word(i32::from_ne_bytes([x; 4]))
    }

    /// Bits of each byte, those of `mask << from`, moved to `mask << to`.
    #[inline(always)]
    fn bits(self, from: u32, mask: u8, to: u32) -> Self {
        // What comes from neighbours does not pass the mask.
        let moved = if from >= to { self.shr(from - to) } else { self.shl(to - from) };
        moved.and(Self::byte(mask << to))
    }

    /// Byte `i` of each word.
    #[inline(always)]
    fn unsigned(self, i: usize) -> Self {
        self.shr(8 * i as u32).and(Self::word(255))
    }

    /// Byte `i` of each word, with its sign.
    #[inline(always)]
    fn signed(self, i: usize) -> Self {
        self.shl(24 - 8 * i as u32).sar(24)
    }

    /// `by * words`
    #[inline(always)]
    fn scaled(self, by: Self::Floats) -> Self::Floats {
        Self::mul_floats(by, self.floats())
    }

    /// `y + (scale * by) * words`
    #[inline(always)]
    fn add_scaled(y: Self::Floats, scale: Self::Floats, by: f32, words: Self) -> Self::Floats {
        Self::add_floats(y, words.scaled(Self::mul_floats(scale, Self::float(by))))
    }

    /// `y + x * by`
    #[inline(always)]
    fn add_product(y: Self::Floats, x: Self::Floats, by: f32) -> Self::Floats {
        Self::add_floats(y, Self::mul_floats(x, Self::float(by)))
    }

    #[inline(always)]
    fn negated(x: Self::Floats) -> Self::Floats {
        Self::mul_floats(x, Self::float(-1.0))
    }
}

/// Vectors of four parts, whose halves differ.
#[cfg(target_arch = "x86_64")]
pub(in super::super) trait Halves: Vector {
    /// The low half of the one and the high half of the other.
    fn beside(self, other: Self) -> Self;
    /// The same of floats.
    fn beside_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The high half, then the low half.
    fn swap_halves(x: Self::Floats) -> Self::Floats;

    /// One word in the low half, one in the high half.
    #[inline(always)]
    fn two_words([low, high]: [i32; 2]) -> Self {
        Self::word(low).beside(Self::word(high))
    }

    /// One float in the low half, one in the high half.
    #[inline(always)]
    fn two_floats([low, high]: [f32; 2]) -> Self::Floats {
        Self::beside_floats(Self::float(low), Self::float(high))
    }
}

/// 16 bytes of each of `4 * PARTS` rows, or of two blocks of each of `2 * PARTS`: row `4 l + e` is part l of the e-th vector, so
/// that rows come in order when the words of the parts are added up.
#[derive(Clone, Copy)]
pub(in super::super) struct Bytes<V>(pub(super) [V; 4]);

/// `[f(0), f(1)]`, for the halves of a group: inlined for certain, unlike `array::map`.
#[inline(always)]
pub(in super::super) fn both<T>(f: impl Fn(usize) -> T) -> [T; 2] {
    [f(0), f(1)]
}

/// `f(0)` to `f(N - 1)`, for N up to 8: each compiled for itself if the form says so, else a loop.
#[inline(always)]
pub(in super::super) fn each_of<V: Vector, const N: usize>(mut f: impl FnMut(usize)) {
    const { assert!(N <= 8) };
    if !V::UNROLLED {
        for i in 0..N {
            f(i);
        }
        return;
    }
    macro_rules! call {
        ($($i:literal)*) => {
            $(if $i < N { f($i); })*
        };
    }
    call!(0 1 2 3 4 5 6 7);
}

impl<V: Vector> Bytes<V> {
    #[inline(always)]
    fn map(self, f: impl Fn(V) -> V) -> Self {
        let [a, b, c, d] = self.0;
        Self([f(a), f(b), f(c), f(d)])
    }

    /// [`Vector::bits`]
    #[inline(always)]
    pub(in super::super) fn bits(self, from: u32, mask: u8, to: u32) -> Self {
        self.map(
            #[inline(always)]
            |v| v.bits(from, mask, to),
        )
    }

    #[inline(always)]
    pub(in super::super) fn or(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a.or(e), b.or(f), c.or(g), d.or(h)])
    }

    /// Adds the same to each byte.
    #[inline(always)]
    pub(in super::super) fn plus(self, x: u8) -> Self {
        self.map(
            #[inline(always)]
            |v| v.add_bytes(V::byte(x)),
        )
    }

    /// Bytes with a sign, biased.
    #[inline(always)]
    pub(in super::super) fn biased(self) -> Self {
        self.plus(V::BIAS)
    }

    /// `table[byte]`, biased; bytes below 16.
    #[inline(always)]
    pub(in super::super) fn lookup(self, table: &[i8; 16]) -> Self {
        let mut biased = [0; 16];
        for (biased, x) in biased.iter_mut().zip(table) {
            *biased = x.wrapping_add_unsigned(V::BIAS);
        }
        self.map(
            #[inline(always)]
            |v| V::spread(&biased).shuffle(v),
        )
    }

    /// 16 for each bit that is set, 0 for others: 16 bits of each row's word, from byte `first` on, one a byte.
    #[inline(always)]
    pub(in super::super) fn fifths(words: V, first: u8) -> Self {
        let bits = V::spread(&[1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128]);
        let places = V::spread(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        let mut out = Self([words; 4]);
        for (e, out) in out.0.iter_mut().enumerate() {
            // Row 4 l + e is word e of part l.
            *out = words.shuffle(places.add_bytes(V::byte(4 * e as u8 + first))).set(bits, 16);
        }
        out
    }

    /// Word j of each row, for each j.
    #[inline(always)]
    pub(in super::super) fn words(self) -> [V; 4] {
        let [a, b, c, d] = self.0;
        let ([e, f], [g, h]) = ([a.low_words(b), a.high_words(b)], [c.low_words(d), c.high_words(d)]);
        [e.low_pairs(g), e.high_pairs(g), f.low_pairs(h), f.high_pairs(h)]
    }

    /// The sum of the words of each row.
    #[inline(always)]
    fn across(self) -> V {
        let [a, b, c, d] = self.0;
        let (e, f) = (a.low_words(b).add(a.high_words(b)), c.low_words(d).add(c.high_words(d)));
        e.low_pairs(f).add(e.high_pairs(f))
    }

    /// The same of sums of [`Vector::dot_short`], each of so many products of quants of so many bits.
    #[inline(always)]
    fn across_short(self, products: usize, bits: u32) -> V {
        let ([a, b, c, d], most) = (self.0, V::short_sums(bits));
        if 2 * products > most {
            return self.map(V::long).across();
        }
        let (e, f) = (a.low_words(b).add_short(a.high_words(b)), c.low_words(d).add_short(c.high_words(d)));
        let (low, high) = (e.low_pairs(f), e.high_pairs(f));
        if 4 * products > most { low.long().add(high.long()) } else { low.add_short(high).long() }
    }

    /// The products of each row with a half of x, which each part has; quants of so many bits as [`Vector::dot`] takes them, or,
    /// with 8, biased.
    #[inline(always)]
    pub(in super::super) fn dot(self, x: V, bits: u32) -> V {
        let dot = if bits == 8 { V::dot_signed } else { V::dot_short };
        let products = self.map(
            #[inline(always)]
            |q| dot(V::word(0), q, x),
        );
        if bits == 8 { products.across() } else { products.across_short(1, bits) }
    }

    /// The products of each row with both halves of x.
    #[inline(always)]
    pub(in super::super) fn dot_both(q: [Self; 2], x: [V; 2], bits: u32) -> V {
        let dot = if bits == 8 { V::dot_signed } else { V::dot_short };
        let mut out = q[0];
        for (out, (a, b)) in out.0.iter_mut().zip(q[0].0.into_iter().zip(q[1].0)) {
            *out = dot(dot(V::word(0), a, x[0]), b, x[1]);
        }
        if bits == 8 { out.across() } else { out.across_short(2, bits) }
    }
}
