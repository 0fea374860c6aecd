//! How tokens are sampled: options of `run`, named as llama.cpp names them, and settings of a conversation by the same names.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::exit::Exit;
use crate::ops::Penalties;
use crate::sample::{Dry, Mirostat, Sampling, Xtc};

/// How tokens are sampled. What the model's files recommend is the default where they do; elsewhere llama.cpp's defaults are.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token [default: the model's, else 0.8].
    #[arg(
        long,
        alias = "temperature",
        value_name = "T",
        allow_negative_numbers = true,
        env = "WGSLM_TEMP",
        hide_env_values = true
    )]
    temp: Option<f32>,
    /// Samples among the K most likely tokens; 0: all [default: the model's, else 40].
    #[arg(long, value_name = "K", env = "WGSLM_TOP_K", hide_env_values = true)]
    top_k: Option<u32>,
    /// Samples among the most likely tokens whose probabilities reach P; 1: all [default: the model's, else 0.95].
    #[arg(long, value_name = "P", allow_negative_numbers = true, env = "WGSLM_TOP_P", hide_env_values = true)]
    top_p: Option<f32>,
    /// Samples among tokens at least P times as likely as the most likely; 0: all [default: the model's, else 0.05].
    #[arg(long, value_name = "P", allow_negative_numbers = true, env = "WGSLM_MIN_P", hide_env_values = true)]
    min_p: Option<f32>,
    /// Samples among the most typical tokens whose probabilities reach P; 1: all.
    #[arg(long, alias = "typical-p", default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    typical: f32,
    /// Divides positive logits of tokens seen before, and multiplies negative ones; 1: off [default: the model's, else 1].
    #[arg(long, value_name = "X", allow_negative_numbers = true, env = "WGSLM_REPEAT_PENALTY", hide_env_values = true)]
    repeat_penalty: Option<f32>,
    /// Taken from the logits of tokens seen before; 0: off.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Taken from the logits of tokens for each time that they were seen before; 0: off.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Penalties see the last N tokens of prompt and answer, at most 4096 [default: the model's, else 64].
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<u32>,
    /// DRY: takes X * base^(n - allowed length) from a token that makes a repetition of n tokens longer; 0: off.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    dry_multiplier: f32,
    /// DRY's base.
    #[arg(long, default_value_t = Dry::NONE.base, value_name = "X", allow_negative_numbers = true)]
    dry_base: f32,
    /// DRY leaves shorter repetitions alone.
    #[arg(long, default_value_t = Dry::NONE.allowed, value_name = "N")]
    dry_allowed_length: u32,
    /// DRY searches the last N tokens; 0: all.
    #[arg(long, default_value_t = Dry::NONE.last_n, value_name = "N")]
    dry_penalty_last_n: u32,
    /// XTC: how often the most likely tokens are removed, but for the last of them; 0: never.
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    xtc_probability: f32,
    /// XTC takes tokens that are at least this likely.
    #[arg(long, default_value_t = Xtc::NONE.threshold, value_name = "P", allow_negative_numbers = true)]
    xtc_threshold: f32,
    /// 2: mirostat 2, in place of the filters from --top-k to --typical and XTC; 0: off.
    #[arg(long, default_value_t = 0, value_name = "VERSION", value_parser = mirostat)]
    mirostat: u32,
    /// The surprise, in bits a token, that mirostat holds.
    #[arg(long, alias = "mirostat-tau", default_value_t = 5.0, value_name = "TAU", allow_negative_numbers = true)]
    mirostat_ent: f32,
    /// How fast mirostat learns.
    #[arg(long, alias = "mirostat-eta", default_value_t = Mirostat::NONE.eta, value_name = "ETA", allow_negative_numbers = true)]
    mirostat_lr: f32,
    /// Adds BIAS to the logit of a token, which is a number (see `wgslm tokenize`); may be given several times.
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the samples: the same seed gives the same text [default: another one each time].
    #[arg(short, long, env = "WGSLM_SEED", hide_env_values = true)]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// As it was asked for, else as `default` says.
    pub(super) fn sampling(&self, default: Sampling) -> Result<Sampling, Exit> {
        // 32 bits: what reads JSON may hold numbers as f64.
        let random = || RandomState::new().build_hasher().finish() >> 32;
        if self.mirostat == 2 && self.mirostat_ent == 0.0 {
            return Err(Exit::usage("mirostat ent: 0; more than 0, at most 100 works"));
        }
        let sampling = Sampling {
            temperature: self.temp.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical: self.typical,
            penalties: Penalties {
                repeat: self.repeat_penalty.unwrap_or(default.penalties.repeat),
                presence: self.presence_penalty,
                frequency: self.frequency_penalty,
            },
            last_n: self.repeat_last_n.unwrap_or(default.last_n),
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed: self.dry_allowed_length,
                last_n: self.dry_penalty_last_n,
            },
            xtc: Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold },
            mirostat: Mirostat { tau: if self.mirostat == 2 { self.mirostat_ent } else { 0.0 }, eta: self.mirostat_lr },
            seed: self.seed.unwrap_or_else(random),
            ..Sampling::GREEDY
        };
        sampling.check()?;
        Ok(sampling)
    }

    /// What is added to logits.
    pub(super) fn bias(&self) -> &[(u32, f32)] {
        &self.logit_bias
    }
}

