//! A model's folder as the GGUF file that llama.cpp's converter would make of it.
//!
//! Nothing here knows an architecture. Its hyper-parameters are written under the names that its tables give them; then its
//! program is built a second time, as from that file. The two programs use the same matrices in the same order, so the
//! weights of the one are the tensors of the other: names, stacks of experts, parts of fused matrices, norms with one added,
//! transposes. Where the second program rotates neighbouring pairs and the first does not, the rows of q and k change places.

use std::collections::BTreeMap;

use super::arch::Arch;
use super::config::Config;
use super::embedding::{Embedding, Task};
use super::names::Names;
use super::program::{CacheSpec, Node, Out, Program, Runs};
use super::{Model, keys};
use crate::file::{Array, ByteSource, Bytes, Description, Metadata, ModelFile, TensorInfo, TensorType, Value};
use crate::ops::{Divide, Mask, Op, Pairing, Pooling, RopeSpec, RowWise, Score, VectorId, WeightId};
use crate::quant::BlockFormat;
use crate::{Error, Result};

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
    parts: Vec<Part>,
}

/// Some rows of a tensor: a whole weight of the program.
#[derive(Clone, Debug)]
struct Part {
    start: u32,
    what: What,
    /// Heads whose pairs become neighbours: (elements of a head, those that are rotated).
    pairs: Option<(u32, u32)>,
}

#[derive(Clone, Debug)]
enum What {
    Matrix(WeightId),
    /// With what must be taken from each element.
    Vector(VectorId, f32),
    Computed(Vec<f32>),
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
        if program.outs.iter().any(|out| matches!(out, Out::Pooled(_))) {
            // These files do not say whether vectors are brought to length 1: readers do it.
            let normalize = Some(true);
            config =
                Config::read(&self.file, arch, Task::Embed(Embedding { normalize, ..Embedding::default() })).await?;
            program = (arch.build)(&config)?;
        }
        let factors = factors(&config, &program)?;
        let metadata = metadata(&config, &program, arch)?;
        let target = virtual_file(&config, &program, &metadata, &factors)?;
        let target_config = Config::read(&target, arch, config.task).await?;
        let target_program = (arch.build)(&target_config)?;
        let pairs = same_but_for_pairs(&program, &target_program)?;
        let mut tensors = tensors(&target_config, [&program, &target_program], &pairs)?;
        for (name, factors) in factors {
            let shape = vec![factors.len() as u64];
            let part = Part { start: 0, what: What::Computed(factors), pairs: None };
            tensors.push(Converted { name: name.to_owned(), shape, parts: vec![part] });
        }
        let heads = config.maybe_int("num_attention_heads", 1..=u32::MAX)?.unwrap_or(1);
        let kv_heads = config.maybe_int("num_key_value_heads", 1..=u32::MAX)?.unwrap_or(heads);
        let tied = !tensors.iter().any(|t| t.name == "output.weight");
        Ok(Conversion { metadata, tensors, layers: program.layers(), group: heads / kv_heads, tied })
    }

    /// The rows of a converted tensor, in order, some at a time: `each` gets the elements of whole rows.
    pub async fn converted_rows(
        &self,
        tensor: &Converted,
        slice: usize,
        each: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        for part in &tensor.parts {
            match &part.what {
                What::Computed(elements) => each(elements)?,
                What::Vector(id, less) => {
                    let mut elements = self.located.read_vector(&self.file, *id).await?;
                    elements.iter_mut().for_each(|x| *x -= less);
                    each(&reordered(elements, 1, part.pairs))?;
                }
                What::Matrix(id) => {
                    let at = &self.located.weights[id.index()];
                    let (k, format) = (at.k as usize, at.format);
                    let slice = if part.pairs.is_some() { usize::MAX } else { slice };
                    let mut decoded = |_, bytes: &[u8]| {
                        let rows = bytes.len() as u64 / at.row_bytes().max(1);
                        let mut elements = vec![0.0; rows as usize * k];
                        format.decode(bytes, &mut elements)?;
                        each(&reordered(elements, k, part.pairs))
                    };
                    self.located.read_rows(&self.file, *id, slice, &mut decoded).await?;
                }
            }
        }
        Ok(())
    }
}

