//! Requests of an engine that share blocks and states, against the same requests alone.

use std::sync::Arc;

use wgslm::engine::{Engine, Event, Request};
use wgslm::exec::GpuExecutor;
use wgslm::model::Program;

/// Tokens and reused positions of each request, all submitted together.
async fn answers(engine: &mut Engine<GpuExecutor>, requests: Vec<Request>) -> Vec<(Vec<u32>, u32)> {
    let ids: Vec<_> = requests.into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let mut answers = vec![(Vec::new(), 0); ids.len()];
    while engine.busy() {
        for event in engine.step().await {
            match event {
                Event::Token { request, id, .. } => {
                    answers[ids.iter().position(|of| *of == request).unwrap()].0.push(id);
                }
                Event::Finished { request, reason, usage, .. } => {
                    assert_eq!(reason.name(), "length");
                    answers[ids.iter().position(|of| *of == request).unwrap()].1 = usage.reused;
                }
            }
        }
    }
    answers
}

/// The share of answers that are others than alone: warm, beside each other, on a fork, and under another salt.
pub(super) async fn different(gpu: GpuExecutor, program: &Program) -> (f64, Vec<String>) {
    let mut engine = Engine::new(gpu, program);
    // Longer than a window, and the second leaves it within a block.
    let prompt: Vec<u32> = (0..77).map(|i| (i * 37 + 11) % program.vocab).collect();
    let edited = [&prompt[..60], &[5, 6, 7, 8]].concat();
    let request = |prompt: &[u32]| Request { exact: true, max_tokens: Some(7), ..Request::new(prompt.to_vec()) };
    let asked = [request(&prompt), request(&edited)];
    let mut alone = Vec::new();
    for request in &asked {
        engine.trim();
        let cold = answers(&mut engine, vec![request.clone()]).await.remove(0);
        assert_eq!(cold.1, 0);
        alone.push(cold.0);
    }
    engine.trim();

    let (mut got, mut reused) = (Vec::new(), 0);
    // One after the other, so that a recurrent model has a state where they part; and both at once.
    for requests in [&asked[..1], &asked[1..], &asked[..1], &asked[1..], &asked] {
        for (request, answer) in requests.iter().zip(answers(&mut engine, requests.to_vec()).await) {
            let own = asked.iter().position(|of| of.prompt == request.prompt).unwrap();
            got.push((own, answer.0));
            reused += answer.1;
        }
    }
    assert!(reused >= 4 * 48, "{reused} positions were found");
    // A conversation goes on two ways, from the same blocks.
    let conversation = engine.open();
    let on = |sequence| Request { sequence: Some(sequence), ..asked[0].clone() };
    got.push((0, answers(&mut engine, vec![on(conversation)]).await.remove(0).0));
    let fork = engine.fork(conversation).unwrap();
    let both = vec![on(conversation), Request { sequence: Some(fork), ..asked[1].clone() }];
    got.extend(answers(&mut engine, both).await.into_iter().map(|answer| answer.0).enumerate());
    // Another salt finds nothing.
    let salt: Option<Arc<[u8]>> = Some(Arc::from(*b"other"));
    let apart = answers(&mut engine, vec![Request { salt, ..asked[0].clone() }]).await.remove(0);
    assert_eq!(apart.1, 0, "under another salt");
    got.push((0, apart.0));

    let different = got.iter().filter(|(own, tokens)| *tokens != alone[*own]).count();
    (different as f64 / got.len() as f64, engine.into_executor().modules())
}
