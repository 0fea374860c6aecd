// cooperative_stand_in: what lib/cooperative_* does, in plain WGSL: the threads of a subgroup have the elements of a matrix of sums
// among them, and read those of the others where they lie. SIDE and SUBGROUPS, which need not be the device's, stand in front.
alias Half = f32;    // of an f16's value
alias Left = u32;    // where it lies
alias Right = u32;
alias Sums = u32;    // its number
const LANES: u32 = THREADS / SUBGROUPS;
const OWN: u32 = (AREA + LANES - 1u) / LANES;
var<private> lane: u32;
var<private> loaded: u32;
var<private> own: array<f32, 4u * OWN>;  // elements lane, lane + LANES, ... of matrices 0 to 3

fn place(lid: u32, subgroup: u32, subgroups: u32) -> vec2<u32> {
    lane = lid % LANES;
    loaded = 0u;
    return vec2<u32>(lid / LANES, SUBGROUPS);
}

fn halves(v: vec4<f32>) -> vec4<Half> {
    return vec4<f32>(unpack2x16float(pack2x16float(v.xy)), unpack2x16float(pack2x16float(v.zw)));
}

fn load_left(at: u32) -> Left {
    return at;
}

fn load_right(at: u32) -> Right {
    return at;
}

fn load_sums(at: u32) -> Sums {
    let c = loaded % 4u;
    loaded += 1u;
    for (var e = lane; e < AREA; e += LANES) {
        own[c * OWN + e / LANES] = sums[at + e];
    }
    return c;
}

fn keep_sums(c: Sums, at: u32) {
    for (var e = lane; e < AREA; e += LANES) {
        sums[at + e] = own[c * OWN + e / LANES];
    }
}

fn multiply_add(a: Left, b: Right, c: Sums) -> Sums {
    for (var e = lane; e < AREA; e += LANES) {
        var sum = own[c * OWN + e / LANES];
        for (var i = 0u; i < SIDE; i++) {
            sum += tile[a + e % SIDE * STRIDE + i] * tile[b + e / SIDE * STRIDE + i];
        }
        own[c * OWN + e / LANES] = sum;
    }
    return c;
}
