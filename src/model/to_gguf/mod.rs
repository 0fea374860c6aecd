//! A model's folder as the GGUF file that llama.cpp's converter would make of it.
//!
//! Nothing here knows an architecture. Its hyper-parameters are written under the names that its tables give them; then its
//! program is built a second time, as from that file. The two programs use the same matrices in the same order, so the
//! weights of the one are the tensors of the other: names, stacks of experts, parts of fused matrices, norms with one added,
//! transposes. Where the second program has interleaved rotary pairs and the first does not, the rows of q and k are permuted.

mod fold;
mod metadata;
mod same;
mod tensors;

use super::Model;
use crate::file::Value;
use crate::model::arch::Arch;
use crate::model::config::Config;
use crate::model::config::keys::TIED;
use crate::model::embedding::{Embedding, Task};
use crate::model::program::{Node, Out, Program};
use crate::ops::{Mask, Op, RopeSpec};
use crate::{Error, Result};
use tensors::{TensorRows, What};

/// Takes the elements of whole rows.
#[cfg(not(target_arch = "wasm32"))]
pub type ElementsFn<'a> = dyn FnMut(&[f32]) -> Result<()> + Send + 'a;
/// Takes the elements of whole rows.
#[cfg(target_arch = "wasm32")]
pub type ElementsFn<'a> = dyn FnMut(&[f32]) -> Result<()> + 'a;

/// A GGUF file in the making, without its tokenizer.
pub struct Conversion {
    /// `general.architecture`, the hyper-parameters, and what else follows from the configuration.
    pub metadata: Vec<(String, Value)>,
    /// The tensors, in the order of the layers.
    pub tensors: Vec<Converted>,
    /// Layers.
    pub layers: u32,
    /// Query heads to a KV head.
    pub group: u32,
    /// The embedding table is the head, too.
    pub tied: bool,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct Converted {
    /// Its name.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<u64>,
    parts: Vec<TensorRows>,
}

impl Model {
    /// What `self`, a model from a folder, is as a GGUF file. Fails, by name, where the file could not say the same.
    pub async fn to_gguf(&self) -> Result<Conversion> {
        let arch = Arch::named(self.arch)?;
        if self.file.gguf().is_some() {
            return Err(Error::argument(self.file.name(), "it is a GGUF file already"));
        }
        let mut config = Config::read(&self.file, arch, Task::Own).await?;
        let mut program = (arch.build)(&config)?;
        let headless = config.lacks_head(&program);
        if headless || program.outs.iter().any(|out| matches!(out, Out::Pooled(_))) {
            // These files do not say whether vectors are brought to length 1: readers do it.
            let normalize = Some(true);
            config =
                Config::read(&self.file, arch, Task::Embed(Embedding { normalize, ..Embedding::default() })).await?;
            program = (arch.build)(&config)?;
        }
        let factors = factors(&config, &program)?;
        let mut metadata = metadata::metadata(&config, &program, arch)?;
        if headless && let Some((_, Value::Str(prefix))) = metadata.first() {
            let key = format!("{prefix}.{TIED}");
            metadata.push((key, Value::Bool(false)));
        }
        let target = tensors::virtual_file(&config, &program, &metadata, &factors)?;
        let target_config = Config::read(&target, arch, config.task).await?;
        let as_gguf = || -> Result<_> {
            let target_program = (arch.build)(&target_config)?;
            let changes = same::changes(&program, &target_program)?;
            tensors::tensors(&target_config, [&program, &target_program], &changes)
        };
        let mut tensors = as_gguf().map_err(|e| {
            let unsaid = config.unsaid_in(&target_config);
            let what = if unsaid.is_empty() { "this model".to_owned() } else { unsaid.join(", ") };
            let reason = e.to_string();
            let reason = reason.strip_prefix("model: ").unwrap_or(&reason);
            let what = format!("{what} in a GGUF file of a {} model ({reason})", arch.name());
            Error::unsupported(what, "the folder works as it is")
        })?;
        for (name, factors) in factors {
            let shape = vec![factors.len() as u64];
            tensors.push(Converted { name: name.to_owned(), shape, parts: vec![TensorRows::computed(factors)] });
        }
        let heads = config.maybe_int("num_attention_heads", 1..=u32::MAX)?.unwrap_or(1);
        let kv_heads = config.maybe_int("num_key_value_heads", 1..=u32::MAX)?.unwrap_or(heads);
        let tied = !tensors.iter().any(|t| t.name == "output.weight");
        Ok(Conversion { metadata, tensors, layers: program.layers(), group: heads / kv_heads, tied })
    }

