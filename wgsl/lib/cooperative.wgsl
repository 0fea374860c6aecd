//! cooperative: cooperative matrices, from workgroup memory and back.
//!
//! Operands lie in `sh_tile: array<Half>`, sums in `sh_sums: array<f32>`, which a kernel declares. Both are row-major: the first
//! element at `at`, `stride` elements from row to row.

/// The number of a thread's subgroup, and how many there are.
fn share(lid: u32, subgroup: u32, subgroups: u32) -> vec2<u32> {
    return vec2<u32>(subgroup, max(subgroups, 1u));
}

fn to_f16(v: vec4<f32>) -> vec4<Half> {
    return vec4<Half>(v);
}

fn load_left(at: u32, stride: u32) -> Left {
    return coopLoadT<Left>(&sh_tile[at], stride);
}

fn load_right(at: u32, stride: u32) -> Right {
    return coopLoadT<Right>(&sh_tile[at], stride);
}

/// The same, transposed: a row in memory becomes a column.
fn load_right_t(at: u32, stride: u32) -> Right {
    return coopLoad<Right>(&sh_tile[at], stride);
}

fn load_sums(at: u32, stride: u32) -> Sums {
    return coopLoadT<Sums>(&sh_sums[at], stride);
}

fn save_sums(c: Sums, at: u32, stride: u32) {
    coopStoreT(c, &sh_sums[at], stride);
}

/// a b + c
fn multiply_add(a: Left, b: Right, c: Sums) -> Sums {
    return coopMultiplyAdd(a, b, c);
}