/// Divisors of rotary frequencies, one a pair, which GGUF files hold as tensors: Llama 3's scaling, LongRoPE's two lists.
fn factors(config: &Config<'_>, program: &Program) -> Result<Vec<(&'static str, Vec<f32>)>> {
    /// For pairs that do not turn: as llama.cpp's converter has it.
    const NEVER: f64 = 1e30;
    let mut all = Vec::new();
    if matches!(rope_type(config)?, "llama3" | "proportional")
        && let Some(table) = full_rope(program).map(|spec| &program.ropes[spec.table.index()])
    {
        let full = config.maybe_float("rope_parameters.full_attention.rope_theta", 0.0..=f64::MAX)?;
        let theta = full.or(config.maybe_float("rope_parameters.rope_theta", 0.0..=f64::MAX)?).unwrap_or(1e4);
        let dims = 2.0 * table.divisors.len() as f64;
        let plain = (0..table.divisors.len()).map(|i| theta.powf(-2.0 * i as f64 / dims));
        let factors = plain.zip(&table.divisors).map(|(plain, scaled)| (plain / scaled).min(NEVER) as f32).collect();
        all.push(("rope_freqs.weight", factors));
    }
    for (key, name) in [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")] {
        if let Some(factors) = config.maybe_floats(&format!("rope_parameters.{key}"))? {
            all.push((name, factors.into_iter().map(|f| f as f32).collect()));
        }
    }
    Ok(all)
}

/// What the rotation is called, of the layers that see everything if others have their own.
fn rope_type<'a>(config: &'a Config<'_>) -> Result<&'a str> {
    let of_full = config.text("rope_parameters.full_attention.rope_type")?;
    Ok(of_full.or(config.text("rope_parameters.rope_type")?).unwrap_or("default"))
}

/// The rotation of the first layer that sees everything, or of the first that rotates.
fn full_rope(program: &Program) -> Option<RopeSpec> {
    let slides = |layer: Option<u32>| {
        let windowed = |op: &Op| matches!(op, Op::Attend(op) if matches!(op.mask, Mask::Window(_) | Mask::Near(_)));
        program.nodes.iter().any(|node| node.layer == layer && windowed(&node.op))
    };
    let rope = |node: &Node| if let Op::Rope(op) = &node.op { Some((node.layer, op.spec)) } else { None };
    let ropes = || program.nodes.iter().filter_map(rope);
    ropes().find(|(layer, _)| !slides(*layer)).or_else(|| ropes().next()).map(|(_, spec)| spec)
}

