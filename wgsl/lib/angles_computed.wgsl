//! angles_computed: cosine and sine of a row's pair from its position: `angles` (ROPE_DIMS / 2) of two words, revolutions a position
//!
//! An angle is a 32-bit fraction of a revolution: multiplied by the position, it wraps, and so drops complete revolutions
//! exactly, where a product of floats would lose the fraction. Built-in sine and cosine may be off by 2⁻¹¹; the polynomials
//! here are off by 2⁻²³, on an eighth of a revolution to either side.
override ROPE_FACTOR: f32 = 1.0;     // on cosine and sine: the attention factor of YaRN and LongRoPE
override POW: bool = false;          // revolutions of pair i: ROPE_REVOLUTIONS 2^-(i ROPE_STEP), without a table
override ROPE_STEP: u32 = 0u;        // log2(theta) 2 / ROPE_DIMS in 2⁻²⁶
override ROPE_STEP_LOW: u32 = 0u;    // and the rest of it in 2⁻⁵⁰
override ROPE_REVOLUTIONS: u32 = 683565275u;  // freq_scale / 2π in 2⁻³²

// The high word of a product.
fn high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let m = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let n = (a & 0xffffu) * (b >> 16u) + (m & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (m >> 16u) + (n >> 16u);
}

// The fraction of a revolution that a pair makes per position: in units of 2⁻³², and the rest in 2⁻⁶⁴.
fn revolutions(pair: u32) -> vec2<u32> {
    if !POW {
        return angles[pair];
    }
    // theta^(-2 pair / ROPE_DIMS) = 2^-(whole + sixteenths + rest): the first two are exact, and 1 - 2^-rest is small enough for
    // a float.
    let log = pair * ROPE_STEP + ((pair * ROPE_STEP_LOW) >> 24u);
    let whole = log >> 26u;
    let t = f32(log & 0x3fffffu) * 1.0328697868584771e-8;  // ln 2 · 2⁻²⁶
    let less = t * (1.0 - t * (0.5 - t * (0.16666666666666667 - t * (0.041666666666666667 - t * 0.0083333333333333333))));
    var root = select(0xffffffffu, 3037000499u, (log & 0x2000000u) != 0u);           // 2^-1/2 in 2⁻³²
    root = select(root, high(root, 3611622602u), (log & 0x1000000u) != 0u);          // 2^-1/4
    root = select(root, high(root, 3938502375u), (log & 0x800000u) != 0u);           // 2^-1/8
    root = select(root, high(root, 4112874773u), (log & 0x400000u) != 0u);           // 2^-1/16
    let fixed = high(root - high(root, u32(less * 4294967296.0)), ROPE_REVOLUTIONS);
    if whole == 0u || whole > 31u {
        return vec2<u32>(select(0u, fixed, whole == 0u), 0u);
    }
    return vec2<u32>(fixed >> whole, fixed << (32u - whole));
}

fn angle(row: u32, pair: u32) -> vec2<f32> {
    let per = revolutions(pair);
    let pos = row_pos(row);
    let phase = pos * per.x + high(pos, per.y);
    let quarter = (phase + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(phase - (quarter << 30u))) * 1.4629180792671596e-9;  // 2π 2⁻³²
    let t = x * x;
    // Taylor series: the first terms left out are below 3e-8 on an eighth of a revolution.
    let s = x + x * t * (-0.16666666666666667 + t * (0.0083333333333333333 + t * (-0.00019841269841269841
        + t * 2.7557319223985891e-6)));
    let c = 1.0 + t * (-0.5 + t * (0.041666666666666667 + t * (-0.0013888888888888889 + t * 2.4801587301587302e-5)));
    var cosine = select(c, s, (quarter & 1u) != 0u);
    var sine = select(s, c, (quarter & 1u) != 0u);
    if quarter == 1u || quarter == 2u {
        cosine = -cosine;
    }
    if quarter >= 2u {
        sine = -sine;
    }
    return ROPE_FACTOR * vec2<f32>(cosine, sine);
}
