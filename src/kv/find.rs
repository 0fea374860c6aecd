//! Finding what is in the cache, whether there are blocks for the rest, and giving a table what was found.

use std::collections::BTreeMap;

use super::index::{NodeId, State, Worth};
use super::{Kv, Phases, Pool, Table};
use crate::exec::{CacheOp, Limits};
use crate::ops::{FREED, GroupId};

/// What a waiting sequence lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    group: usize,
    /// Blocks that must be had there.
    blocks: u32,
}

/// What of some tokens is in the cache.
#[derive(Clone, Debug, Default)]
pub struct Hit {
    path: Vec<NodeId>,
    /// A node that begins with the tokens after the path, and how many of them.
    part: Option<(NodeId, u32)>,
    /// Positions that need not be computed.
    pub positions: u32,
    /// Where blocks reach to, if that is further: what other groups lack there is worth keeping.
    pub branch: Option<u32>,
    /// The phases that these positions were computed in.
    pub phases: Phases,
}

/// What a table was given of a hit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached {
    /// Positions that need not be computed.
    pub positions: u32,
    /// The states to begin with.
    pub state: Option<State>,
    /// The number of the first copy that this needs, if any.
    pub copy: Option<u64>,
}

impl Kv {
    /// What of a sequence's tokens is in the cache: of all but the last, whose logits nobody has. `root` says what such
    /// sequences have in common. Where phases are given, each position must have been computed in its own; else each may have
    /// been computed in either. A sequence that is kept `open` takes a part of a block however small it is.
    pub fn find(&mut self, root: &[u32], tokens: &[u32], phases: Option<&Phases>, open: bool) -> Hit {
        /// Paths that are tried where the same tokens were computed in different phases.
        const PATHS: usize = 8;
        let limit = (tokens.len() as u32).saturating_sub(1);
        let Some(root) = self.index.get(None, 0, root) else { return Hit::default() };
        let look = Look { root, tokens: &tokens[..limit as usize], phases, open };
        let (mut path, mut others): (Vec<NodeId>, Vec<(usize, NodeId)>) = Default::default();
        let (mut best, mut furthest, mut paths) = (Hit::default(), 0, 1);
        loop {
            while let Some(words) = look.block(path.len() as u32, self.block) {
                let parent = path.last().copied().unwrap_or(root);
                let start = path.len() as u32 * self.block;
                let bits = phases.map_or(0, |phases| phases.bits(start..start + self.block));
                let mut next = self.index.get(Some(parent), bits, words);
                if phases.is_none() {
                    for &child in self.index.children_with(parent, words) {
                        if next.is_none() {
                            next = Some(child);
                        } else if Some(child) != next && paths < PATHS {
                            others.push((path.len(), child));
                            paths += 1;
                        }
                    }
                }
                match next {
                    Some(next) => path.push(next),
                    None => break,
                }
            }
            furthest = furthest.max(path.len() as u32 * self.block);
            let hit = self.usable(&look, &path);
            if hit.positions > best.positions {
                best = hit;
            }
            let Some((depth, other)) = others.pop() else { break };
            path.truncate(depth);
            path.push(other);
        }
        best.branch = (furthest > best.positions).then_some(furthest);
        let mut bits = best.path.iter().map(|&node| (self.block, self.index.node(node).bits)).collect::<Vec<_>>();
        bits.extend(best.part.map(|(node, count)| (count, self.index.node(node).bits)));
        bits.into_iter().for_each(|(count, bits)| best.phases.push_bits(count, bits));
        best
    }

    /// The longest beginning of a path, and perhaps a part of a block after it, that a next token can go on from. Where windows
    /// or states are lacking, the ends of other prompts and answers may be anywhere on the path.
    fn usable(&self, look: &Look<'_>, path: &[NodeId]) -> Hit {
        for len in (1..=path.len()).rev() {
            let (path, node, end) = (&path[..len], path[len - 1], len as u32 * self.block);
            if let Some(hit) = self.with_part(look, path, node) {
                return hit;
            }
            if self.missing(path, end).is_none() && (!self.recurrent() || self.index.state(node).is_some()) {
                return Hit { path: path.to_vec(), positions: end, ..Hit::default() };
            }
        }
        self.with_part(look, &[], look.root).unwrap_or_default()
    }

