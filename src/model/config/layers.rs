//! What a model's hyper-parameters say of its layers: how many there are, which of them attend, in which windows, with how many
//! heads.

use super::value::Value;
use super::{Config, Entry, MAX_HEADS};
use crate::Result;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct Heads {
    /// Query heads.
    pub(in crate::model) heads: u32,
    /// Key and value heads; divides `heads`.
    pub(in crate::model) kv_heads: u32,
    /// Elements of a head.
    pub(in crate::model) head_dim: u32,
}

impl Heads {
    /// Columns of the queries.
    pub(in crate::model) fn q(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Columns of the keys, and of the values.
    pub(in crate::model) fn kv(&self) -> u32 {
        self.kv_heads * self.head_dim
    }
}

impl Config<'_> {
    /// The number of layers: not more than the tensors are for.
    pub(in crate::model) fn layers(&self) -> Result<u32> {
        let key = "num_hidden_layers";
        let there = self.names.layers().max(1);
        let works = || format!("an integer from 1 to {there}, the layers that the file has tensors for,");
        let layers = self.maybe_int(key, 1..=there).map_err(|_| self.wrong(key, &works()))?;
        // Some configurations list the layers and do not count them.
        let listed = || match self.entries.get("layer_types").map(|entry| &entry.value) {
            Some(Value::List(list)) => u32::try_from(list.len()).ok(),
            _ => None,
        };
        // Nemotron-H has a letter for each.
        let spelled = || match self.entries.get("hybrid_override_pattern").map(|entry| &entry.value) {
            Some(Value::Text(word)) => u32::try_from(word.len()).ok(),
            _ => None,
        };
        let listed = || listed().or_else(spelled).filter(|n| (1..=there).contains(n));
        layers.or_else(listed).ok_or_else(|| self.wrong(key, &works()))
    }

    /// For each layer, its sliding window if it has one: `sliding_window`, for the layers that `layer_types` or
    /// `sliding_window_pattern` name, or else for those that `sliding` names.
    pub(in crate::model) fn windows(&self, layers: u32, sliding: impl Fn(u32) -> bool) -> Result<Vec<Option<u32>>> {
        let window = self.maybe_int("sliding_window", 0..=1 << 30)?.filter(|&window| window > 0);
        let named = match self.layer_types(layers)? {
            Some(types) => {
                let works = || format!("a list of {layers}, each full_attention or sliding_attention,");
                let kind = |kind: &String| match kind.as_str() {
                    "full_attention" => Some(false),
                    "sliding_attention" => Some(true),
                    _ => None,
                };
                let kinds: Option<Vec<bool>> = types.iter().map(kind).collect();
                Some(kinds.ok_or_else(|| self.wrong("layer_types", &works()))?)
            }
            None => self.window_pattern(layers)?,
        };
        if named.as_ref().is_some_and(|kinds| kinds.contains(&true)) && window.is_none() {
            return Err(self.wrong("sliding_window", "the length of the window of some layers"));
        }
        let slides = |layer: u32| named.as_ref().map_or_else(|| sliding(layer), |kinds| kinds[layer as usize]);
        Ok((0..layers).map(|layer| window.filter(|_| slides(layer))).collect())
    }

    /// The same for a model whose layers all have the window, if there is one; its folders name no kinds of layers.
    pub(in crate::model) fn windows_everywhere(&self, layers: u32) -> Result<Vec<Option<u32>>> {
        let windows = self.windows(layers, |_| true)?;
        let window = self.maybe_int("sliding_window", 0..=1 << 30)?.filter(|&window| window > 0);
        if !self.is_gguf() && windows.iter().any(|of_layer| *of_layer != window) {
            return Err(self.wrong("layer_types", &format!("a list of {layers}, each sliding_attention,")));
        }
        Ok(windows)
    }

    /// The same for a model without windows, whatever `sliding_window` says.
    pub(in crate::model) fn no_windows(&self, layers: u32) -> Result<Vec<Option<u32>>> {
        self.get("sliding_window");
        if self.layer_types(layers)?.is_some_and(|types| types.iter().any(|kind| kind != "full_attention")) {
            return Err(self.wrong("layer_types", &format!("a list of {layers}, each full_attention,")));
        }
        Ok(vec![None; layers as usize])
    }

    /// The kind of each layer, if `layer_types` names it.
    pub(in crate::model) fn layer_types(&self, layers: u32) -> Result<Option<Vec<String>>> {
        let key = "layer_types";
        let Some(entry) = self.get(key) else { return Ok(None) };
        let text = |v: &Value| if let Value::Text(text) = v { Some(text.clone()) } else { None };
        match &entry.value {
            Value::List(list) if list.len() == layers as usize => list.iter().map(text).collect::<Option<Vec<_>>>(),
            _ => None,
        }
        .map(Some)
        .ok_or_else(|| self.wrong(key, &format!("a list of {layers} names")))
    }

