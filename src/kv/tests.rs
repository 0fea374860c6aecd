//! The cache's bookkeeping against plain lists: what each block holds is written down beside it, and read before it is used.

use std::collections::HashMap;

use super::*;
use crate::ops::Phase;
use crate::testing::Random;

impl Kv {
    /// Checks that holders, nodes and tables agree, for the tables that there are; `states` are kept outside of nodes.
    pub(crate) fn check(&self, tables: &[&Table], states: u32) {
        let mut held: Vec<HashMap<u32, [u32; 2]>> = vec![HashMap::new(); self.pools.len()];
        self.index.check(|group, block| held[group].entry(block).or_default()[1] += 1);
        for table in tables {
            for (group, blocks) in table.groups.iter().enumerate() {
                let kept = table.kept.iter().filter(|(of, ..)| *of == group).map(|(.., block)| block);
                for block in blocks.iter().filter(|block| **block != FREED).chain(kept) {
                    held[group].entry(*block).or_default()[0] += 1;
                }
                assert!(blocks[..table.freed[group] as usize].iter().all(|block| *block == FREED));
            }
        }
        for (pool, held) in self.pools.iter().zip(&held) {
            for block in 0..pool.capacity() {
                let [tables, nodes] = held.get(&block).copied().unwrap_or_default();
                assert_eq!((pool.tables(block), pool.nodes(block)), (tables, nodes), "block {block}");
            }
            assert_eq!(pool.free(), pool.capacity() - held.len() as u32);
        }
        assert_eq!(self.states_kept(), self.index.states() + states);
    }
}

/// What a position of a block holds: a hash of all tokens up to there, their phases, and what they have in common.
type Cells = HashMap<(usize, u32, u32), u64>;

struct Running {
    table: Table,
    root: Vec<u32>,
    tokens: Vec<u32>,
    phases: Phases,
    cached: u32,
    proven: u32,
    hit_ends: Vec<u32>,
}

const BLOCK: u32 = 4;

/// The hash of each position's history.
fn hashes(root: &[u32], tokens: &[u32], phases: &Phases) -> Vec<u64> {
    let mut hash = root.iter().fold(1, |hash, word| crate::testing::mix(hash ^ u64::from(*word)));
    let mut hashes = Vec::new();
    for (pos, token) in (0..).zip(tokens) {
        hash = crate::testing::mix(hash ^ (u64::from(*token) * 2 + phases.bits(pos..pos + 1)));
        hashes.push(hash);
    }
    hashes
}

struct World {
    kv: Kv,
    windows: Vec<Option<u32>>,
    cells: Cells,
    running: Vec<Running>,
    random: Random,
    found: u64,
    partly: u64,
}

impl World {
    fn write(&mut self, at: usize, to: u32) {
        let running = &self.running[at];
        let hashes = hashes(&running.root, &running.tokens, &running.phases);
        for group in 0..self.windows.len() {
            for pos in running.cached..to {
                let block = running.table.groups[group][(pos / BLOCK) as usize];
                self.cells.insert((group, block, pos % BLOCK), hashes[pos as usize]);
            }
        }
    }

    /// All that a token at `pos` sees holds what it should.
    fn read(&self, at: usize, pos: u32) {
        let running = &self.running[at];
        let hashes = hashes(&running.root, &running.tokens, &running.phases);
        for (group, window) in self.windows.iter().enumerate() {
            let first = window.map_or(0, |window| (pos + 1).saturating_sub(window));
            for seen in first..pos {
                let block = running.table.groups[group][(seen / BLOCK) as usize];
                let cell = self.cells.get(&(group, block, seen % BLOCK));
                assert_eq!(cell, Some(&hashes[seen as usize]), "group {group}, position {seen} of {pos}");
            }
        }
    }

    fn copies(&mut self) {
        for op in self.kv.take_copies() {
            let CacheOp::Copy { group, from, to } = op else { panic!("{op:?}") };
            for slot in 0..BLOCK {
                let cell = self.cells.get(&(group.index(), from, slot)).copied();
                match cell {
                    Some(cell) => self.cells.insert((group.index(), to, slot), cell),
                    None => self.cells.remove(&(group.index(), to, slot)),
                };
            }
        }
    }

