//! Means with their errors, and what perplexities are of them.

use std::io::{self, Write};

use serde_json::json;

/// A mean and its standard error.
#[derive(Default)]
pub(super) struct Mean {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Mean {
    pub(super) fn add(&mut self, x: f64) {
        self.count += 1;
        self.sum += x;
        self.squares += x * x;
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// `sqrt((E x² - (E x)²) / (n - 1))`
    pub(super) fn error(&self) -> f64 {
        let variance = self.squares / self.count as f64 - self.mean().powi(2);
        (variance.max(0.0) / self.count.saturating_sub(1).max(1) as f64).sqrt()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        json!({ "mean": self.mean(), "error": self.error() })
    }
}

/// Negative logarithms of the probabilities of tokens; their mean's exponential is the perplexity.
#[derive(Default)]
pub(super) struct Likelihood(Mean);

impl Likelihood {
    pub(super) fn add(&mut self, nll: f64) {
        self.0.add(nll);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.count
    }

    pub(super) fn perplexity(&self) -> f64 {
        self.0.mean().exp()
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "NLL               {:.5} ± {:.5}", self.0.mean(), self.0.error())?;
        writeln!(out, "perplexity        {:.4} ± {:.4}", self.perplexity(), self.perplexity() * self.0.error())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "tokens": self.0.count,
            "nll": self.0.mean(),
            "nll_error": self.0.error(),
            "perplexity": self.perplexity(),
            "perplexity_error": self.perplexity() * self.0.error(),
        })
    }
}

/// A mean, and how values are spread around it.
#[derive(Default)]
pub(super) struct Quantiles {
    mean: Mean,
    values: Vec<f64>,
}

impl Quantiles {
    pub(super) fn add(&mut self, x: f64) {
        self.mean.add(x);
        self.values.push(x);
    }

    /// Values below which such a share of all lies.
    fn at(&self, shares: &[f64]) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| sorted.get(((sorted.len().saturating_sub(1)) as f64 * share) as usize).copied();
        shares.iter().map(|&share| at(share).unwrap_or(f64::NAN)).collect()
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let at = self.at(&[0.5, 0.9, 0.99, 1.0]);
        writeln!(out, "KL divergence     {:.6} ± {:.6}", self.mean.mean(), self.mean.error())?;
        writeln!(out, "  median {:.6}, 90 % {:.6}, 99 % {:.6}, max {:.6}", at[0], at[1], at[2], at[3])
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let at = self.at(&[0.5, 0.9, 0.99, 1.0]);
        json!({
            "mean": self.mean.mean(),
            "error": self.mean.error(),
            "median": at[0],
            "p90": at[1],
            "p99": at[2],
            "max": at[3],
        })
    }
}
