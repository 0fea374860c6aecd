//! The tokenizer of a model's files.

use super::tokenizer::{GgufVocab, Tokenizer};
use crate::file::{Description, Metadata, ModelFile, Strings};
use crate::{Error, Result};

impl Tokenizer {
    /// The tokenizer that a model's files describe: GGUF metadata, or the `tokenizer.json` of a folder.
    pub fn of(file: &ModelFile) -> Result<Self> {
        match &file.description {
            Description::Gguf(meta) => Self::from_gguf(vocab(meta)?),
            Description::Folder(texts) => {
                let json = texts.get("tokenizer.json").ok_or_else(|| {
                    Error::Model(format!("{} has no tokenizer.json beside it; this engine reads no other", file.name()))
                })?;
                Self::from_json(json.as_bytes(), texts.get("tokenizer_config.json").map(String::as_bytes))
            }
        }
    }
}

fn vocab(meta: &Metadata) -> Result<GgufVocab<'_>> {
    fn strings(strings: &Strings) -> Vec<&[u8]> {
        strings.iter().map(str::as_bytes).collect()
    }
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| meta.get::<u32>(&key(name)).map(|id| id.map(i64::from));
    let flag = |name: &str| meta.get::<bool>(&key(name));
    Ok(GgufVocab {
        model: meta.str("tokenizer.ggml.model")?,
        pre: meta.get("tokenizer.ggml.pre")?,
        tokens: strings(meta.strings("tokenizer.ggml.tokens")?),
        scores: meta.get::<&[f32]>("tokenizer.ggml.scores")?.map(<[f32]>::to_vec),
        types: meta.get("tokenizer.ggml.token_type")?,
        merges: meta.get("tokenizer.ggml.merges")?.map(strings),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        sep: id("seperator_token_id")?,
        cls: id("cls_token_id")?,
        mask: id("mask_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        rows: None,
    })
}
