// cooperative_stand_in: what lib/cooperative does, in plain WGSL: the threads of a subgroup share the elements of a matrix of
// sums, and read operands where they lie. SIDE and SUBGROUPS are declared before this; they need not be the device's.
alias Half = f32;          // of an f16's value
alias Left = vec3<u32>;    // where it lies, from row to row, from column to column
alias Right = vec3<u32>;
alias Sums = array<f32, OWN>;  // elements lane, lane + LANES, ... of a matrix
const LANES: u32 = THREADS / SUBGROUPS;
const OWN: u32 = (SIDE * SIDE + LANES - 1u) / LANES;
var<private> lane: u32;

fn share(lid: u32, subgroup: u32, subgroups: u32) -> vec2<u32> {
    lane = lid % LANES;
    return vec2<u32>(lid / LANES, SUBGROUPS);
}

fn to_f16(v: vec4<f32>) -> vec4<Half> {
    return vec4<f32>(unpack2x16float(pack2x16float(v.xy)), unpack2x16float(pack2x16float(v.zw)));
}

fn load_left(at: u32, stride: u32) -> Left {
    return vec3<u32>(at, stride, 1u);
}

fn load_right(at: u32, stride: u32) -> Right {
    return vec3<u32>(at, stride, 1u);
}

fn load_right_t(at: u32, stride: u32) -> Right {
    return vec3<u32>(at, 1u, stride);
}

fn load_sums(at: u32, stride: u32) -> Sums {
    var c = Sums();
    for (var e = lane; e < SIDE * SIDE; e += LANES) {
        c[e / LANES] = sh_sums[at + e / SIDE * stride + e % SIDE];
    }
    return c;
}

fn save_sums(c: Sums, at: u32, stride: u32) {
    var kept = c;
    for (var e = lane; e < SIDE * SIDE; e += LANES) {
        sh_sums[at + e / SIDE * stride + e % SIDE] = kept[e / LANES];
    }
}

fn multiply_add(a: Left, b: Right, c: Sums) -> Sums {
    var d = c;
    for (var e = lane; e < SIDE * SIDE; e += LANES) {
        var sum = d[e / LANES];
        for (var i = 0u; i < SIDE; i++) {
            sum += sh_tile[a.x + e / SIDE * a.y + i * a.z] * sh_tile[b.x + i * b.y + e % SIDE * b.z];
        }
        d[e / LANES] = sum;
    }
    return d;
}
