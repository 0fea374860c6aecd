//! cooperative_8: matrices of 8 x 8 that a subgroup holds together, f16 times f16 plus f32, from workgroup memory and back.
//!
//! Matrices lie by rows of a tile, which are STRIDE apart: those of W are rows of the left one, those of x columns of the right one.
enable f16;
enable wgpu_cooperative_matrix;
const SIDE: u32 = 8u;
alias Half = f16;
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sums = coop_mat8x8<f32, C>;

/// The number of a thread's subgroup, and how many there are.
fn place(lid: u32, subgroup: u32, subgroups: u32) -> vec2<u32> {
    return vec2<u32>(subgroup, max(subgroups, 1u));
}

fn halves(v: vec4<f32>) -> vec4<Half> {
    return vec4<Half>(v);
}

fn load_left(at: u32) -> Left {
    return coopLoadT<Left>(&tile[at], STRIDE);
}

fn load_right(at: u32) -> Right {
    return coopLoad<Right>(&tile[at], STRIDE);
}

fn load_sums(at: u32) -> Sums {
    return coopLoad<Sums>(&sums[at], SIDE);
}

fn keep_sums(c: Sums, at: u32) {
    coopStore(c, &sums[at], SIDE);
}

fn multiply_add(a: Left, b: Right, c: Sums) -> Sums {
    return coopMultiplyAdd(a, b, c);
}
