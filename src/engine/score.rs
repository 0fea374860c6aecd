//! Logits of every position of a text, for comparisons and perplexities.

use crate::exec::{Executor, Outs, Phase, SeqStep, Step, StepOut, Token};
use crate::kv::Kv;
use crate::model::Program;
use crate::ops::sample::normalizer;
use crate::{Error, Result};

/// Runs `ids` as one prompt and gives the logits of each position, (positions, vocab).
///
/// The executor must have no step in flight, and what its cache holds is overwritten.
pub async fn score<E: Executor>(executor: &mut E, program: &Program, ids: &[u32]) -> Result<Vec<f32>> {
    let mut logits = Vec::new();
    score_from(executor, program, ids, 0, &mut |_, row| logits.extend_from_slice(row)).await?;
    Ok(logits)
}

/// Runs `ids` as one prompt and gives `each` the logits of the positions from `first` on, a position at a time.
///
/// The executor must have no step in flight, and what its cache holds is overwritten.
pub async fn score_from<E: Executor>(
    executor: &mut E,
    program: &Program,
    ids: &[u32],
    first: usize,
    each: &mut dyn FnMut(usize, &[f32]),
) -> Result<()> {
    let limits = executor.limits();
    let positions = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if positions > limits.context.min(limits.blocks.saturating_mul(limits.block)) {
        return Err(Error::Limit {
            what: "ids".into(),
            needed: format!("{positions} positions"),
            available: format!("{} of context", limits.context),
            instead: "fewer ids or a larger context works".into(),
        });
    }
    let tables = Kv::of_one(program, &limits);
    let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
    let mut pos = 0;
    while pos < ids.len() {
        // Rows whose logits nobody wants come in larger steps.
        let wanted = pos >= first;
        let most = if wanted { limits.rows.min(limits.outs).max(1) as usize } else { limits.rows as usize };
        let end = ids.len().min(pos + most);
        let end = if wanted { end } else { end.min(first) };
        let tokens: Vec<Token> = ids[pos..end].iter().map(|&id| Token::Host(id)).collect();
        let seq = SeqStep {
            outs: if wanted { Outs::All } else { Outs::None },
            read_logits: wanted,
            ..SeqStep::new(0, Phase::Prefill, &tokens, pos as u32, &tables)
        };
        executor.enqueue(&Step { seqs: &[seq] })?;
        let mut result = Ok(());
        let mut take = |out: Result<&StepOut>| match out {
            Ok(out) => {
                let rows = out.logits.chunks_exact(program.vocab as usize);
                (pos..).zip(rows).for_each(|(position, row)| each(position, row));
            }
            Err(error) => result = Err(error),
        };
        while executor.poll(&mut |_, out| take(out)) == 0 {
            executor.wait().await?;
        }
        result?;
        pos = end;
    }
    Ok(())
}

/// `ln p` of every token of a vocabulary: logits less the logarithm of the sum of their exponentials.
pub struct LogProbs<'a> {
    logits: &'a [f32],
    /// The largest logit.
    pub max: f32,
    /// `ln Σ e^(logit - max)`
    pub log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Of the logits of a position.
    pub fn new(logits: &'a [f32]) -> Self {
        let (max, log_sum) = normalizer(logits);
        Self { logits, max, log_sum }
    }

    /// `ln p` of a token of the vocabulary.
    pub fn of(&self, token: u32) -> f64 {
        f64::from(self.logits[token as usize] - self.max) - self.log_sum
    }

    /// The most likely token.
    pub fn best(&self) -> u32 {
        self.logits.iter().position(|&x| x == self.max).unwrap_or(0) as u32
    }
}
