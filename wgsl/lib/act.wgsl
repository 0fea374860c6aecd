//! act: activation functions, chosen by ACT: 0 SiLU, 1 GELU (erf), 2 GELU (tanh), 3 ReLU, 4 ReLU², 5 tanh, 6 sigmoid.
override ACT: u32 = 0u;

// tanh without overflow: exp of a value that is never positive.
fn tanh_safe(x: f32) -> f32 {
    let e = exp(-2.0 * abs(x));
    return sign(x) * (1.0 - e) / (1.0 + e);
}

// erf: a power series near 0, a continued rational fit of erfc beyond it (W. J. Cody, Math. Comp. 23, 1969).
fn erf(x: f32) -> f32 {
    let a = abs(x);
    if a < 0.5 {
        let t = x * x;
        let p = ((-0.356098437018154e-1 * t + 0.699638348861914e1) * t + 0.219792616182942e2) * t + 0.242667955230532e3;
        let q = ((t + 0.150827976304078e2) * t + 0.911649054045149e2) * t + 0.215058875869861e3;
        return x * p / q;
    }
    if a > 4.0 {
        return sign(x);
    }
    let p = ((((((-0.136864857382717e-6 * a + 0.564195517478974) * a + 0.721175825088309e1) * a
        + 0.431622272220567e2) * a + 0.152989285046940e3) * a + 0.339320816734344e3) * a
        + 0.451918953711873e3) * a + 0.300459261020162e3;
    let q = ((((((a + 0.127827273196294e2) * a + 0.770001529352295e2) * a + 0.277585444743988e3) * a
        + 0.638980264465631e3) * a + 0.931354094850610e3) * a + 0.790950925327898e3) * a + 0.300459260956983e3;
    return sign(x) * (1.0 - exp(-a * a) * p / q);
}

fn act(x: f32) -> f32 {
    switch ACT {
        case 1u: { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
        case 2u: { return 0.5 * x * (1.0 + tanh_safe(0.79788456080286536 * (x + 0.044715 * x * x * x))); }
        case 3u: { return max(x, 0.0); }
        case 4u: { let y = max(x, 0.0); return y * y; }
        case 5u: { return tanh_safe(x); }
        case 6u: { return 1.0 / (1.0 + exp(-x)); }
        default: { return x / (1.0 + exp(-x)); }
    }
}
