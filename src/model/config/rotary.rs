//! Rotary embeddings as hyper-parameters describe them: which elements of a head rotate, and by what angles.

use crate::model::config::Config;
use crate::model::program::RopeTable;
use crate::ops::Pairing;
use crate::{Error, Result};

/// A rotary embedding: which elements rotate, by what angles.
///
/// Pair i of d rotated elements rotates by `position / theta^(2i/d)`, as scaled by `rope_parameters`:
/// * `linear`: positions divided by `factor` (Chen et al. 2023)
/// * `llama3`: long waves as in `linear`, short ones as they are, those between interpolated (Llama 3.1)
/// * `yarn`: the same by the number of revolutions in the original context, and longer vectors (Peng et al. 2023)
/// * `longrope`: each pair divided by a factor of its own, one for short contexts and one for long ones (Ding et al. 2024)
/// * `dynamic` with `alpha`: theta times `alpha^(d/(d-2))` (Hunyuan)
/// * `proportional`: the angles of a whole head, of which only the first pairs rotate (Gemma 4)
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) struct Rotary {
    /// The angles; in f64: rounding them to f32, as transformers does, brings the logits of its fixtures no nearer.
    pub(in crate::model) table: RopeTable,
    /// Which elements make a pair.
    pub(in crate::model) pairing: Pairing,
}

const FACTOR: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
const THETA: std::ops::RangeInclusive<f64> = 1e-3..=1e15;
const ORIGINAL: &str = "original_max_position_embeddings";

impl Rotary {
    /// How elements pair up in a model whose GGUF converter reorders the rows of q and k, from rotate-half to interleaved.
    pub(in crate::model) fn reordered(c: &Config<'_>) -> Pairing {
        if c.is_gguf() { Pairing::Interleaved } else { Pairing::Neox }
    }

    /// The rotation of all layers, for heads of a size, all of whose elements rotate.
    pub(in crate::model) fn read(c: &Config<'_>, head_dim: u32, pairing: Pairing) -> Result<Self> {
        Section { c, head_dim, inner: None, theta: 1e4, part: None }.read(pairing)
    }

    /// The same with another `theta` where nothing is said.
    pub(in crate::model) fn read_with_theta(
        c: &Config<'_>,
        head_dim: u32,
        pairing: Pairing,
        theta: f64,
    ) -> Result<Self> {
        Section { c, head_dim, inner: None, theta, part: None }.read(pairing)
    }

    /// The same for a model that may rotate a part of each head, and does by default.
    pub(in crate::model) fn read_part(c: &Config<'_>, head_dim: u32, pairing: Pairing, part: f64) -> Result<Self> {
        Section { c, head_dim, inner: None, theta: 1e4, part: Some(part) }.read(pairing)
    }

    /// The rotation of the full-attention layers, in a model whose other layers have their own: from
    /// `rope_parameters.full_attention`, or else from the parameters for all layers.
    pub(in crate::model) fn of_full(c: &Config<'_>, head_dim: u32, pairing: Pairing) -> Result<Self> {
        const INNER: &str = "rope_parameters.full_attention.";
        Section { c, head_dim, inner: c.has_any(INNER).then_some(INNER), theta: 1e4, part: None }.read(pairing)
    }

    /// The rotation of the sliding-window layers, in a model whose other layers have their own: by default plain, with
    /// `theta`.
    pub(in crate::model) fn of_window(c: &Config<'_>, head_dim: u32, pairing: Pairing, theta: f64) -> Result<Self> {
        Section { c, head_dim, inner: Some("rope_parameters.sliding_attention."), theta, part: None }.read(pairing)
    }

    /// Elements of a head that rotate.
    pub(in crate::model) fn dims(&self) -> u32 {
        2 * self.table.divisors.len() as u32
    }
}

/// The rotary parameters of a kind of layers.
struct Section<'c> {
    c: &'c Config<'c>,
    head_dim: u32,
    /// Where they are, if not with those of all layers.
    inner: Option<&'static str>,
    /// The default theta.
    theta: f64,
    /// The part of a head that rotates by default, in a model that may rotate a part. Others ignore what a folder says of it,
    /// or fail, so it is refused.
    part: Option<f64>,
}

