//! What goes wrong ends the requests that it concerns, and is not found by others.

use super::*;

#[test]
fn a_failed_step_ends_its_requests() {
    let mut bench = Bench::new(TIGHT, 0);
    bench.engine.executor_mut().lost.insert(4);
    let (tokens, reason, _) = bench.answer(Request::new(vec![1, 2]));
    assert_eq!((tokens.len(), reason), (3, "error"));
    assert!(bench.all_available());
}

/// A step that the executor refuses costs the newest request in it; the others have the answers that they have alone. One that
/// refuses all steps costs all requests, and is asked no more often than there are some.
#[test]
fn a_refused_step_ends_its_newest_request_alone() {
    let asked: Vec<Request> =
        (0..3).map(|i| Request { max_tokens: Some(40), exact: true, ..Request::new(vec![1, 2 + i]) }).collect();
    let error = |bench: &Bench, id: &RequestId| match bench.answers[id].1.as_ref() {
        Some(Finish::Error(error)) => Some(error.to_string()),
        _ => None,
    };
    for at in 0..8 {
        let mut bench = Bench::new(Limits { rows: 64, blocks: 40, ..TIGHT }, at);
        let ids: Vec<RequestId> = asked.iter().map(|ask| bench.engine.submit(ask.clone()).unwrap()).collect();
        (0..at).for_each(|_| bench.step());
        let ended =
            |bench: &Bench| ids.iter().filter(|id| bench.answers.get(*id).is_some_and(|a| a.1.is_some())).count();
        assert_eq!(ended(&bench), 0, "at {at}");
        bench.engine.executor_mut().no_steps[0] = 1;
        bench.run();
        assert_eq!(bench.engine.executor_mut().no_steps, [0, 1], "at {at}");
        let errors: Vec<_> = ids.iter().map(|id| error(&bench, id)).collect();
        assert_eq!(errors.iter().flatten().count(), 1, "at {at}: {errors:?}");
        assert_eq!(errors[2].as_deref(), Some("device: no memory for a step"), "at {at}: {errors:?}");
        for (id, ask) in ids.iter().zip(&asked).take(2) {
            assert_eq!(bench.answers[id].0, alone(ask).0, "at {at}");
        }
        assert!(bench.all_available());

        let ids: Vec<RequestId> = asked.iter().map(|ask| bench.engine.submit(ask.clone()).unwrap()).collect();
        bench.engine.executor_mut().no_steps = [u32::MAX, 0];
        bench.run();
        assert!(ids.iter().all(|id| error(&bench, id).is_some_and(|error| error.contains("no memory for a step"))));
        assert_eq!(bench.engine.executor_mut().no_steps[1], 3, "at {at}");
        assert!(bench.all_available());
        // It has got over it.
        bench.engine.executor_mut().no_steps[0] = 0;
        assert_eq!(bench.answer(asked[0].clone()).0, alone(&asked[0]).0, "at {at}");
    }
}

#[test]
fn what_a_lost_step_wrote_is_not_found() {
    let request = Request { max_tokens: Some(4), ..Request::new((1..12).collect()) };
    for (lost, reused) in [(false, 10), (true, 0)] {
        let mut bench = Bench::new(Limits { rows: 64, ..TIGHT }, 5);
        bench.engine.executor_mut().lost.extend(lost.then_some(1));
        let (tokens, reason, _) = bench.answer(request.clone());
        assert_eq!((tokens.len(), reason), if lost { (0, "error") } else { (4, "length") });
        assert_eq!(bench.answer(request.clone()).2.reused, reused, "lost: {lost}");
    }
}

/// Nor what came before it: states are copied between the steps of others.
#[test]
fn what_a_lost_step_was_to_copy_is_not_found() {
    let shared: Vec<u32> = (1..30).collect();
    let (mut lost, mut reused) = (0, 0);
    for (step, decoding) in (1..16).flat_map(|step| (0..8).map(move |decoding| (step, decoding))) {
        let limits = Limits { rows: 8, checkpoints: 8, blocks: 32, ..TIGHT };
        let mut bench = Bench::of(&recurrent(), limits, step);
        // Steps of a prompt between steps of an answer.
        bench.engine.submit(Request { max_tokens: Some(30), ..Request::new(vec![3, 2, 1]) }).unwrap();
        (0..decoding).for_each(|_| bench.step());
        bench.engine.executor_mut().lost.insert(step);
        bench.engine.submit(Request { max_tokens: Some(3), ..Request::new(shared.clone()) }).unwrap();
        bench.run();
        lost += bench.answers.values().filter(|(_, reason, _)| reason.as_ref().unwrap().name() == "error").count();
        for end in [29, 25, 21, 17, 13, 9] {
            let request = Request { max_tokens: Some(5), ..Request::new([&shared[..end], &[end as u32]].concat()) };
            let (tokens, reason, usage) = bench.answer(request.clone());
            assert_eq!((tokens, reason), alone_of(&recurrent(), &request), "step {step} after {decoding}");
            reused += usize::from(usage.reused > 0);
        }
    }
    assert!(lost > 50 && reused > 100, "{lost} ended, {reused} reused");
}

#[test]
fn what_gave_nan_is_not_found() {
    let mut bench = Bench::new(TIGHT, 5);
    bench.engine.executor_mut().poison = Some(39);
    let request = Request { max_tokens: Some(4), ..Request::new([&[5; 20], &[39][..]].concat()) };
    for _ in 0..2 {
        let (_, reason, usage) = bench.answer(request.clone());
        assert_eq!((reason, usage.reused), ("error", 0));
    }
}

/// A device that is lost twice over, in a step and while that is waited for, is lost once.
#[test]
fn one_loss_is_one_loss() {
    for seed in 0..40 {
        let mut bench = Bench::of(&recurrent(), Limits { checkpoints: 4, in_flight: 2, ..ROOMY }, seed);
        bench.engine.wait_for_device(true);
        bench.engine.executor_mut().gone_at = Some(3 + seed % 5);
        let asked = [request(prompt(20, 0), 9), request(prompt(9, 4), 9)];
        let ids = asked.clone().map(|request| bench.ask(request));
        bench.steps_until(|bench| bench.engine.lost().is_some());
        let program = recurrent();
        let limits = bench.engine.executor().limits();
        bench.engine.reopen(Fake::new(limits, seed, &program)).unwrap();
        bench.steps_until(|bench| ids.iter().all(|id| bench.ended(*id)));
        assert!(bench.engine.lost().is_none() && bench.engine.preemptions() == 0);
    }
}