    fn start(&mut self) {
        let random = &mut self.random;
        let root = vec![random.below(2)];
        // Few beginnings, so that much is shared; a token differs at times.
        let mut tokens: Vec<u32> = (0..1 + random.below(40)).map(|i| i % 7).collect();
        for _ in 0..random.below(3) {
            let at = random.below(tokens.len() as u32) as usize;
            tokens[at] = random.below(9);
        }
        let decoded = random.below(tokens.len() as u32);
        let end = decoded + random.below(6);
        let decoded = decoded..end.min(tokens.len() as u32);
        let stated = Phases::new(tokens.len() as u32, &[decoded]);
        let any = random.below(2) == 0;
        let owner = Some(u64::from(random.below(3)));
        let open = random.below(2) == 0;
        let hit = self.kv.find(&root, &tokens, (!any).then_some(&stated), open);
        if !self.kv.fits(&hit, tokens.len() as u32, 8, random.below(2) == 0) {
            return;
        }
        let mut table = self.kv.table();
        let attached = self.kv.attach(&mut table, &root, &hit, owner);
        assert!(attached.positions <= hit.positions && attached.positions < tokens.len() as u32);
        let mut phases = hit.phases.clone();
        phases.truncate(attached.positions);
        if !any {
            let mut same = stated.clone();
            same.truncate(attached.positions);
            assert_eq!(phases, same, "another phase than was asked for");
        }
        let rest = if any { Phases::new(tokens.len() as u32, &[]) } else { stated };
        let len = tokens.len() as u32;
        (phases.len()..len).for_each(|pos| phases.push_bits(1, rest.bits(pos..pos + 1)));
        self.copies();
        self.found += u64::from(attached.positions > 0);
        self.partly += u64::from(!attached.positions.is_multiple_of(BLOCK));
        let hit_ends = hit.branch.into_iter().chain([len]).collect();
        let cached = attached.positions;
        self.running.push(Running { table, root, tokens, phases, cached, proven: cached, hit_ends });
        self.read(self.running.len() - 1, cached);
    }

    fn advance(&mut self, at: usize) {
        let to = {
            let running = &mut self.running[at];
            let known = running.tokens.len() as u32;
            if running.cached == known && known < 60 {
                let phase = [Phase::Prefill, Phase::Decode][self.random.below(2) as usize];
                running.tokens.push(self.random.below(3));
                running.phases.push(1, phase);
            }
            (running.cached + 1 + self.random.below(8)).min(running.tokens.len() as u32)
        };
        if self.kv.grow(&mut self.running[at].table, to).is_err() {
            return self.finish(at, false);
        }
        self.read(at, self.running[at].cached);
        self.write(at, to);
        let running = &mut self.running[at];
        running.cached = to;
        let ends = running.hit_ends.clone();
        self.kv.release_outside_window(&mut running.table, to, &ends);
        self.read(at, to);
    }

    fn prove(&mut self, at: usize) {
        let running = &mut self.running[at];
        running.proven = running.cached;
        let Running { table, tokens, phases, proven, .. } = running;
        self.kv.publish(table, tokens, phases, *proven, &mut Vec::new());
        if self.random.below(3) == 0 {
            self.kv.keep_end(table, tokens, phases, *proven, None, None);
        }
        self.read(at, self.running[at].cached);
    }

    fn finish(&mut self, at: usize, good: bool) {
        let mut running = self.running.swap_remove(at);
        if good {
            let owner = Some(u64::from(self.random.below(3)));
            let Running { table, tokens, phases, cached, .. } = &mut running;
            self.kv.publish(table, tokens, phases, *cached, &mut Vec::new());
            self.kv.keep_end(table, tokens, phases, *cached, None, owner);
        }
        self.kv.release(&mut running.table);
    }
}

