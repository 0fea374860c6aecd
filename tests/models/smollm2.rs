//! A real model: SmolLM2-135M-Instruct in Q4_1, against transformers over the same weights in f32.

use wgslm::exec::{Numerics, Role};

use super::golden::nmse;
use super::npy::npz;
use super::open;
use super::runner::{Device, Runner};
use super::support::{fetched, shared_bytes, shared_json};

/// Logits and tokens of the reference's prompts.
pub(crate) fn smollm2_matches<D: Device>() {
    let Some(path) = fetched("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let model = open(&path).unwrap();
    let vocab = model.program.vocab as usize;
    let golden = npz(&shared_bytes("real-models/smollm2/golden.npz"));
    let last_logits = npz(&shared_bytes("real-models/smollm2/last_logits.npz"));
    let prompts = shared_json("real-models/smollm2/prompts.json");
    let mut runner = Runner::<D>::new(&model, Numerics::Exact, 1600, 64);
    for i in 0..prompts.as_array().unwrap().len() {
        let name = prompts[i]["name"].as_str().unwrap();
        let ids = golden[&format!("ids_{i}")].ids();
        if ids.len() > D::LONGEST {
            continue;
        }
        runner.restart();
        let logits = runner.logits(&ids, 64, Role::Prompt);
        let expected = &last_logits[&format!("logits_{i}")].data;
        let last = nmse(logits[logits.len() - vocab..].iter().copied(), expected);
        let (top_ids, top_logits) = (&golden[&format!("top_ids_{i}")], &golden[&format!("top_logits_{i}")]);
        let rows = logits.chunks(vocab).zip(top_ids.data.chunks(top_ids.shape[1]));
        let top = nmse(rows.flat_map(|(row, ids)| ids.iter().map(|&id| row[id as usize])), &top_logits.data);
        println!("{name}: {} tokens, NMSE {last:.1e} of the last logits, {top:.1e} of the best 32", ids.len());
        assert!(last < 1e-8 && top < 1e-8, "{name}: NMSE {last:e}, {top:e}");

        // Where the reference's margin is within its own noise, another token may follow; nothing is compared behind it.
        let (greedy, margins) = (golden[&format!("greedy_{i}")].ids(), &golden[&format!("greedy_margin_{i}")].data);
        let sure = margins.iter().position(|&margin| margin < 1e-3).unwrap_or(greedy.len());
        assert_eq!(best(&logits[logits.len() - vocab..]), greedy[0], "{name}");
        assert_eq!(runner.greedy_after(greedy[0], sure - 1), greedy[1..sure], "{name}");
    }
}

/// The most likely token.
fn best(logits: &[f64]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}
