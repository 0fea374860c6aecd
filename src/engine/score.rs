//! Logits of every position of a text, for comparisons and perplexities.

use crate::exec::{Executor, Outs, Role, SeqStep, Step, StepOut, Token};
use crate::kv::Kv;
use crate::model::Program;
use crate::{Error, Result};

/// Runs `ids` as one prompt and gives the logits of each position, (positions, vocab).
///
/// The executor must have no step under way, and what its cache holds is overwritten.
pub async fn score<E: Executor>(executor: &mut E, program: &Program, ids: &[u32]) -> Result<Vec<f32>> {
    let limits = executor.limits();
    let mut kv = Kv::new(program.groups, limits.blocks, limits.block);
    let mut table = kv.table();
    let positions = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if positions > limits.context || kv.grow(&mut table, positions).is_err() {
        return Err(Error::Limit {
            what: "ids".into(),
            needed: format!("{positions} positions"),
            available: format!("{} of context", limits.context),
            instead: "fewer ids or a larger context works".into(),
        });
    }
    let tables: Vec<&[u32]> = table.groups().collect();
    let chunk = limits.rows.min(limits.outs).max(1);
    let mut logits = Vec::new();
    for (pos, ids) in (0..).step_by(chunk as usize).zip(ids.chunks(chunk as usize)) {
        let tokens: Vec<Token> = ids.iter().map(|&id| Token::Host(id)).collect();
        let seq = SeqStep {
            slot: 0,
            role: Role::Prompt,
            tokens: &tokens,
            types: &[],
            pos,
            tables: &tables,
            outs: Outs::All,
            sample: None,
            read_logits: true,
        };
        executor.enqueue(&Step { seqs: &[seq] })?;
        let mut result = Ok(());
        let mut take = |out: Result<&StepOut>| match out {
            Ok(out) => logits.extend_from_slice(&out.logits),
            Err(error) => result = Err(error),
        };
        while executor.poll(&mut |_, out| take(out)) == 0 {
            executor.wait().await?;
        }
        result?;
    }
    Ok(logits)
}
