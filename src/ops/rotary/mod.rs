//! Rotary position embedding: alone, and fused with the norms and the cache write of keys and values.

pub(in crate::ops) mod rope;
pub(in crate::ops) mod rope_kv;
