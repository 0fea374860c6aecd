//! Attention among the kernels: V1 beside the engine's, over contexts; tiles of a prompt's rows beside rows one by one.

use super::{DIM, Item, Make, value};
use crate::Result;
use crate::gpu::{Buffer, Device, Pipelines};
use crate::ops::{Attend, CacheShape, Kv, KvLayout, KvStorage, Mask, Op, Room, Single, StepBuffer};

const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;

/// Tells which kernel it shall be.
type Choose = fn(&mut Single<'_>);

/// Causal attention of a sequence's last rows over a 16-bit cache.
struct Attention {
    layout: KvLayout,
    context: u32,
    rows: u32,
    choose: Choose,
}

/// V1 goes as far as a workgroup's memory.
pub(super) fn items(quick: bool) -> Vec<(String, Make)> {
    let contexts: &[u32] = if quick { &[128, 2048] } else { &[128, 512, 2048, 8192, 32768] };
    let mut all: Vec<(String, Make)> = Vec::new();
    let mut add = |name, attention: Attention| all.push((name, Box::new(move |d, p| attention.item(d, p))));
    for &context in contexts {
        let mut one = |name: &str, layout, choose: Choose| {
            add(format!("{name}, a row that sees {context}"), Attention { layout, context, rows: 1, choose });
        };
        one("attend_v1", KvLayout::Vectorised, |s| s.v1());
        one("attend over a vectorised cache", KvLayout::Vectorised, |s| s.by_rows());
        one("attend", KvLayout::Paged, |s| s.by_rows());
    }
    let rows = if quick { 32 } else { 256 };
    for (name, choose) in [("attend_tiled", (|_| {}) as Choose), ("attend", (|s| s.by_rows()) as Choose)] {
        let attention = Attention { layout: KvLayout::Paged, context: rows, rows, choose };
        add(format!("{name}, a prompt of {rows} rows"), attention);
    }
    all
}

impl Attention {
    fn item(&self, device: &Device, pipelines: &mut Pipelines) -> Result<Item> {
        let Self { layout, context, rows, .. } = *self;
        let slots = 16;
        let blocks = context.div_ceil(slots);
        let (kv_heads, k_dim, v_dim, storage) = (KV_HEADS, DIM, DIM, KvStorage::F16);
        let shape = CacheShape { kv_heads, k_dim, v_dim, slots, blocks, storage, layout };
        let step = StepBuffer::new(device, Room { rows, blocks, ..Room::default() })?;
        let counts = step.write_run(device, rows, context - rows, &(0..blocks).rev().collect::<Vec<_>>())?;
        let mut single = Single::new(pipelines, &step);
        (self.choose)(&mut single);
        let kv = Kv::Cache(single.cache(&Buffer::new(device, "kv", shape.bytes())?, shape)?);
        let [q, out] = [0; 2].map(|_| value(device, &mut single, rows, HEADS * DIM));
        single.add(Op::Attend(Attend {
            q: q?,
            heads: HEADS,
            kv_heads,
            k_dim,
            v_dim,
            kv,
            mask: Mask::Causal,
            scale: 0.1,
            softcap: 0.0,
            sinks: None,
            slopes: None,
            out: out?,
        }))?;
        let queries = f64::from(rows) * f64::from(HEADS * DIM) * 8.0;
        Ok(Item::new(single.finish()?, counts, queries + shape.bytes() as f64))
    }
}
