//! How a text becomes one vector: pooling and what follows it, as a sentence-transformers folder, a GGUF file, the caller or
//! else the architecture has it.

use crate::file;
use crate::model::config::{Bias, Config};
use crate::model::layers::Net;
use crate::model::program::{Out, Program};
use crate::ops::{Act, NormKind, NormSpec, Pooling, ValueId};
use crate::{Error, Result};

/// What a model is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// What it was made for: encoders give vectors or scores, all others logits.
    #[default]
    Own,
    /// A vector for each text.
    Embed(Embedding),
}

/// How a text becomes one vector; fields that are none are left to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Embedding {
    /// How the vectors of the tokens become one.
    pub pooling: Option<Pooling>,
    /// Whether the vector is brought to length 1.
    pub normalize: Option<bool>,
}

/// What follows the last hidden states.
struct Steps {
    pooling: Pooling,
    dense: Vec<Dense>,
    normalize: bool,
}

/// A matrix after the pooling: `PREFIX.weight`, `PREFIX.bias`.
struct Dense {
    prefix: String,
    n: u32,
    bias: Bias,
    act: Option<Act>,
}

/// The dense layers that GGUF files may have, as folders call them.
const DENSE: [&str; 2] = ["2_Dense/linear", "3_Dense/linear"];

impl Net<'_> {
    /// The end of a model that gives a vector for each text, from its last hidden states.
    pub(super) fn embedding(mut self, x: ValueId, default: Pooling) -> Result<Program> {
        for classifier in ["classifier.weight", "score.weight"] {
            if self.c.rows(classifier).is_some() {
                let what = format!("a classifier ({classifier}) after a {} model", self.c.names.arch.name());
                return Err(Error::unsupported(what, "vectors, and the scores of BERT's rerankers, work"));
            }
        }
        let steps = Steps::read(self.c, default)?;
        let mut y = self.b.pool(x, steps.pooling);
        for dense in &steps.dense {
            y = self.linear(&dense.prefix, y, dense.n, dense.bias);
            if let Some(act) = dense.act {
                y = self.b.act("act", y, act);
            }
        }
        if steps.normalize {
            // x / |x| = x / sqrt(mean(x²)) / sqrt(n)
            let n = self.b.width(y);
            let spec = NormSpec { kind: NormKind::Rms, n, weight: None, bias: None, eps: 1e-30 };
            y = self.b.norm("normalized", y, spec);
            y = self.b.scale("embedding", y, (1.0 / f64::from(n).sqrt()) as f32);
        }
        Ok(self.b.finish(vec![Out::Hidden(x), Out::Pooled(y)]))
    }

    /// The head of a reranker, which scores a pair of texts: BERT's pooler and a classifier of one label.
    pub(super) fn score(mut self, x: ValueId, pooler: &str, classifier: &str) -> Result<Program> {
        let labels = self.c.rows(&format!("{classifier}.weight")).unwrap_or(0);
        if labels != 1 {
            let what = format!("a classifier of {labels} labels");
            return Err(Error::unsupported(what, "one label, the score of a reranker, works"));
        }
        if let Task::Embed(embedding) = self.c.task
            && embedding != Embedding::default()
        {
            return Err(Error::argument("pooling", "the model gives scores of pairs of texts, not vectors"));
        }
        let n = self.b.width(x);
        let y = self.b.pool(x, Pooling::Cls);
        let y = self.linear(pooler, y, n, Bias::Yes);
        let y = self.b.act("pooler", y, Act::Tanh);
        let y = self.linear(classifier, y, 1, Bias::Yes);
        Ok(self.b.finish(vec![Out::Hidden(x), Out::Score(y)]))
    }
}

impl Steps {
    fn read(c: &Config<'_>, default: Pooling) -> Result<Self> {
        let mut steps = if c.is_gguf() { Self::of_gguf(c, default)? } else { Self::of_folder(c, default)? };
        if let Task::Embed(wanted) = c.task {
            steps.pooling = wanted.pooling.unwrap_or(steps.pooling);
            steps.normalize = wanted.normalize.unwrap_or(steps.normalize);
        }
        Ok(steps)
    }

