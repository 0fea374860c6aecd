//! Which of a repository's files make the model that was asked for.

use std::collections::BTreeMap;

use super::reference::{RepoRef, Which};
use crate::quant::BlockFormat;
use crate::quant::mix::FileType;
use crate::{Error, Result};

/// What is taken where several would do: the first of these. Q4_K_M loses little, and fits most machines; then what is close to
/// it in size, larger ones first; then all that is larger; then what is smaller.
pub const PREFERRED: [&str; 23] = [
    "Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_0", "Q4_K", "Q5_K_M", "Q5_K_S", "Q5_1",
    "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "FP16", "F32",
];

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a model, as indices into the list that they were chosen from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// All that is needed.
    pub files: Vec<usize>,
    /// What opens it: a GGUF file, the first part of several; none: the folder.
    pub model: Option<usize>,
    /// Its quantisation, as the file's name has it.
    pub quant: Option<String>,
    /// Quantisations that are there, too.
    pub others: Vec<String>,
}

/// A GGUF model of a repository: a file, or the parts of one.
#[derive(Debug)]
struct Gguf {
    files: Vec<usize>,
    /// Its name without folder, part and ending.
    stem: String,
    quant: Option<String>,
    complete: bool,
}

/// Chooses among the paths of a repository (or of a snapshot of it in the cache).
pub fn choose(reference: &RepoRef, paths: &[&str]) -> Result<Choice> {
    let models = ggufs(paths);
    let named = |model: &Gguf| model.quant.clone().unwrap_or_else(|| model.stem.clone());
    let of = |model: &Gguf| Choice {
        files: model.files.clone(),
        model: model.files.first().copied(),
        quant: model.quant.clone(),
        others: models.iter().filter(|other| other.stem != model.stem).map(named).collect(),
    };
    let there = || list(models.iter().map(named));
    let missing = |what: String, instead: String| Error::NotFound { what, instead };
    let repo = &reference.repo;
    let found = match &reference.which {
        Which::File(file) => {
            let at = paths.iter().position(|path| path == file);
            let model = at.and_then(|at| models.iter().find(|model| model.files.contains(&at)));
            model.ok_or_else(|| missing(format!("{repo} has no model {file}"), format!("it has {}", there())))?
        }
        Which::Quant(_) if models.is_empty() => {
            let instead = if folder(paths).is_some() {
                format!("its weights are safetensors; {repo} takes them, and --quantize TYPE makes them smaller")
            } else {
                "another repository, often with GGUF in its name, works".to_owned()
            };
            return Err(missing(format!("{repo} has no GGUF files"), instead));
        }
        Which::Quant(quant) => {
            let wanted = quant.to_ascii_uppercase();
            let plain = |text: &str| text.to_ascii_uppercase();
            let by_name = |model: &&Gguf| {
                let stem = plain(&model.stem);
                stem == wanted || ["-", ".", "_"].iter().any(|dash| stem.ends_with(&format!("{dash}{wanted}")))
            };
            let by_quant = |model: &&Gguf| model.quant.as_deref().is_some_and(|quant| plain(quant) == wanted);
            let mut fits: Vec<_> = models.iter().filter(by_quant).collect();
            if fits.is_empty() || fits.len() > 1 && models.iter().any(|model| by_name(&model) && !by_quant(&model)) {
                fits = models.iter().filter(by_name).collect();
            }
            match fits[..] {
                [] => return Err(missing(format!("{repo} has no {quant}"), format!("it has {}", there()))),
                [one] => one,
                // UD-Q4_K_XL beside Q4_K_XL, and several models in one repository: the plainest name.
                _ => match one_shortest(&fits) {
                    Some(one) => one,
                    None => {
                        let names = list(fits.iter().map(|model| model.stem.clone()));
                        return Err(Error::argument(
                            reference.to_string(),
                            format!("several files are {quant}: {names}; {repo}:NAME takes one of them"),
                        ));
                    }
                },
            }
        }
        Which::Usual => {
            let rank = |model: &Gguf| {
                let quant = model.quant.as_deref();
                quant.and_then(|quant| PREFERRED.iter().position(|preferred| preferred.eq_ignore_ascii_case(quant)))
            };
            // What cannot be run is taken only where nothing else is there, so that the error can say so.
            let key = |model: &&Gguf| {
                let runs = model.quant.as_deref().is_none_or(runs);
                (!model.complete, !runs, rank(model).unwrap_or(usize::MAX), model.stem.len())
            };
            match models.iter().min_by_key(key) {
                Some(model) => model,
                None => {
                    let what = format!("{repo} has neither GGUF files nor {SINGLE} with {CONFIG}");
                    let instead = "another repository, often with GGUF in its name, works".to_owned();
                    return folder(paths).ok_or_else(|| missing(what, instead));
                }
            }
        }
    };
    if !found.complete {
        return Err(missing(format!("{repo}: a part of {} is not there", found.stem), format!("it has {}", there())));
    }
    if let Some(quant) = found.quant.as_deref().filter(|quant| !runs(quant)) {
        let others: Vec<_> = models
            .iter()
            .filter(|model| model.complete && model.quant.as_deref().is_some_and(runs))
            .map(named)
            .collect();
        let instead = match &others[..] {
            [] => "a repository with Q4_K_M, Q8_0 or another type of COMPATIBILITY.md works".to_owned(),
            others => format!("{repo} also has {}", list(others.iter().cloned())),
        };
        return Err(Error::unsupported(format!("{quant} ({})", found.stem), instead));
    }
    Ok(of(found))
}

