//! Cooperative matrices: whether an adapter has those that our kernels are made of, and the token with which wgpu hands them out.

use super::compose::lib;
use super::{Fragment, Kernel};

/// A tile of matmul's sums, and the workgroup that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixTile {
    /// Threads of the workgroup.
    pub threads: u32,
    /// Parts of the tile, each the work of a subgroup: two over rows of W.
    pub parts: u32,
    /// Matrices of a part: over rows of W, over rows of x.
    pub of_part: [u32; 2],
}

impl MatrixTile {
    /// Rows of W and of x, of matrices of `side`.
    pub(crate) fn rows(&self, side: u32) -> [u32; 2] {
        let [across, down] = self.of_part;
        [2 * across * side, self.parts / 2 * down * side]
    }

    /// Bytes of workgroup memory.
    fn bytes(&self, side: u32) -> u32 {
        let [w, x] = self.rows(side);
        (w + x) * STRIDE * 2 + 2 * side * side * 4
    }
}

/// In `matmul_cooperative`, f16s from row to row of a tile.
const STRIDE: u32 = 40;
// VUID-RuntimeSpirv-OpCooperativeMatrixLoadKHR-08986: rows of matrices are aligned to 16 bytes.
const _: () = assert!((STRIDE * 2).is_multiple_of(16));

/// The cooperative matrices.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Their rows and columns.
    pub side: u32,
    /// Threads of a workgroup of attention: four subgroups.
    pub threads: u32,
    /// matmul's tiles: for few rows of x, and for more. Both have as many rows of W.
    pub tiles: [MatrixTile; 2],
    /// Their types.
    pub types: Fragment,
    /// What is done with them.
    pub fragment: Fragment,
}

impl Matrices {
    /// Fills the slots `matrices` and `cooperative` of a kernel.
    pub(crate) fn lower(&self, kernel: &mut Kernel) {
        kernel.fill("matrices", self.types);
        kernel.fill("cooperative", self.fragment);
    }
}

/// What a device must have beside the matrices.
pub(super) const FEATURES: wgpu::Features =
    wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16).union(wgpu::Features::SUBGROUP);

/// The largest that an adapter has: square, f16 times f16, sums in f32.
pub(super) fn matrices(adapter: &wgpu::Adapter) -> Option<Matrices> {
    // A pair of gates and ups needs two subgroups of a workgroup, and all of them full.
    let largest = adapter.get_info().subgroup_max_size;
    if !adapter.features().contains(FEATURES) || !(1..=64).contains(&largest) {
        return None;
    }
    let there = adapter.cooperative_matrix_properties();
    let has = |matrices: &Matrices| {
        there.iter().any(|m| {
            [m.m_size, m.n_size, m.k_size] == [matrices.side; 3]
                && m.ab_type == wgpu::CooperativeScalarType::F16
                && m.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    // docs/drivers.md: tiles of 128 x 128 take 0.7 of the instructions of 128 x 64, and those 0.7 of the instructions of 64 x 64.
    // A subgroup of 32 has the sums of 64 x 32, as registers allow; one of 64 twice as many.
    let few = |threads| MatrixTile { threads, parts: 4, of_part: [4, 2] };
    let (threads, many) = match largest {
        64 => (256, MatrixTile { threads: 256, parts: 4, of_part: [4, 4] }),
        _ => (128, MatrixTile { threads: 256, parts: 8, of_part: [4, 2] }),
    };
    let small = MatrixTile { threads, parts: 4, of_part: [4, 4] };
    let memory = adapter.limits().max_compute_workgroup_storage_size;
    let many = if many.bytes(16) <= memory { many } else { few(threads) };
    let known = [(16, [few(threads), many], lib::COOPERATIVE_16), (8, [small; 2], lib::COOPERATIVE_8)];
    let matrices = |(side, tiles, types)| Matrices { side, threads, tiles, types, fragment: lib::COOPERATIVE };
    known.map(matrices).into_iter().find(has)
}

/// Lets a device have features that wgpu calls experimental.
#[allow(unsafe_code, reason = "the token is made by an unsafe call: see SAFETY")]
pub(super) fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: it acknowledges that wgpu's own implementation may be wrong. Two kernels use it: attention only after it has
    // computed correctly on the device (`exec::self_test`), matmul too wherever an engine opens it with self-test results,
    // as all of ours do.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