/// The hyper-parameters under their names in GGUF files, and what those files state that folders leave to be computed.
fn metadata(config: &Config<'_>, program: &Program, arch: &Arch) -> Result<Vec<(String, Value)>> {
    // Some have a name of their own for those that give vectors.
    let own = |name: &&&str| name.ends_with("-embedding") && program.pooled().is_some();
    let prefix = arch.gguf.iter().find(own).or(arch.gguf.first()).copied().ok_or_else(|| {
        Error::unsupported(format!("{} models in GGUF files", arch.name()), "llama.cpp knows none; the folder works")
    })?;
    let empty = ModelFile::new(Description::Gguf(Metadata::default()), Vec::new(), Vec::new())?;
    let names = Names { file: &empty, arch: config.names.arch };
    let mut pairs = derived(config, program)?;
    // No scaling, or one that is written otherwise. llama.cpp knows none that is called "default".
    let unsaid = matches!(rope_type(config)?, "default" | "llama3" | "dynamic" | "proportional");
    let mut written = Vec::new();
    for (name, key) in arch.gguf_keys.iter().chain(keys::GGUF) {
        let scaling = key.starts_with("rope_parameters.") && !key.ends_with("rope_theta");
        let common = keys::GGUF.iter().any(|(common, _)| common == name);
        if written.contains(key) || unsaid && scaling && common {
            continue;
        }
        // Where kinds of layers have rotary parameters of their own, GGUF files have those of full attention.
        let full = || config.value(&key.replacen("rope_parameters.", "rope_parameters.full_attention.", 1));
        let Some(value) = config.value(key).or_else(full).and_then(|value| value.to_gguf(is_float(name))) else {
            continue;
        };
        written.push(key);
        if *key == "rope_parameters.rope_type" && value == Value::Str("default".to_owned()) {
            continue; // which GGUF files do not name
        }
        pairs.entry((*name).to_owned()).or_insert(Some(value));
    }
    // Some configurations name a size of which the feed-forward's follows.
    let gate = |w: &&super::WeightSpec| names.spelled(&w.tensor).ends_with(".ffn_gate.weight");
    let widths: Vec<i32> = program.weights.iter().filter(gate).map(|gate| gate.n as i32).collect();
    if let Some(&first) = widths.first() {
        let one = widths.iter().all(|&n| n == first);
        let list = || Value::Array(Array::I32(widths));
        pairs.insert("feed_forward_length".to_owned(), Some(if one { Value::U32(first as u32) } else { list() }));
    }
    if let Some(head_dim) = config.value("head_dim").and_then(|v| v.to_gguf(false)) {
        pairs.entry("attention.value_length".to_owned()).or_insert(Some(head_dim));
    }
    if let Some(all) = config.maybe_float("rope_parameters.mscale_all_dim", 0.0..=1e6)? {
        // A tenth of it for this one architecture of llama.cpp's (ggml-org/llama.cpp#17945).
        let all = if prefix == "deepseek2" { 0.1 * all } else { all };
        pairs.insert("rope.scaling.yarn_log_multiplier".to_owned(), Some(Value::F32(all as f32)));
        let factor = program.ropes.first().map_or(1.0, |table| table.factor);
        pairs.insert("rope.scaling.attn_factor".to_owned(), Some(Value::F32(factor)));
    }
    let mut all = vec![("general.architecture".to_owned(), Value::Str(prefix.to_owned()))];
    all.extend(pairs.into_iter().filter_map(|(name, value)| Some((format!("{prefix}.{name}"), value?))));
    Ok(all)
}