/// The model whose name is shorter than all others'.
fn one_shortest<'a>(models: &[&'a Gguf]) -> Option<&'a Gguf> {
    let least = models.iter().map(|model| model.stem.len()).min()?;
    let mut shortest = models.iter().filter(|model| model.stem.len() == least);
    let one = shortest.next()?;
    shortest.next().is_none().then_some(*one)
}

fn list(names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 24;
    let mut names: Vec<_> = names.collect();
    names.dedup();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    match (names.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (_, 0) => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}

/// The GGUF models among paths, in the order of their names. What only goes with a model (images, importance matrices) is none.
fn ggufs(paths: &[&str]) -> Vec<Gguf> {
    // By folder and name, and the number of parts.
    let mut found: BTreeMap<(String, u32), Parts> = BTreeMap::new();
    for (i, path) in paths.iter().enumerate() {
        let name = path.rsplit('/').next().unwrap_or(path);
        let lower = name.to_ascii_lowercase();
        if !lower.ends_with(".gguf") || lower.contains("mmproj") || lower.contains("imatrix") {
            continue;
        }
        let folder = &path[..path.len() - name.len()];
        let stem = &name[..name.len() - ".gguf".len()];
        let (stem, part, parts) = split(stem).unwrap_or((stem, 1, 0));
        let model = found.entry((format!("{folder}{stem}"), parts)).or_default();
        stem.clone_into(&mut model.stem);
        model.files.push((part, i));
    }
    let gguf = |((_, count), mut parts): ((String, u32), Parts)| {
        parts.files.sort_unstable();
        let complete = count == 0 || parts.files.iter().map(|(part, _)| *part).eq(1..=count);
        let files = parts.files.into_iter().map(|(_, i)| i).collect();
        Gguf { files, quant: quant(&parts.stem), stem: parts.stem, complete }
    };
    found.into_iter().map(gguf).collect()
}

/// The files of a model, with the numbers of the parts that they are.
#[derive(Default)]
struct Parts {
    stem: String,
    files: Vec<(u32, usize)>,
}

/// `NAME-00002-of-00003` as name, part and parts.
pub(super) fn split(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, parts) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    let (part, parts): (u32, u32) = (number(part)?, number(parts)?);
    (part >= 1 && part <= parts).then_some((name, part, parts))
}

/// The quantisation that a file's name ends with: `Q4_K_M` of `Qwen3-0.6B-Q4_K_M`, `model.q8_0` and `llama_f16`.
pub fn quant(stem: &str) -> Option<String> {
    let upper = stem.to_ascii_uppercase();
    let pieces = upper.split(['-', '.', ' ']).rev();
    pieces.take(3).find_map(|piece| {
        // In a name that has only underscores, a type may begin at any of them.
        let starts = std::iter::once(0).chain(piece.match_indices('_').map(|(at, _)| at + 1));
        starts.map(|start| &piece[start..]).find(|end| is_quant(end)).map(str::to_owned)
    })
}

