//! Samples: the CPU's, sample for sample, and as the exact distribution says.

use super::*;

#[test]
fn gpu_sampled_tokens_feed_the_next_step_and_are_the_cpus() {
    let cases = cases::samples();
    [LAVAPIPE, SWIFTSHADER].into_iter().for_each(|form| check(form, &cases));
}

#[test]
fn gpu_samples_of_every_kind_are_the_cpus() {
    let cases = cases::all_samples();
    check(LAVAPIPE, &cases);
    check(FORMS[1], cases.iter().take(3));
    check(SWIFTSHADER, cases.iter().take(4));
}

/// Also in a browser, where the engine is the same and the device is not.
#[test]
fn gpu_requests_share_blocks_and_states() {
    let cases = cases::shares();
    [LAVAPIPE, SWIFTSHADER].into_iter().for_each(|form| check(form, &cases));
}

/// The distribution that samples must follow, in f64.
fn exact(pick: &Gather, seen: &[[u32; 2]]) -> Vec<f64> {
    let SampleSpec { temperature, top_k, top_p, min_p, penalties, .. } = pick.spec;
    let mut logits: Vec<f64> = pick.logits.iter().copied().map(f64::from).collect();
    for &[token, count] in seen {
        let x = &mut logits[token as usize];
        *x = if *x > 0.0 { *x / f64::from(penalties.repeat) } else { *x * f64::from(penalties.repeat) };
        *x -= f64::from(count) * f64::from(penalties.frequency) + f64::from(penalties.presence);
    }
    pick.bias.iter().for_each(|(token, bias)| logits[*token as usize] += f64::from(*bias));
    let allowed = |t: &usize| pick.allowed.as_ref().is_none_or(|map| map[t / 32] >> (t % 32) & 1 != 0);
    let mut order: Vec<usize> = (0..logits.len()).filter(allowed).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(if top_k == 0 { order.len() } else { top_k as usize });
    let largest = logits[order[0]];
    let weight = |t: usize| ((logits[t] - largest) / f64::from(temperature)).exp();
    let goal = f64::from(top_p) * order.iter().map(|&t| weight(t)).sum::<f64>();
    let mut sum = 0.0;
    let mut reached = false;
    order.retain(|&t| {
        let keep = !reached;
        sum += weight(t);
        reached |= top_p < 1.0 && sum >= goal;
        keep && weight(t) >= f64::from(min_p)
    });
    let sum: f64 = order.iter().map(|&t| weight(t)).sum();
    let mut p = vec![0.0; logits.len()];
    order.iter().for_each(|&t| p[t] = weight(t) / sum);
    p
}

/// Rows of a dispatch, and the vocabulary that samples are counted in.
const ROWS: usize = 256;
const VOCAB: u32 = 64;

fn distribution_logits() -> Vec<f32> {
    Rng(5).normals(VOCAB as usize, 1.5)
}

/// Samples 102,400 tokens for each setting: excluded tokens never occur, the others pass Pearson's chi-squared test.
fn samples_follow(executor: &mut impl Executor, specs: &[SampleSpec], name: &str) {
    for (i, &spec) in specs.iter().enumerate() {
        let logits = distribution_logits();
        let seen: Vec<_> = if spec.penalties == Penalties::NONE { vec![] } else { vec![[3, 2], [7, 1], [40, 5]] };
        let bias = if i % 2 == 1 { vec![(1, 0.7), (9, -1.5)] } else { vec![] };
        let allowed = (i % 3 == 2).then(|| vec![0x7fff_ffef, 0xffff_fff7]);
        let pick = |row: usize| Gather {
            spec: SampleSpec { seed: row as u64 * 77, ..spec },
            bias: bias.clone(),
            allowed: allowed.clone(),
            logits: logits.clone(),
        };
        let picks: Vec<_> = (0..ROWS).map(pick).collect();
        let expected = exact(&picks[0], &seen);
        let all_seen = vec![seen; ROWS];
        let mut counts = vec![0u32; logits.len()];
        for step in 0..400 {
            for token in pollster::block_on(cases::pick(executor, &picks, 1 + step, &all_seen, 0)) {
                counts[token.unwrap() as usize] += 1;
            }
        }
        let samples = f64::from(counts.iter().sum::<u32>());
        assert!(samples >= 100_000.0);
        let (mut chi2, mut freedom) = (0.0, -1.0);
        for (token, (&count, p)) in counts.iter().zip(expected).enumerate() {
            assert!(p > 0.0 || count == 0, "{name}: token {token} of {spec:?}");
            if p > 0.0 {
                chi2 += (f64::from(count) - samples * p).powi(2) / (samples * p);
                freedom += 1.0;
            }
        }
        // Wilson and Hilferty's approximation of the 0.9999 quantile. The samples are fixed, so this cannot flicker.
        let part = 2.0 / (9.0 * f64::max(freedom, 1.0));
        let most = f64::max(freedom, 1.0) * (1.0 - part + 3.72 * part.sqrt()).powi(3);
        assert!(chi2 <= most, "{name}: {chi2} of {most} at {freedom} degrees of {spec:?}");
    }
}

#[test]
fn gpu_samples_follow_the_exact_distribution() {
    let base = SampleSpec { temperature: 0.9, ..SampleSpec::GREEDY };
    let penalties = Penalties { repeat: 1.4, presence: 0.3, frequency: 0.2 };
    let together = SampleSpec { top_k: 30, top_p: 0.9, min_p: 0.02, ..base };
    let specs = [
        base,
        SampleSpec { top_k: 12, ..base },
        SampleSpec { top_p: 0.8, ..base },
        SampleSpec { min_p: 0.05, temperature: 1.7, ..base },
        together,
        SampleSpec { penalties, ..base },
        SampleSpec { penalties, ..together },
    ];
    let op = cases::given_logits(VOCAB);
    let limits = cases::pick_limits(ROWS as u32);
    let logits = distribution_logits().repeat(ROWS);
    let options = CpuOptions { threads: Some(1), keep_values: true, ..CpuOptions::new(limits) };
    let mut cpu = CpuExecutor::new(&op.program, Arc::default(), options).unwrap();
    cpu.set_value(op.inputs[0], &logits).unwrap();
    samples_follow(&mut cpu, &specs, "CPU");
    let options = GpuOptions { limits, keep_values: true, ..cases::options(Numerics::Exact) };
    let mut gpu = gpu(LAVAPIPE, &op.program, &Arc::default(), options);
    gpu.set_value(Phase::Decode, op.inputs[0], &logits);
    samples_follow(&mut gpu, &specs, "lavapipe");
}

#[test]
fn gpu_logits_that_are_not_finite_sample_nothing() {
    let program = llama(Shape::SMALL);
    let mut weights = (*random_weights(&program, &[F32], &mut Rng(13))).clone();
    for form in [LAVAPIPE, SWIFTSHADER] {
        for broken in [f32::NAN, f32::INFINITY] {
            let last = weights.vectors.len() - 1;
            weights.vectors[last][5] = broken; // the last norm's
            let mut gpu = gpu(form, &program, &Arc::new(weights.clone()), options(Numerics::Exact));
            let tokens = host(&[1, 2]);
            let seqs = [sampling(rows(0, Phase::Prefill, &tokens, 0, &[&[0]]), SampleSpec::GREEDY)];
            assert_eq!(run(&mut gpu, &seqs).1, [Sampled { slot: 0, token: None }], "{form:?} {broken}");
        }
    }
}