/// What follows from the program; none for a key that must not be written.
fn derived(config: &Config<'_>, program: &Program) -> Result<BTreeMap<String, Option<Value>>> {
    let mut pairs = BTreeMap::new();
    let mut set = |name: &str, value: Option<Value>| _ = pairs.insert(name.to_owned(), value);
    set("context_length", Some(Value::U32(program.context)));
    let mut windows = vec![None; program.layers() as usize];
    let mut kv_heads = vec![0i32; windows.len()];
    let mut sparsity = vec![f32::NEG_INFINITY; windows.len()];
    // Keys of heads that see everything, of those that see a window; elements that rotate.
    let (mut key_dims, mut rotated) = ([None; 2], [None; 2]);
    let mut dims_of = vec![None; windows.len()];
    for Node { layer, op } in &program.nodes {
        let layer = layer.map_or(0, |layer| layer as usize);
        match op {
            Op::Rope(op) => dims_of[layer] = Some(op.spec.dims),
            Op::Attend(op) => {
                kv_heads[layer] = op.kv_heads as i32;
                // Gemma's folders have what it follows from.
                let plain = (f64::from(op.scale) * f64::from(op.k_dim).sqrt() - 1.0).abs() < 1e-6;
                if config.value("query_pre_attn_scalar").is_some() && !plain {
                    set("attention.scale", Some(Value::F32(op.scale)));
                }
                let near = matches!(op.mask, Mask::Window(_) | Mask::Near(_));
                match op.mask {
                    Mask::Causal => {}
                    Mask::Window(n) => windows[layer] = Some(n),
                    Mask::Full => set("attention.causal", Some(Value::Bool(false))),
                    Mask::Near(n) => {
                        windows[layer] = Some(2 * n);
                        set("attention.causal", Some(Value::Bool(false)));
                    }
                }
                key_dims[usize::from(near)] = Some(op.k_dim);
                rotated[usize::from(near)] = rotated[usize::from(near)].or(dims_of[layer]);
            }
            Op::RowWise(RowWise::Sparsify { by, .. }) => sparsity[layer] = *by,
            Op::Pool(op) => {
                let score = program.outs.iter().any(|out| matches!(out, Out::Score(_)));
                let pooling = match op.pooling {
                    _ if score => 4,
                    Pooling::Mean => 1,
                    Pooling::Cls => 2,
                    Pooling::Last => 3,
                };
                set("pooling_type", Some(Value::U32(pooling)));
            }
            Op::Conv(op) => set("ssm.conv_kernel", Some(Value::U32(op.taps))),
            Op::Delta(op) => {
                set("ssm.inner_size", Some(Value::U32(op.heads * op.v_dim)));
                set("ssm.state_size", Some(Value::U32(op.k_dim)));
                set("ssm.group_count", Some(Value::U32(op.key_heads)));
                set("ssm.time_step_rank", Some(Value::U32(op.heads)));
            }
            Op::Scan(op) => {
                set("ssm.inner_size", Some(Value::U32(op.heads * op.dim)));
                set("ssm.state_size", Some(Value::U32(op.states)));
                set("ssm.group_count", Some(Value::U32(op.groups)));
                set("ssm.time_step_rank", Some(Value::U32(op.heads)));
            }
            _ => {}
        }
    }
    set("block_count", Some(Value::U32(program.layers())));
    // Granite's hybrids say so whether anything rotates.
    const ROTATES: &str = "rope.scaling.finetuned";
    if config.names.arch.gguf_keys.iter().any(|(name, _)| *name == ROTATES) {
        set(ROTATES, Some(Value::Bool(!program.ropes.is_empty())));
    }
    let window = windows.iter().copied().flatten().next();
    set("attention.sliding_window", window.map(Value::U32));
    if window.is_some() {
        const PATTERN: &str = "attention.sliding_window_pattern";
        // Where an architecture has a name of its own for it, every how many layers one sees all, from the first on.
        let every = config.names.arch.gguf_keys.iter().any(|(name, _)| *name == PATTERN);
        let slides: Vec<bool> = windows.iter().map(Option::is_some).collect();
        let second = slides.iter().skip(1).position(|slides| !slides).map_or(slides.len(), |at| at + 1);
        set(PATTERN, Some(if every { Value::U32(second as u32) } else { Value::Array(Array::Bool(slides)) }));
    }
    if let Some(dims) = rotated[0].or(rotated[1]).or(dims_of.iter().flatten().next().copied()) {
        set("rope.dimension_count", Some(Value::U32(dims)));
    }
    if let [Some(full), Some(near)] = rotated
        && full != near
    {
        set("rope.dimension_count_swa", Some(Value::U32(near)));
    }
    if config.names.arch.gguf_keys.iter().any(|(name, _)| *name == "attention.key_length_swa") {
        let [full, near] = key_dims;
        for (dim, ending) in [(full.or(near), ""), (near.or(full), "_swa")] {
            set(&format!("attention.key_length{ending}"), dim.map(Value::U32));
            set(&format!("attention.value_length{ending}"), dim.map(Value::U32));
        }
    }
    if sparsity.iter().any(|by| by.is_finite()) {
        set("activation_sparsity_scale", Some(Value::Array(Array::F32(sparsity))));
    }
    if kv_heads.iter().any(|&n| n != kv_heads[0]) {
        set("attention.head_count_kv", Some(Value::Array(Array::I32(kv_heads))));
    }
    for (number, tensor) in [(2, "2_Dense/linear.weight"), (3, "3_Dense/linear.weight")] {
        if let Some(dense) = program.weights.iter().find(|w| w.tensor == tensor) {
            set(&format!("dense_{number}_feat_in"), Some(Value::U32(dense.k)));
            set(&format!("dense_{number}_feat_out"), Some(Value::U32(dense.n)));
        }
    }
    // A fixed stretch of the base is written as the base that it comes to.
    if config.text("rope_parameters.rope_type")? == Some("dynamic")
        && let Some(&[_, second, ..]) = program.ropes.first().map(|table| &table.divisors[..])
    {
        let pairs_of = program.ropes[0].divisors.len() as f64;
        set("rope.freq_base", Some(Value::F32(second.recip().powf(pairs_of) as f32)));
    }
    pairs.extend(of_experts(program).into_iter().map(|(name, value)| (name.to_owned(), Some(value))));
    Ok(pairs)
}

