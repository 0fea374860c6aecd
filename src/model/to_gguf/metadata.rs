//! Hyper-parameters under their names in GGUF files, and what those files state that folders leave to be computed.

use std::collections::BTreeMap;

use super::rope_type;
use crate::file::{Array, Description, Metadata, ModelFile, Value};
use crate::model::WeightSpec;
use crate::model::arch::Arch;
use crate::model::config::Config;
use crate::model::config::keys;
use crate::model::files::names::Names;
use crate::model::program::{CacheSpec, Node, Program};
use crate::ops::{Attend, Divide, Mask, Op, Pooling, RowWise, Score};
use crate::{Error, Result};

/// Names after the architecture's, and their values; none for one that must not be written.
#[derive(Default)]
struct Pairs(BTreeMap<String, Option<Value>>);

impl Pairs {
    fn set(&mut self, name: &str, value: impl Into<Option<Value>>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

/// All of it: `general.architecture`, then what stands after its name.
pub(super) fn metadata(config: &Config<'_>, program: &Program, arch: &Arch) -> Result<Vec<(String, Value)>> {
    // Some have a name of their own for those that give vectors, or have experts.
    let routes = program.nodes.iter().any(|node| matches!(node.op, Op::Route(_)));
    let own =
        |name: &&&str| name.ends_with("-embedding") && program.pooled().is_some() || name.ends_with("_moe") && routes;
    let prefix = arch.gguf.iter().find(own).or(arch.gguf.first()).copied().ok_or_else(|| {
        Error::unsupported(format!("{} models in GGUF files", arch.name()), "llama.cpp knows none; the folder works")
    })?;
    let mut pairs = derived(config, program)?;
    // No scaling, or one that is written otherwise. llama.cpp has no scaling called "default".
    let unsaid = matches!(rope_type(config)?, "default" | "llama3" | "dynamic" | "proportional");
    let own = |key: &str| arch.gguf_keys.iter().any(|(_, of)| *of == key);
    let common = keys::GGUF.iter().filter(|(_, key)| !own(key));
    for (name, key) in arch.gguf_keys.iter().chain(common) {
        let scaling = key.starts_with("rope_parameters.") && !key.ends_with("rope_theta");
        if unsaid && scaling && keys::GGUF.iter().any(|(common, _)| common == name) {
            continue;
        }
        if name.starts_with("expert_") && !routes {
            continue; // which some folders have all the same
        }
        // Where kinds of layers have rotary parameters of their own, GGUF files have those of full attention.
        let full = || config.value(&key.replacen("rope_parameters.", "rope_parameters.full_attention.", 1));
        let Some(value) = config.value(key).or_else(full).and_then(|value| value.to_gguf(is_float(name))) else {
            continue;
        };
        if *key == "rope_parameters.rope_type" && value == Value::Str("default".to_owned()) {
            continue; // which GGUF files do not name
        }
        pairs.0.entry((*name).to_owned()).or_insert(Some(value));
    }
    if let Some(head_dim) = config.value("head_dim").and_then(|v| v.to_gguf(false)) {
        pairs.0.entry("attention.value_length".to_owned()).or_insert(Some(head_dim));
    }
    lengths(config, program, prefix, &mut pairs)?;
    let mut all = vec![("general.architecture".to_owned(), Value::Str(prefix.to_owned()))];
    all.extend(pairs.0.into_iter().filter_map(|(name, value)| Some((format!("{prefix}.{name}"), value?))));
    if let Some((table, _)) = arch.tensors.iter().find(|(_, name)| *name == "token_types") {
        // llama.cpp does not count the table's rows, and takes their number for the tokenizer's.
        let types = config.types(&format!("{table}.weight"))?;
        all.push(("tokenizer.ggml.token_type_count".to_owned(), Value::U32(types)));
    }
    Ok(all)
}

/// The attention factors of LongRoPE and YaRN. With YaRN, readers multiply the file's factor with the method's default.
fn lengths(config: &Config<'_>, program: &Program, prefix: &str, pairs: &mut Pairs) -> Result<()> {
    let table = super::full_rope(program).map(|spec| &program.ropes[spec.table.index()]);
    let factor = f64::from(table.map_or(1.0, |table| table.factor));
    if rope_type(config)? != "yarn" {
        pairs.set("rope.scaling.attn_factor", (factor != 1.0).then_some(Value::F32(factor as f32)));
        return Ok(());
    }
    let (plain, full) = ("rope_parameters.", "rope_parameters.full_attention.");
    let float = |name: &str| -> Result<Option<f64>> {
        let value = config.maybe_float(&format!("{plain}{name}"), 0.0..=1e6)?;
        Ok(value.or(config.maybe_float(&format!("{full}{name}"), 0.0..=1e6)?))
    };
    let stretched = float("factor")?.unwrap_or(1.0).max(1.0).ln();
    let length = |mscale: f64| 0.1 * mscale * stretched + 1.0;
    let all = float("mscale_all_dim")?;
    let mut known = length(1.0);
    if let Some(all) = all {
        known = length(1.0) / length(all);
        let mut written = all;
        if prefix == "deepseek2" {
            // There the factor applies to all scores, too, and the key has a tenth (ggml-org/llama.cpp#17945).
            known = 1.0;
            written = if stretched > 0.0 { (length(all) / factor - 1.0) / stretched } else { 0.1 * all };
        }
        pairs.set("rope.scaling.yarn_log_multiplier", Value::F32(written as f32));
    }
    let rest = factor / known;
    pairs.set("rope.scaling.attn_factor", ((rest - 1.0).abs() > 1e-6).then_some(Value::F32(rest as f32)));
    Ok(())
}

/// What follows from the program, by kinds of ops.
fn derived(config: &Config<'_>, program: &Program) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    pairs.set("context_length", Value::U32(program.context));
    pairs.set("block_count", Value::U32(program.layers()));
    feed_forward(config, program, &mut pairs)?;
    attention(config, program, &mut pairs);
    recurrent(program, &mut pairs);
    experts(program, &mut pairs);
    latent(program, &mut pairs);
    pooling(program, &mut pairs);
    // Granite's hybrids state by this key whether anything rotates.
    const ROTATES: &str = "rope.scaling.finetuned";
    if own_key(config, ROTATES).is_some() {
        pairs.set(ROTATES, Value::Bool(!program.ropes.is_empty()));
    }
    const SECTIONS: &str = "rope.dimension_sections";
    if own_key(config, SECTIONS).is_some() {
        // In a text all sections have the same positions, so any sizes work.
        let rotated = program.ropes.first().map_or(0, |table| table.divisors.len() as i32);
        let third = |i: i32| rotated / 3 + i32::from(i < rotated % 3);
        pairs.set(SECTIONS, Value::Array(Array::I32(vec![third(0), third(1), third(2), 0])));
    }
    // A fixed factor on theta is written as the theta that results.
    if config.text("rope_parameters.rope_type")? == Some("dynamic")
        && let Some(&[_, second, ..]) = program.ropes.first().map(|table| &table.divisors[..])
    {
        let pairs_of = program.ropes[0].divisors.len() as f64;
        pairs.set("rope.freq_base", Value::F32(second.recip().powf(pairs_of) as f32));
    }
    Ok(pairs)
}

/// The architecture's own name for a GGUF key, if it reads that key.
fn own_key(config: &Config<'_>, name: &str) -> Option<&'static str> {
    config.names.arch.gguf_keys.iter().find(|(own, _)| *own == name).map(|(_, key)| *key)
}

/// A number for all layers, or one for each.
fn per_layer(all: Vec<i32>) -> Value {
    match all.first() {
        Some(&first) if all.iter().all(|&n| n == first) => Value::U32(first as u32),
        _ => Value::Array(Array::I32(all)),
    }
}

/// Columns inside feed-forward layers, from the program: some configurations name another size, from which they are computed.
fn feed_forward(config: &Config<'_>, program: &Program, pairs: &mut Pairs) -> Result<()> {
    let empty = ModelFile::new(Description::Gguf(Metadata::default()), Vec::new(), Vec::new())?;
    let names = Names { file: &empty, arch: config.names.arch };
    let rows_of = |end: &'static str| {
        let ends = move |w: &&WeightSpec| names.spelled(&w.tensor).ends_with(end);
        program.weights.iter().filter(ends).map(|w| w.n as i32).collect::<Vec<_>>()
    };
    let gates = rows_of(".ffn_gate.weight");
    if !gates.is_empty() {
        pairs.set("feed_forward_length", per_layer(gates));
    } else if config.value("intermediate_size").is_none() {
        // Left to be computed, as GPT-2's folders do; llama.cpp ends without it.
        let ups = rows_of(".ffn_up.weight");
        pairs.set("feed_forward_length", (!ups.is_empty()).then(|| per_layer(ups)));
    }
    // A feed-forward layer for all rows is the only one where there are no experts (Granite's hybrids).
    const SHARED: &str = "shared_intermediate_size";
    let routes = program.nodes.iter().any(|node| matches!(node.op, Op::Route(_)));
    if own_key(config, "expert_shared_feed_forward_length") == Some(SHARED) && !routes {
        pairs.set("feed_forward_length", config.value(SHARED).and_then(|value| value.to_gguf(false)));
    }
    // Where some layers are feed-forward layers alone, the others have no columns.
    let mut alone = vec![true; program.layers() as usize];
    let mut inside = vec![0; alone.len()];
    for Node { layer, op } in &program.nodes {
        let Some(layer) = layer.map(|layer| layer as usize) else { continue };
        match op {
            Op::Attend(_) | Op::Conv(_) => alone[layer] = false,
            Op::ExpertLinear(experts) if inside[layer] == 0 => inside[layer] = experts.n as i32,
            Op::Linear(linear) if inside[layer] == 0 => {
                let up = &program.weights[linear.parts[0].weight.index()];
                if names.spelled(&up.tensor).ends_with(".ffn_up.weight") {
                    inside[layer] = up.n as i32;
                }
            }
            _ => {}
        }
    }
    if alone.contains(&true) {
        pairs.set("feed_forward_length", per_layer(inside));
    }
    Ok(())
}

/// Windows, KV heads, sizes of heads, what rotates.
fn attention(config: &Config<'_>, program: &Program, pairs: &mut Pairs) {
    let mut windows = vec![None; program.layers() as usize];
    let mut kv_heads = vec![0i32; windows.len()];
    let mut sparsity = vec![f32::NEG_INFINITY; windows.len()];
    // Sizes of keys in full attention, in a sliding window; elements that rotate.
    let (mut key_dims, mut rotated) = ([None; 2], [None; 2]);
    let mut dims_of = vec![None; windows.len()];
    for Node { layer, op } in &program.nodes {
        let layer = layer.map_or(0, |layer| layer as usize);
        match op {
            Op::Rope(op) => dims_of[layer] = Some(op.spec.dims),
            Op::Attend(op) => {
                kv_heads[layer] = op.kv_heads as i32;
                let near = usize::from(matches!(op.mask, Mask::Window(_) | Mask::BidirectionalWindow(_)));
                windows[layer] = seen(config, op, pairs);
                key_dims[near] = Some(op.k_dim);
                rotated[near] = rotated[near].or(dims_of[layer]);
            }
            Op::RowWise(RowWise::Sparsify { by, .. }) => sparsity[layer] = *by,
            _ => {}
        }
    }
    pattern(config, &windows, pairs);
    if let Some(dims) = rotated[0].or(rotated[1]).or(dims_of.iter().flatten().next().copied()) {
        pairs.set("rope.dimension_count", Value::U32(dims));
    }
    if let [Some(full), Some(near)] = rotated
        && full != near
    {
        pairs.set("rope.dimension_count_swa", Value::U32(near));
    }
    if own_key(config, "attention.key_length_swa").is_some() {
        let [full, near] = key_dims;
        for (dim, ending) in [(full.or(near), ""), (near.or(full), "_swa")] {
            pairs.set(&format!("attention.key_length{ending}"), dim.map(Value::U32));
            pairs.set(&format!("attention.value_length{ending}"), dim.map(Value::U32));
        }
    }
    if sparsity.iter().any(|by| by.is_finite()) {
        pairs.set("activation_sparsity_scale", Value::Array(Array::F32(sparsity)));
    }
    // Where another key says which layers attend, one number is for those that do.
    let others = own_key(config, "full_attention_interval").is_none();
    if others && kv_heads.iter().any(|&n| n != kv_heads[0]) {
        pairs.set("attention.head_count_kv", Value::Array(Array::I32(kv_heads)));
    }
}

/// The window of an attention op; sets the keys of its mask and its scale.
fn seen(config: &Config<'_>, op: &Attend, pairs: &mut Pairs) -> Option<u32> {
    // Gemma's folders have the number from which the scale is computed.
    let plain = (f64::from(op.scale) * f64::from(op.k_dim).sqrt() - 1.0).abs() < 1e-6;
    if config.value("query_pre_attn_scalar").is_some() && !plain {
        pairs.set("attention.scale", Value::F32(op.scale));
    }
    if matches!(op.mask, Mask::Full | Mask::BidirectionalWindow(_)) {
        pairs.set("attention.causal", Value::Bool(false));
    }
    match op.mask {
        Mask::Causal | Mask::Full => None,
        Mask::Window(n) => Some(n),
        Mask::BidirectionalWindow(n) => Some(2 * n),
    }
}

/// Which layers have a sliding window: a flag for each; or, for architectures with a key of their own, one number n: of n
/// layers the last has full attention, or the first (ModernBERT).
fn pattern(config: &Config<'_>, windows: &[Option<u32>], pairs: &mut Pairs) {
    const PATTERN: &str = "attention.sliding_window_pattern";
    // A layer's rotation depends on whether any may have a window (EXAONE 4), also where none has.
    let of_none = || config.value("sliding_window").and_then(|value| value.to_gguf(false));
    let rotates = config.names.arch.name() == "exaone4";
    let window = windows.iter().copied().flatten().next();
    let unused = if window.is_none() && rotates { of_none() } else { None };
    pairs.set("attention.sliding_window", window.map(Value::U32).or(unused.clone()));
    pairs.set(PATTERN, None);
    if window.is_none() && unused.is_none() {
        return;
    }
    let slides: Vec<bool> = windows.iter().map(Option::is_some).collect();
    let own = own_key(config, PATTERN);
    let first = usize::from(own.is_some_and(|key| key != "sliding_window_pattern"));
    let every = slides.iter().skip(first).position(|slides| !slides).map(|at| at + 1);
    let every = every.or((first == 1).then_some(slides.len()));
    let follows = |n: usize| (first..).zip(&slides[first..]).all(|(i, &slides)| ((i + 1 - first) % n != 0) == slides);
    pairs.set(
        PATTERN,
        match every.filter(|&n| own.is_some() && follows(n)) {
            Some(n) => Value::U32(n as u32),
            None => Value::Array(Array::Bool(slides)),
        },
    );
}

/// Sizes of recurrent layers, and which layers these are if others attend.
fn recurrent(program: &Program, pairs: &mut Pairs) {
    let mut attends = vec![false; program.layers() as usize];
    let mut delta = false;
    for Node { layer, op } in &program.nodes {
        let mut sizes = |inner: u32, states: u32, groups: u32, heads: u32| {
            pairs.set("ssm.inner_size", Value::U32(inner));
            pairs.set("ssm.state_size", Value::U32(states));
            pairs.set("ssm.group_count", Value::U32(groups));
            pairs.set("ssm.time_step_rank", Value::U32(heads));
        };
        match op {
            Op::Delta(op) => {
                delta = true;
                sizes(op.heads * op.v_dim, op.k_dim, op.key_heads, op.heads);
            }
            Op::Scan(op) => sizes(op.heads * op.dim, op.states, op.groups, op.heads),
            Op::Conv(op) => pairs.set("ssm.conv_kernel", Value::U32(op.kernel_size)),
            Op::Attend(_) => attends[layer.map_or(0, |layer| layer as usize)] = true,
            _ => {}
        }
    }
    if delta {
        let every = attends.iter().position(|&attends| attends).map_or(attends.len() + 1, |at| at + 1);
        let follows = attends.iter().zip(1..).all(|(&attends, layer): (_, usize)| attends == (layer % every == 0));
        pairs.set("full_attention_interval", follows.then_some(Value::U32(every as u32)));
        let flags = || Value::Array(Array::Bool(attends.iter().map(|attends| !attends).collect()));
        pairs.set("attention.recurrent_layers", (!follows).then(flags));
    }
}

/// How experts are chosen, and their sizes.
fn experts(program: &Program, pairs: &mut Pairs) {
    for node in &program.nodes {
        match &node.op {
            Op::Route(route) => {
                let spec = route.spec;
                match spec.score {
                    Score::Softmax => pairs.set("expert_gating_func", Value::U32(1)),
                    Score::Sigmoid => pairs.set("expert_gating_func", Value::U32(2)),
                    Score::SoftmaxOfChosen => {}
                }
                pairs.set("expert_weights_norm", Value::Bool(spec.divide != Divide::No));
                pairs.set("expert_weights_scale", Value::F32(spec.scale));
                // A folder may name groups and choose without them (DeepSeek-V2's greedy method).
                if spec.groups.is_none() {
                    pairs.set("expert_group_count", None);
                    pairs.set("expert_group_used_count", None);
                }
            }
            // The first one of a layer goes in, the last one out.
            Op::ExpertLinear(experts) => {
                let inside = Some(Value::U32(experts.n));
                pairs.0.entry("expert_feed_forward_length".to_owned()).or_insert(inside);
            }
            _ => {}
        }
    }
}

/// The sizes of latent attention, which has one KV head.
fn latent(program: &Program, pairs: &mut Pairs) {
    let heads = program.nodes.iter().filter_map(|node| match &node.op {
        Op::HeadLinear(linear) => Some((linear.n, linear.k)),
        _ => None,
    });
    let heads: Vec<_> = heads.take(2).collect();
    let pages = program.caches.first().copied();
    if let (Some(CacheSpec::Pages { k_dim, v_dim, v_in_k: true, .. }), [(_, nope), (value, _)]) = (pages, &heads[..]) {
        pairs.set("attention.head_count_kv", Value::U32(1));
        pairs.set("attention.key_length", Value::U32(k_dim));
        pairs.set("attention.value_length", Value::U32(v_dim));
        pairs.set("attention.key_length_mla", Value::U32(nope + k_dim - v_dim));
        pairs.set("attention.value_length_mla", Value::U32(*value));
    }
}

/// How vectors are made of a sequence's rows, and the dense layers after them.
fn pooling(program: &Program, pairs: &mut Pairs) {
    let score = program.scores();
    for node in &program.nodes {
        if let Op::Pool(op) = &node.op {
            let pooling = match op.pooling {
                _ if score => 4,
                Pooling::Mean => 1,
                Pooling::Cls => 2,
                Pooling::Last => 3,
            };
            pairs.set("pooling_type", Value::U32(pooling));
        }
    }
    for (number, tensor) in [(2, "2_Dense/linear.weight"), (3, "3_Dense/linear.weight")] {
        if let Some(dense) = program.weights.iter().find(|w| w.tensor == tensor) {
            pairs.set(&format!("dense_{number}_feat_in"), Value::U32(dense.k));
            pairs.set(&format!("dense_{number}_feat_out"), Value::U32(dense.n));
        }
    }
}

/// Whether a GGUF key holds a float, even if its value is an integer.
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
