//! Sampling from logits that the host gives: every kind of sampling, the device's tokens against the CPU's.

use super::*;

/// A row of logits and what is sampled from it.
pub struct Gather {
    pub spec: SampleSpec,
    pub bias: Vec<(u32, f32)>,
    pub allowed: Option<Vec<u32>>,
    pub logits: Vec<f32>,
}

/// A program whose logits are its input.
pub fn given_logits(vocab: u32) -> OneOp {
    let mut op = OneOp::new(&[vocab], |b, x| b.gather(x[0]));
    op.program.outs = vec![Out::Logits(op.out)];
    op.program.vocab = vocab;
    op
}

/// With capacity for so many samples at once.
pub fn pick_limits(samples: u32) -> Limits {
    Limits { rows: samples, seqs: samples, outs: samples, checkpoints: 0, context: 1 << 20, ..limits() }
}

/// The tokens of a step that samples from every row at a position.
pub async fn pick(
    executor: &mut impl Executor,
    picks: &[Gather],
    pos: u32,
    seen: &[Vec<[u32; 2]>],
    pending: u32,
) -> Vec<Option<u32>> {
    pick_with_logprobs(executor, picks, pos, seen, pending, &|_| None).await.0
}

/// The same with probabilities: of how many tokens, by row.
async fn pick_with_logprobs(
    executor: &mut impl Executor,
    picks: &[Gather],
    pos: u32,
    seen: &[Vec<[u32; 2]>],
    pending: u32,
    logprobs: &dyn Fn(usize) -> Option<u32>,
) -> (Vec<Option<u32>>, Vec<Vec<Logprob>>) {
    let lists = |i: usize| SampleLists {
        counts: seen.get(i).map_or(&[], Vec::as_slice),
        pending,
        bias: &picks[i].bias,
        allowed: picks[i].allowed.as_deref(),
        logprobs: logprobs(i),
        ..SampleLists::default()
    };
    let seq = |(i, pick): (usize, &Gather)| SeqStep {
        lists: lists(i),
        ..sampling(rows(i as u32, Phase::Decode, &[Token::Host(0)], pos - 1, &[]), pick.spec)
    };
    let seqs: Vec<_> = picks.iter().enumerate().map(seq).collect();
    executor.enqueue(&Step { seqs: &seqs }).unwrap();
    executor.wait().await.unwrap();
    let (mut tokens, mut reported) = (Vec::new(), Vec::new());
    let mut take = |out: &StepOut| {
        tokens.extend(out.sampled.iter().map(|d| d.token));
        reported.extend_from_slice(&out.logprobs);
    };
    while executor.poll(&mut |_, out| take(out.unwrap())) == 0 {
        executor.wait().await.unwrap();
    }
    (tokens, reported)
}

/// Whether probabilities are the same but for rounding.
fn same_logprobs(a: &[Vec<Logprob>], b: &[Vec<Logprob>]) -> bool {
    let same = |(a, b): (&Logprob, &Logprob)| a.token == b.token && (a.logprob - b.logprob).abs() < 1e-4;
    let row = |(a, b): (&Vec<Logprob>, &Vec<Logprob>)| a.len() == b.len() && a.iter().zip(b).all(same);
    a.len() == b.len() && a.iter().zip(b).all(row)
}