    /// A path that ends at `node`, and a part of a block after it, if there is one that a next token can go on from.
    fn with_part(&self, look: &Look<'_>, path: &[NodeId], node: NodeId) -> Option<Hit> {
        let end = path.len() as u32 * self.block;
        let (node, count) = self.part(look, node, end)?;
        let positions = end + count;
        let hit = || Hit { path: path.to_vec(), part: Some((node, count)), positions, ..Hit::default() };
        self.missing(path, positions).is_none().then(hit)
    }

    /// A node after `parent` that begins with the tokens from `end` on, and how many of them.
    fn part(&self, look: &Look<'_>, parent: NodeId, end: u32) -> Option<(NodeId, u32)> {
        let tokens = &look.tokens[end as usize..look.tokens.len().min((end + self.block) as usize)];
        let bits = look.phases.map(|phases| phases.bits(end..end + self.block));
        let usable = |id: &NodeId| {
            let (common, node) = (self.index.common(*id, tokens, bits), self.index.node(*id));
            let there = node.blocks.iter().all(|held| held.block.is_some());
            // A copy is made for what it saves. Most prompts begin with the same few tokens.
            let enough = match self.recurrent() {
                true => end + common == node.end && self.index.state(*id).is_some(),
                false => look.open || common >= self.block.div_ceil(2),
            };
            (there && common > 0 && enough).then_some((*id, common))
        };
        if self.recurrent() {
            // States are those after all tokens of a node.
            let with = |len: usize| self.index.children_with(parent, &tokens[..len]).iter().find_map(usable);
            return (1..=tokens.len()).rev().find_map(with);
        }
        self.index.children_like(parent, tokens).iter().filter_map(usable).max_by_key(|(_, common)| *common)
    }

    /// The block of a path that a token at position `next` sees and that is gone: the first of the latest in each group.
    fn missing(&self, path: &[NodeId], next: u32) -> Option<usize> {
        let latest = |(group, window): (usize, &Option<u32>)| {
            let first = (next + 1).saturating_sub((*window)?) / self.block;
            let gone = |i: &usize| self.index.node(path[*i]).blocks[group].block.is_none();
            (first as usize..path.len()).rev().find(gone)
        };
        self.windows.iter().enumerate().filter_map(latest).min()
    }

    /// Whether there are blocks for a sequence of so many positions that begins with a hit and is computed by at most
    /// `rows` positions at a time. With `spare`, a share of the pools stays available for sequences that grow.
    pub fn fits(&self, hit: &Hit, positions: u32, rows: u32, spare: bool) -> Result<(), Lack> {
        let all = self.blocks_for(positions);
        for (group, pool) in self.pools.iter().enumerate() {
            let (first, total) = match self.windows[group] {
                None => (0, all),
                Some(window) => {
                    let most = window.div_ceil(self.block) + rows.div_ceil(self.block) + Limits::MORE_BLOCKS + 2;
                    ((hit.positions + 1).saturating_sub(window) / self.block, all.min(most))
                }
            };
            let used = |node: &&NodeId| {
                let block = self.index.node(**node).blocks[group].block;
                block.is_some_and(|block| pool.tables(block) > 0)
            };
            let shared = hit.path.iter().skip(first as usize).filter(used).count() as u32;
            let lack = Lack { group, blocks: total.saturating_sub(shared) };
            if self.lacks(lack, spare) {
                return Err(lack);
            }
        }
        Ok(())
    }

    /// Whether there are too few blocks, still. With `spare`, as in [`Self::fits`].
    pub fn lacks(&self, lack: Lack, spare: bool) -> bool {
        self.lacks_beside(lack, spare, std::iter::empty())
    }