/// Three kinds of groups at once: all positions, a window, and a shorter one.
#[test]
fn a_million_operations_agree_with_what_was_written() {
    let windows = vec![None, Some(13), Some(6)];
    let mut stats = [0u64; 4];
    for seed in 0..20 {
        let random = Random::new(seed);
        let pools: Vec<_> = windows.iter().map(|window| (24 + 4 * seed as u32, *window)).collect();
        let kv = Kv::new(&pools, BLOCK);
        let cells = Cells::new();
        let mut world = World { kv, windows: windows.clone(), cells, running: vec![], random, found: 0, partly: 0 };
        for op in 0..50_000 {
            let any = (!world.running.is_empty()).then(|| world.random.below(world.running.len() as u32) as usize);
            match (world.random.below(10), any) {
                (0, _) | (_, None) => world.start(),
                (1, Some(at)) => {
                    let good = world.random.below(3) > 0;
                    world.finish(at, good);
                }
                (2 | 3, Some(at)) => world.prove(at),
                (_, Some(at)) => world.advance(at),
            }
            if op % 53 == 0 {
                world.kv.check(&world.running.iter().map(|running| &running.table).collect::<Vec<_>>(), 0);
            }
        }
        while !world.running.is_empty() {
            world.finish(0, true);
        }
        world.kv.check(&[], 0);
        assert!(world.kv.blocks().iter().all(|blocks| blocks.in_use == 0));
        let counts = world.kv.counts();
        for (sum, n) in stats.iter_mut().zip([world.found, world.partly, counts.published, counts.evicted]) {
            *sum += n;
        }
        world.kv.clear();
        assert!(world.kv.blocks().iter().all(|blocks| blocks.kept == 0) && world.kv.index.len() == 0);
    }
    assert!(stats.iter().all(|n| *n > 10_000), "found, found in part, published, evicted: {stats:?}");
}

fn kv(window: Option<u32>, blocks: u32) -> Kv {
    Kv::new(&[(blocks, None), (blocks, window)], BLOCK)
}

/// Computes a sequence in a new table and lets it be found.
fn publish(kv: &mut Kv, root: &[u32], tokens: &[u32], phases: &Phases) {
    let mut table = kv.table();
    let hit = kv.find(root, tokens, Some(phases), false);
    let ends: Vec<u32> = hit.branch.into_iter().chain([tokens.len() as u32]).collect();
    let attached = kv.attach(&mut table, root, &hit, None);
    let len = tokens.len() as u32;
    for pos in attached.positions..len {
        kv.grow(&mut table, pos + 1).unwrap();
        kv.release_outside_window(&mut table, pos + 1, &ends);
    }
    kv.publish(&mut table, tokens, phases, len, &mut Vec::new());
    kv.release(&mut table);
}

fn found(kv: &mut Kv, root: &[u32], tokens: &[u32], phases: Option<&Phases>) -> u32 {
    kv.find(root, tokens, phases, false).positions
}

#[test]
fn a_key_says_salt_and_phases() {
    let mut kv = kv(None, 32);
    let tokens: Vec<u32> = (0..17).collect();
    let prefill = Phases::new(17, &[]);
    let answer = 6..12;
    let mixed = Phases::new(17, &[answer]);
    publish(&mut kv, &[1, 4, 7], &tokens, &mixed);
    assert_eq!(found(&mut kv, &[1, 4, 7], &tokens, Some(&mixed)), 16);
    // As prefill it has the first block only, and half of the next.
    assert_eq!(found(&mut kv, &[1, 4, 7], &tokens, Some(&prefill)), 6);
    assert_eq!(found(&mut kv, &[1, 4, 7], &tokens, None), 16);
    for other in [&[1, 4, 8][..], &[1, 3, 7], &[2, 4, 7], &[]] {
        assert_eq!(found(&mut kv, other, &tokens, None), 0);
    }
    // Both may be there at once; whoever takes any gets the longest.
    publish(&mut kv, &[1, 4, 7], &tokens[..13], &Phases::new(13, &[]));
    assert_eq!(found(&mut kv, &[1, 4, 7], &tokens, Some(&prefill)), 12);
    assert_eq!(found(&mut kv, &[1, 4, 7], &tokens, None), 16);
}

/// A short question, and the beginning of its answer in the same block, beside many that were asked later.
#[test]
fn what_was_decoded_is_found_beside_many_others() {
    let mut kv = kv(None, 400);
    let conversation = |i: u32| -> Vec<u32> { (0..8).chain([i, i + 1, i % 7, i, 1, 2, 3, 4, 5]).collect() };
    let answer = 10..17;
    let phases = Phases::new(17, &[answer]);
    for i in 0..100 {
        publish(&mut kv, &[], &conversation(i), &phases);
    }
    for i in 0..100 {
        assert_eq!(found(&mut kv, &[], &conversation(i), None), 16, "{i}");
        // The most that any of them has in common: the first tokens of the block after the eight that all have.
        let other = [&conversation(i)[..11], &[200, 200]].concat();
        assert_eq!(found(&mut kv, &[], &other, None), 11, "{i}");
    }
    kv.check(&[], 0);
}

