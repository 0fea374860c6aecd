//! The modules of a sentence-transformers folder: `modules.json` lists what follows the model itself, each in a folder of
//! its own with a `config.json` and perhaps weights.

use std::path::{Path, PathBuf};

use super::folder::{is_plain_name, read_text};
use super::model_file::Texts;
use super::{json, quoted};
use crate::{Error, Result};

/// The list of modules.
pub(super) const LIST: &str = "modules.json";

/// Adds the configurations of the modules beside `path` to `texts`, as `FOLDER/config.json`. Gives the files of weights
/// that modules have, with the folder's name.
pub(super) fn read(path: &Path, texts: &mut Texts) -> Result<Vec<(String, PathBuf)>> {
    #[derive(serde::Deserialize)]
    struct Module {
        path: String,
    }
    let Some(text) = texts.get(LIST) else { return Ok(Vec::new()) };
    let modules: Vec<Module> = json::parse(LIST, text)?;
    let mut weights = Vec::new();
    // The model itself is the folder, or a module with an empty path.
    for Module { path: folder } in modules.into_iter().filter(|module| !module.path.is_empty()) {
        if !is_plain_name(&folder) {
            let problem = format!("module {} is a path, not the name of a folder in this one", quoted(&folder));
            return Err(Error::malformed(LIST, None, problem));
        }
        let inside = path.with_file_name(&folder);
        let config = inside.join("config.json");
        if config.exists() {
            texts.insert(format!("{folder}/config.json"), read_text(&config)?);
        }
        let file = inside.join("model.safetensors");
        if file.exists() {
            weights.push((folder, file));
        }
    }
    Ok(weights)
}
