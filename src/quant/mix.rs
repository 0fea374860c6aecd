//! File types: which block format each tensor of a quantised file gets. The mixes are llama.cpp's, so that a file's name
//! says the same everywhere: `Q4_K_M` is mostly Q4_K, with Q6_K where errors cost most.

use super::BlockFormat::{self, *};
use crate::{Error, Result};

/// What `general.file_type` says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType {
    /// The name that people use.
    pub name: &'static str,
    /// Its number in `general.file_type`.
    pub number: u32,
    /// The format of most matrices.
    pub format: BlockFormat,
    size: Size,
}

/// How much a mix spends on the matrices that matter most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Plain,
    Small,
    Medium,
    Large,
}

const fn file_type(name: &'static str, number: u32, format: BlockFormat, size: Size) -> FileType {
    FileType { name, number, format, size }
}

/// Every file type that can be written.
pub const FILE_TYPES: &[FileType] = &[
    file_type("F32", 0, F32, Size::Plain),
    file_type("F16", 1, F16, Size::Plain),
    file_type("BF16", 32, BF16, Size::Plain),
    file_type("Q8_0", 7, Q8_0, Size::Plain),
    file_type("Q4_0", 2, Q4_0, Size::Plain),
    file_type("Q4_1", 3, Q4_1, Size::Plain),
    file_type("Q5_0", 8, Q5_0, Size::Plain),
    file_type("Q5_1", 9, Q5_1, Size::Plain),
    file_type("Q2_K", 10, Q2_K, Size::Medium),
    file_type("Q3_K_S", 11, Q3_K, Size::Small),
    file_type("Q3_K_M", 12, Q3_K, Size::Medium),
    file_type("Q3_K_L", 13, Q3_K, Size::Large),
    file_type("Q4_K_S", 14, Q4_K, Size::Small),
    file_type("Q4_K_M", 15, Q4_K, Size::Medium),
    file_type("Q5_K_S", 16, Q5_K, Size::Small),
    file_type("Q5_K_M", 17, Q5_K, Size::Medium),
    file_type("Q6_K", 18, Q6_K, Size::Plain),
    file_type("IQ4_NL", 25, IQ4_NL, Size::Plain),
    file_type("IQ4_XS", 30, IQ4_XS, Size::Plain),
];

/// What a mix looks at.
#[derive(Clone, Copy, Debug)]
pub struct TensorContext<'a> {
    /// The tensor's name in GGUF files.
    pub name: &'a str,
    /// Dimensions, outermost first.
    pub shape: &'a [u64],
    /// Layers of the model.
    pub layers: u32,
    /// Query heads to a KV head.
    pub group: u32,
    /// The embedding table is the head, too.
    pub tied: bool,
}

impl std::str::FromStr for FileType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let found = FILE_TYPES.iter().find(|t| t.name.eq_ignore_ascii_case(s)).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = FILE_TYPES.iter().map(|t| t.name).collect();
            Error::argument("type", format!("{s:?} is no file type; {} are", names.join(", ")))
        })
    }
}

impl FileType {
    /// The format of a tensor. Vectors, also rows of vectors in one tensor, stay in f32. So do small tensors that decide
    /// much (norms, routers, convolutions).
    pub fn format_of(&self, at: &TensorContext<'_>) -> BlockFormat {
        let &[.., _, k] = at.shape else { return F32 };
        if !at.name.ends_with(".weight") {
            return F32;
        }
        const KEPT: [&str; 8] =
            ["_norm.", "ffn_gate_inp", "conv1d", "shortconv.conv", "ssm_", "position_embd", "token_types", "altup"];
        let kept = KEPT.iter().any(|part| at.name.contains(part)) && !SSM.iter().any(|part| at.name.contains(part));
        if self.format == F32 || kept {
            return F32;
        }
        if self.format.info().weights == 1 {
            return self.format;
        }
        self.mixed(at, k).fitting(k)
    }