    /// Which layers have a window by `sliding_window_pattern`: all but every n-th; or by a flag for each (GGUF); or by a word
    /// that repeats, like "LLLG" (local, global).
    fn window_pattern(&self, layers: u32) -> Result<Option<Vec<bool>>> {
        let key = "sliding_window_pattern";
        let kinds = match self.get(key).map(|entry| &entry.value) {
            None => return Ok(None),
            Some(Value::Int(n)) if (1..=1 << 16).contains(n) => {
                (1..=i128::from(layers)).map(|layer| layer % n != 0).collect()
            }
            Some(Value::Text(word)) if !word.is_empty() && word.bytes().all(|c| c == b'L' || c == b'G') => {
                word.bytes().cycle().map(|c| c == b'L').take(layers as usize).collect()
            }
            Some(Value::List(_)) => return self.maybe_flags(key, layers),
            Some(_) => {
                return Err(self.wrong(key, "an integer from 1, a flag for each layer or a word like \"LLLG\""));
            }
        };
        Ok(Some(kinds))
    }

    /// Whether each layer attends, by its key and value heads (GGUF).
    pub(in crate::model) fn attending(&self, layers: u32) -> Result<Vec<bool>> {
        const KEY: &str = "num_key_value_heads";
        // One number where all layers are alike.
        if let Some(Entry { value: Value::Int(n), .. }) = self.get(KEY) {
            return Ok(vec![*n > 0; layers as usize]);
        }
        let all = self.maybe_ints(KEY, 0..=MAX_HEADS)?.filter(|all| all.len() == layers as usize);
        let all = all.ok_or_else(|| self.wrong(KEY, &format!("a list of {layers} numbers")))?;
        Ok(all.into_iter().map(|n| n > 0).collect())
    }

    /// The heads of grouped-query attention.
    pub(in crate::model) fn heads(&self) -> Result<Heads> {
        let hidden = self.dim("hidden_size")?;
        let heads = self.int("num_attention_heads", 1..=MAX_HEADS)?;
        let kv_heads = self.maybe_int("num_key_value_heads", 1..=heads)?.unwrap_or(heads);
        self.heads_with(heads, kv_heads, hidden)
    }

    /// The same for a model whose heads always share the hidden size: its class has no `head_dim`.
    pub(in crate::model) fn heads_of_hidden(&self) -> Result<Heads> {
        let (heads, hidden) = (self.heads()?, self.dim("hidden_size")?);
        if heads.q() != hidden {
            let share = hidden / heads.heads;
            return Err(self.wrong("head_dim", &format!("{share}, hidden_size / num_attention_heads,")));
        }
        Ok(heads)
    }

    /// The same for a model whose layers do not all attend: a list has 0 for those that do not (GGUF).
    pub(in crate::model) fn hybrid_heads(&self) -> Result<Heads> {
        const KEY: &str = "num_key_value_heads";
        if !matches!(self.get(KEY), Some(Entry { value: Value::List(_), .. })) {
            return self.heads();
        }
        let heads = self.int("num_attention_heads", 1..=MAX_HEADS)?;
        let all = self.maybe_ints(KEY, 0..=heads)?.unwrap_or_default();
        let mut some = all.iter().filter(|&&n| n > 0);
        let first = some.next().copied().unwrap_or(heads);
        if some.any(|&n| n != first) {
            return Err(self.wrong(KEY, "a list of one number, and 0 for layers that do not attend,"));
        }
        self.heads_with(heads, first, self.dim("hidden_size")?)
    }

    fn heads_with(&self, heads: u32, kv_heads: u32, hidden: u32) -> Result<Heads> {
        if !heads.is_multiple_of(kv_heads) {
            return Err(self.wrong("num_key_value_heads", &format!("a divisor of {heads}, the number of query heads,")));
        }
        let head_dim = match self.maybe_int("head_dim", 1..=MAX_HEADS)? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(self.wrong("num_attention_heads", &format!("a divisor of {hidden}, the hidden size,")));
            }
        };
        if self.maybe_int("v_head_dim", 0..=u32::MAX)?.is_some_and(|v| v != head_dim) {
            return Err(self.wrong("v_head_dim", &format!("{head_dim}, the length of keys,")));
        }
        Ok(Heads { heads, kv_heads, head_dim })
    }
}
