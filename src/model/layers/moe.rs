//! Layers of experts, as architectures put them together.

use crate::model::config::{Bias, Config};
use crate::model::layers::{Attention, Mlp, Net};
use crate::ops::{Act, Divide, GroupScore, Groups, RouteSpec, Score, ValueId};
use crate::{Error, Result};

/// A feed-forward layer of experts, each `down(act(gate x) * up x)`, of which a router chooses some for each row.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Moe {
    /// How the router chooses.
    pub(in crate::model) route: RouteSpec,
    /// The router's matrix, without `.weight`.
    pub(in crate::model) router: &'static str,
    /// The router's bias.
    pub(in crate::model) router_bias: Bias,
    /// A vector that is added to the scores where experts are chosen.
    pub(in crate::model) choice_bias: Option<&'static str>,
    /// What comes before an expert's number in the names of its matrices.
    pub(in crate::model) experts: &'static str,
    /// What comes after it: gate, up, down.
    pub(in crate::model) parts: [&'static str; 3],
    /// Biases of the experts.
    pub(in crate::model) bias: Bias,
    /// Columns inside an expert.
    pub(in crate::model) ffn: u32,
    /// The activation of an expert.
    pub(in crate::model) gating: Gating,
}

/// How an expert combines gate and up.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) enum Gating {
    /// `act(gate) * up`
    Act(Act),
    /// `act(up)`: there is no gate.
    None(Act),
    /// `g / (1 + e^(-alpha g)) * (u + 1)` with g = min(gate, limit), u = up between -limit and limit (gpt-oss).
    Clamped { alpha: f32, limit: f32 },
}

/// The most experts of a layer, and of all layers together: beyond any model. A program has names and places for each.
const MOST: u32 = 1 << 12;
const MOST_IN_ALL: u32 = 1 << 15;

impl Moe {
    /// Names as most folders have them, no biases; `num_experts`, `num_experts_per_tok`, `hidden_act`. The architecture
    /// reads `ffn` itself: models do not agree on its name.
    pub(in crate::model) fn read(c: &Config<'_>, score: Score, ffn: u32) -> Result<Self> {
        let layers = c.layers()?;
        let most = MOST.min(MOST_IN_ALL / layers).max(1);
        let experts = c.int("num_experts", 1..=most)?;
        let used = c.int("num_experts_per_tok", 1..=experts)?;
        Ok(Self {
            route: RouteSpec { experts, used, score, groups: None, divide: Divide::No, scale: 1.0 },
            router: "mlp.gate",
            router_bias: Bias::No,
            choice_bias: None,
            experts: "mlp.experts",
            parts: ["gate_proj", "up_proj", "down_proj"],
            bias: Bias::No,
            ffn,
            gating: Gating::Act(c.activation("hidden_act", Act::Silu)?),
        })
    }

    /// The columns inside an expert: `moe_intermediate_size`.
    pub(in crate::model) fn ffn(c: &Config<'_>) -> Result<u32> {
        c.part("moe_intermediate_size")
    }

    /// Whether a layer has a router among the tensors.
    pub(in crate::model) fn routes(&self, c: &Config<'_>, layer: u32) -> bool {
        c.names.find(&format!("model.layers.{layer}.{}.weight", self.router)).is_some()
    }

    /// Weights that add up to 1.
    pub(in crate::model) fn summing_to_one(mut self) -> Self {
        self.route.divide = Divide::SumPlus(0.0);
        self
    }

    /// Experts in groups, chosen by sigmoids with a bias (DeepSeek-V3).
    pub(in crate::model) fn with_sigmoids(c: &Config<'_>) -> Result<Self> {
        c.maybe_int("expert_gating_func", 2..=2)?;
        let mut moe = Self::read(c, Score::Sigmoid, Self::ffn(c)?)?.normed(c, !c.is_gguf(), Divide::SumPlus(1e-20))?;
        moe.choice_bias = Some("mlp.gate.e_score_correction_bias");
        moe.route.groups = Self::groups(c, GroupScore::TwoBest)?;
        moe.route.scale = c.factor("routed_scaling_factor")?;
        Ok(moe)
    }

    /// `topk_group` of `n_group` groups; none if all groups are kept.
    pub(in crate::model) fn groups(c: &Config<'_>, score: GroupScore) -> Result<Option<Groups>> {
        let experts = c.int("num_experts", 1..=MOST)?;
        let count = c.maybe_int("n_group", 1..=experts)?.unwrap_or(1);
        let kept = c.maybe_int("topk_group", 1..=count)?.unwrap_or(count);
        if !experts.is_multiple_of(count) {
            return Err(c.wrong("n_group", &format!("a divisor of {experts}, the number of experts,")));
        }
        Ok((kept < count).then_some(Groups { count, kept, score }))
    }

    /// Columns of the shared experts, `n_shared_experts` as one; 0 if there is none.
    pub(in crate::model) fn shared(&self, c: &Config<'_>) -> Result<u32> {
        Ok(c.maybe_int("n_shared_experts", 0..=1 << 10)?.unwrap_or(0) * self.ffn)
    }

