//! The one error type. Every variant says what is wrong, where, and, where there is one, what would work.

use std::fmt;
use std::sync::Arc;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, by who can do something about it.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused to read or write.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// Bytes from outside do not follow their format.
    #[error("{what}{}: {problem}", At(*.offset))]
    Malformed {
        /// The file, or the part of it: `model.gguf`, `tensor blk.0.attn_q.weight`.
        what: String,
        /// Where in the file, in bytes from its start.
        offset: Option<u64>,
        /// What is wrong there.
        problem: String,
    },
    /// Well-formed, but this engine cannot run it.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// The feature, by the name that the file or the caller used.
        what: String,
        /// What would work.
        instead: String,
    },
    /// A model whose parts contradict each other, or miss one.
    #[error("model: {0}")]
    Model(String),
    /// A caller's mistake: the argument and the range that it must keep to.
    #[error("{name}: {problem}")]
    Argument {
        /// The argument, or the op and its operand.
        name: String,
        /// What is wrong with it, in plain words, with the numbers.
        problem: String,
    },
    /// Something would not fit: memory, context, a device's limit.
    #[error("{what}: needs {needed}, there are {available}; {instead}")]
    Limit {
        /// What was being made.
        what: String,
        /// How much it needs, with its unit.
        needed: String,
        /// How much there is.
        available: String,
        /// What would fit.
        instead: String,
    },
    /// No adapter or device of the wanted kind.
    #[error("device: {0}")]
    Device(String),
    /// The device is gone. Submissions after this point do nothing; load again.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// The self-test found a kernel that computes wrongly on this device.
    #[error("{device} computes wrongly: {kernel}: {problem}; {instead}")]
    Miscomputed {
        /// The adapter, its API and driver.
        device: String,
        /// The kernels of the op whose result is wrong.
        kernel: String,
        /// Which result, and how wrong.
        problem: String,
        /// What works.
        instead: String,
    },
    /// A step whose submission the driver dropped: its completion marker is missing. The requests in it end, others go on.
    #[error("step {step} was lost: what was submitted did not run; load again if that repeats")]
    LostStep {
        /// The step's ticket.
        step: u64,
    },
    /// A sequence's logits hold NaN or infinity, or none of its tokens is allowed: that sequence ends, the others go on.
    #[error("sequence {seq}: the logits at position {pos} are not finite, or no token is allowed there")]
    Numerical {
        /// The sequence, as the caller numbered it.
        seq: u32,
        /// The position whose logits are broken.
        pos: u32,
    },
    /// What ended several requests at once.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// A request that is not taken now, though it could be run.
    #[error("{what}{}", After(*.retry_after))]
    Refused {
        /// Why.
        what: String,
        /// When it may be taken; none if never.
        retry_after: Option<std::time::Duration>,
    },
    /// A model that is not where it was looked for.
    #[error("{what}; {instead}")]
    NotFound {
        /// What is not there, and where.
        what: String,
        /// What would work.
        instead: String,
    },
    /// A server that cannot be reached, breaks off, or answers what it should not.
    #[error("{address}: {problem}")]
    Network {
        /// The address, without what may be secret.
        address: String,
        /// What happened.
        problem: String,
    },
    /// A server that gives a model only to those who may have it.
    #[error("{what}; {instead}")]
    Denied {
        /// What was refused.
        what: String,
        /// What gives access.
        instead: String,
    },
    /// A chat template that does not compile, raises, or runs past its limits.
    #[error("chat template: {0}")]
    Template(String),
}

/// Prints ` at byte N` where the offset is known.
struct At(Option<u64>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, " at byte {at}"),
            None => Ok(()),
        }
    }
}

/// Prints when to ask again, where that helps.
struct After(Option<std::time::Duration>);

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "; asking again in {} s may work", time.as_secs_f64().ceil()),
            None => Ok(()),
        }
    }
}

impl Error {
    /// An error that several got: itself where nobody else has it.
    pub fn from_shared(error: std::sync::Arc<Self>) -> Self {
        std::sync::Arc::try_unwrap(error).unwrap_or_else(Self::Shared)
    }

    /// Its kind in a word, for what machines read.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::Malformed { .. } => "malformed",
            Self::Unsupported { .. } => "unsupported",
            Self::Model(_) => "model",
            Self::Argument { .. } => "argument",
            Self::Limit { .. } => "limit",
            Self::Device(_) => "device",
            Self::DeviceLost(_) => "device_lost",
            Self::Miscomputed { .. } => "miscomputed",
            Self::LostStep { .. } => "lost_step",
            Self::Numerical { .. } => "numerical_error",
            Self::Shared(error) => error.code(),
            Self::Template(_) => "template",
            Self::Refused { .. } => "refused",
            Self::NotFound { .. } => "not_found",
            Self::Network { .. } => "network",
            Self::Denied { .. } => "denied",
        }
    }

    /// A malformed file, with the byte where it goes wrong.
    pub fn malformed(what: impl Into<String>, offset: impl Into<Option<u64>>, problem: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), offset: offset.into(), problem: problem.into() }
    }

    /// Something this engine cannot run, and what it can.
    pub fn unsupported(what: impl Into<String>, instead: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), instead: instead.into() }
    }

    /// A caller's mistake.
    pub fn argument(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Argument { name: name.into(), problem: problem.into() }
    }

    /// A file that could not be read or written.
    pub fn io(path: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}