#[test]
fn the_third_request_finds_the_window_at_a_branch() {
    let mut kv = kv(Some(6), 64);
    let shared: Vec<u32> = (0..20).collect();
    let with = |end: u32| [&shared[..], &[end; 30]].concat();
    let prefill = Phases::new(50, &[]);
    publish(&mut kv, &[], &with(30), &prefill);
    // The first one's window at the branch is gone: it went on. The second one keeps it.
    let hit = kv.find(&[], &with(31), Some(&prefill), false);
    assert_eq!((hit.positions, hit.branch), (0, Some(20)));
    publish(&mut kv, &[], &with(31), &prefill);
    assert_eq!(found(&mut kv, &[], &with(32), Some(&prefill)), 20);
}

/// A pool that is short of blocks of a window gives up bodies, so that ends are still found.
#[test]
fn windows_outside_of_ends_are_evicted_first() {
    let mut kv = Kv::new(&[(400, None), (24, Some(8))], BLOCK);
    let tokens = |first: u32| -> Vec<u32> { (first..first + 41).collect() };
    let prefill = Phases::new(41, &[]);
    for first in [100, 200, 300, 400] {
        publish(&mut kv, &[], &tokens(first), &prefill);
    }
    for first in [100, 200, 300, 400] {
        assert_eq!(found(&mut kv, &[], &tokens(first), Some(&prefill)), 40, "{first}");
    }
}

/// The window at a prompt's end outlasts what an answer leaves that goes on from there.
#[test]
fn the_window_at_a_prompts_end_is_kept_when_the_answer_goes_on() {
    let mut kv = Kv::new(&[(400, None), (16, Some(8))], BLOCK);
    let tokens: Vec<u32> = (0..81).collect();
    let answer = 41..81;
    let phases = Phases::new(81, &[answer]);
    let mut table = kv.table();
    kv.attach(&mut table, &[], &Hit::default(), None);
    for end in 1..=81 {
        kv.grow(&mut table, end).unwrap();
        kv.release_outside_window(&mut table, end, &[41]);
        if end >= 41 {
            kv.publish(&mut table, &tokens, &phases, end, &mut Vec::new());
        }
    }
    kv.release(&mut table);
    let other: Vec<u32> = (100..141).collect();
    publish(&mut kv, &[], &other, &Phases::new(41, &[]));
    assert!(kv.counts().evicted > 0, "there was something to choose from");
    assert_eq!(found(&mut kv, &[], &tokens[..41], Some(&Phases::new(41, &[]))), 40);
    assert_eq!(found(&mut kv, &[], &tokens, Some(&phases)), 80);
}

#[test]
fn a_block_that_is_found_costs_less_than_a_microsecond() {
    let mut kv = Kv::new(&[(1 << 14, None)], 16);
    let tokens: Vec<u32> = (0..16 * 4096 + 1).map(|i| i * 7 % 1000).collect();
    let phases = Phases::new(tokens.len() as u32, &[]);
    let mut best = [f64::INFINITY; 3];
    for round in 0..5 {
        let mut table = kv.table();
        let root = [round];
        let hit = kv.find(&root, &tokens, None, false);
        kv.attach(&mut table, &root, &hit, None);
        kv.grow(&mut table, tokens.len() as u32).unwrap();
        let mut times = Vec::new();
        let start = std::time::Instant::now();
        kv.publish(&mut table, &tokens, &phases, tokens.len() as u32, &mut Vec::new());
        times.push(start.elapsed());
        kv.release(&mut table);
        let start = std::time::Instant::now();
        let hit = kv.find(&root, &tokens, None, false);
        times.push(start.elapsed());
        assert_eq!(hit.positions, 16 * 4096);
        let start = std::time::Instant::now();
        kv.attach(&mut table, &root, &hit, None);
        times.push(start.elapsed());
        kv.release(&mut table);
        best.iter_mut().zip(times).for_each(|(best, time)| *best = best.min(time.as_secs_f64() / 4096.0));
    }
    println!("publish, find, attach: {:?} ns a block", best.map(|best| (best * 1e9) as u32));
    // Ten times the goal, since tests share the machine.
    assert!(best.iter().all(|best| *best < 1e-5), "{best:?} s a block");
}