/// Whether it is a type of weights, as names of files have them.
fn is_quant(text: &str) -> bool {
    if ["F32", "F16", "BF16", "FP16", "FP32", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&text) {
        return true;
    }
    let digits = ["IQ", "TQ", "Q"].into_iter().find_map(|start| text.strip_prefix(start));
    let mut rest = match digits {
        Some(rest) => rest.chars(),
        None => return false,
    };
    rest.next().is_some_and(|c| c.is_ascii_digit())
        && matches!(rest.next(), None | Some('_'))
        && rest.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether weights of a type that a name gives can be run: those that `convert` writes, and mixes of the same formats.
fn runs(quant: &str) -> bool {
    let upper = quant.to_ascii_uppercase();
    let upper = upper.replace("FP16", "F16").replace("FP32", "F32");
    let base = upper.trim_end_matches("_XL").trim_end_matches("_L").trim_end_matches("_MOE");
    let tried = [upper.as_str(), base, &format!("{base}_M"), &format!("{base}_S")];
    tried.iter().any(|name| name.parse::<FileType>().is_ok())
        || BlockFormat::ALL.iter().any(|format| format.info().name.eq_ignore_ascii_case(base))
}

/// The files of a safetensors model: its weights, its configuration, its tokenizer, and the modules of sentence-transformers.
fn folder(paths: &[&str]) -> Option<Choice> {
    let has = |name: &str| paths.contains(&name);
    let sharded = !has(SINGLE) && has(INDEX);
    if !has(CONFIG) || !has(SINGLE) && !sharded {
        return None;
    }
    let wanted = |path: &str| match path.split_once('/') {
        None if path == INDEX => sharded,
        None => crate::file::FOLDER_TEXTS.contains(&path) || !sharded && path == SINGLE || sharded && is_shard(path),
        // 1_Pooling, 2_Dense
        Some((module, file)) => {
            module.starts_with(|c: char| c.is_ascii_digit()) && [CONFIG, SINGLE].contains(&file) && has("modules.json")
        }
    };
    let files = paths.iter().enumerate().filter(|(_, path)| wanted(path)).map(|(i, _)| i).collect();
    Some(Choice { files, model: None, quant: None, others: Vec::new() })
}

/// `model-00001-of-00002.safetensors`
fn is_shard(path: &str) -> bool {
    path.strip_suffix(".safetensors").and_then(split).is_some_and(|(name, ..)| name == "model")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(quant: &str) -> RepoRef {
        let which = match quant {
            "" => Which::Usual,
            file if file.ends_with(".gguf") => Which::File(file.to_owned()),
            quant => Which::Quant(quant.to_owned()),
        };
        RepoRef { repo: "org/repo".to_owned(), revision: "main".to_owned(), which }
    }

    fn chosen<'a>(quant: &str, paths: &[&'a str]) -> Vec<&'a str> {
        let choice = choose(&asked(quant), paths).unwrap_or_else(|e| panic!("{quant} of {paths:?}: {e}"));
        choice.files.iter().map(|&i| paths[i]).collect()
    }

    fn refused(quant: &str, paths: &[&str]) -> String {
        choose(&asked(quant), paths).expect_err("a refusal").to_string()
    }

    #[test]
    fn names_have_quantisations() {
        for (stem, expected) in [
            ("Qwen3-0.6B-Q8_0", Some("Q8_0")),
            ("SmolLM2-135M-Instruct.Q4_1", Some("Q4_1")),
            ("gemma-3-4b-it-q4_0", Some("Q4_0")),
            ("model_Q4_K_M", Some("Q4_K_M")),
            ("x-UD-Q4_K_XL", Some("Q4_K_XL")),
            ("x-IQ2_XXS", Some("IQ2_XXS")),
            ("x-TQ1_0", Some("TQ1_0")),
            ("gpt-oss-20b-MXFP4", Some("MXFP4")),
            ("llama-bf16", Some("BF16")),
            ("llama_fp16", Some("FP16")),
            ("Q6_K", Some("Q6_K")),
            ("x-Q2_K_L", Some("Q2_K_L")),
            ("x-Q4_K_M-v2", Some("Q4_K_M")),
            ("Qwen3-0.6B", None),
            ("tiny", None),
            ("quite-a-model", None),
            ("Q", None),
            ("", None),
        ] {
            assert_eq!(quant(stem).as_deref(), expected, "{stem}");
        }
    }

    #[test]
    fn the_usual_one_is_q4_k_m_then_what_is_near() {
        let all = [
            "m-Q2_K.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_S.gguf",
            "m-IQ4_XS.gguf",
            "m-Q4_K_M.gguf",
            "m-f16.gguf",
            "README.md",
        ];
        assert_eq!(chosen("", &all), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen("", &["m-Q2_K.gguf", "m-Q8_0.gguf", "m-f16.gguf"]), ["m-Q8_0.gguf"]);
        assert_eq!(chosen("", &["m-Q2_K.gguf", "m-f16.gguf"]), ["m-Q2_K.gguf"]);
        assert_eq!(chosen("", &["tiny.gguf"]), ["tiny.gguf"]);
        assert_eq!(chosen("q8_0", &all), ["m-Q8_0.gguf"]);
        assert_eq!(chosen("F16", &all), ["m-f16.gguf"]);
        let choice = choose(&asked(""), &all).unwrap();
        assert_eq!(choice.quant.as_deref(), Some("Q4_K_M"));
        assert!(choice.others.iter().any(|other| other == "Q8_0") && !choice.others.contains(&"Q4_K_M".to_owned()));
    }

    #[test]
    fn what_only_goes_with_a_model_is_none() {
        let paths = ["mmproj-model-Q8_0.gguf", "x-MMPROJ-f16.gguf", "x.imatrix.gguf", "x-Q8_0.gguf"];
        assert_eq!(chosen("", &paths), ["x-Q8_0.gguf"]);
        assert_eq!(chosen("q8_0", &paths), ["x-Q8_0.gguf"]);
        assert!(refused("", &paths[..3]).contains("neither GGUF"));
    }

    #[test]
    fn all_parts_are_taken_in_order() {
        let paths =
            ["Q8_0/m-Q8_0-00002-of-00003.gguf", "Q8_0/m-Q8_0-00003-of-00003.gguf", "Q8_0/m-Q8_0-00001-of-00003.gguf"];
        let sorted = [paths[2], paths[0], paths[1]];
        for quant in ["", "Q8_0", paths[2]] {
            assert_eq!(chosen(quant, &paths), sorted);
        }
        assert!(refused("", &paths[..2]).contains("a part of m-Q8_0 is not there"));
        // A whole one is taken before one that lacks a part.
        assert_eq!(chosen("", &[paths[0], "m-Q2_K.gguf"]), ["m-Q2_K.gguf"]);
    }

    #[test]
    fn refusals_say_what_there_is() {
        let paths = ["a-Q8_0.gguf", "a-IQ2_XS.gguf"];
        assert!(refused("Q4_K_M", &paths).contains("org/repo has no Q4_K_M; it has IQ2_XS, Q8_0"));
        assert!(refused("IQ2_XS", &paths).contains("org/repo also has Q8_0"), "{}", refused("IQ2_XS", &paths));
        assert!(refused("", &paths[1..]).contains("is not supported"));
        assert!(refused("x.gguf", &paths).contains("has no model x.gguf"));
        let safetensors = ["config.json", "model.safetensors"];
        assert!(refused("Q8_0", &safetensors).contains("--quantize"));
        assert!(refused("", &["pytorch_model.bin", "config.json"]).contains("neither GGUF"));
        assert!(refused("", &[]).contains("neither GGUF"));
        // Two models of one type: their names differ, and so do references to them.
        let two = ["aa-Q8_0.gguf", "bb-Q8_0.gguf"];
        assert!(refused("Q8_0", &two).contains("aa-Q8_0, bb-Q8_0"));
        assert_eq!(chosen("bb-Q8_0", &two), ["bb-Q8_0.gguf"]);
        let dynamic = ["a-Q4_K_XL.gguf", "a-UD-Q4_K_XL.gguf"];
        assert_eq!(chosen("Q4_K_XL", &dynamic), ["a-Q4_K_XL.gguf"]);
        assert_eq!(chosen("UD-Q4_K_XL", &dynamic), ["a-UD-Q4_K_XL.gguf"]);
    }

    #[test]
    fn folders_have_what_is_read() {
        let paths = [
            "config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "README.md",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "original/model.safetensors",
            "1_Pooling/config.json",
            "modules.json",
        ];
        assert_eq!(
            chosen("", &paths),
            ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "modules.json"]
        );
        let shards = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "consolidated-00001-of-00001.safetensors",
            "model.safetensors.index.json",
            "1_Pooling/config.json",
        ];
        assert_eq!(chosen("", &shards), [shards[0], shards[1], shards[2], shards[4]]);
        assert_eq!(choose(&asked(""), &shards).unwrap().model, None);
    }
}
