//! What a file says about one tensor.

use super::quoted;
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// In a format that this engine runs.
    Block(BlockFormat),
    /// In a type that the file format knows and this engine does not run, by its name.
    Other(&'static str),
}

impl TensorType {
    /// The name that the file format gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block(format) => format.name(),
            Self::Other(name) => name,
        }
    }
}

/// A tensor of a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// How its numbers are stored; [`TensorInfo::format`] is for those that need to read them.
    pub ty: TensorType,
    /// Its dimensions, outermost first: a matrix is `[rows, row length]`. GGUF writes the row length first; it is
    /// reversed when the file is read, so that both kinds of file say the same here.
    pub shape: Vec<u64>,
    /// Which of the model's files holds it.
    pub file: usize,
    /// Where in that file it starts.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// The block format, or an error that says what would work.
    pub fn format(&self) -> Result<BlockFormat> {
        match self.ty {
            TensorType::Block(format) => Ok(format),
            TensorType::Other(name) => Err(Error::unsupported(
                format!("tensor {} of type {name}", quoted(&self.name)),
                format!("{} are", BlockFormat::names()),
            )),
        }
    }

    /// Weights in a row: the last dimension; 1 for a scalar.
    pub fn row_len(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all other dimensions.
    pub fn rows(&self) -> u64 {
        product(self.shape.split_last().map_or(&[], |(_, outer)| outer))
    }

    /// Numbers in it.
    pub fn len(&self) -> u64 {
        product(&self.shape)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The product of dimensions. It fits, for the size was checked when the file was opened, unless one of them is zero;
/// then parts of it may not.
fn product(dims: &[u64]) -> u64 {
    dims.iter().fold(1, |n: u64, &d| n.saturating_mul(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_tensors_of_any_shape_have_no_numbers() {
        for shape in [vec![0], vec![0, 1 << 40, 1 << 40, 1 << 40], vec![1 << 40, 0, 1 << 40, 1 << 40]] {
            let ty = TensorType::Block(BlockFormat::F32);
            let empty = TensorInfo { name: "t".into(), ty, shape, file: 0, offset: 0, bytes: 0 };
            assert!(empty.is_empty());
            empty.rows(); // no overflow
        }
    }
}