    fn of_gguf(c: &Config<'_>, default: Pooling) -> Result<Self> {
        let pooling = match c.maybe_int("pooling_type", 0..=3)? {
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(3) => Pooling::Last,
            _ => default,
        };
        let dense = DENSE.iter().filter_map(|prefix| {
            let n = c.rows(&format!("{prefix}.weight"))?;
            Some(Dense { prefix: (*prefix).to_owned(), n, bias: Bias::IfPresent, act: None })
        });
        Ok(Self { pooling, dense: dense.collect(), normalize: true })
    }

    fn of_folder(c: &Config<'_>, default: Pooling) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Module {
            path: String,
            r#type: String,
        }
        const LIST: &str = "modules.json";
        let mut steps = Self { pooling: default, dense: Vec::new(), normalize: true };
        let Some(text) = c.names.file.text(LIST) else { return Ok(steps) };
        let modules: Vec<Module> = file::json::parse(LIST, text)?;
        steps.normalize = false;
        let mut pooled = false;
        for Module { path, r#type } in &modules {
            let kind = r#type.rsplit('.').next().unwrap_or_default();
            match kind {
                "Transformer" => {}
                "Pooling" if !pooled => {
                    steps.pooling = pooling(&config(c, path)?, path)?;
                    pooled = true;
                }
                "Dense" if pooled && !steps.normalize => steps.dense.push(Dense::read(c, path)?),
                "Normalize" if pooled => steps.normalize = true,
                _ => {
                    let works = "Transformer, Pooling, Dense and Normalize work, in this order";
                    return Err(Error::unsupported(format!("module {kind} of {LIST}"), works));
                }
            }
        }
        Ok(steps)
    }
}

type Json = serde_json::Map<String, serde_json::Value>;

/// `config.json` of a module.
fn config(c: &Config<'_>, path: &str) -> Result<Json> {
    let name = format!("{path}/config.json");
    let text = c.names.file.text(&name).ok_or_else(|| Error::Model(format!("{name} is missing")))?;
    file::json::parse(&name, text)
}

/// The pooling that a module's configuration names, in its older form by a flag for each mode.
fn pooling(config: &Json, path: &str) -> Result<Pooling> {
    let flags = config.iter().filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true);
    let mut modes: Vec<&str> = flags.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect();
    modes.extend(config.get("pooling_mode").and_then(serde_json::Value::as_str));
    match modes[..] {
        ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
        ["cls_token" | "cls"] => Ok(Pooling::Cls),
        ["lasttoken"] => Ok(Pooling::Last),
        _ => {
            let what = format!("pooling by {:?} in {path}/config.json", modes.join(", "));
            Err(Error::unsupported(what, "one of mean, cls and lasttoken works"))
        }
    }
}

impl Dense {
    fn read(c: &Config<'_>, path: &str) -> Result<Self> {
        let config = config(c, path)?;
        let wrong = |key: &str, works: &str| {
            let value = config.get(key).map_or("missing".to_owned(), ToString::to_string);
            Error::unsupported(format!("{key} = {value} in {path}/config.json"), format!("{works} works"))
        };
        let prefix = format!("{path}/linear");
        let n = c
            .rows(&format!("{prefix}.weight"))
            .ok_or_else(|| Error::Model(format!("tensor linear.weight is missing in {path}/model.safetensors")))?;
        if config.get("out_features").and_then(serde_json::Value::as_u64) != Some(n.into()) {
            return Err(wrong("out_features", &n.to_string()));
        }
        let bias = match config.get("bias").and_then(serde_json::Value::as_bool) {
            Some(false) => Bias::No,
            _ => Bias::Yes,
        };
        // Without one, the module's own default.
        let act = config.get("activation_function").and_then(serde_json::Value::as_str).unwrap_or("Tanh");
        let act = match act.rsplit('.').next() {
            Some("Identity") => None,
            Some("Tanh") => Some(Act::Tanh),
            _ => return Err(wrong("activation_function", "Identity or Tanh")),
        };
        let residual = config.get("use_residual").is_some_and(|v| *v != false);
        if residual {
            return Err(wrong("use_residual", "false"));
        }
        Ok(Self { prefix, n, bias, act })
    }
}
