//! The programs of the self-test: for each family of kernels a small one with the ops of the models that use it.

use crate::model::{Builder, CacheSpec, KeyHeads, Out, Program, StoredDecays};
use crate::ops::{
    Act, Attend, Decay, Divide, Index, Kv, Mask, NormKind, NormSpec, Op, Pairing, Pooling, Rope, RopeId, RopeSpec,
    RouteSpec, Score, ValueId,
};
use crate::quant::BlockFormat;

/// Kernels that models use together.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// Whether a model with this op has kernels of the family.
    uses: fn(&Op) -> bool,
    pub(super) program: fn() -> Program,
    /// The format of its matrices; without one, it runs in each of the model's.
    pub(super) format: Option<BlockFormat>,
    /// Rows of the first sequence's prompt.
    pub(super) rows: usize,
}

impl Family {
    pub(super) fn is_used_by(&self, program: &Program) -> bool {
        program.nodes.iter().any(|node| (self.uses)(&node.op))
    }
}

const F32: Option<BlockFormat> = Some(BlockFormat::F32);

/// In the order in which they run.
pub(super) const FAMILIES: &[Family] = &[
    Family { name: "rotary", uses: multiplies, program: || rotary(Pairing::Neox), format: None, rows: 41 },
    Family {
        name: "neighbours",
        uses: rotates_neighbours,
        program: || rotary(Pairing::Interleaved),
        format: F32,
        rows: 23,
    },
    Family { name: "learned", uses: caches, program: learned, format: F32, rows: 300 },
    // With matrices of their own: more rows than small tiles are for.
    Family { name: "latent", uses: latent_op, program: latent, format: None, rows: 70 },
    Family { name: "experts", uses: expert_op, program: experts, format: None, rows: 170 },
    Family { name: "recurrent", uses: recurrent_op, program: recurrent, format: F32, rows: 23 },
    Family { name: "encoder", uses: packs, program: encoder, format: None, rows: 41 },
    Family { name: "row_wise", uses: row_wise_op, program: row_wise, format: F32, rows: 23 },
];

/// The mat-mat variants beside the usual one: prompts of two tiles of rows, every epilogue.
pub(super) const MATMUL: Family =
    Family { name: "matmul", uses: multiplies, program: matmuls, format: None, rows: 134 };

/// The variants of mat-vec beside the usual one: its two kernels, a norm before them, every epilogue.
pub(super) const MATVEC: Family = Family { name: "matvec", uses: multiplies, program: matvecs, format: None, rows: 23 };

/// Attention of prompts by cooperative matrices: several tiles of rows and blocks of positions, full and partial.
pub(super) const ATTENTION: Family =
    Family { name: "attention", uses: caches, program: attention, format: F32, rows: 70 };

// The first family has the matrices of each format, whether or not a model rotates anything.
fn multiplies(op: &Op) -> bool {
    matches!(op, Op::Linear(_))
}

fn rotates_neighbours(op: &Op) -> bool {
    matches!(op, Op::Rope(Rope { spec: RopeSpec { pairing: Pairing::Interleaved, .. }, .. }))
}

fn caches(op: &Op) -> bool {
    matches!(op, Op::Attend(Attend { kv: Kv::Cache(_), .. }))
}

fn packs(op: &Op) -> bool {
    matches!(op, Op::Attend(Attend { kv: Kv::Packed { .. }, .. }) | Op::Pool(_))
}

fn latent_op(op: &Op) -> bool {
    matches!(op, Op::HeadLinear(_) | Op::Concat(_) | Op::Slice(_))
}

fn expert_op(op: &Op) -> bool {
    matches!(op, Op::Route(_) | Op::ExpertLinear(_) | Op::Combine(_))
}

fn recurrent_op(op: &Op) -> bool {
    matches!(op, Op::Conv(_) | Op::Scan(_) | Op::Delta(_))
}

fn row_wise_op(op: &Op) -> bool {
    matches!(op, Op::RowWise(_))
}

pub(super) const VOCAB: u32 = 131;
pub(super) const CONTEXT: u32 = 320;
/// Columns of the matrices that have a model's format: the largest block.
const DIM: u32 = 256;
const HEAD_DIM: u32 = 32;

fn new() -> Builder {
    Builder::new(VOCAB, CONTEXT)
}

fn tokens(b: &mut Builder, dim: u32) -> ValueId {
    b.embed("embed.weight", Index::Token, VOCAB, dim, 1.5)
}

/// Frequencies that grow fast enough for a wrong one to show.
fn angles(b: &mut Builder, dims: u32) -> RopeId {
    b.rope_table((0..dims / 2).map(|i| 50f64.powf(f64::from(2 * i) / f64::from(dims))).collect(), 1.0)
}