/// What follows from the operations, under its names in GGUF files: how experts are chosen, and the sizes of latent attention,
/// which has one KV head.
fn of_experts(program: &Program) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    let mut heads = Vec::new();
    for node in &program.nodes {
        match &node.op {
            Op::Route(route) => {
                let spec = route.spec;
                match spec.score {
                    Score::Softmax => all.push(("expert_gating_func", Value::U32(1))),
                    Score::Sigmoid => all.push(("expert_gating_func", Value::U32(2))),
                    Score::SoftmaxOfChosen => {}
                }
                all.push(("expert_weights_norm", Value::Bool(spec.divide != Divide::No)));
                all.push(("expert_weights_scale", Value::F32(spec.scale)));
            }
            Op::ExpertLinear(experts) if !experts.own => {
                all.push(("expert_feed_forward_length", Value::U32(experts.n)));
            }
            Op::HeadLinear(linear) => heads.push((linear.n, linear.k)),
            _ => {}
        }
    }
    let pages = program.caches.first().copied();
    if let (Some(CacheSpec::Pages { k_dim, v_dim, v_in_k: true, .. }), [(_, nope), (value, _), ..]) =
        (pages, &heads[..])
    {
        all.push(("attention.head_count_kv", Value::U32(1)));
        all.push(("attention.key_length", Value::U32(k_dim)));
        all.push(("attention.value_length", Value::U32(v_dim)));
        all.push(("attention.key_length_mla", Value::U32(nope + k_dim - v_dim)));
        all.push(("attention.value_length_mla", Value::U32(*value)));
    }
    all
}

/// Whether a GGUF key holds a float, also where its value is whole.
fn is_float(name: &str) -> bool {
    const FLOATS: [&str; 14] = [
        "epsilon",
        "freq_base",
        "freq_base_swa",
        "factor",
        "scale",
        "scale_linear",
        "softcapping",
        "clamp_kqv",
        "max_alibi_bias",
        "weights_scale",
        "beta_fast",
        "beta_slow",
        "log_multiplier",
        "logit_scale",
    ];
    FLOATS.iter().any(|end| name.ends_with(end))
}