fn mirostat(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        "2" => Ok(2),
        _ => Err("0 (off) and 2 work".to_owned()),
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(token, bias)| Some((token.parse().ok()?, bias.parse().ok()?)));
    parsed
        .filter(|(_, bias): &(u32, f32)| bias.is_finite())
        .ok_or("a token's number and a finite bias work: 13=-2.5".to_owned())
}

/// A field of a [`Sampling`].
enum Field<'a> {
    Real(&'a mut f32),
    Count(&'a mut u32),
    Seed(&'a mut u64),
}

/// The settings of a conversation, in the order in which they are shown.
fn fields(s: &mut Sampling) -> [(&'static str, Field<'_>); 18] {
    use Field::{Count, Real, Seed};
    [
        ("temp", Real(&mut s.temperature)),
        ("top_k", Count(&mut s.top_k)),
        ("top_p", Real(&mut s.top_p)),
        ("min_p", Real(&mut s.min_p)),
        ("typical", Real(&mut s.typical)),
        ("repeat_penalty", Real(&mut s.penalties.repeat)),
        ("presence_penalty", Real(&mut s.penalties.presence)),
        ("frequency_penalty", Real(&mut s.penalties.frequency)),
        ("repeat_last_n", Count(&mut s.last_n)),
        ("dry_multiplier", Real(&mut s.dry.multiplier)),
        ("dry_base", Real(&mut s.dry.base)),
        ("dry_allowed_length", Count(&mut s.dry.allowed)),
        ("dry_penalty_last_n", Count(&mut s.dry.last_n)),
        ("xtc_probability", Real(&mut s.xtc.probability)),
        ("xtc_threshold", Real(&mut s.xtc.threshold)),
        ("mirostat_tau", Real(&mut s.mirostat.tau)),
        ("mirostat_eta", Real(&mut s.mirostat.eta)),
        ("seed", Seed(&mut s.seed)),
    ]
}

/// The sampling with one setting changed; none if there is no such setting. Names may be written with dashes.
pub(super) fn set(sampling: &Sampling, name: &str, value: &str) -> Result<Option<Sampling>, Exit> {
    let mut changed = *sampling;
    let wanted = name.replace('-', "_");
    match fields(&mut changed).into_iter().find(|(name, _)| *name == wanted) {
        None => return Ok(None),
        Some((_, Field::Real(x))) => *x = number(name, value)?,
        Some((_, Field::Count(n))) => *n = number(name, value)?,
        Some((_, Field::Seed(seed))) => *seed = number(name, value)?,
    }
    changed.check()?;
    Ok(Some(changed))
}

/// All settings, a line each.
pub(super) fn settings(mut sampling: Sampling) -> String {
    let line = |(name, field)| match field {
        Field::Real(x) => format!("{name} {x}\n"),
        Field::Count(n) => format!("{name} {n}\n"),
        Field::Seed(seed) => format!("{name} {seed}\n"),
    };
    fields(&mut sampling).into_iter().map(line).collect()
}

/// A setting's value.
pub(super) fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<N, Exit> {
    value.parse().map_err(|_| Exit::usage(format!("{name}: {value:?} is not a number that fits")))
}
