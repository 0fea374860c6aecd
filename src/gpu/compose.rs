//! WGSL composition: plain concatenation of fragments and a kernel.
//!
//! A kernel's header has a line `//! use: lib/step, <weights>`: fragments by name, and *roles* in angle brackets, which the
//! op fills (a block format, a KV storage type, a reduction). Numbers and switches are pipeline overrides, not text.

use crate::{Error, Result};

/// A piece of WGSL that kernels are composed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// `lib/step`, `quant/q8_0`.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
}

/// A kernel, with the fragments for its roles and the values of its overrides: all that a pipeline is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The file's name, the entry point, the label in the profiler.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
    /// The fragment of each role in its header.
    pub roles: Vec<(&'static str, Fragment)>,
    /// Values of its overrides.
    pub overrides: Vec<(&'static str, f64)>,
}

macro_rules! fragments {
    ($($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
        $($(#[$doc])*
        pub const $constant: Fragment =
            Fragment { name: $name, source: include_str!(concat!("../../wgsl/", $name, ".wgsl")) };)*

        /// The fragments of `wgsl/lib`.
        pub const LIB: &[Fragment] = &[$($constant,)*];
    };
}

/// The fragments that kernels share.
pub mod lib {
    use super::Fragment;

    fragments! {
        /// Parameters and bindings of the kernels of W x.
        LINEAR = "lib/linear";
        /// Which rows of W a tile takes, and what is done with its sums.
        TILE = "lib/tile";
        /// Tiles hold f32.
        TILE_F32 = "lib/tile_f32";
        /// Tiles hold f16.
        TILE_F16 = "lib/tile_f16";
        /// Products of small matrices by a subgroup.
        COOPERATIVE = "lib/cooperative";
        /// Matrices of 8 x 8 of a subgroup.
        COOPERATIVE_8 = "lib/cooperative_8";
        /// Matrices of 16 x 16 of a subgroup.
        COOPERATIVE_16 = "lib/cooperative_16";
        /// What f16 holds of f32.
        HALF = "lib/half";
        /// Takes rows of weights apart by chunks.
        UNPACK = "lib/unpack";
        /// Reads the step buffer.
        STEP = "lib/step";
        /// Activation functions.
        ACT = "lib/act";
        /// Where a position lies in the pages of a cache.
        PAGED = "lib/paged";
        /// What the attention kernels share.
        ATTEND = "lib/attend";
        /// Keys and values in the step's rows.
        KV_ROWS = "lib/kv_rows";
        /// Maxima of a workgroup through workgroup memory.
        MAX = "lib/max";
        /// Maxima of a workgroup through subgroups of any size.
        MAX_SUBGROUP = "lib/max_subgroup";
        /// KV elements stored as f32.
        KV_F32 = "lib/kv_f32";
        /// KV elements stored as f16.
        KV_F16 = "lib/kv_f16";
        /// KV elements stored in 8 bits.
        KV_Q8 = "lib/kv_q8";
        /// Stores KV elements as f32.
        KV_STORE_F32 = "lib/kv_store_f32";
        /// Stores KV elements as f16.
        KV_STORE_F16 = "lib/kv_store_f16";
        /// Stores KV elements as 8-bit integers.
        KV_STORE_Q8 = "lib/kv_store_q8";
        /// Where a position lies in a cache whose keys are vectors and whose values lie by elements.
        VECTORISED = "lib/vectorised";
        /// Heads of q, k and v on their way to the cache.
        HEADS = "lib/heads";
        /// Which rows a thread stores for.
        OWNER = "lib/owner";
        /// Moves elements of 32 bits.
        ONE = "lib/one";
        /// Moves elements of 128 bits.
        FOUR = "lib/four";
        /// Angles from the host.
        ANGLES_TABLE = "lib/angles_table";
        /// Angles from positions.
        ANGLES_COMPUTED = "lib/angles_computed";
        /// Sums over a workgroup through workgroup memory.
        REDUCE = "lib/reduce";
        /// Sums over a workgroup through subgroups of any size.
        REDUCE_SUBGROUP = "lib/reduce_subgroup";
        /// Many sums over a workgroup through workgroup memory.
        SUMS = "lib/sums";
        /// Many sums over a workgroup through subgroups of any size.
        SUMS_SUBGROUP = "lib/sums_subgroup";
        /// Rotates four elements that are stored together.
        ROTATE = "lib/rotate";
        /// Parameters and bindings of the kernels of many matrices.
        EXPERTS = "lib/experts";
        /// Parameters and bindings of the recurrent kernels, and where states lie.
        RECUR = "lib/recur";
        /// Matrix times vector, up to its epilogue.
        MATVEC = "lib/matvec";
        /// The noise of a draw.
        NOISE = "lib/noise";
        /// The best token of a workgroup.
        BEST = "lib/best";
        /// The first candidates of a workgroup.
        TOP = "lib/top";
        /// The settings of draws.
        DRAW = "lib/draw";
        /// A token's logit, after penalties and bias.
        LOGIT = "lib/logit";
    }
}

/// Puts a kernel's text together: its fragments, in the order of its `use` line, then itself.
pub fn compose(kernel: &Kernel) -> Result<String> {
    let mut text = String::new();
    let used = kernel.source.lines().find_map(|line| line.strip_prefix("//! use:")).unwrap_or("");
    for name in used.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        let role = name.strip_prefix('<').and_then(|n| n.strip_suffix('>'));
        let fragment = match role {
            Some(role) => kernel.roles.iter().find(|(r, _)| *r == role).map(|(_, f)| f),
            None => lib::LIB.iter().find(|f| f.name == name),
        };
        let fragment = fragment
            .ok_or_else(|| Error::argument(format!("kernel {}", kernel.name), format!("no fragment for {name}")))?;
        text.push_str(fragment.source);
        text.push('\n');
    }
    text.push_str(kernel.source);
    // Extensions must be named before all else.
    let (enabled, rest): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("enable "));
    if enabled.is_empty() {
        return Ok(text);
    }
    Ok([enabled, rest].concat().join("\n") + "\n")
}
