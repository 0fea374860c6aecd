//! Blocks by what they hold: a tree of nodes, each a block of tokens after its parent's.
//!
//! What a block holds is a function of everything before it: the salt and the adapter of the request, and for each token its
//! id and the phase it ran in. A node's key is its parent, its tokens and their phases; keys are compared whole, never by a
//! hash alone, so that no two contents can be taken for one another, whoever chose them.
//!
//! A node may have lost a part of what it stood for: the blocks of a windowed group, or the states of recurrent layers. Such
//! parts are evicted on their own.

use std::collections::{BTreeSet, HashMap};

use super::phases::low_bits;

/// The number of a node. It is used again once the node is gone, so only who uses a node may remember it.
pub(super) type NodeId = u32;

/// How much something is worth keeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// Kept only as long as there is space for it.
    Little,
    #[default]
    Normal,
    /// A request that was preempted waits to go on with it.
    Awaited,
}

/// When something was used last, after its worth: the least is evicted first.
type LastUse = (Worth, u64);

/// How many children of a node are looked at where one shall begin as some tokens do: on either side of where these would be.
const NEIGHBOURS: usize = 8;
/// How many children of a node are looked at that have the same tokens, each in other phases.
const SAME: usize = 16;

#[derive(Debug)]
pub(super) struct Node {
    parent: Option<NodeId>,
    key: Box<[u32]>,
    /// How many tokens it has: those of a block, or fewer at the end of a prompt or an answer. A root has none.
    len: u32,
    /// Positions up to its end.
    pub(super) end: u32,
    /// The phase of each token, as [`Phases::bits`](super::Phases::bits) gives them.
    pub(super) bits: u64,
    /// For each cache group, what holds its tokens.
    pub(super) blocks: Box<[Held]>,
    /// The states of recurrent layers after its last token.
    state: Option<State>,
    state_use: LastUse,
    /// Tables that use it, in part at least. Who uses a node uses its parent.
    users: u32,
    last_use: LastUse,
    /// In order of their tokens, then of their phases: those that begin alike lie side by side.
    children: Vec<NodeId>,
    /// Children that are awaited.
    awaited: u32,
    /// The open sequence that left it at the end of a turn.
    pub(super) owner: Option<u64>,
}

/// A node's block in a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) block: Option<u32>,
    /// Of a windowed group: the tables that use it. Of others, those of the node.
    users: u32,
    last_use: LastUse,
}

/// States of recurrent layers: where they are kept, and the copy that brought them there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The checkpoint, from 0 on.
    pub place: u32,
    /// The number of the copy.
    pub copy: u64,
}

/// What a node had that is no more.
#[derive(Debug)]
pub(super) struct Removed {
    /// By group.
    pub(super) blocks: Vec<(usize, u32)>,
    pub(super) state: Option<State>,
}

/// The tree, and what of it is evicted next.
#[derive(Debug)]
pub(super) struct Index {
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    by_key: HashMap<Box<[u32]>, NodeId>,
    /// Nodes that nobody uses. Children come before parents, since who used a child used its parent no less recently.
    idle: BTreeSet<(LastUse, NodeId)>,
    /// For each windowed group, the nodes whose block nobody uses.
    idle_windows: Vec<Option<BTreeSet<(LastUse, NodeId)>>>,
    /// The nodes with states.
    with_state: BTreeSet<(LastUse, NodeId)>,
    clock: u64,
    key: Vec<u32>,
    /// How often a node was looked at.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<u64>,
}

impl Index {
    pub(super) fn new(windows: &[Option<u32>]) -> Self {
        Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            by_key: HashMap::new(),
            idle: BTreeSet::new(),
            idle_windows: windows.iter().map(|window| window.map(|_| BTreeSet::new())).collect(),
            with_state: BTreeSet::new(),
            clock: 0,
            key: Vec::new(),
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        &self.nodes[id as usize]
    }

    /// Nodes that there are.
    pub(super) fn len(&self) -> u32 {
        (self.nodes.len() - self.vacant.len()) as u32
    }

    fn last_use(&mut self, worth: Worth) -> LastUse {
        self.clock += 1;
        (worth, self.clock)
    }

    /// The key of a node. A root has no parent, and words that say what its sequences have in common.
    fn set_key(&mut self, parent: Option<NodeId>, bits: u64, words: &[u32]) {
        self.key.clear();
        match parent {
            None => self.key.push(u32::MAX),
            Some(parent) => self.key.extend([parent, bits as u32, (bits >> 32) as u32]),
        }
        self.key.extend_from_slice(words);
    }

