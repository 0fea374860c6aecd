//! decay: gates[r, h] = (gain, g), where g = a[h] * step and step = clamp(softplus(x[r, h] + bias[h]), low, high)
//! x, beta (rows, heads) f32 | bias, a (heads) f32 | gates (rows, heads, 2) f32; gain is beta, or the step itself
//! grid: x one thread for a head, y one row
//! source: the selection of Mamba-2, Dao and Gu 2024; gated delta nets, Yang et al. 2024
struct Params {
    heads: u32,
    x_stride: u32,
    beta_stride: u32,
    bias: u32,  // element of vecs where the bias lies
    a: u32,     // element of vecs where a lies
    low: f32,
    high: f32,
}
override WG: u32 = 64u;
override HAS_BETA: bool = false;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read> vecs: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> gates: array<vec2<f32>>;

// ln(1 + y) for y from 0 to 1: twice the series of artanh(y / (2 + y)), whose terms fall by a factor of nine.
fn ln_1p(y: f32) -> f32 {
    let z = y / (2.0 + y);
    let square = z * z;
    var sum = 1.0 / 17.0;
    for (var i = 0u; i < 8u; i++) {
        sum = sum * square + 1.0 / f32(15u - 2u * i);
    }
    return 2.0 * z * sum;
}

@compute @workgroup_size(WG)
fn decay(@builtin(global_invocation_id) id: vec3<u32>) {
    let h = id.x;
    let row = id.y;
    if row >= batch[0] || h >= params.heads {
        return;
    }
    let v = x[row * params.x_stride + h] + vecs[(params.bias + h) / 4u][(params.bias + h) % 4u];
    let softplus = max(v, 0.0) + ln_1p(exp(-abs(v)));
    let size = min(max(softplus, params.low), params.high);
    var gain = size;
    if HAS_BETA {
        gain = beta[row * params.beta_stride + h];
    }
    let a = vecs[(params.a + h) / 4u][(params.a + h) % 4u];
    gates[row * params.heads + h] = vec2<f32>(gain, a * size);
}