    /// The rows of a converted tensor, in order, some at a time: `each` gets the elements of whole rows.
    pub async fn converted_rows(&self, tensor: &Converted, slice: usize, each: &mut ElementsFn<'_>) -> Result<()> {
        for part in &tensor.parts {
            match &part.what {
                What::Computed(elements) => each(elements)?,
                What::Zeros(shape) => {
                    let (rows, k) = (shape[0] as usize, shape[1..].iter().product::<u64>() as usize);
                    (0..rows).try_for_each(|_| each(&vec![0.0; k]))?;
                }
                What::Vector(id, range, less) => {
                    let mut elements = self.located.read_vector(&self.file, *id).await?;
                    elements.iter_mut().for_each(|x| *x -= less);
                    let elements = part.change.apply(elements, 1);
                    each(&elements[range.start as usize..range.end as usize])?;
                }
                What::Matrix(id, rows) => {
                    let at = &self.located.weights[id.index()];
                    let (k, format) = (at.k as usize, at.format);
                    let slice = if part.change.rows.is_some() { usize::MAX } else { slice };
                    let mut decoded = |_, bytes: &[u8]| {
                        let rows = bytes.len() as u64 / at.row_bytes().max(1);
                        let mut elements = vec![0.0; rows as usize * k];
                        format.decode(bytes, &mut elements)?;
                        each(&part.change.apply(elements, k))
                    };
                    self.located.read_some_rows(&self.file, *id, rows.clone(), slice, &mut decoded).await?;
                }
            }
        }
        Ok(())
    }
}

/// Divisors of rotary frequencies, one a pair, which GGUF files hold as tensors: Llama 3's scaling, LongRoPE's two lists.
fn factors(config: &Config<'_>, program: &Program) -> Result<Vec<(&'static str, Vec<f32>)>> {
    /// For pairs that do not rotate: as llama.cpp's converter has it.
    const NOT_ROTATED: f64 = 1e30;
    let mut all = Vec::new();
    if matches!(rope_type(config)?, "llama3" | "proportional")
        && let Some(table) = full_rope(program).map(|spec| &program.ropes[spec.table.index()])
    {
        let full = config.maybe_float("rope_parameters.full_attention.rope_theta", 0.0..=f64::MAX)?;
        let theta = full.or(config.maybe_float("rope_parameters.rope_theta", 0.0..=f64::MAX)?).unwrap_or(1e4);
        let dims = 2.0 * table.divisors.len() as f64;
        let plain = (0..table.divisors.len()).map(|i| theta.powf(-2.0 * i as f64 / dims));
        let factors =
            plain.zip(&table.divisors).map(|(plain, scaled)| (plain / scaled).min(NOT_ROTATED) as f32).collect();
        all.push(("rope_freqs.weight", factors));
    }
    for (key, name) in [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")] {
        if let Some(factors) = config.maybe_floats(&format!("rope_parameters.{key}"))? {
            all.push((name, factors.into_iter().map(|f| f as f32).collect()));
        }
    }
    Ok(all)
}

/// The type of the rotation; of the full-attention layers, if others have their own.
fn rope_type<'a>(config: &'a Config<'_>) -> Result<&'a str> {
    let of_full = config.text("rope_parameters.full_attention.rope_type")?;
    Ok(of_full.or(config.text("rope_parameters.rope_type")?).unwrap_or("default"))
}

/// The rotation of the first full-attention layer, or of the first layer that rotates.
fn full_rope(program: &Program) -> Option<RopeSpec> {
    let slides = |layer: Option<u32>| {
        let windowed =
            |op: &Op| matches!(op, Op::Attend(op) if matches!(op.mask, Mask::Window(_) | Mask::BidirectionalWindow(_)));
        program.nodes.iter().any(|node| node.layer == layer && windowed(&node.op))
    };
    let rope = |node: &Node| if let Op::Rope(op) = &node.op { Some((node.layer, op.spec)) } else { None };
    let ropes = || program.nodes.iter().filter_map(rope);
    ropes().find(|(layer, _)| !slides(*layer)).or_else(|| ropes().next()).map(|(_, spec)| spec)
}