/// The file as far as a program depends on it: metadata, and tensors of which only `rope_freqs` can be read.
fn virtual_file(
    config: &Config<'_>,
    program: &Program,
    metadata: &[(String, Value)],
    factors: &[(&'static str, Vec<f32>)],
) -> Result<ModelFile> {
    let mut meta = Metadata::default();
    for (key, value) in metadata {
        meta.insert(key.clone(), value.clone());
    }
    let ty = TensorType::Block(BlockFormat::F32);
    let mut bytes = Vec::new();
    let mut tensors = BTreeMap::new();
    for (name, factors) in factors {
        let (offset, shape) = (bytes.len() as u64, vec![factors.len() as u64]);
        bytes.extend(factors.iter().flat_map(|f| f.to_le_bytes()));
        let length = bytes.len() as u64 - offset;
        let info = TensorInfo { name: (*name).to_owned(), ty, shape, file: 0, offset, bytes: length };
        tensors.insert((*name).to_owned(), info);
    }
    let source: Box<dyn ByteSource> = Box::new(Bytes::new(config.names.file.name(), bytes));
    let empty = ModelFile::new(Description::Gguf(meta.clone()), Vec::new(), Vec::new())?;
    let names = Names { file: &empty, arch: config.names.arch };
    let used = program.weights.iter().map(|w| &w.tensor).chain(program.vectors.iter().map(|v| &v.tensor));
    for tensor in used {
        if let Some(info) = config.names.find(tensor) {
            for name in apart(names.spelled(tensor)) {
                let shape = info.shape.clone();
                let info = TensorInfo { name: name.clone(), ty, shape, file: 0, offset: 0, bytes: 0 };
                tensors.entry(name).or_insert(info);
            }
        }
    }
    ModelFile::new(Description::Gguf(meta), tensors.into_values().collect(), vec![source])
}

/// What becomes of a tensor: llama.cpp wants the two kinds of matrices of latent attention apart.
fn apart(name: String) -> Vec<String> {
    match name.strip_suffix("attn_kv_b.weight") {
        Some(layer) => ["k", "v"].map(|kind| format!("{layer}attn_{kind}_b.weight")).into(),
        None => vec![name],
    }
}

/// Which weights have their rows in another order in the GGUF file.
#[derive(Default)]
struct Pairs {
    weights: BTreeMap<u32, (u32, u32)>,
    vectors: BTreeMap<u32, (u32, u32)>,
}

/// Checks that two programs compute the same, up to where their weights lie.
fn same_but_for_pairs(folder: &Program, gguf: &Program) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    let differs = |what: &str| {
        Err(Error::unsupported(
            format!("a GGUF file of this model: {what} would differ from the folder's"),
            "the folder works as it is",
        ))
    };
    if folder.nodes.len() != gguf.nodes.len() || folder.weights.len() != gguf.weights.len() {
        return differs("its operations");
    }
    let counts = |p: &Program| (p.vectors.len(), p.values.len(), p.groups, p.vocab);
    if counts(folder) != counts(gguf) || folder.caches != gguf.caches || folder.outs != gguf.outs {
        return differs("its shape");
    }
    for (a, b) in folder.ropes.iter().zip(&gguf.ropes) {
        let near = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-6 * x.abs() + 1e-20;
        let angles = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(near);
        let long = match (&a.long, &b.long) {
            (Some((x, a)), Some((y, b))) => x == y && angles(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let factors = (a.factor - b.factor).abs() <= 1e-6 && a.growth == b.growth;
        if !angles(&a.divisors, &b.divisors) || !long || !factors {
            return differs("a rotary embedding");
        }
    }
    for (a, b) in folder.nodes.iter().zip(&gguf.nodes) {
        match (&a.op, &b.op) {
            (Op::Rope(x), Op::Rope(y)) if x.spec.pairing != y.spec.pairing => {
                let spec = RopeSpec { pairing: x.spec.pairing, ..y.spec };
                let turned = x.spec.pairing == Pairing::Neox && *x == (crate::ops::Rope { spec, ..y.clone() });
                let made = folder.nodes.iter().find_map(|n| match &n.op {
                    Op::Linear(linear) if linear.out == x.x => Some(linear),
                    _ => None,
                });
                let Some(linear) = made.filter(|_| turned) else { return differs("the order of rotated pairs") };
                let order = (x.head_dim, x.spec.dims);
                for part in &linear.parts {
                    pairs.weights.insert(part.weight.0, order);
                    pairs.vectors.extend(part.bias.map(|bias| (bias.0, order)));
                }
            }
            (a_op, b_op) if a_op != b_op => {
                let layer = a.layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
                return differs(&format!("{}{layer}", a_op.name()));
            }
            _ => {}
        }
    }
    Ok(pairs)
}

/// The tensors that the program built from the GGUF file looks for, and where their rows come from.
fn tensors(target: &Config<'_>, [folder, gguf]: [&Program; 2], pairs: &Pairs) -> Result<Vec<Converted>> {
    let mut all: Vec<(String, Vec<Part>, Option<u64>)> = Vec::new();
    let mut places = BTreeMap::<String, usize>::new();
    let mut add = |name: String, part: Part, k: Option<u64>| {
        let at = *places.entry(name.clone()).or_insert_with(|| {
            all.push((name, Vec::new(), k));
            all.len() - 1
        });
        if all[at].1.iter().all(|other| other.start != part.start) {
            all[at].1.push(part);
        }
    };
    if gguf.weights.iter().any(|w| w.runs != Runs::ONE) || gguf.vectors.iter().any(|v| v.runs != Runs::ONE || v.neg_exp)
    {
        return Err(Error::unsupported(
            "a GGUF file whose tensors hold matrices by turns",
            "the folder works as it is",
        ));
    }
    for (i, spec) in gguf.weights.iter().enumerate() {
        let i = i as u32;
        let what = What::Matrix(WeightId(i));
        let (name, expert) = target.names.translated(&spec.tensor);
        let part = Part { start: expert * spec.n + spec.start, what, pairs: pairs.weights.get(&i).copied() };
        add(name, part, Some(spec.k.into()));
    }
    for (i, (from, to)) in folder.vectors.iter().zip(&gguf.vectors).enumerate() {
        let i = i as u32;
        let what = What::Vector(VectorId(i), to.add);
        let (name, expert) = target.names.translated(&to.tensor);
        let part = Part { start: expert * to.n + to.start, what, pairs: pairs.vectors.get(&i).copied() };
        debug_assert_eq!(from.n, to.n, "the programs' operations are the same");
        add(name, part, None);
    }
    let rows_of = |part: &Part| match &part.what {
        What::Matrix(id) => u64::from(folder.weights[id.index()].n),
        What::Vector(id, _) => u64::from(folder.vectors[id.index()].n),
        What::Computed(elements) => elements.len() as u64,
    };
    let mamba_groups = folder.nodes.iter().find_map(|node| match &node.op {
        Op::Scan(scan) => Some(scan.groups),
        _ => None,
    });
    all.into_iter()
        .map(|(name, mut parts, k)| {
            parts.sort_by_key(|part| part.start);
            let mut rows = 0;
            for part in &parts {
                if u64::from(part.start) != rows {
                    return Err(Error::Model(format!("tensor {name} would have a gap at row {rows}")));
                }
                rows += rows_of(part);
            }
            let shape = shape(&name, rows, k, parts.len() as u64, mamba_groups);
            Ok(Converted { name, shape, parts })
        })
        .collect()
}

/// Dimensions as llama.cpp expects them: stacks of matrices, one an expert or a head, have three.
///
/// `mamba_groups`: of heads, in a model with Mamba-2 layers; their decays and norms have two dimensions.
fn shape(name: &str, rows: u64, k: Option<u64>, parts: u64, mamba_groups: Option<u32>) -> Vec<u64> {
    const STACKS: [&str; 5] =
        ["_exps.weight", "attn_k_b.weight", "attn_v_b.weight", "altup_proj.weight", "altup_unembd_proj.weight"];
    match k {
        Some(k) if STACKS.iter().any(|end| name.ends_with(end)) => vec![parts, rows / parts, k],
        Some(k) => vec![rows, k],
        None if name.ends_with("_exps.bias") => vec![parts, rows / parts],
        None if mamba_groups.is_some() && (name.ends_with("ssm_a") || name.ends_with("ssm_d")) => vec![rows, 1],
        None if name.ends_with("ssm_norm.weight") => match mamba_groups.map(u64::from) {
            Some(groups) if groups > 0 => vec![groups, rows / groups],
            _ => vec![rows],
        },
        None => vec![rows],
    }
}

/// The rows of heads with the elements of each rotated pair, which lie half a head apart, side by side.
fn reordered(elements: Vec<f32>, k: usize, pairs: Option<(u32, u32)>) -> Vec<f32> {
    let Some((head_dim, dims)) = pairs.map(|(head, dims)| (head as usize, dims as usize)) else { return elements };
    let mut out = Vec::with_capacity(elements.len());
    for head in elements.chunks(head_dim * k) {
        let row = |r: usize| &head[r * k..(r + 1) * k];
        for pair in 0..dims / 2 {
            out.extend_from_slice(row(pair));
            out.extend_from_slice(row(pair + dims / 2));
        }
        out.extend_from_slice(&head[dims * k..]);
    }
    out
}
