//! Recurrent layers that several architectures have: Mamba-2's, and short convolutions.

use crate::Result;
use crate::model::StoredDecays;
use crate::model::config::{Bias, Config};
use crate::model::layers::Net;
use crate::model::program::Runs;
use crate::ops::{Act, Decay, NormKind, NormSpec, ValueId};

/// A Mamba-2 layer.
#[derive(Clone, Debug)]
pub(in crate::model) struct Mamba {
    /// Heads.
    heads: u32,
    /// Elements of a head.
    dim: u32,
    /// Groups of heads that share inputs and outputs.
    pub(in crate::model) groups: u32,
    /// States of each element.
    states: u32,
    /// Rows that the convolution looks at.
    kernel_size: u32,
    /// Bias of the projections.
    bias: Bias,
    conv_bias: Bias,
    /// After the convolution.
    pub(in crate::model) act: Act,
    /// The least and the largest time step.
    limits: [f32; 2],
    /// How the file holds the decays.
    decays: StoredDecays,
    /// Factors on what the projection gives: gate, x, b, c, time step.
    pub(in crate::model) factors: [f32; 5],
}

impl Mamba {
    /// With a least time step and no other bound. GGUF files have no key for it: there it is that of all published models.
    pub(in crate::model) fn with_least_time_step(mut self, c: &Config<'_>) -> Result<Self> {
        self.limits = [c.maybe_float("time_step_min", 0.0..=1e3)?.unwrap_or(1e-3) as f32, f32::INFINITY];
        Ok(self)
    }

    /// The sizes that the hyper-parameters give, by the names of Falcon-H1 and Granite.
    pub(in crate::model) fn read(c: &Config<'_>) -> Result<Self> {
        let heads = c.int("mamba_n_heads", 1..=1 << 12)?;
        let given = match c.text("mamba_d_head") {
            Ok(Some("auto")) => None,
            _ => c.maybe_part("mamba_d_head")?,
        };
        let inner = match c.maybe_dim("mamba_inner")? {
            Some(inner) => Some(inner),
            None => c.maybe_int("mamba_expand", 1..=1 << 8)?.map(|by| Ok(by * c.dim("hidden_size")?)).transpose()?,
        };
        let dim = given.or(inner.map(|inner| inner / heads)).unwrap_or(0);
        if dim == 0 || inner.is_some_and(|inner| inner != dim * heads) {
            let works = inner.map_or("a size".to_owned(), |inner| format!("{inner} by the number of heads, {heads},"));
            return Err(c.wrong("mamba_d_head", &works));
        }
        let groups = c.int("mamba_n_groups", 1..=heads)?;
        if !heads.is_multiple_of(groups) {
            return Err(c.wrong("mamba_n_groups", &format!("a divisor of {heads}, the number of heads,")));
        }
        Ok(Self {
            heads,
            dim,
            groups,
            states: c.part("mamba_d_state")?,
            kernel_size: c.int("mamba_d_conv", 1..=64)?,
            bias: c.bias("mamba_proj_bias", false)?,
            conv_bias: c.bias("mamba_conv_bias", true)?,
            act: c.activation("mamba_act", Act::Silu)?,
            limits: c.bounds("time_step_limit", [0.0, f32::INFINITY])?,
            decays: if c.is_gguf() { StoredDecays::Plain } else { StoredDecays::Logarithms },
            factors: [1.0; 5],
        })
    }

    /// Columns inside.
    pub(in crate::model) fn inner(&self) -> u32 {
        self.heads * self.dim
    }
}

impl Net<'_> {
    /// What a Mamba-2 layer makes of x, `NAME.in_proj` to `NAME.D`, before it is gated; and the gate, before its activation.
    pub(in crate::model) fn mamba(&mut self, name: &str, x: ValueId, m: &Mamba) -> [ValueId; 2] {
        let (inner, group) = (m.inner(), m.groups * m.states);
        let mut start = 0;
        let mut parts = ["gate", "x", "b", "c", "dt"].into_iter().zip(m.factors);
        let [gate, x, b, c, dt] = [inner, inner, group, group, m.heads].map(|n| {
            let (of, factor) = parts.next().unwrap_or(("", 1.0));
            let h = self.linear_part(&format!("{name}.in_proj"), x, start, n, m.bias);
            start += n;
            self.scaled(of, h, factor)
        });
        let conv = format!("{name}.conv1d");
        let [x, b, c] = [(x, 0), (b, inner), (c, inner + group)].map(|(x, start)| {
            let h = self.short_conv(&conv, x, start, m.kernel_size, m.conv_bias);
            self.b.act("act", h, m.act)
        });
        let bias = self.b.vector(&format!("{name}.dt_bias"), m.heads);
        let a = self.b.decays(&format!("{name}.A_log"), m.heads, m.decays);
        let skip = self.b.vector(&format!("{name}.D"), m.heads);
        let decay = Decay { x: dt, bias, a, min: m.limits[0], max: m.limits[1] };
        [self.b.scan([x, b, c], m.dim, m.groups, decay, skip), gate]
    }

    /// A whole Mamba-2 layer whose result is gated, normed by groups, and projected back.
    pub(in crate::model) fn mamba_mixer(&mut self, name: &str, x: ValueId, m: &Mamba, eps: f32) -> ValueId {
        let dim = self.b.width(x);
        let [y, gate] = self.mamba(name, x, m);
        let h = self.silu_gated(y, gate);
        let h = self.group_norm(&format!("{name}.norm"), h, m.groups, eps);
        self.linear(&format!("{name}.out_proj"), h, dim, m.bias)
    }

    /// A causal convolution of each column of x with its own row of `NAME.weight`, from row `start` on.
    pub(in crate::model) fn short_conv(
        &mut self,
        name: &str,
        x: ValueId,
        start: u32,
        kernel_size: u32,
        bias: Bias,
    ) -> ValueId {
        let n = self.b.width(x);
        let weight = self.b.weight_rows(&format!("{name}.weight"), start, n, kernel_size);
        let bias = self.bias(name, start, n, Runs::ONE, bias);
        self.b.conv(name, x, weight, bias)
    }

    /// `silu(gate) * y`
    pub(in crate::model) fn silu_gated(&mut self, y: ValueId, gate: ValueId) -> ValueId {
        self.gated(gate, y, Act::Silu)
    }

    /// RMS norm of each of `groups` groups of columns, times its part of `NAME.weight`.
    pub(in crate::model) fn group_norm(&mut self, name: &str, x: ValueId, groups: u32, eps: f32) -> ValueId {
        let width = self.b.width(x);
        let weight = Some(self.b.vector(&format!("{name}.weight"), width));
        let spec = NormSpec { kind: NormKind::Rms, n: width / groups, weight, bias: None, eps };
        self.b.norm_of_groups(name, x, spec)
    }
}
