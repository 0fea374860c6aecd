//! What test bodies run on: a device that loads models, and one sequence on it whose pages are shuffled.

use wgslm::Result;
use wgslm::exec::{Executor, Limits, Numerics, Outs, Phase, Sampled, SeqStep, Step, StepOut, Token};
use wgslm::model::Model;
use wgslm::ops::SampleSpec;

/// A kind of executor: test bodies are the same for all.
pub(crate) trait Device {
    type Exec: Executor;
    /// The longest prompt that a real model can read here in reasonable time.
    const LONGEST: usize;
    /// Whether there are ops that only the other executor runs; it is also the slower one.
    const LACKS_KERNELS: bool;
    /// An executor with a model's weights.
    fn load(model: &Model, numerics: Numerics, limits: Limits) -> Result<Self::Exec>;
    /// Fills the whole cache with NaN: positions that were not written must not matter.
    fn poison(exec: &mut Self::Exec);
}

/// One sequence on a device.
pub(crate) struct Runner<D: Device> {
    exec: D::Exec,
    /// One table a group: all blocks that there are, shuffled.
    tables: Vec<Vec<u32>>,
    pos: u32,
}

impl<D: Device> Runner<D> {
    /// A model on a device, with capacity for `context` positions and chunks of `rows`.
    pub(crate) fn new(model: &Model, numerics: Numerics, context: usize, rows: usize) -> Self {
        Self::open(model, numerics, context, rows).unwrap()
    }

    /// The same; fails where the device cannot run the model.
    pub(crate) fn open(model: &Model, numerics: Numerics, context: usize, rows: usize) -> Result<Self> {
        const BLOCK: u32 = 16;
        let blocks = (context as u32).div_ceil(BLOCK);
        let limits = Limits {
            rows: rows as u32,
            seqs: 2,
            outs: rows as u32,
            block: BLOCK,
            blocks,
            context: context as u32,
            in_flight: 2,
            checkpoints: 0,
        };
        let mut exec = D::load(model, numerics, limits)?;
        D::poison(&mut exec);
        let table = |(group, window): (u32, Option<u32>)| {
            let own = limits.blocks_of(window);
            // A step that is coprime to the number of blocks visits all of them, far from their order. Where a window has fewer
            // than there are positions, it begins again.
            let step = (own / 2 + 1..).find(|step| gcd(*step, own) == 1).unwrap();
            (0..blocks).map(|i| (u64::from(i + group) * u64::from(step) % u64::from(own)) as u32).collect()
        };
        let tables = (0..).zip(model.program.windows()).map(table).collect();
        Ok(Self { exec, tables, pos: 0 })
    }

    /// Starts again with an empty sequence.
    pub(crate) fn restart(&mut self) {
        D::poison(&mut self.exec);
        self.pos = 0;
    }

    fn step(&mut self, phase: Phase, tokens: &[Token], outs: Outs, sample: Option<SampleSpec>, read: bool) -> StepOut {
        let tables: Vec<&[u32]> = self.tables.iter().map(|table| &table[..]).collect();
        let seq = SeqStep { outs, sample, read_logits: read, ..SeqStep::new(1, phase, tokens, self.pos, &tables) };
        let ticket = self.exec.enqueue(&Step { seqs: &[seq] }).unwrap();
        self.pos += tokens.len() as u32;
        let mut result = None;
        while result.is_none() {
            let found = self.exec.poll(&mut |done, out| {
                assert_eq!(done, ticket);
                result = Some(out.unwrap().clone());
            });
            if found == 0 {
                pollster::block_on(self.exec.wait()).unwrap();
            }
        }
        result.unwrap()
    }

    /// Logits at every position, (positions, vocabulary), with `chunk` rows a step.
    pub(crate) fn logits(&mut self, ids: &[u32], chunk: usize, phase: Phase) -> Vec<f64> {
        let mut logits = Vec::new();
        self.each_row(ids, chunk, phase, &mut |_, row| logits.extend(row.iter().map(|&x| f64::from(x))));
        logits
    }

    /// Gives each position and its logits to `each`: those of a large vocabulary are too many to keep.
    pub(crate) fn each_row(&mut self, ids: &[u32], chunk: usize, phase: Phase, each: &mut dyn FnMut(usize, &[f32])) {
        for (i, ids) in ids.chunks(chunk).enumerate() {
            let tokens: Vec<_> = ids.iter().map(|&id| Token::Host(id)).collect();
            let out = self.step(phase, &tokens, Outs::All, None, true);
            let vocab = out.logits.len() / ids.len();
            out.logits.chunks(vocab).enumerate().for_each(|(row, logits)| each(i * chunk + row, logits));
        }
    }

    /// The `n` tokens after a prompt that goes in by chunks; each is sampled and fed back on the device.
    pub(crate) fn greedy(&mut self, prompt: &[u32], chunk: usize, n: usize) -> Vec<u32> {
        let tokens: Vec<_> = prompt.iter().map(|&id| Token::Host(id)).collect();
        let (early, last) = tokens.split_at((tokens.len() - 1) / chunk * chunk);
        for chunk in early.chunks(chunk) {
            self.step(Phase::Prefill, chunk, Outs::None, None, false);
        }
        let mut ids = vec![self.sample(Phase::Prefill, last)];
        ids.extend((1..n).map(|_| self.sample(Phase::Decode, &[Token::Sampled])));
        ids
    }

    /// The `n` tokens after one that is not in the sequence yet.
    pub(crate) fn greedy_after(&mut self, token: u32, n: usize) -> Vec<u32> {
        let first = |i| if i == 0 { Token::Host(token) } else { Token::Sampled };
        (0..n).map(|i| self.sample(Phase::Decode, &[first(i)])).collect()
    }

    fn sample(&mut self, phase: Phase, tokens: &[Token]) -> u32 {
        let out = self.step(phase, tokens, Outs::Last, Some(SampleSpec::GREEDY), false);
        match out.sampled[..] {
            [Sampled { slot: 1, token }] => token.expect("finite logits"),
            ref other => panic!("{other:?}"),
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