fn rms(b: &mut Builder, name: &str, x: ValueId, n: u32) -> ValueId {
    let weight = Some(b.vector(&format!("{name}_norm.weight"), n));
    b.norm(name, x, NormSpec { kind: NormKind::Rms, n, weight, bias: None, eps: 1e-2 })
}

fn layer_norm(b: &mut Builder, name: &str, x: ValueId) -> ValueId {
    let n = b.width(x);
    let [weight, bias] = ["norm.weight", "norm.bias"].map(|part| Some(b.vector(&format!("{name}_{part}"), n)));
    b.norm(name, x, NormSpec { kind: NormKind::Layer, n, weight, bias, eps: 1e-2 })
}

fn linear(b: &mut Builder, name: &str, x: ValueId, n: u32) -> ValueId {
    let k = b.width(x);
    let w = b.weight(&format!("{name}.weight"), n, k);
    b.linear(name, x, w, None)
}

fn biased(b: &mut Builder, name: &str, x: ValueId, n: u32) -> ValueId {
    let k = b.width(x);
    let w = b.weight(&format!("{name}.weight"), n, k);
    let bias = b.vector(&format!("{name}.bias"), n);
    b.linear(name, x, w, Some(bias))
}

fn logits(mut b: Builder, x: ValueId) -> Program {
    let x = b.gather(x);
    let h = rms(&mut b, "last", x, DIM);
    let w = b.weight("embed.weight", VOCAB, DIM);
    let logits = b.linear("logits", h, w, None);
    b.finish(vec![Out::Logits(logits)])
}

/// RMS norms, rotary positions, grouped heads with a window, a layer with norms of heads, a gated network.
fn rotary(pairing: Pairing) -> Program {
    const HEADS: u32 = 8;
    const KV_HEADS: u32 = 2;
    let mut b = new();
    let group = b.group();
    let table = angles(&mut b, HEAD_DIM);
    let mut x = tokens(&mut b, DIM);
    let spec = RopeSpec { table, pairing, dims: HEAD_DIM };
    for layer in 0..2 {
        b.layer(layer, format!("layer.{layer}."));
        let cache = b.pages(group, KV_HEADS, HEAD_DIM, HEAD_DIM, Some(20));
        let h = rms(&mut b, "attn", x, DIM);
        let [mut q, mut k, v] = [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)]
            .map(|(name, heads)| linear(&mut b, name, h, heads * HEAD_DIM));
        if layer == 1 {
            q = rms(&mut b, "q", q, HEAD_DIM);
            k = rms(&mut b, "k", k, HEAD_DIM);
        }
        let q = b.rope("q_rope", q, HEAD_DIM, spec);
        let k = b.rope("k_rope", k, HEAD_DIM, spec);
        b.kv_write(cache, k, v);
        let a = b.attend(q, cache, Mask::Window(20), 0.18);
        let o = linear(&mut b, "o", a, DIM);
        x = b.add("attn_residual", x, o);
        let h = rms(&mut b, "ffn", x, DIM);
        let [gate, up] = ["gate", "up"].map(|name| linear(&mut b, name, h, DIM));
        let act = b.act("act", gate, Act::Silu);
        let h = b.mul("gated", act, up);
        let down = linear(&mut b, "down", h, DIM);
        x = b.add("ffn_residual", x, down);
    }
    b.end_layers();
    logits(b, x)
}

/// Layer norms, learned positions, biases, a network with GELU; positions past the first KV split.
fn learned() -> Program {
    const DIM: u32 = 64;
    let mut b = new();
    let group = b.group();
    let x = tokens(&mut b, DIM);
    let positions = b.embed("positions.weight", Index::Position(0), CONTEXT, DIM, 1.0);
    let x = b.add("embedded", x, positions);
    b.layer(0, "layer.".to_owned());
    let cache = b.pages(group, 2, HEAD_DIM, HEAD_DIM, None);
    let h = layer_norm(&mut b, "attn", x);
    let [q, k, v] = ["q", "k", "v"].map(|name| biased(&mut b, name, h, DIM));
    b.kv_write(cache, k, v);
    let a = b.attend(q, cache, Mask::Causal, 0.18);
    let o = biased(&mut b, "o", a, DIM);
    let x = b.add("attn_residual", x, o);
    let h = layer_norm(&mut b, "ffn", x);
    let up = biased(&mut b, "up", h, 96);
    let act = b.act("act", up, Act::GeluErf);
    let down = biased(&mut b, "down", act, DIM);
    let x = b.add("ffn_residual", x, down);
    b.end_layers();
    let picked = b.gather(x);
    let h = layer_norm(&mut b, "last", picked);
    let logits = biased(&mut b, "logits", h, VOCAB);
    b.finish(vec![Out::Logits(logits)])
}

