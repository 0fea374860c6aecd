//! cooperative: products of the matrices that a subgroup holds together, from workgroup memory and back.
//!
//! Operands lie in `tile: array<Half>`, sums in `sums: array<f32>`, which a kernel declares: each element by element along its rows,
//! the first at `at`, one row `stride` behind the other.

/// The number of a thread's subgroup, and how many there are.
fn place(lid: u32, subgroup: u32, subgroups: u32) -> vec2<u32> {
    return vec2<u32>(subgroup, max(subgroups, 1u));
}

fn halves(v: vec4<f32>) -> vec4<Half> {
    return vec4<Half>(v);
}

fn load_left(at: u32, stride: u32) -> Left {
    return coopLoadT<Left>(&tile[at], stride);
}

fn load_right(at: u32, stride: u32) -> Right {
    return coopLoadT<Right>(&tile[at], stride);
}

/// The same, transposed: what lies as a row is a column.
fn load_right_t(at: u32, stride: u32) -> Right {
    return coopLoad<Right>(&tile[at], stride);
}

fn load_sums(at: u32, stride: u32) -> Sums {
    return coopLoadT<Sums>(&sums[at], stride);
}

fn keep_sums(c: Sums, at: u32, stride: u32) {
    coopStoreT(c, &sums[at], stride);
}

/// a b + c
fn multiply_add(a: Left, b: Right, c: Sums) -> Sums {
    return coopMultiplyAdd(a, b, c);
}