    pub(super) fn get(&mut self, parent: Option<NodeId>, bits: u64, words: &[u32]) -> Option<NodeId> {
        self.set_key(parent, bits, words);
        self.by_key.get(self.key.as_slice()).copied()
    }

    /// The node of a key, made if there is none. It has no blocks then, and no users.
    pub(super) fn get_or_add(&mut self, parent: Option<NodeId>, bits: u64, words: &[u32]) -> NodeId {
        if let Some(id) = self.get(parent, bits, words) {
            return id;
        }
        let (len, end) = match parent {
            None => (0, 0),
            Some(parent) => (words.len() as u32, self.node(parent).end + words.len() as u32),
        };
        let last_use = self.last_use(Worth::Normal);
        let node = Node {
            parent,
            key: self.key.as_slice().into(),
            len,
            end,
            bits,
            blocks: vec![Held::default(); self.idle_windows.len()].into(),
            state: None,
            state_use: last_use,
            users: 0,
            last_use,
            children: Vec::new(),
            awaited: 0,
            owner: None,
        };
        let key = node.key.clone();
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as NodeId - 1
            }
        };
        if let Some(parent) = parent {
            let at = self.place(parent, id);
            self.nodes[parent as usize].children.insert(at, id);
        }
        self.by_key.insert(key, id);
        self.idle.insert((last_use, id));
        id
    }

    fn tokens(&self, id: NodeId) -> &[u32] {
        let node = self.node(id);
        &node.key[node.key.len() - node.len as usize..]
    }

    /// Where a node is among its parent's children, or would be.
    fn place(&self, parent: NodeId, id: NodeId) -> usize {
        let order = |id: NodeId| (self.tokens(id), self.node(id).bits);
        self.node(parent).children.partition_point(|child| order(*child) < order(id))
    }

    /// A node's children with these tokens, in whatever phases: the first of them.
    pub(super) fn children_with(&self, id: NodeId, tokens: &[u32]) -> &[NodeId] {
        let children = &self.node(id).children;
        let first = children.partition_point(|child| self.tokens(*child) < tokens);
        let same = children[first..].iter().take(SAME).take_while(|child| self.tokens(**child) == tokens).count();
        &children[first..first + same]
    }

    /// A node's children that begin most as these tokens do.
    pub(super) fn children_like(&self, id: NodeId, tokens: &[u32]) -> &[NodeId] {
        let children = &self.node(id).children;
        let at = children.partition_point(|child| self.tokens(*child) < tokens);
        &children[at.saturating_sub(NEIGHBOURS)..children.len().min(at + NEIGHBOURS)]
    }

    /// How many of a node's tokens some tokens begin with; of their phases too, where they are given.
    pub(super) fn common(&self, id: NodeId, tokens: &[u32], bits: Option<u64>) -> u32 {
        let node = self.node(id);
        let common = self.tokens(id).iter().zip(tokens).take_while(|(a, b)| a == b).count() as u32;
        match bits {
            Some(bits) => common.min((bits ^ node.bits).trailing_zeros()),
            None => common,
        }
    }

    /// One more table uses a node.
    pub(super) fn enter(&mut self, id: NodeId) {
        if self.node(id).users == 0 {
            self.not_idle(id);
        }
        self.nodes[id as usize].users += 1;
    }

    /// One table less uses a node. Whoever left it with less worth than it has for others does not change that.
    pub(super) fn leave(&mut self, id: NodeId, worth: Worth) {
        let awaited = worth == Worth::Awaited || self.node(id).awaited > 0;
        let last_use = self.last_use(if awaited { Worth::Awaited } else { worth });
        let node = &mut self.nodes[id as usize];
        node.users -= 1;
        if node.users == 0 {
            node.last_use = last_use;
            self.idle.insert((last_use, id));
            if let (true, Some(parent)) = (awaited, node.parent) {
                self.nodes[parent as usize].awaited += 1;
            }
            self.prune(id);
        }
    }

    /// A node that nobody used is used, or removed.
    fn not_idle(&mut self, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        self.idle.remove(&(node.last_use, id));
        let awaited = std::mem::replace(&mut node.last_use.0, Worth::Normal) == Worth::Awaited;
        if let (true, Some(parent)) = (awaited, node.parent) {
            self.nodes[parent as usize].awaited -= 1;
        }
    }

    /// Nobody waits for a node any longer, nor for what it has.
    pub(super) fn not_awaited(&mut self, id: NodeId) {
        for group in 0..self.idle_windows.len() {
            let held = self.node(id).blocks[group];
            let idle = held.block.is_some() && held.users == 0;
            if idle && self.idle_windows[group].is_some() && held.last_use.0 == Worth::Awaited {
                self.enter_window(id, group);
                self.leave_window(id, group, Worth::Normal);
            }
        }
        // Without states this does nothing.
        if self.node(id).state_use.0 == Worth::Awaited {
            self.touch_state(id, Worth::Normal);
        }
    }

    /// One more table uses a node's block of a windowed group.
    pub(super) fn enter_window(&mut self, id: NodeId, group: usize) {
        let held = &mut self.nodes[id as usize].blocks[group];
        if let (0, Some(idle)) = (held.users, &mut self.idle_windows[group]) {
            idle.remove(&(held.last_use, id));
        }
        held.users += 1;
    }

    /// One table less uses it. What is not worth keeping is evicted before anything else.
    pub(super) fn leave_window(&mut self, id: NodeId, group: usize, worth: Worth) {
        let last_use = self.last_use(worth);
        let held = &mut self.nodes[id as usize].blocks[group];
        held.users -= 1;
        if let (0, Some(idle)) = (held.users, &mut self.idle_windows[group]) {
            held.last_use = last_use;
            idle.insert((last_use, id));
        }
    }

    /// A node that has no block of a group gets one, which nobody uses yet through it.
    pub(super) fn set_block(&mut self, id: NodeId, group: usize, block: u32) {
        let last_use = self.last_use(Worth::Normal);
        let held = &mut self.nodes[id as usize].blocks[group];
        debug_assert!(held.block.is_none() && held.users == 0);
        (held.block, held.last_use) = (Some(block), last_use);
        if let Some(idle) = &mut self.idle_windows[group] {
            idle.insert((last_use, id));
        }
    }

    /// Takes the block of a windowed group that is evicted first.
    pub(super) fn evict_window(&mut self, group: usize) -> Option<u32> {
        let (_, id) = self.idle_windows[group].as_mut()?.pop_first()?;
        let block = self.nodes[id as usize].blocks[group].block.take();
        self.prune(id);
        block
    }

    /// Removes a node that has nothing left and that nobody uses, and those before it that stood for nothing else.
    fn prune(&mut self, id: NodeId) {
        let mut next = Some(id);
        while let Some(id) = next {
            let node = self.node(id);
            let nothing = node.state.is_none() && node.blocks.iter().all(|held| held.block.is_none());
            if node.users > 0 || !node.children.is_empty() || !nothing {
                return;
            }
            next = node.parent;
            self.remove(id);
        }
    }

    /// Takes the node that is evicted first.
    pub(super) fn evict(&mut self) -> Option<Removed> {
        let &(_, id) = self.idle.first()?;
        let parent = self.node(id).parent;
        let removed = self.remove(id);
        parent.into_iter().for_each(|parent| self.prune(parent));
        Some(removed)
    }

    /// Removes a node that nobody uses.
    pub(super) fn remove(&mut self, id: NodeId) -> Removed {
        let node = &self.nodes[id as usize];
        assert!(node.users == 0 && node.children.is_empty(), "node {id} is in use");
        let parent = node.parent;
        let mut blocks = Vec::new();
        for (group, held) in node.blocks.iter().enumerate() {
            if let Some(block) = held.block {
                blocks.push((group, block));
                if let Some(idle) = &mut self.idle_windows[group] {
                    idle.remove(&(held.last_use, id));
                }
            }
        }
        self.not_idle(id);
        if let Some(parent) = parent {
            let at = self.place(parent, id);
            let removed = self.nodes[parent as usize].children.remove(at);
            debug_assert_eq!(removed, id);
        }
        let state = self.take_state(id);
        let key = std::mem::take(&mut self.nodes[id as usize].key);
        self.by_key.remove(&key);
        self.vacant.push(id);
        Removed { blocks, state }
    }

    pub(super) fn set_owner(&mut self, id: NodeId, owner: Option<u64>) {
        self.nodes[id as usize].owner = owner;
    }

    pub(super) fn state(&self, id: NodeId) -> Option<State> {
        self.node(id).state
    }

    /// Gives a node states; returns those that it had.
    pub(super) fn set_state(&mut self, id: NodeId, state: State, worth: Worth) -> Option<State> {
        let old = self.take_state(id);
        let last_use = self.last_use(worth);
        let node = &mut self.nodes[id as usize];
        (node.state, node.state_use) = (Some(state), last_use);
        self.with_state.insert((last_use, id));
        old
    }

    /// A node's states were used.
    pub(super) fn touch_state(&mut self, id: NodeId, worth: Worth) {
        if let Some(state) = self.node(id).state {
            self.set_state(id, state, worth);
        }
    }

    pub(super) fn take_state(&mut self, id: NodeId) -> Option<State> {
        let node = &mut self.nodes[id as usize];
        let state = node.state.take()?;
        self.with_state.remove(&(node.state_use, id));
        Some(state)
    }

    /// Takes the states that are evicted first.
    pub(super) fn evict_state(&mut self) -> Option<State> {
        let &(_, id) = self.with_state.first()?;
        let state = self.take_state(id);
        self.prune(id);
        state
    }

    /// Takes the states that some copies brought.
    pub(super) fn retract_states(&mut self, copies: &std::ops::Range<u64>) -> Vec<State> {
        let lost = |id: &NodeId| self.node(*id).state.is_some_and(|state| copies.contains(&state.copy));
        let nodes: Vec<NodeId> = self.with_state.iter().map(|(_, id)| *id).filter(lost).collect();
        let mut states = Vec::new();
        for id in nodes {
            states.extend(self.take_state(id));
            self.prune(id);
        }
        states
    }

    /// A key's bits, without those past its tokens.
    pub(super) fn bits_of(len: u32, bits: u64) -> u64 {
        bits & low_bits(len)
    }

    #[cfg(test)]
    pub(super) fn states(&self) -> u32 {
        self.with_state.len() as u32
    }

    #[cfg(test)]
    pub(super) fn children(&self, id: NodeId) -> &[NodeId] {
        &self.node(id).children
    }

    /// The roots, by what their sequences have in common.
    #[cfg(test)]
    pub(super) fn roots(&self) -> HashMap<&[u32], NodeId> {
        let roots = self.by_key.iter().filter(|(key, _)| key[0] == u32::MAX);
        roots.map(|(key, id)| (&key[1..], *id)).collect()
    }

    /// What is kept for sequences that wait to go on: nodes, blocks of windows and states.
    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        let awaited = |(last_use, _): &&(LastUse, NodeId)| last_use.0 == Worth::Awaited;
        let sets = self.idle_windows.iter().flatten().chain([&self.idle, &self.with_state]);
        sets.map(|set| set.iter().filter(awaited).count()).sum()
    }

    /// Checks what must hold between the nodes, and calls `held` with each block that a node keeps.
    #[cfg(test)]
    pub(super) fn check(&self, mut held: impl FnMut(usize, u32)) {
        let vacant: std::collections::HashSet<_> = self.vacant.iter().copied().collect();
        assert_eq!(self.by_key.len(), self.nodes.len() - vacant.len());
        let mut children = vec![0; self.nodes.len()];
        let mut awaited = vec![0; self.nodes.len()];
        let mut states = 0;
        for id in (0..self.nodes.len() as NodeId).filter(|id| !vacant.contains(id)) {
            let node = self.node(id);
            assert_eq!(self.by_key.get(&node.key), Some(&id));
            assert_eq!(self.idle.contains(&(node.last_use, id)), node.users == 0);
            if let Some(parent) = node.parent {
                assert!(!vacant.contains(&parent), "a node without its parent");
                assert!(self.node(parent).users >= u32::from(node.users > 0));
                children[parent as usize] += 1;
                awaited[parent as usize] += u32::from(node.users == 0 && node.last_use.0 == Worth::Awaited);
                if node.users == 0 && self.node(parent).users == 0 {
                    assert!(node.last_use < self.node(parent).last_use, "a parent goes before its child");
                }
            }
            for (group, of) in node.blocks.iter().enumerate() {
                of.block.into_iter().for_each(|block| held(group, block));
                if let Some(idle) = &self.idle_windows[group] {
                    assert_eq!(idle.contains(&(of.last_use, id)), of.block.is_some() && of.users == 0);
                    assert!(of.users <= node.users && (of.users == 0 || of.block.is_some()));
                }
            }
            states += usize::from(node.state.is_some());
            let nothing = node.state.is_none() && node.blocks.iter().all(|held| held.block.is_none());
            assert!(!nothing || node.users > 0 || !node.children.is_empty(), "a node that stands for nothing");
        }
        assert_eq!(self.with_state.len(), states);
        for (id, count) in children.iter().enumerate().filter(|(id, _)| !vacant.contains(&(*id as NodeId))) {
            let own = &self.node(id as NodeId).children;
            assert_eq!((own.len(), self.node(id as NodeId).awaited), (*count, awaited[id]));
            assert!(own.iter().all(|child| self.node(*child).parent == Some(id as NodeId)));
            let order = |id: &NodeId| (self.tokens(*id).to_vec(), self.node(*id).bits);
            assert!(own.is_sorted_by(|a, b| order(a) < order(b)));
        }
    }
}
