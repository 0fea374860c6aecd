//! The uniform parameters of kernels as Rust has them: described where they are declared, so that a test can hold them against the WGSL.

use super::Kernel;

/// A field of a struct of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamField {
    /// Its name, the same in WGSL.
    pub name: &'static str,
    /// The name of its type, `u32` or `f32`.
    pub ty: &'static str,
    /// The byte where it begins.
    pub offset: usize,
}

/// How a struct of parameters lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsLayout {
    /// Bytes.
    pub size: usize,
    /// In order.
    pub fields: &'static [ParamField],
}

/// A struct that a kernel takes as its `struct Params`; declared by [`params!`](crate::gpu::params::params).
pub(crate) trait Params: bytemuck::NoUninit {
    const LAYOUT: ParamsLayout;
}

/// Declares a kernel's parameters.
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident: $ty:ident,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
        $vis struct $name { $($field: $ty,)* }

        impl $crate::gpu::params::Params for $name {
            const LAYOUT: $crate::gpu::ParamsLayout = $crate::gpu::ParamsLayout {
                size: size_of::<Self>(),
                fields: &[$($crate::gpu::ParamField {
                    name: stringify!($field),
                    ty: stringify!($ty),
                    offset: std::mem::offset_of!(Self, $field),
                },)*],
            };
        }
    };
}
pub(crate) use params;

/// A kernel as it stands in its file, and the parameters that its op hands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// The file's name without its ending, the entry point.
    pub name: &'static str,
    /// The file's text.
    pub source: &'static str,
    /// What its op fills `struct Params` with.
    pub params: ParamsLayout,
}

impl KernelSource {
    /// The kernel with empty slots.
    pub fn kernel(&self) -> Kernel {
        Kernel::new(self.name, self.source)
    }
}
