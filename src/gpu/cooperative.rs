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

    /// How many of matmul's sums a subgroup has: over rows of W, over rows of x. Eight of 16 x 16 take as many registers as 32
    /// of 8 x 8; half of that hides more latency, twice that would not fit beside the operands.
    pub(crate) const fn of_subgroup(&self) -> [u32; 2] {
        if self.side == 16 { [4, 2] } else { [4, 4] }
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
    let known = [(16, lib::COOPERATIVE_16), (8, lib::COOPERATIVE_8)];
    known.map(|(side, types)| Matrices { side, threads, types, fragment: lib::COOPERATIVE }).into_iter().find(has)
}

/// Lets a device have features that wgpu calls experimental.
#[allow(unsafe_code, reason = "the token is made by an unsafe call: see SAFETY")]
pub(super) fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: it acknowledges that wgpu's own implementation may be wrong. Two kernels use it: attention only after it has
    // computed correctly on the device (`exec::self_test`), matmul too wherever an engine opens it with self-test results,
    // as all of ours do.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