    /// Weights divided by their sum, if `norm_topk_prob` says so.
    pub(in crate::model) fn normed(mut self, c: &Config<'_>, default: bool, divide: Divide) -> Result<Self> {
        self.route.divide = if c.flag("norm_topk_prob", default)? { divide } else { Divide::No };
        Ok(self)
    }
}

impl Net<'_> {
    /// A layer of experts.
    pub(in crate::model) fn moe(&mut self, x: ValueId, moe: &Moe) -> Result<ValueId> {
        let (k, RouteSpec { experts, used, .. }) = (self.b.width(x), moe.route);
        // Checked before names are made for each expert.
        let router = self.b.tensor(&format!("{}.weight", moe.router));
        let there = self.tensor(&router).map_err(|e| Error::Model(format!("{experts} experts: {e}")))?.rows();
        if there != u64::from(experts) {
            return Err(Error::Model(format!("{experts} experts, but tensor {router} is for {there}")));
        }
        let logits = self.linear(moe.router, x, experts, moe.router_bias);
        let bias = moe.choice_bias.map(|name| self.b.vector(name, experts));
        let chosen = self.b.route("route", logits, bias, moe.route);
        let [gate, up, down] = moe.parts;
        let gate = match moe.gating {
            Gating::None(_) => None,
            _ => Some(self.expert_linear(gate, x, chosen, moe.ffn, k, moe)),
        };
        let up = self.expert_linear(up, x, chosen, moe.ffn, k, moe);
        let h = match (moe.gating, gate) {
            (Gating::Act(act), Some(gate)) => self.gated(gate, up, act),
            (Gating::Act(act) | Gating::None(act), _) => self.b.act("act", up, act),
            (Gating::Clamped { alpha, limit }, gate) => {
                let gate = gate.unwrap_or(up);
                let gate = self.b.clamp("gate", gate, f32::NEG_INFINITY, limit);
                let up = self.b.clamp("up", up, -limit, limit);
                let sigmoid = self.scaled("gate", gate, alpha);
                let sigmoid = self.b.act("act", sigmoid, Act::Sigmoid);
                let gate = self.b.mul("act", gate, sigmoid);
                let h = self.b.mul("gated", gate, up);
                self.b.add("gated", h, gate)
            }
        };
        let h = self.expert_linear(down, h, chosen, k, moe.ffn, moe);
        Ok(self.b.combine("experts", h, chosen, used, used))
    }

    /// A layer of experts, and the shared experts (`mlp.shared_experts`), if they have columns.
    pub(in crate::model) fn moe_and_shared(&mut self, x: ValueId, moe: &Moe, shared: &Mlp) -> Result<ValueId> {
        let experts = self.moe(x, moe)?;
        if shared.ffn == 0 {
            return Ok(experts);
        }
        let shared = self.gated_mlp("mlp.shared_experts", x, shared);
        Ok(self.b.add("experts and shared", experts, shared))
    }

    /// Applies one kind of matrix, `(n, k)` in each expert, of the chosen experts.
    fn expert_linear(&mut self, part: &str, x: ValueId, chosen: ValueId, n: u32, k: u32, moe: &Moe) -> ValueId {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for expert in 0..moe.route.experts {
            let name = format!("{}.{expert}.{part}", moe.experts);
            weights.push(self.b.weight(&format!("{name}.weight"), n, k));
            if moe.bias == Bias::Yes {
                biases.push(self.b.vector(&format!("{name}.bias"), n));
            }
        }
        self.b.expert_linear(part, x, chosen, weights, biases)
    }

    /// A shared expert: a feed-forward layer for all rows, times the sigmoid of the row's `gate`.
    pub(in crate::model) fn gated_expert(&mut self, name: &str, gate: &str, x: ValueId, mlp: &Mlp) -> ValueId {
        let h = self.gated_mlp(name, x, mlp);
        let gate = self.linear(gate, x, 1, Bias::No);
        let gate = self.b.act("gate", gate, Act::Sigmoid);
        self.b.combine("shared expert", h, gate, 0, 1)
    }

    /// The layers of most decoders, and the last norm; `feed` makes the feed-forward part of a layer from the normed stream.
    /// Each part's result times `by` is added to the stream.
    pub(in crate::model) fn decoder_of(
        &mut self,
        mut x: ValueId,
        eps: f32,
        layers: &[Attention],
        by: f32,
        mut feed: impl FnMut(&mut Self, u32, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        for (layer, attention) in (0..).zip(layers) {
            self.b.layer(layer, format!("model.layers.{layer}."));
            let h = self.rms_norm("input_layernorm", x, eps);
            let h = self.self_attention(h, attention);
            let h = self.scaled("attention", h, by);
            x = self.b.add("attention residual", x, h);

            let h = self.rms_norm("post_attention_layernorm", x, eps);
            let h = feed(self, layer, h)?;
            let h = self.scaled("mlp", h, by);
            x = self.b.add("mlp residual", x, h);
        }
        self.b.end_layers();
        Ok(self.rms_norm("model.norm", x, eps))
    }
}