    fn mixed(&self, at: &TensorContext<'_>, k: u64) -> BlockFormat {
        let layer = at.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        let (i, n) = (layer.unwrap_or(0), at.layers.max(1));
        let is = |part: &str| at.name.contains(part);
        // The first eighth, the last, and every third between.
        let more_bits = i < n / 8 || i >= 7 * n / 8 || (i.saturating_sub(n / 8)) % 3 == 2;
        let (format, size) = (self.format, self.size);
        if at.name == "output.weight" || (at.tied && at.name == "token_embd.weight") {
            return match format {
                Q8_0 => Q8_0,
                _ if !k.is_multiple_of(256) => Q8_0,
                _ => Q6_K,
            };
        }
        if is("attn_v.") {
            return match (format, size) {
                (Q2_K, _) if at.group >= 4 => Q4_K,
                (Q2_K, _) => Q3_K,
                (Q3_K, Size::Medium) if i < 2 => Q5_K,
                (Q3_K, Size::Medium) => Q4_K,
                (Q3_K, Size::Large) => Q5_K,
                (Q4_K | Q5_K, Size::Medium) if more_bits => Q6_K,
                (Q4_K, Size::Small) if i < 4 => Q5_K,
                (IQ4_NL | IQ4_XS, _) if at.group >= 4 => Q5_K,
                _ => format,
            };
        }
        if is("ffn_down") {
            return match (format, size) {
                (Q2_K, _) => Q3_K,
                (Q3_K, Size::Medium) if i < n / 16 => Q5_K,
                (Q3_K, Size::Medium) => Q4_K,
                (Q3_K, Size::Large) => Q5_K,
                (Q4_K | Q5_K, Size::Medium) if more_bits => Q6_K,
                (Q4_K, Size::Small) | (IQ4_NL | IQ4_XS, _) if i < n / 8 => Q5_K,
                _ => format,
            };
        }
        if is("attn_output") {
            return match (format, size) {
                (Q2_K, _) => Q3_K,
                (Q3_K, Size::Medium) => Q4_K,
                (Q3_K, Size::Large) => Q5_K,
                _ => format,
            };
        }
        if is("attn_qkv") {
            return match (format, size) {
                (Q3_K, Size::Medium | Size::Large) => Q4_K,
                (Q4_K, Size::Medium) => Q5_K,
                (Q5_K, Size::Medium) => Q6_K,
                _ => format,
            };
        }
        format
    }
}

/// Matrices of state-space layers that are as large as any.
const SSM: [&str; 3] = ["ssm_in", "ssm_out", "ssm_x"];

impl BlockFormat {
    /// The format, or a substitute where a row is not a multiple of its blocks: a format with blocks of 32 for one with
    /// 256, and F16 where not even those fit.
    fn fitting(self, k: u64) -> Self {
        let fits = |format: Self| k.is_multiple_of(format.info().weights as u64);
        let smaller = match self {
            Q2_K | Q3_K | IQ4_XS => IQ4_NL,
            Q4_K => Q5_0,
            Q5_K => Q5_1,
            Q6_K => Q8_0,
            other => other,
        };
        if fits(self) {
            self
        } else if fits(smaller) {
            smaller
        } else {
            F16
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_spend_bits_where_they_matter() {
        let at = |name, shape| TensorContext { name, shape, layers: 24, group: 4, tied: false };
        let q4_k_m: FileType = "q4_k_m".parse().unwrap();
        assert_eq!(q4_k_m.format_of(&at("blk.0.attn_v.weight", &[256, 1024])), Q6_K);
        assert_eq!(q4_k_m.format_of(&at("blk.4.attn_v.weight", &[256, 1024])), Q4_K);
        assert_eq!(q4_k_m.format_of(&at("blk.5.ffn_down.weight", &[256, 1024])), Q6_K);
        assert_eq!(q4_k_m.format_of(&at("blk.5.attn_q.weight", &[256, 1024])), Q4_K);
        assert_eq!(q4_k_m.format_of(&at("blk.5.attn_q.weight", &[256, 576])), Q5_0);
        assert_eq!(q4_k_m.format_of(&at("blk.5.attn_q.weight", &[256, 77])), F16);
        assert_eq!(q4_k_m.format_of(&at("output.weight", &[1000, 1024])), Q6_K);
        assert_eq!(q4_k_m.format_of(&at("token_embd.weight", &[1000, 1024])), Q4_K);
        assert_eq!(q4_k_m.format_of(&TensorContext { tied: true, ..at("token_embd.weight", &[1000, 1024]) }), Q6_K);
        assert_eq!(q4_k_m.format_of(&at("blk.5.attn_norm.weight", &[1024])), F32);
        assert_eq!(q4_k_m.format_of(&at("blk.5.ffn_gate_inp.weight", &[8, 1024])), F32);
        assert_eq!(q4_k_m.format_of(&at("blk.5.ffn_down_exps.bias", &[8, 1024])), F32);
        assert_eq!(q4_k_m.format_of(&at("blk.5.ssm_in.weight", &[8, 1024])), Q4_K);
        assert!("Q7".parse::<FileType>().unwrap_err().to_string().contains("Q4_K_M"));
    }
}
