//! noise: Gumbel noise keyed by (seed, position, token), operation for operation as in ops/sample/noise.rs

// Wellons' lowbias32, whose every output bit depends on every input bit.
fn mix(a: u32) -> u32 {
    var h = a;
    h ^= h >> 16u;
    h *= 0x7feb352du;
    h ^= h >> 15u;
    h *= 0x846ca68bu;
    return h ^ (h >> 16u);
}

// The key of one sample's noise: from the two words of the seed and the position of the token that is sampled.
fn noise_key(seed_lo: u32, seed_hi: u32, pos: u32) -> vec2<u32> {
    let a = mix(seed_lo ^ mix(pos + 0x9e3779b9u));
    return vec2<u32>(a, mix(seed_hi ^ (a + 0x85ebca6bu)));
}

// The natural logarithm of a positive normal number, in plain products and sums: the polynomial of Cephes' logf.
fn ln(x: f32) -> f32 {
    let shifted = bitcast<u32>(x) - 0x3f3504f3u;
    let exponent = f32(bitcast<i32>(shifted) >> 23u);
    let m = bitcast<f32>((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0;
    let z = m * m;
    var fit = 7.0376836e-2;
    fit = fit * m - 1.151461e-1;
    fit = fit * m + 1.16769987e-1;
    fit = fit * m - 1.2420141e-1;
    fit = fit * m + 1.4249323e-1;
    fit = fit * m - 1.6668058e-1;
    fit = fit * m + 2.0000715e-1;
    fit = fit * m - 2.4999994e-1;
    fit = fit * m + 3.3333331e-1;
    let y = fit * m * z + exponent * -2.1219444e-4 - 0.5 * z;
    return m + y + exponent * 0.693359375;
}

// -ln(-ln u), with u an odd multiple of 2^-24.
fn gumbel(key: vec2<u32>, token: u32) -> f32 {
    let bits = mix(mix(token ^ key.x) + key.y);
    let u = f32((bits >> 8u) | 1u) * (1.0 / 16777216.0);
    return -ln(-ln(u));
}

// logit / temperature; a temperature near zero would take it past the largest f32.
fn tempered(logit: f32, inv_temperature: f32) -> f32 {
    return clamp(logit * inv_temperature, -3.0e38, 3.0e38);
}
