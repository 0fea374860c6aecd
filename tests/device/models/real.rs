//! Real models: SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, against transformers over the same weights in f32.

use wgslm::exec::{Numerics, Phase};

use super::golden::nmse;
use super::open;
use super::runner::{Device, Runner};
use wgslm_test::npy::npz;
use wgslm_test::{data_bytes, data_json, fetched};

pub(crate) fn smollm2_matches<D: Device>() {
    matches::<D>("models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2");
}

pub(crate) fn gemma3_matches<D: Device>() {
    matches::<D>("models/gemma-3-270m-q4_k_m.gguf", "gemma3");
}

/// Logits and tokens of the reference's prompts.
fn matches<D: Device>(file: &str, reference: &str) {
    let path = fetched(file);
    let model = open(&path).unwrap();
    let golden = npz(&data_bytes(&format!("real-models/{reference}/golden.npz")));
    let last_logits = npz(&data_bytes(&format!("real-models/{reference}/last_logits.npz")));
    let prompts = data_json(&format!("real-models/{reference}/prompts.json"));
    let mut runner = Runner::<D>::new(&model, Numerics::Exact, 1640, 64);
    for i in 0..prompts.as_array().unwrap().len() {
        let name = prompts[i]["name"].as_str().unwrap();
        let ids = golden[&format!("ids_{i}")].ids();
        if ids.len() > D::LONGEST {
            continue;
        }
        runner.restart();
        let (top_ids, top_logits) = (&golden[&format!("top_ids_{i}")], &golden[&format!("top_logits_{i}")]);
        let mut best_ones = Vec::new();
        let mut last = Vec::new();
        runner.each_row(&ids, 64, Phase::Prefill, &mut |row, logits| {
            best_ones.extend(top_ids.row(row).iter().map(|&id| f64::from(logits[id as usize])));
            if row + 1 == ids.len() {
                last.extend(logits.iter().map(|&x| f64::from(x)));
            }
        });
        let top = nmse(best_ones, &top_logits.data);
        // All logits of the first prompt's last token, every eighth of the others'.
        let whole = match last_logits.get(&format!("logits_{i}")) {
            Some(all) => nmse(last.iter().copied(), &all.data),
            None => nmse(last.iter().copied().step_by(8), &last_logits[&format!("logits_every_8_{i}")].data),
        };
        println!("{name}: {} tokens, NMSE {whole:.1e} of the last logits, {top:.1e} of the best 32", ids.len());
        assert!(whole < 1e-8 && top < 1e-8, "{name}: NMSE {whole:e}, {top:e}");

        // Where the reference's margin is within its own noise, another token may follow; nothing is compared after it.
        let (greedy, margins) = (golden[&format!("greedy_{i}")].ids(), &golden[&format!("greedy_margin_{i}")].data);
        let sure = margins.iter().position(|&margin| margin < 1e-3).unwrap_or(greedy.len());
        assert_eq!(best(&last), greedy[0], "{name}");
        assert_eq!(runner.greedy_after(greedy[0], sure - 1), greedy[1..sure], "{name}");
    }
}

/// The likelihood of a text, token by token, is that of the reference: within 0.1 % in f32, within 1 % with activations of
/// int8.
pub(crate) fn likelihoods_match<D: Device>() {
    for (file, reference) in
        [("models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"), ("models/gemma-3-270m-q4_k_m.gguf", "gemma3")]
    {
        let path = fetched(file);
        let model = open(&path).unwrap();
        let text = data_bytes("text/stories.txt");
        let tokenizer = wgslm::text::Tokenizer::of(&model.file).unwrap();
        let text = String::from_utf8(text[..4096].to_vec()).unwrap();
        let ids = tokenizer.encode(&text, wgslm::text::Special::Plain).unwrap();
        let expected = &npz(&data_bytes(&format!("real-models/{reference}/nll.npz")))["nll"].data;
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        for (numerics, bound) in [(Numerics::Exact, 1e-3), (Numerics::Fast, 1e-2)] {
            let mut runner = Runner::<D>::new(&model, numerics, 528, 64);
            let (mut sum, mut wanted) = (0.0, 0.0);
            // One window of four: the text is long.
            let window: Vec<u32> = bos.into_iter().chain(ids[..512].iter().copied()).collect();
            runner.each_row(&window[..window.len() - 1], 64, Phase::Prefill, &mut |row, logits| {
                let max = logits.iter().copied().fold(f32::MIN, f32::max);
                let total: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
                sum += total.ln() - f64::from(logits[window[row + 1] as usize] - max);
                wanted += expected[row];
            });
            println!("{reference}, {numerics:?}: NLL {:.5}, must be {:.5}", sum / 511.0, wanted / 511.0);
            assert!((sum / wanted - 1.0).abs() < bound, "{reference}, {numerics:?}: {sum} for {wanted}");
        }
    }
}

/// The most likely token.
fn best(logits: &[f64]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}
