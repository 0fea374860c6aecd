//! Who begins, who waits, and who gives way.

use super::*;

/// Blocks of 4 positions, and prompts that take many steps.
const LONG: Limits =
    Limits { rows: 16, seqs: 2, outs: 2, block: 4, blocks: 256, context: 512, in_flight: 1, checkpoints: 0 };

fn background(request: Request) -> Request {
    Request { priority: Priority::Background, ..request }
}

impl Bench {
    /// The answers are those that each request gets alone, with much space.
    fn assert_as_alone(&mut self, program: &Program, asked: &[(RequestId, Request)]) {
        self.run();
        for (id, request) in asked {
            let (tokens, reason, _) = self.answers.remove(id).unwrap();
            let roomy = Limits { blocks: 1000, in_flight: 2, ..LONG };
            let (alone, end, _) = Bench::of(program, roomy, 1).answer(request.clone());
            assert_eq!((tokens, reason.unwrap().name()), (alone, end));
        }
    }
}

/// Windows that are kept for those that wait for a prompt do not take what the prompt itself needs.
#[test]
fn a_prompt_that_many_wait_for_has_its_blocks() {
    let program = windowed(None, 32);
    let mut bench = Bench::of(&program, LONG, 3);
    let whole = prompt(400, 0);
    let mut asked = vec![request(whole.clone(), 4)];
    // Each has more than half in common with it.
    asked.extend((0..12).map(|i| request([&whole[..210 + 14 * i], &[3, 3, 3]].concat(), 3)));
    let ids: Vec<RequestId> = asked.iter().map(|request| bench.ask(request.clone())).collect();
    bench.steps_until(|bench| bench.ended(ids[0]));
    assert_eq!(bench.tokens(ids[0]), 4);
    assert_eq!(bench.engine.preemptions(), 0);
    let asked: Vec<_> = ids.into_iter().zip(asked).collect();
    bench.assert_as_alone(&program, &asked);
}

/// Nobody waits for a window that a prompt has left already, without keeping it.
#[test]
fn a_window_that_has_passed_is_not_waited_for() {
    let program = windowed(None, 32);
    let mut bench = Bench::of(&program, LONG, 3);
    let whole = prompt(400, 0);
    let first = bench.ask(request(whole.clone(), 4));
    bench.steps_until(|bench| bench.engine.executor().rows > 300);
    let second = bench.ask(request([&whole[..240], &[3, 3, 3]].concat(), 3));
    bench.step();
    bench.step();
    assert!(bench.engine.scheduler.runs(second) && bench.tokens(first) == 0);
    bench.run();
}

/// A request in the background runs while another waits for a prompt, and gives its slot once.
#[test]
fn the_background_is_preempted_only_for_who_can_begin() {
    let mut bench = Bench::new(LONG, 3);
    let whole = prompt(200, 0);
    let asked = [
        request(whole.clone(), 40),
        background(request(prompt(30, 9), 60)),
        request([&whole[..], &[1, 2]].concat(), 5),
    ];
    let ids = asked.clone().map(|request| bench.ask(request));
    bench.steps_until(|bench| bench.tokens(ids[0]) > 0 || bench.engine.preemptions() > 0);
    assert_eq!((bench.engine.preemptions(), bench.engine.scheduler.runs(ids[1])), (0, true));
    bench.steps_until(|bench| bench.ended(ids[2]));
    assert_eq!((bench.engine.preemptions(), bench.ended(ids[1])), (1, false));
    let asked: Vec<_> = ids.into_iter().zip(asked).collect();
    bench.assert_as_alone(&program(), &asked);
}

