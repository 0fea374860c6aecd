//! noise: Gumbel noise keyed by (seed, position, token), from integers and plain sums and products: the same in ops/sample.rs.

// lowbias32 (Chris Wellons, "Hash Function Prospector"): every input bit reaches every output bit.
fn mix(a: u32) -> u32 {
    var h = a;
    h ^= h >> 16u;
    h *= 0x7feb352du;
    h ^= h >> 15u;
    h *= 0x846ca68bu;
    h ^= h >> 16u;
    return h;
}

// The natural logarithm of a positive normal number, within 2 ulp (the single precision form of Cephes).
fn ln(a: f32) -> f32 {
    let bits = bitcast<u32>(a);
    var e = f32(bits >> 23u) - 126.0;
    var m = bitcast<f32>((bits & 0x7fffffu) | 0x3f000000u);  // in [0.5, 1)
    if m < 0.70710678 {
        m += m;
        e -= 1.0;
    }
    let f = m - 1.0;
    let z = f * f;
    var y = 7.0376836292e-2;
    y = y * f - 1.1514610310e-1;
    y = y * f + 1.1676998740e-1;
    y = y * f - 1.2420140846e-1;
    y = y * f + 1.4249322787e-1;
    y = y * f - 1.6668057665e-1;
    y = y * f + 2.0000714765e-1;
    y = y * f - 2.4999993993e-1;
    y = y * f + 3.3333331174e-1;
    y = y * f * z;
    y += e * -2.12194440e-4;
    y -= 0.5 * z;
    return (f + y) + e * 0.693359375;
}

// What all tokens of a draw share.
fn noise_key(seed_lo: u32, seed_hi: u32, pos: u32) -> u32 {
    return mix(mix(mix(seed_lo) ^ seed_hi) ^ pos);
}

fn gumbel(key: u32, token: u32) -> f32 {
    let h = mix(key ^ mix(token + 0x9e3779b9u));
    let u = (f32(h >> 8u) + 0.5) * 0x1p-24;
    return -ln(-ln(u));
}