    /// The same if these tables gave all back that they have.
    pub fn lacks_beside<'a>(&self, lack: Lack, spare: bool, tables: impl Iterator<Item = &'a Table>) -> bool {
        /// A twentieth is enough that a sequence is rarely admitted only to be preempted.
        const SPARE: u32 = 20;
        let (pool, group) = (&self.pools[lack.group], lack.group);
        // Blocks that nobody else has.
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        for table in tables {
            let kept = table.kept.iter().filter(|(of, ..)| *of == group).map(|(.., block)| *block);
            let own = table.groups[group].iter().copied().filter(|block| *block != FREED);
            own.chain(kept).for_each(|block| *held.entry(block).or_insert(0) += 1);
        }
        let freed = held.into_iter().filter(|(block, tables)| pool.tables(*block) == *tables).count();
        lack.blocks + if spare { pool.capacity() / SPARE } else { 0 } > pool.available() + freed as u32
    }

    /// Gives an empty table what a search just found.
    pub fn attach(&mut self, table: &mut Table, root: &[u32], hit: &Hit, owner: Option<u64>) -> Attached {
        let root_words = root;
        let root = self.index.get_or_add(None, 0, root);
        self.index.enter(root);
        table.root = Some(root);
        let mut attached = Attached { positions: hit.path.len() as u32 * self.block, state: None, copy: None };
        for group in 0..self.pools.len() {
            let window = self.windows[group].unwrap_or(u32::MAX);
            let first = (hit.positions + 1).saturating_sub(window) / self.block;
            table.freed[group] = first.min(hit.path.len() as u32);
        }
        for (i, &node) in hit.path.iter().enumerate() {
            self.index.enter(node);
            for group in 0..self.pools.len() {
                let seen = i as u32 >= table.freed[group];
                let block = self.index.node(node).blocks[group].block.filter(|_| seen);
                if let Some(block) = block {
                    self.pools[group].share(block);
                    if self.windows[group].is_some() {
                        self.index.enter_window(node, group);
                    }
                }
                table.groups[group].push(block.unwrap_or(FREED));
            }
            table.path.push(node);
        }
        let last = match hit.part {
            Some((node, count)) if self.attach_part(table, node, owner, &mut attached) => {
                attached.positions += count;
                attached.state.is_none().then_some(node)
            }
            // No block for the copy: from the end of the path, or before, where all is there that a token sees.
            Some(_) => {
                self.release(table);
                let mut len = if self.recurrent() { 0 } else { hit.path.len() };
                while let Some(missing) = self.missing(&hit.path[..len], len as u32 * self.block) {
                    len = missing;
                }
                let path = hit.path[..len].to_vec();
                return self.attach(
                    table,
                    root_words,
                    &Hit { positions: len as u32 * self.block, path, ..Hit::default() },
                    owner,
                );
            }
            _ => hit.path.last().copied(),
        };
        if let Some(node) = last.filter(|_| self.recurrent()) {
            attached.state = self.index.state(node);
            self.index.touch_state(node, Worth::Normal);
        }
        attached
    }

    /// Gives a table the block of a node after its path: the block itself, if nobody else has it and the sequence left it
    /// there, or a copy.
    fn attach_part(&mut self, table: &mut Table, node: NodeId, owner: Option<u64>, attached: &mut Attached) -> bool {
        let blocks: Vec<u32> = self.index.node(node).blocks.iter().filter_map(|held| held.block).collect();
        let alone = |(pool, &block): (&Pool, &u32)| pool.tables(block) == 0 && pool.nodes(block) == 1;
        let own = owner.is_some() && self.index.node(node).owner == owner;
        if own && self.pools.iter().zip(&blocks).all(alone) {
            for (group, &block) in blocks.iter().enumerate() {
                self.pools[group].share(block);
                table.groups[group].push(block);
            }
            attached.state = self.index.state(node);
            let removed = self.index.remove(node);
            self.drop_node(removed);
            return true;
        }
        if self.pools.iter().any(|pool| pool.available() == 0) {
            return false;
        }
        // In use for a moment, so that it is not evicted for its own copy.
        self.index.enter(node);
        self.pools.iter_mut().zip(&blocks).for_each(|(pool, block)| pool.share(*block));
        let new: Vec<Option<u32>> = (0..self.pools.len()).map(|group| self.alloc(group)).collect();
        self.index.leave(node, Worth::Normal);
        self.pools.iter_mut().zip(&blocks).for_each(|(pool, block)| pool.release(*block));
        if new.contains(&None) {
            // The only block left was the one to be copied.
            let got = new.iter().enumerate().filter_map(|(group, block)| block.map(|block| (group, block)));
            got.for_each(|(group, block)| self.pools[group].release(block));
            return false;
        }
        attached.copy = (!blocks.is_empty()).then_some(self.copied);
        for (group, (from, to)) in blocks.into_iter().zip(new.into_iter().flatten()).enumerate() {
            self.copy(CacheOp::Copy { group: GroupId(group as u32), from, to });
            table.groups[group].push(to);
        }
        true
    }
}

/// What is looked for.
struct Look<'a> {
    root: NodeId,
    /// The tokens that may be found.
    tokens: &'a [u32],
    phases: Option<&'a Phases>,
    open: bool,
}

impl<'a> Look<'a> {
    /// The tokens of a block, if there are that many.
    fn block(&self, i: u32, block: u32) -> Option<&'a [u32]> {
        self.tokens.get((i * block) as usize..((i + 1) * block) as usize)
    }
}
