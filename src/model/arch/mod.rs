//! The architectures: one file each, named by its `model_type`, and the list of them.
//!
//! An architecture turns hyper-parameters into a program of canonical ops. It names tensors as safetensors folders do; where
//! GGUF files call them otherwise than most models, it lists their names.

mod bert;
mod bitnet;
mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod hunyuan_v1_dense;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mamba2;
mod ministral;
mod ministral3;
mod mistral;
mod mixtral;
mod modernbert;
mod nemotron_h;
mod nomic_bert;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use crate::file::{Description, ModelFile};
use crate::model::config::keys::Keys;
use crate::model::config::{self, Config};
use crate::model::program::Program;
use crate::{Error, Result};

/// An architecture: how to recognise its models, what their files call things, and how to build their program.
pub(super) struct Arch {
    /// `model_type` in `config.json`, the usual one first.
    pub(super) model_types: &'static [&'static str],
    /// `general.architecture` in GGUF files.
    pub(super) gguf: &'static [&'static str],
    /// Its own names of hyper-parameters in `config.json`, and the common ones.
    pub(super) keys: Keys,
    /// The same for GGUF keys, after the prefix.
    pub(super) gguf_keys: Keys,
    /// Its own names of tensors in folders and in GGUF files, in the form of the common list in `names`.
    pub(super) tensors: Keys,
    /// The tensor whose rows are the embeddings of tokens.
    pub(super) embedding: &'static str,
    /// Builds the program.
    pub(super) build: fn(&Config<'_>) -> Result<Program>,
}

/// All of them.
///
/// Several may share a GGUF name: files of that name are the first one's.
const ALL: &[&Arch] = &[
    &llama::ARCH,
    &bert::ARCH,
    &bitnet::ARCH,
    &cohere2::ARCH,
    &deepseek_v3::ARCH,
    &deepseek_v2::ARCH,
    &ernie4_5::ARCH,
    &ernie4_5_moe::ARCH,
    &exaone4::ARCH,
    &falcon_h1::ARCH,
    &gemma::ARCH,
    &gemma2::ARCH,
    &gemma3::ARCH,
    &gemma3n::ARCH,
    &gemma4::ARCH,
    &glm4::ARCH,
    &glm4_moe::ARCH,
    &gpt2::ARCH,
    &gpt_neox::ARCH,
    &gpt_oss::ARCH,
    &granite::ARCH,
    &granitemoe::ARCH,
    &hunyuan_v1_dense::ARCH,
    &lfm2::ARCH,
    &mamba2::ARCH,
    &ministral::ARCH,
    &ministral3::ARCH,
    &mistral::ARCH,
    &mixtral::ARCH,
    &modernbert::ARCH,
    &nomic_bert::ARCH,
    &olmo2::ARCH,
    &olmo3::ARCH,
    &olmoe::ARCH,
    &phi::ARCH,
    &phi3::ARCH,
    &qwen2::ARCH,
    &qwen2_moe::ARCH,
    &qwen3::ARCH,
    &qwen3_5::ARCH,
    &qwen3_moe::ARCH,
    &granitemoehybrid::ARCH,
    &lfm2_moe::ARCH,
    &nemotron_h::ARCH,
    &qwen3_5_moe::ARCH,
    &qwen3_next::ARCH,
    &seed_oss::ARCH,
    &smollm3::ARCH,
    &stablelm::ARCH,
    &starcoder2::ARCH,
];

impl Arch {
    /// All architectures.
    pub(super) fn all() -> &'static [&'static Self] {
        ALL
    }

    /// The architecture's name.
    pub(super) fn name(&self) -> &'static str {
        self.model_types.first().copied().unwrap_or("")
    }

    /// The architecture of a name.
    pub(super) fn named(name: &str) -> Result<&'static Self> {
        let found = ALL.iter().find(|arch| arch.name() == name).copied();
        found.ok_or_else(|| unknown("model_type", name, ALL.iter().flat_map(|a| a.model_types)))
    }

    /// The architecture of a file's model.
    pub(super) fn of(file: &ModelFile) -> Result<&'static Self> {
        match &file.description {
            Description::Gguf(meta) => {
                let name = meta.str("general.architecture")?;
                let found = ALL.iter().find(|arch| arch.gguf.contains(&name)).copied();
                found.ok_or_else(|| unknown("general.architecture", name, ALL.iter().flat_map(|a| a.gguf)))
            }
            Description::Folder(_) => {
                let json = config::config_json(file)?;
                let name = json.get("model_type").and_then(|name| name.as_str()).unwrap_or("");
                let found = ALL.iter().find(|arch| arch.model_types.contains(&name)).copied();
                found.ok_or_else(|| unknown("model_type", name, ALL.iter().flat_map(|a| a.model_types)))
            }
        }
    }
}

fn unknown<'a>(key: &str, name: &str, known: impl Iterator<Item = &'a &'static str>) -> Error {
    let name: String = name.chars().take(60).collect();
    let known: Vec<_> = known.copied().collect();
    Error::unsupported(format!("architecture {name:?} ({key})"), format!("{} are", known.join(", ")))
}