impl Section<'_> {
    /// The whole name of a parameter.
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.inner.unwrap_or("rope_parameters."))
    }

    fn float(&self, name: &str) -> Result<f64> {
        self.c.float(&self.key(name), FACTOR)
    }

    fn maybe_float(&self, name: &str) -> Result<Option<f64>> {
        self.c.maybe_float(&self.key(name), FACTOR)
    }

    fn read(&self, pairing: Pairing) -> Result<Rotary> {
        let c = self.c;
        let mut theta = c.maybe_float(&self.key("rope_theta"), THETA)?.unwrap_or(self.theta);
        let kind = c.text(&self.key("rope_type"))?.unwrap_or("default");
        // GGUF files of longrope models have the factors and no name for them.
        let kind = if c.names.file.find("rope_factors_long.weight").is_some() { "longrope" } else { kind };
        // As older folders of Phi-3 call it.
        let kind = if kind == "yarn" && c.names.arch.name() == "phi3" { "longrope" } else { kind };
        let (dims, of) = match kind {
            "proportional" => (self.turning()?, self.head_dim),
            _ => (self.rotated()?, self.rotated()?),
        };
        if kind == "dynamic" {
            let alpha = self.key("alpha");
            let reads = c.names.arch.name() == "hunyuan_v1_dense";
            let Some(alpha) = c.maybe_float(&alpha, FACTOR)?.filter(|_| reads && dims > 2) else {
                let what = format!("rope_type = \"dynamic\" without alpha in a {} model", c.names.arch.name());
                return Err(Error::unsupported(
                    what,
                    "hunyuan_v1_dense with a fixed alpha works, and so do the other types",
                ));
            };
            theta *= alpha.powf(f64::from(dims) / f64::from(dims - 2));
        }
        let mut divisors: Vec<f64> = (0..dims / 2).map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(of))).collect();
        let mut table = RopeTable::default();
        match kind {
            "default" | "none" | "dynamic" => {}
            "linear" => {
                let factor = self.float("factor")?;
                divisors.iter_mut().for_each(|f| *f /= factor);
            }
            "llama3" => self.llama3(&mut divisors)?,
            "yarn" => table.factor = self.yarn(&mut divisors, theta)? as f32,
            "longrope" | "su" => {
                let (beyond, factor) = self.longrope()?;
                let long = c.maybe_floats(&self.key("long_factor"))?;
                let long = self.divided(&divisors, "long_factor", long)?;
                let short = c.maybe_floats(&self.key("short_factor"))?;
                divisors = self.divided(&divisors, "short_factor", short)?;
                (table.long, table.factor) = (Some((beyond, long)), factor as f32);
            }
            "proportional" => {
                let factor = self.maybe_float("factor")?.unwrap_or(1.0);
                divisors.iter_mut().for_each(|f| *f /= factor);
                divisors.resize(self.head_dim as usize / 2, 0.0);
            }
            other => {
                let what = format!("rope_type = {other:?} in a {} model", c.names.arch.name());
                let works = "default, linear, llama3, yarn, longrope, dynamic with alpha, and proportional work";
                return Err(Error::unsupported(what, works));
            }
        }
        if let factors @ Some(_) = c.maybe_floats(&self.key("freq_factors"))? {
            divisors = self.divided(&divisors, "freq_factors", factors)?;
        }
        table.divisors = divisors;
        Ok(Rotary { table, pairing })
    }

    /// How many elements of a head are rotated.
    fn rotated(&self) -> Result<u32> {
        let (c, head_dim) = (self.c, self.head_dim);
        let whole =
            if self.inner == Some("rope_parameters.sliding_attention.") { "rotary_dim_swa" } else { "rotary_dim" };
        let (key, dims) = match c.maybe_int(whole, 2..=head_dim.max(2))? {
            Some(dims) => (whole.to_owned(), dims),
            None => {
                let key = self.key("partial_rotary_factor");
                let part = match c.maybe_float(&key, 1e-6..=1.0)? {
                    None if self.inner.is_some() => {
                        c.maybe_float("rope_parameters.partial_rotary_factor", 1e-6..=1.0)?
                    }
                    part => part,
                };
                if self.part.is_none() && part.is_some_and(|part| part != 1.0) {
                    return Err(c.wrong(&key, "1, rotating whole heads,"));
                }
                (key, (f64::from(head_dim) * part.or(self.part).unwrap_or(1.0)) as u32)
            }
        };
        if dims < 2 || dims > head_dim || !dims.is_multiple_of(2) {
            let works = format!("rope turns {dims} of a head's {head_dim} elements by that, an even number");
            return Err(c.wrong(&key, &works));
        }
        Ok(dims)
    }

    /// How many elements of a head rotate at all, where the angles are those of a whole head.
    fn turning(&self) -> Result<u32> {
        let part = self.c.maybe_float(&self.key("partial_rotary_factor"), 0.0..=1.0)?.unwrap_or(1.0);
        Ok(2 * (part * f64::from(self.head_dim / 2)) as u32)
    }

    /// The divisors by a list of factors, one each.
    fn divided(&self, divisors: &[f64], name: &str, factors: Option<Vec<f64>>) -> Result<Vec<f64>> {
        match factors.filter(|factors| factors.len() == divisors.len()) {
            Some(factors) => Ok(divisors.iter().zip(factors).map(|(f, by)| f / by).collect()),
            None => Err(self.c.wrong(&self.key(name), &format!("one of {} elements", divisors.len()))),
        }
    }

    /// The context that a model had before it was stretched.
    fn original(&self) -> Result<u32> {
        let key = self.key(ORIGINAL);
        match self.c.maybe_int(ORIGINAL, 1..=1 << 30)? {
            Some(outside) => Ok(outside),
            None => Ok(self.c.maybe_int(&key, 1..=1 << 30)?.map_or_else(|| self.c.context(), Ok)?),
        }
    }

    /// Llama 3.1's scaling, by the length of a pair's wave in positions.
    fn llama3(&self, divisors: &mut [f64]) -> Result<()> {
        let (factor, low, high) =
            (self.float("factor")?, self.float("low_freq_factor")?, self.float("high_freq_factor")?);
        let context = f64::from(self.original()?);
        if low >= high {
            let works = format!("a number above {low}, low_freq_factor,");
            return Err(self.c.wrong(&self.key("high_freq_factor"), &works));
        }
        for f in divisors {
            let waves = context * *f / std::f64::consts::TAU; // in the original context
            let keep = ((waves - low) / (high - low)).clamp(0.0, 1.0);
            *f = (1.0 - keep) * *f / factor + keep * *f;
        }
        Ok(())
    }

    /// YaRN's scaling, by a pair's revolutions within the original context. Gives the factor on the vectors.
    fn yarn(&self, divisors: &mut [f64], theta: f64) -> Result<f64> {
        let factor = self.float("factor")?;
        let context = f64::from(self.original()?);
        let pairs = divisors.len() as f64;
        // The pair that makes so many revolutions.
        let pair = |turns: f64| pairs * (context / (turns * std::f64::consts::TAU)).ln() / theta.ln();
        let fast = pair(self.maybe_float("beta_fast")?.unwrap_or(32.0));
        let slow = pair(self.maybe_float("beta_slow")?.unwrap_or(1.0));
        // GGUF files have no key for it; of these models, only gpt-oss does not round.
        let rounds = !(self.c.is_gguf() && self.c.names.arch.name() == "gpt_oss");
        let whole = self.c.flag(&self.key("truncate"), rounds)?;
        let (low, high) = if whole { (fast.floor(), slow.ceil()) } else { (fast, slow) };
        let (low, mut high) = (low.max(0.0), high.min(2.0 * pairs - 1.0));
        if low == high {
            high += 0.001;
        }
        for (i, f) in divisors.iter_mut().enumerate() {
            let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            *f = stretched * *f / factor + (1.0 - stretched) * *f;
        }
        let all = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let scale = |name: &str| self.c.maybe_float(&self.key(name), 0.0..=1e6);
        let (given, mut mscale, mscale_all) = (scale("attention_factor")?, scale("mscale")?, scale("mscale_all_dim")?);
        if self.c.is_gguf() && mscale_all.is_some() {
            mscale = mscale.or(Some(1.0)); // which GGUF files have no key for
        }
        let known = match (mscale.unwrap_or(0.0), mscale_all.unwrap_or(0.0)) {
            (mscale, mscale_all) if mscale != 0.0 && mscale_all != 0.0 => all(mscale) / all(mscale_all),
            _ => all(1.0),
        };
        // In GGUF files the key is a factor on the default; in folders it replaces the default.
        Ok(if self.c.is_gguf() { given.unwrap_or(1.0) * known } else { given.unwrap_or(known) })
    }

    /// The context beyond which LongRoPE's other factors hold, and the factor on the vectors.
    fn longrope(&self) -> Result<(u32, f64)> {
        let original = self.original()?;
        let stretch = match self.maybe_float("factor")? {
            Some(factor) => factor,
            None => f64::from(self.c.context()?) / f64::from(original),
        };
        let factor = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / f64::from(original).ln()).sqrt() };
        Ok((original, self.c.maybe_float(&self.key("attention_factor"), 0.0..=1e6)?.unwrap_or(factor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use crate::file::{Bytes, ModelFile, Texts};
    use crate::model::arch::Arch;
    use crate::model::embedding::Task;

    /// The last pair that YaRN stretches is the last of a head at most: with a small theta, one slow revolution lies past it.
    /// The numbers are those of transformers' `_compute_yarn_parameters`.
    #[test]
    fn yarn_ends_with_the_head() {
        const EXPECTED: [f64; 8] = [
            1.0,
            0.7123995423316956,
            0.5061072111129761,
            0.3584420382976532,
            0.2529821991920471,
            0.17785300314426422,
            0.12447956204414368,
            0.0866788923740387,
        ];
        let config = r#"{ "model_type": "llama", "max_position_embeddings": 16384, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0, "original_max_position_embeddings": 4096,
            "beta_fast": 1000.0, "beta_slow": 1.0 } }"#;
        let texts = Texts::from([("config.json".to_owned(), config.to_owned())]);
        let empty = Bytes::new("model.safetensors", [&2u64.to_le_bytes()[..], b"{}"].concat());
        let file = block_on(ModelFile::open_safetensors(texts, vec![Box::new(empty)])).unwrap();
        let config = block_on(Config::read(&file, Arch::of(&file).unwrap(), Task::Own)).unwrap();
        let table = Rotary::read(&config, 16, Pairing::Neox).unwrap().table;
        assert!((table.factor - 1.138_629_4).abs() < 1e-6, "{}", table.factor);
        assert_eq!(table.divisors.len(), EXPECTED.len());
        for (got, expected) in table.divisors.iter().zip(EXPECTED) {
            assert!((got / expected - 1.0).abs() < 1e-6, "{:?}", table.divisors);
        }
    }
}