/// Every kind of sample, all in one dispatch: filters alone and together, penalties, biases, maps, ties, rows without a token.
fn all_picks(vocab: u32, deviation: f32) -> Vec<Gather> {
    let base = SampleSpec { temperature: 0.8, seed: 0x1234_5678_9abc, ..SampleSpec::GREEDY };
    let penalties = Penalties { repeat: 1.3, presence: 0.2, frequency: 0.15 };
    let specs = [
        SampleSpec::GREEDY,
        base,
        SampleSpec { top_k: 40, ..base },
        SampleSpec { top_p: 0.9, ..base },
        SampleSpec { min_p: 0.1, ..base },
        SampleSpec { top_k: 40, top_p: 0.95, min_p: 0.05, ..base },
        SampleSpec { top_k: 1, ..base },
        SampleSpec { top_k: 300, top_p: 0.999, temperature: 3.0, ..base },
        SampleSpec { top_p: 0.00001, ..base },
        SampleSpec { top_p: 0.99, temperature: 0.01, ..base },
        SampleSpec { temperature: 0.0, penalties, ..base },
        SampleSpec { top_k: 50, top_p: 0.97, penalties, ..base },
        SampleSpec { penalties, ..base },
        SampleSpec { top_k: 2, temperature: 1e-30, ..base },
        // Without the third of the filters.
        SampleSpec { top_p: 0.9, min_p: 0.05, ..base },
        SampleSpec { top_k: 40, min_p: 0.05, ..base },
        // Top-p is a share of what top-k keeps, whatever min-p drops of that afterwards: much, here.
        SampleSpec { top_k: 40, top_p: 0.5, min_p: 0.4, temperature: 2.0, ..base },
        SampleSpec { top_k: 100, top_p: 0.7, min_p: 0.3, temperature: 1.5, ..base },
    ];
    let mut rng = Rng(u64::from(vocab) + 17);
    let mut picks = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let mut logits = rng.normals(vocab as usize, deviation);
        match i % 4 {
            // Ties, some of them across the cut; zeros of both signs; all the same.
            1 => logits.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0 + 3.0),
            2 => logits.iter_mut().for_each(|x| *x = (x.min(-0.0)).round()),
            3 if i == 7 => logits.fill(1.5),
            _ => {}
        }
        let token = |i: usize| (i as u32 * 7919) % vocab;
        let mut bias: Vec<_> =
            (0..if i % 3 == 0 { 9.min(vocab as usize) } else { 0 }).map(|j| (token(j), j as f32 - 3.0)).collect();
        bias.sort_by_key(|(token, _)| *token);
        bias.dedup_by_key(|(token, _)| *token);
        let allowed = (i % 5 == 2).then(|| (0..vocab.div_ceil(32)).map(|_| rng.word() as u32 | 1).collect());
        picks.push(Gather { spec, bias, allowed, logits });
    }
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = rng.normals(vocab as usize, deviation);
        let at = rng.below(vocab as usize);
        logits[at] = broken;
        let spec = if broken.is_nan() { base } else { SampleSpec { top_k: 5, top_p: 0.5, ..base } };
        picks.push(Gather { spec, bias: vec![], allowed: None, logits });
    }
    for top_k in [0, 7] {
        let nothing = Some(vec![0; vocab.div_ceil(32) as usize]);
        let logits = rng.normals(vocab as usize, deviation);
        picks.push(Gather { spec: SampleSpec { top_k, ..base }, bias: vec![], allowed: nothing, logits });
    }
    picks
}

/// The share of tokens that a device samples otherwise than the CPU, over some positions. Penalties see the tokens sampled before, the last
/// three of which the host is not supposed to know.
pub(super) async fn picks(device: &Device, vocab: u32, deviation: f32) -> (f64, Vec<String>) {
    let op = given_logits(vocab);
    let picks = all_picks(vocab, deviation);
    let limits = pick_limits(picks.len() as u32);
    let mut gpu = GpuExecutor::load(
        device,
        &op.program,
        &CpuWeights::default(),
        GpuOptions { limits, keep_values: true, ..options(Numerics::Exact) },
        &mut |_, _| {},
    )
    .await
    .unwrap();
    let cpu = CpuOptions { threads: Some(1), keep_values: true, ..CpuOptions::new(limits) };
    let mut cpu = CpuExecutor::new(&op.program, Arc::default(), cpu).unwrap();
    let logits: Vec<f32> = picks.iter().flat_map(|pick| pick.logits.iter().copied()).collect();
    gpu.set_value(Phase::Decode, op.inputs[0], &logits);
    cpu.set_value(op.inputs[0], &logits).unwrap();
    let mut history: Vec<Vec<u32>> = vec![Vec::new(); picks.len()];
    let (mut different, mut all) = (0, 0);
    for step in 0..8 {
        let pending = 3.min(step);
        let counts = |tokens: &Vec<u32>| {
            let mut known = tokens[..tokens.len() - pending].to_vec();
            known.sort_unstable();
            known.chunk_by(|a, b| a == b).map(|same| [same[0], same.len() as u32]).collect()
        };
        let seen: Vec<Vec<[u32; 2]>> = history.iter().map(counts).collect();
        let pos = 14 + step as u32;
        // Of none, of the sampled one alone, of a few, of as many as there may be.
        let logprobs = |i| if step == 5 { [None, Some(0), Some(3), Some(LOGPROBS)][i % 4] } else { None };
        let (wanted, reported) = pick_with_logprobs(&mut cpu, &picks, pos, &seen, pending as u32, &logprobs).await;
        let (got, got_reported) = pick_with_logprobs(&mut gpu, &picks, pos, &seen, pending as u32, &logprobs).await;
        assert!(same_logprobs(&reported, &got_reported), "{reported:?} {got_reported:?}");
        different += got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        all += wanted.len();
        assert!(wanted[wanted.len() - 5..].iter().all(Option::is_none), "{wanted:?}");
        assert!(wanted[..wanted.len() - 5].iter().all(Option::is_some), "{wanted:?}");
        history.iter_mut().zip(&wanted).for_each(|(history, token)| history.push(token.unwrap_or(0)));
    }
    (different as f64 / all as f64, gpu.modules())
}
