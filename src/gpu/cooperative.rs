//! Cooperative matrices: whether an adapter has those that our kernels are made of, and the token with which wgpu hands them out.

use super::compose::lib;
use super::{Fragment, Kernel};

/// The cooperative matrices.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Their rows and columns.
    pub side: u32,
    /// Threads of a workgroup: four subgroups, or two of the largest.
    pub threads: u32,
    /// How many of matmul's sums a subgroup has: over rows of W, over rows of x.
    pub of_subgroup: [u32; 2],
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
        kernel.set("THREADS", self.threads);
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
    let threads = if largest == 64 { 256 } else { 128 };
    let there = adapter.cooperative_matrix_properties();
    let has = |matrices: &Matrices| {
        there.iter().any(|m| {
            [m.m_size, m.n_size, m.k_size] == [matrices.side; 3]
                && m.ab_type == wgpu::CooperativeScalarType::F16
                && m.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    // docs/drivers.md: tiles of 128 x 64 take 0.7 of the instructions of 64 x 64. Those of 128 x 128 take another quarter off,
    // but halve the workgroups of a prompt, and a third fewer fit on a processor at a time.
    let known = [(16, [4, 2], lib::COOPERATIVE_16), (8, [4, 4], lib::COOPERATIVE_8)];
    let matrices =
        |(side, of_subgroup, types)| Matrices { side, threads, of_subgroup, types, fragment: lib::COOPERATIVE };
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
