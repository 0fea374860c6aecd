//! All that knows wgpu: the device and what it can do, buffers, WGSL composition, pipelines, recording.

mod bandwidth;
mod buffer;
#[cfg(not(feature = "unstable_internals"))]
pub(crate) mod compose;
#[cfg(feature = "unstable_internals")]
pub mod compose;
mod cooperative;
mod device;
#[cfg(test)]
mod faults;
pub(crate) mod params;
mod pipeline;
mod plan;
mod timer;
mod tuning;

pub use buffer::Buffer;
pub(crate) use buffer::Signal;
internal!(use compose::{Fragment, Kernel, Override});
pub use cooperative::{Matrices, MatrixTile};
pub use device::{AdapterSummary, Caps, Choice, Device, Kind};
internal!(use params::{KernelSource, ParamField, ParamsLayout});
pub use pipeline::Pipelines;
pub(crate) use plan::Small;
pub use plan::{Plan, StepCounts};
internal!(use plan::{Arg, Dim, Dispatch, PlanBuilder});
pub(crate) use timer::Timer;
pub use tuning::{Matmul, MatmulTuning, Matvec, Tuning, Vendor};
/// The wgpu that this crate was built with: a host that shares its device must use the same one.
pub use wgpu;
