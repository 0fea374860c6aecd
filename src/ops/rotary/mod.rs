//! Rotary position embedding: alone, and with all that keys and values need on their way to the cache.

pub(in crate::ops) mod rope;
pub(in crate::ops) mod rope_kv;