/// Latent attention: heads with matrices of their own, slices of rows, values inside of keys.
fn latent() -> Program {
    const HEADS: u32 = 4;
    const ROPE: u32 = 16;
    let mut b = new();
    let group = b.group();
    let table = angles(&mut b, ROPE);
    let spec = RopeSpec { table, pairing: Pairing::Interleaved, dims: ROPE };
    let x = tokens(&mut b, DIM);
    b.layer(0, "layer.".to_owned());
    let k_dim = DIM + ROPE;
    let cache = b.cache(CacheSpec::Pages { group, kv_heads: 1, k_dim, v_dim: DIM, v_in_k: true, window: None });
    let q = linear(&mut b, "q", x, HEADS * (DIM + ROPE));
    let turned = b.slice_heads("q_rope", q, HEADS, DIM, ROPE);
    let turned = b.rope("q_turned", turned, ROPE, spec);
    let q = b.slice_heads("q_nope", q, HEADS, 0, DIM);
    let matrices = (0..HEADS).map(|head| b.weight(&format!("key.{head}"), DIM, DIM)).collect();
    let q = b.head_linear("q_latent", q, matrices);
    let q = b.concat("q", q, turned, HEADS);
    let kv = linear(&mut b, "kv", x, DIM + ROPE);
    let turned = b.slice("k_rope", kv, DIM, ROPE);
    let turned = b.rope("k_turned", turned, ROPE, spec);
    let k = b.slice("k_latent", kv, 0, DIM);
    let k = b.concat("k", k, turned, 1);
    b.kv_write(cache, k, None);
    let a = b.attend(q, cache, Mask::Causal, 0.06);
    let matrices = (0..HEADS).map(|head| b.weight(&format!("value.{head}"), 64, DIM)).collect();
    let h = b.head_linear("values", a, matrices);
    let o = linear(&mut b, "o", h, DIM);
    let x = b.add("residual", x, o);
    b.end_layers();
    logits(b, x)
}

/// A router, two of five experts, their weighted sum.
fn experts() -> Program {
    const EXPERTS: u32 = 5;
    let spec = RouteSpec {
        experts: EXPERTS,
        used: 2,
        score: Score::Softmax,
        groups: None,
        divide: Divide::SumPlus(1e-6),
        scale: 1.0,
    };
    let mut b = new();
    let x = tokens(&mut b, DIM);
    let scores = linear(&mut b, "router", x, EXPERTS);
    let chosen = b.route("route", scores, None, spec);
    let [gate, up] = ["gate", "up"].map(|name| {
        let matrices = (0..EXPERTS).map(|e| b.weight(&format!("{name}.{e}"), DIM, DIM)).collect();
        b.expert_linear(name, x, chosen, matrices, Vec::new())
    });
    let act = b.act("act", gate, Act::Silu);
    let h = b.mul("gated", act, up);
    let matrices = (0..EXPERTS).map(|e| b.weight(&format!("down.{e}"), DIM, DIM)).collect();
    let down = b.expert_linear("down", h, chosen, matrices, Vec::new());
    let y = b.combine("combined", down, chosen, spec.used, spec.used);
    let x = b.add("residual", x, y);
    logits(b, x)
}

/// A convolution, a scan, a delta rule.
fn recurrent() -> Program {
    const HEADS: u32 = 4;
    const STATES: u32 = 16;
    let mut b = new();
    let x = tokens(&mut b, DIM);
    let kernel_size = b.weight("conv.weight", DIM, 4);
    let x = b.conv("conv", x, kernel_size, None);
    let decay = |b: &mut Builder, name: &str| {
        let x = linear(b, name, x, HEADS);
        let bias = b.vector(&format!("{name}.bias"), HEADS);
        Decay {
            x,
            bias,
            a: b.decays(&format!("{name}.a"), HEADS, StoredDecays::Logarithms),
            min: 0.0,
            max: f32::INFINITY,
        }
    };
    let [to, from] = ["to", "from"].map(|name| linear(&mut b, name, x, STATES));
    let step = decay(&mut b, "step");
    let skip = b.vector("skip", HEADS);
    let scanned = b.scan([x, to, from], DIM / HEADS, 1, step, skip);
    let [q, k] = ["q", "k"].map(|name| {
        let part = linear(&mut b, name, x, HEADS * STATES);
        let spec = NormSpec { kind: NormKind::Rms, n: STATES, weight: None, bias: None, eps: 1e-6 };
        let part = b.norm(&format!("{name}_norm"), part, spec);
        b.scale(&format!("{name}_unit"), part, 0.25) // of length 1, as models have them
    });
    let beta = linear(&mut b, "beta", x, HEADS);
    let beta = b.act("beta_act", beta, Act::Sigmoid);
    let decay = decay(&mut b, "delta");
    let ruled = b.delta([q, k, x, beta], KeyHeads { count: HEADS, tiled: false }, DIM / HEADS, decay);
    let x = b.add("sum", scanned, ruled);
    logits(b, x)
}