/// The background gives its blocks, too, and takes none from others, whoever came first.
#[test]
fn the_background_gives_its_blocks() {
    let limits = Limits { blocks: 24, context: 96, ..LONG };
    let asked = [background(request(prompt(50, 9), 40)), request(prompt(60, 0), 30)];
    let mut bench = Bench::new(limits, 3);
    let late = bench.ask(asked[0].clone());
    bench.steps_until(|bench| bench.tokens(late) > 3);
    let urgent = bench.ask(asked[1].clone());
    let steps = bench.steps_until(|bench| bench.engine.scheduler.runs(urgent));
    assert!(steps < 3 && !bench.engine.scheduler.runs(late), "{steps}");
    bench.steps_until(|bench| bench.ended(urgent));
    assert!(!bench.ended(late) && bench.engine.preemptions() == 1);
    bench.assert_as_alone(&program(), &[(late, asked[0].clone()), (urgent, asked[1].clone())]);
    // Both fit at first, and then no longer.
    let asked = [background(request(prompt(40, 9), 40)), request(prompt(30, 0), 40)];
    let mut bench = Bench::new(limits, 3);
    let ids = asked.clone().map(|request| bench.ask(request));
    bench.steps_until(|bench| bench.engine.preemptions() > 0);
    assert!(bench.engine.scheduler.runs(ids[1]) && !bench.engine.scheduler.runs(ids[0]));
    bench.assert_as_alone(&program(), &[(ids[0], asked[0].clone()), (ids[1], asked[1].clone())]);
}

/// Nobody waits for what the background computes, which comes last, and one that needs nearly all blocks gets them.
#[test]
fn the_background_keeps_nobody_waiting() {
    let mut bench = Bench::new(LONG, 3);
    let whole = prompt(300, 0);
    let late = bench.ask(background(request(whole.clone(), 2)));
    bench.step();
    let urgent = bench.ask(request([&whole[..], &[1, 2]].concat(), 2));
    bench.step();
    bench.step();
    assert!([late, urgent].iter().all(|id| bench.engine.scheduler.runs(*id)));
    bench.steps_until(|bench| bench.ended(urgent));
    assert!(!bench.ended(late));

    // All but one block, and one more is spared beside others.
    let mut bench = Bench::new(Limits { blocks: 40, context: 200, ..LONG }, 3);
    let late = bench.ask(background(request(prompt(20, 9), 100)));
    bench.steps_until(|bench| bench.tokens(late) > 3);
    let urgent = bench.ask(request(prompt(155, 0), 2));
    bench.steps_until(|bench| bench.ended(urgent));
    assert!(!bench.ended(late) && bench.engine.preemptions() == 1);
}

/// Who lacked blocks is looked at again when others have published what it begins with.
#[test]
fn what_others_publish_is_seen_by_those_that_wait() {
    let mut bench = Bench::new(Limits { seqs: 3, outs: 3, blocks: 26, context: 104, ..LONG }, 3);
    let filler = bench.ask(request(prompt(36, 20), 8));
    let whole = prompt(70, 0);
    bench.step();
    let large = bench.ask(request([&whole[..], &[1, 2]].concat(), 3));
    let shares = bench.ask(request(whole[..56].to_vec(), 40));
    bench.steps_until(|bench| bench.ended(filler));
    assert!(bench.engine.scheduler.runs(shares) && !bench.engine.scheduler.runs(large));
    bench.steps_until(|bench| bench.ended(large));
    assert!(!bench.ended(shares), "it waited for all that the other one holds");
}

/// Requests that wait for a prompt block nobody else.
#[test]
fn who_waits_for_a_prompt_is_passed() {
    let mut bench = Bench::new(LONG, 3);
    let whole = prompt(500, 0);
    let first = bench.ask(request(whole.clone(), 2));
    bench.step();
    let waits = bench.ask(request(whole.clone(), 2));
    let others: Vec<RequestId> = (0..24).map(|i| bench.ask(request(prompt(5, i), 1))).collect();
    bench.steps_until(|bench| bench.tokens(first) > 0);
    let before = others.iter().filter(|id| bench.ended(**id)).count();
    assert!(before > 20 && bench.tokens(waits) == 0, "{before}");
    bench.run();
    assert!(bench.answers[&waits].2.reused >= 496);
}