/// A matmul with a bias, an activation after it, a pair of gate and up projections, a matmul plus a residual.
fn matmuls() -> Program {
    let mut b = new();
    let x = tokens(&mut b, DIM);
    let y = biased(&mut b, "y", x, 72);
    let y = b.act("y_act", y, Act::GeluTanh);
    let [gate, up] = ["gate", "up"].map(|name| linear(&mut b, name, x, DIM));
    let act = b.act("act", gate, Act::Silu);
    let h = b.mul("gated", act, up);
    let down = linear(&mut b, "down", h, DIM);
    let x = b.add("residual", x, down);
    b.finish(vec![Out::Hidden(y), Out::Hidden(x)])
}

/// A layer whose decode rows are matvecs alone, but for attention; then a bias and an activation.
fn matvecs() -> Program {
    const HEADS: u32 = 4;
    let mut b = new();
    let group = b.group();
    let table = angles(&mut b, HEAD_DIM);
    let x = tokens(&mut b, DIM);
    let spec = RopeSpec { table, pairing: Pairing::Neox, dims: HEAD_DIM };
    b.layer(0, "layer.".to_owned());
    let cache = b.pages(group, HEADS, HEAD_DIM, HEAD_DIM, None);
    let h = rms(&mut b, "attn", x, DIM);
    let [q, k, v] = ["q", "k", "v"].map(|name| linear(&mut b, name, h, HEADS * HEAD_DIM));
    let [q, k] = [("q_rope", q), ("k_rope", k)].map(|(name, x)| b.rope(name, x, HEAD_DIM, spec));
    b.kv_write(cache, k, v);
    let a = b.attend(q, cache, Mask::Causal, 0.18);
    let h = rms(&mut b, "ffn", x, DIM);
    let [gate, up] = ["gate", "up"].map(|name| linear(&mut b, name, h, DIM));
    let act = b.act("act", gate, Act::Silu);
    let h = b.mul("gated", act, up);
    let down = linear(&mut b, "down", h, DIM);
    let x = b.add("residual", x, down);
    b.end_layers();
    let y = biased(&mut b, "y", x, 72);
    let y = b.act("y_act", y, Act::GeluTanh);
    b.finish(vec![Out::Hidden(a), Out::Hidden(y)])
}

/// Attention of three query heads to a KV head, with head sizes that are not whole blocks, over all positions and within a
/// window.
fn attention() -> Program {
    const KV_HEADS: u32 = 2;
    const HEAD_DIM: u32 = 40;
    let mut b = new();
    let group = b.group();
    let [q, k, v] = [("q", 3 * KV_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)]
        .map(|(name, heads)| b.embed(&format!("embed.{name}.weight"), Index::Token, VOCAB, heads * HEAD_DIM, 1.5));
    b.layer(0, "layer.".to_owned());
    let cache = b.pages(group, KV_HEADS, HEAD_DIM, HEAD_DIM, None);
    b.kv_write(cache, k, v);
    let outs = [Mask::Causal, Mask::Window(20)].map(|mask| Out::Hidden(b.attend(q, cache, mask, 0.4)));
    b.end_layers();
    b.finish(outs.to_vec())
}

/// Attention over the rows of whole texts, one vector for each.
fn encoder() -> Program {
    let mut b = new();
    let x = tokens(&mut b, DIM);
    b.layer(0, "layer.".to_owned());
    let [q, k, v] = ["q", "k", "v"].map(|name| biased(&mut b, name, x, DIM));
    let a = b.attend_packed([q, k, v], HEAD_DIM, Mask::Full, 0.18);
    let o = biased(&mut b, "o", a, DIM);
    let x = b.add("residual", x, o);
    let x = layer_norm(&mut b, "norm", x);
    b.end_layers();
    let y = b.pool(x, Pooling::Mean);
    let y = biased(&mut b, "dense", y, DIM);
    b.finish(vec![Out::Hidden(x), Out::Pooled(y)])
}

/// Ops on whole rows.
fn row_wise() -> Program {
    let mut b = new();
    let x = tokens(&mut b, DIM);
    let y = linear(&mut b, "y", x, DIM);
    let y = b.sparsify("sparse", y, 0.7);
    let y = b.magnitude("magnitude", y, x, 1e-5);
    let one = b.vector("one.weight", 1);
    let y = b.weigh("weighed", y, one);
    let y = b.clamp("clamped", y, -1.0, 1.0);
    logits(b, y)
}
