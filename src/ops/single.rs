//! Single ops on buffers of a host's: for programs with a wgpu device of their own that want a kernel, not an engine.
//!
//! ```no_run
//! # async fn f(device: wgslm::gpu::Device, x: wgslm::gpu::Buffer) -> wgslm::Result<()> {
//! use wgslm::ops::{Op, Pairing, Room, Rope, RopeSpec, Rotation, Single, StepBuffer};
//!
//! // 8 heads of 64 elements in 5 rows, which stand at positions 100 to 104 of a sequence.
//! let step = StepBuffer::new(&device, Room { rows: 16, ..Room::default() })?;
//! let counts = step.write_run(&device, 5, 100, &[])?;
//! let mut pipelines = wgslm::gpu::Pipelines::new(&device);
//! let mut single = Single::new(&mut pipelines, &step);
//! let x = single.value(&x, 8 * 64)?;
//! let table = single.rotation(Rotation::Power { theta: 10_000.0, dims: 64, scale: 1.0, factor: 1.0 })?;
//! let spec = RopeSpec { table, pairing: Pairing::Neox, dims: 64 };
//! single.add(Op::Rope(Rope { x, heads: 8, head_dim: 64, spec, out: x }))?;
//! single.finish()?.submit(&device, counts);
//! # Ok(()) }
//! ```

use super::attend::gpu::{ALL_PARTS, MAX_PARTS, TILE_ROWS, most_parts, part_size};
use super::check::Shapes;
use super::linear::matmul::quants_bytes;
use super::lower::{AngleSource, Angles, CacheBuffer, Layout, Lower, MAX_ROWS, Matrix, Piece, ValueBuffer};
use super::{Attend, CacheId, CacheShape, Kv, KvLayout, Mask, Op, Operand, RopeId, Rows, ValueId, VectorId, WeightId};
use crate::gpu::{Buffer, Device, Pipelines, Plan, PlanBuilder, StepCounts};
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// Words of a step buffer in front of the rows.
const HEADER: u32 = 16;

/// What a step buffer has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows.
    pub rows: u32,
    /// Sequences.
    pub seqs: u32,
    /// Blocks of a cache that a sequence has in its table. 0: there are no tables, caches are contiguous.
    pub blocks: u32,
    /// Positions in a block, or of a sequence where there are no tables: rows that stand behind them are refused then. 0: nobody checks.
    pub slots: u32,
    /// Rows say where they stand ([`StepBuffer::write_rows`]); else they are one sequence's, one behind the other
    /// ([`StepBuffer::write_run`]). Pipelines differ in it.
    pub pos_ids: bool,
    /// Rows that say where they stand may do so in any order: tiles of rows, searches and writes to vectorised caches, which need them in
    /// the order of their sequences and positions, are refused then.
    pub any_order: bool,
    /// Rows may be drafts of a tree ([`StepBuffer::write_tree`]). Pipelines differ in it.
    pub tree: bool,
    /// Attention by rows takes each in parts, side by side, as the engine does where rows are few ([`Single::by_rows`]).
    pub divided: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { rows: 1, seqs: 1, blocks: 0, slots: 0, pos_ids: false, any_order: false, tree: false, divided: false }
    }
}

impl Room {
    /// Positions that a sequence has room for, if that is known.
    fn positions(&self) -> Option<u32> {
        (self.slots != 0).then(|| self.slots.saturating_mul(self.blocks.max(1)))
    }

    /// Items that attention's work list has for a row, at most.
    fn items_of_row(&self) -> u32 {
        if self.divided { self.positions().map_or(MAX_PARTS, most_parts) } else { 1 }
    }
}

/// The rows that ops work on: how many there are, where they stand, in which blocks their sequences' caches are.
#[derive(Clone, Debug)]
pub struct StepBuffer {
    buffer: Buffer,
    layout: Layout,
    room: Room,
}

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its position.
    pub pos: u32,
    /// Its sequence.
    pub seq: u32,
}

impl StepBuffer {
    /// A step without rows.
    pub fn new(device: &Device, room: Room) -> Result<Self> {
        let caps = device.caps();
        let most = caps.max_groups;
        let items_of_row = room.items_of_row();
        if u64::from(room.rows) * u64::from(items_of_row) > u64::from(most) {
            return Err(Error::Limit {
                what: "a step".to_owned(),
                needed: format!("{} rows of up to {items_of_row} parts", room.rows),
                available: format!("{most} workgroups in a dimension on this device"),
                instead: "several steps".to_owned(),
            });
        }
        let paths = if room.tree { 2 } else { 0 };
        // A list of tiles has one for so many rows, and one more for each sequence.
        let row_words = 4 + 4 * u64::from(items_of_row) + 4 + paths;
        let words =
            [(room.rows, row_words), (room.rows / TILE_ROWS, 1), (room.seqs, 5), (room.seqs, u64::from(room.blocks))];
        let words = words.map(|(n, each)| u64::from(n) * each);
        let bytes = 4 * (u64::from(HEADER) + words.iter().sum::<u64>());
        let buffer = Buffer::new(device, "step", bytes)?;
        let seqs = HEADER + 4 * room.rows;
        let tables = seqs + 4 * room.seqs;
        let table_words = room.seqs * room.blocks;
        let items = tables + table_words;
        let merges = items + 4 * room.rows * items_of_row;
        let tiles = merges + 4 * room.rows;
        let tree = if room.tree { tiles + room.rows / TILE_ROWS + room.seqs } else { 0 };
        let lists = Layout { items, merges, tiles, tree, ..Layout::new(caps, seqs, tables) };
        let layout = Layout { tables, table_words, pos_ids: room.pos_ids, ..lists };
        Ok(Self { buffer, layout, room })
    }

    /// `count` rows of one sequence, the first at position `first`; its cache lies in the blocks of `table`.
    pub fn write_run(&self, device: &Device, count: u32, first: u32, table: &[u32]) -> Result<StepCounts> {
        if self.room.pos_ids {
            return Err(Error::argument("write_run", "the rows of this step say where they stand"));
        }
        self.fits(count, 1, table.len())?;
        let end = end(first, count)?;
        self.reaches(table, end)?;
        self.buffer.write(device, 0, &[count, 1, 0, table.len() as u32, first]);
        self.buffer.write(device, u64::from(self.layout.seqs), &[0, count, 0, end]);
        self.buffer.write(device, u64::from(self.layout.tables), table);
        let (items, merges) = self.write_lists(device, (first..end).collect(), &[[0, count, 0, end]]);
        Ok(StepCounts { rows: count, seqs: 1, items, merges, ..StepCounts::default() })
    }

    /// Rows of any sequences, each sequence's cache in the blocks of its table. Unless there is [`Room::any_order`], sequences are in
    /// their order, and the rows of each stand one behind the other, at positions that rise by one.
    pub fn write_rows(&self, device: &Device, rows: &[Place], tables: &[&[u32]]) -> Result<StepCounts> {
        if !self.room.pos_ids {
            return Err(Error::argument("write_rows", "the rows of this step are one sequence's, in a run"));
        }
        let follows = |[a, b]: [Place; 2]| b.seq > a.seq || (b.seq == a.seq && Some(b.pos) == a.pos.checked_add(1));
        let jump = rows.array_windows().position(|pair| !follows(*pair)).filter(|_| !self.room.any_order);
        if let Some(r) = jump {
            let problem =
                format!("row {} is {:?}, behind {:?}; `Room::any_order` takes that", r + 1, rows[r + 1], rows[r]);
            return Err(Error::argument("write_rows", problem));
        }
        let stride = tables.iter().map(|t| t.len()).max().unwrap_or(0);
        let seqs = rows.iter().map(|r| r.seq as usize + 1).max().unwrap_or(0).max(tables.len());
        self.fits(rows.len() as u32, seqs as u32, stride)?;
        for row in rows {
            self.reaches(tables.get(row.seq as usize).copied().unwrap_or(&[]), end(row.pos, 1)?)?;
        }
        let words: Vec<u32> = rows.iter().flat_map(|row| [0, 0, row.pos, row.seq]).collect();
        let mut spans = vec![[0u32; 4]; seqs];
        for (r, row) in rows.iter().enumerate() {
            let [row0, count, slot, context] = &mut spans[row.seq as usize];
            if *count == 0 {
                (*row0, *slot) = (r as u32, row.seq);
            }
            *count += 1;
            *context = row.pos.saturating_add(1).max(*context);
        }
        let mut blocks = vec![0; tables.len() * stride];
        for (table, to) in tables.iter().zip(blocks.chunks_mut(stride.max(1))) {
            to[..table.len()].copy_from_slice(table);
        }
        // A sequence without rows begins where the one before it ends: first rows rise.
        let mut past = 0;
        for [row0, count, ..] in &mut spans {
            *row0 = if *count == 0 { past } else { *row0 };
            past = *row0 + *count;
        }
        self.buffer.write(device, 0, &[rows.len() as u32, seqs as u32, 0, stride as u32]);
        self.buffer.write(device, u64::from(HEADER), &words);
        self.buffer.write(device, u64::from(self.layout.seqs), &spans);
        self.buffer.write(device, u64::from(self.layout.tables), &blocks);
        let (items, merges) = self.write_lists(device, rows.iter().map(|row| row.pos).collect(), &spans);
        Ok(StepCounts { rows: rows.len() as u32, seqs: seqs as u32, items, merges, ..StepCounts::default() })
    }

    /// Drafts of a tree, at most 64, as rows of one sequence that has `first` positions in front of them. Bit `j` of `paths[i]` says
    /// that row `j` is on the way to row `i`, which is on it, too; a row that begins a way has its own bit alone.
    ///
    /// Row `i` is at position `first + i` of the cache, whatever its depth. Attention sees what is on a row's way and counts windows
    /// and distances along it. A rotation needs a step of its own, whose positions are `first + depth`.
    pub fn write_tree(&self, device: &Device, first: u32, paths: &[u64], table: &[u32]) -> Result<StepCounts> {
        let wrong = |problem: String| Err(Error::argument("write_tree", problem));
        if !self.room.tree || paths.is_empty() || paths.len() > 64 {
            return wrong(format!(
                "{} drafts in a step with room for {}",
                paths.len(),
                if self.room.tree { 64 } else { 0 }
            ));
        }
        for (i, path) in paths.iter().enumerate() {
            // Its parent's way, and itself.
            let before = path ^ 1 << i;
            let parent = before.checked_ilog2();
            if before >= 1 << i || parent.is_some_and(|p| paths[p as usize] != before) {
                return wrong(format!("row {i} has the path {path:#b}, which is no parent's and its own bit"));
            }
        }
        let count = paths.len() as u32;
        let counts = if self.room.pos_ids {
            let rows: Vec<_> = (first..end(first, count)?).map(|pos| Place { pos, seq: 0 }).collect();
            self.write_rows(device, &rows, &[table])?
        } else {
            self.write_run(device, count, first, table)?
        };
        // In the kernels a bit stands for one of the last 64 positions, or of all.
        let prefix = first.min(64 - count);
        let bits: Vec<u64> = paths.iter().map(|path| path << prefix | ((1 << prefix) - 1)).collect();
        self.buffer.write(device, u64::from(self.layout.tree), &bits);
        Ok(counts)
    }

    /// The lists of attention: rows, or their parts and which belong together; the sequence of each tile of rows. How many items
    /// there are, and rows to merge.
    fn write_lists(&self, device: &Device, positions: Vec<u32>, spans: &[[u32; 4]]) -> (u32, u32) {
        let mut tiles: Vec<u32> = Vec::new();
        for (seq, [row0, count, ..]) in (0..).zip(spans) {
            tiles.resize(((row0 + count) / TILE_ROWS + seq + 1) as usize, seq);
        }
        self.buffer.write(device, u64::from(self.layout.tiles), &tiles);
        if self.room.tree {
            self.buffer.write(device, u64::from(self.layout.tree), &vec![u64::MAX; positions.len()]);
        }
        let (mut items, mut merges) = (Vec::new(), Vec::new());
        for (row, pos) in (0..).zip(positions) {
            let size = part_size(pos);
            let first = items.len() as u32;
            match pos / size + 1 {
                parts if self.room.divided && parts > 1 => {
                    items.extend((0..parts).map(|part| [row, part, size, 0]));
                    merges.push([row, first, parts, 0]);
                }
                _ => items.push([row, ALL_PARTS, size, 0]),
            }
        }
        self.buffer.write(device, u64::from(self.layout.items), &items);
        self.buffer.write(device, u64::from(self.layout.merges), &merges);
        (items.len() as u32, merges.len() as u32)
    }

    /// Fails if so many positions are more than the blocks of a table have, or the one block of a sequence that needs no table.
    fn reaches(&self, table: &[u32], positions: u32) -> Result<()> {
        let slots = self.room.slots;
        let blocks = if self.room.blocks == 0 { 1 } else { table.len() };
        if slots == 0 || positions.div_ceil(slots) as usize <= blocks {
            return Ok(());
        }
        let problem = format!("{positions} positions in {blocks} blocks of {slots}");
        Err(Error::argument("step", problem))
    }

    fn fits(&self, rows: u32, seqs: u32, blocks: usize) -> Result<()> {
        let room = self.room;
        if rows <= room.rows && seqs <= room.seqs && blocks <= room.blocks as usize {
            return Ok(());
        }
        let problem = format!(
            "{rows} rows of {seqs} sequences of {blocks} blocks, there is room for {}, {} and {}",
            room.rows, room.seqs, room.blocks
        );
        Err(Error::argument("step", problem))
    }
}

/// The position behind `count` rows from `first` on.
fn end(first: u32, count: u32) -> Result<u32> {
    let problem =
        || Error::argument("step", format!("{count} rows from position {first} on, past the last of 32 bits"));
    first.checked_add(count).ok_or_else(problem)
}

/// Where the cosines and sines of a rotation come from.
#[derive(Clone, Copy, Debug)]
pub enum Rotation<'a> {
    /// The host: (rows, pairs) of cosine and sine, two f32.
    Host {
        /// Where they are.
        angles: &'a Buffer,
        /// Pairs of elements that are rotated.
        pairs: u32,
    },
    /// `position * scale * frequencies[i]` radians for pair i, cosine and sine times `factor`: what linear scaling, llama3's,
    /// YaRN's and LongRoPE's come to.
    Frequencies {
        /// Radians a position, for each pair.
        frequencies: &'a [f64],
        /// A factor on all of them.
        scale: f64,
        /// On cosine and sine.
        factor: f32,
    },
    /// `position * scale * theta^(-2i / dims)` radians for pair i, cosine and sine times `factor`, without a table.
    Power {
        /// The base, above 1.
        theta: f64,
        /// Elements of a head that are rotated: even, at most 512.
        dims: u32,
        /// A factor on all angles, from 0 to 6.
        scale: f64,
        /// On cosine and sine.
        factor: f32,
    },
}

/// Collects ops, each on buffers of the caller's, and makes a plan of them.
///
/// What can be added: [`Linear`] as it is before fusing, [`Norm`](super::Norm), [`Rope`](super::Rope), [`KvWrite`](super::KvWrite),
/// [`RopeKv`](super::RopeKv), [`Pointwise`](super::Pointwise), [`Slice`](super::Slice), [`Attend`]. They run in the order in which they
/// were added.
#[derive(Debug)]
pub struct Single<'a> {
    pipelines: &'a mut Pipelines,
    step: &'a StepBuffer,
    values: Vec<ValueBuffer>,
    vectors: Option<Buffer>,
    vector_lens: Vec<u32>,
    vector_at: Vec<u32>,
    matrices: Vec<Matrix>,
    weights: Vec<Buffer>,
    /// Rows and columns of each matrix.
    sizes: Vec<(u32, u32)>,
    caches: Vec<CacheBuffer>,
    angles: Vec<Angles>,
    pairs: Vec<usize>,
    ops: Vec<Op>,
    generated: bool,
    fast: bool,
    v1: bool,
    search: bool,
}

impl<'a> Single<'a> {
    /// No ops yet, on the rows of `step`.
    pub fn new(pipelines: &'a mut Pipelines, step: &'a StepBuffer) -> Self {
        let (values, caches, angles, ops) = Default::default();
        let (vectors, vector_lens, vector_at, pairs) = Default::default();
        let (matrices, weights, sizes) = Default::default();
        Self {
            pipelines,
            step,
            values,
            vectors,
            vector_lens,
            vector_at,
            matrices,
            weights,
            sizes,
            caches,
            angles,
            pairs,
            ops,
            generated: false,
            fast: false,
            v1: false,
            search: false,
        }
    }

    /// Attention and products take each row by itself, as rows that are generated one by one want it; without this, they take tiles of
    /// rows that stand one behind the other.
    pub fn by_rows(&mut self) {
        self.generated = true;
    }

    /// Products and attention of tiles are made in the device's best form, be it of 8 or 16 bits; without this, in f32.
    pub fn fast(&mut self) {
        self.fast = true;
    }

    /// Attention takes each row by itself and keeps its scores in workgroup memory, as vLLM's V1 does: over vectorised caches, for
    /// as many positions as that memory holds scores of.
    pub fn v1(&mut self) {
        self.v1 = true;
    }

    /// Attention finds whose a row is, or a tile of rows, by a binary search over the sequences' first rows; without this, it looks it
    /// up in a list that the host made. The same bits.
    pub fn search(&mut self) {
        self.search = true;
    }

    /// The blocks that scores are kept of, in V1.
    fn v1_blocks(&self) -> Option<u32> {
        self.v1.then_some(self.step.room.blocks)
    }

    /// A value: a row of `width` f32 for each row of the step, rows as far apart as `width` rounded up to 4.
    pub fn value(&mut self, buffer: &Buffer, width: u32) -> Result<ValueId> {
        let bytes = u64::from(width.next_multiple_of(4)) * 4 * u64::from(self.step.room.rows);
        self.holds("a value", buffer, bytes)?;
        self.values.push(ValueBuffer { buffer: buffer.clone(), width, rows: Rows::Step });
        Ok(ValueId(self.values.len() as u32 - 1))
    }

    /// Vectors of weights, f32, one behind the other in one buffer, each from a multiple of four elements on.
    pub fn vectors(&mut self, buffer: &Buffer, lens: &[u32]) -> Result<Vec<VectorId>> {
        let bytes = lens.iter().map(|&n| u64::from(n.next_multiple_of(4)) * 4).sum();
        self.holds("vectors", buffer, bytes)?;
        self.vectors = Some(buffer.clone());
        self.vector_lens = lens.to_vec();
        let from = |next: &mut u32, &n: &u32| {
            *next += n.next_multiple_of(4);
            Some(*next - n.next_multiple_of(4))
        };
        self.vector_at = lens.iter().scan(0, from).collect();
        Ok((0..lens.len() as u32).map(VectorId).collect())
    }

    /// A matrix of `n` rows of `k` weights in a buffer, each row as [`BlockFormat::repack_row`] makes it of a file's.
    pub fn matrix(&mut self, buffer: &Buffer, format: BlockFormat, n: u32, k: u32) -> Result<WeightId> {
        if n == 0 || n > MAX_ROWS {
            return Err(Error::argument(
                "a matrix",
                format!("{n} rows; 1 to {MAX_ROWS} work, more in several matrices"),
            ));
        }
        self.holds("a matrix", buffer, u64::from(format.gpu_row_words(u64::from(k))?) * 4 * u64::from(n))?;
        let piece = Piece { buffer: self.weights.len(), at: 0, row: 0, n };
        self.matrices.push(Matrix { format, pieces: vec![piece] });
        self.weights.push(buffer.clone());
        self.sizes.push((n, k));
        Ok(WeightId(self.sizes.len() as u32 - 1))
    }

    /// A cache of keys and values.
    pub fn cache(&mut self, buffer: &Buffer, shape: CacheShape) -> Result<CacheId> {
        shape.check()?;
        self.holds("a cache", buffer, shape.bytes())?;
        let room = &self.step.room;
        if shape.layout == KvLayout::Contiguous && room.seqs > shape.blocks {
            let problem = format!("{} sequences in a step, the cache has {}", room.seqs, shape.blocks);
            return Err(Error::argument("cache", problem));
        }
        if let Some(positions) = room.positions() {
            let fits = match shape.layout {
                KvLayout::Contiguous => positions <= shape.slots,
                KvLayout::Paged | KvLayout::Vectorised => room.slots == shape.slots && room.blocks > 0,
            };
            if !fits {
                let problem =
                    format!("blocks of {} positions, the step has {} of {}", shape.slots, room.blocks, room.slots);
                return Err(Error::argument("cache", problem));
            }
        }
        self.caches.push(CacheBuffer { buffer: buffer.clone(), shape, group: 0, state: 0 });
        Ok(CacheId(self.caches.len() as u32 - 1))
    }

    /// Angles for a [`RopeSpec`](super::RopeSpec).
    pub fn rotation(&mut self, rotation: Rotation<'_>) -> Result<RopeId> {
        let device = self.pipelines.device().clone();
        let (buffer, pairs, source) = match rotation {
            Rotation::Host { angles, pairs } => {
                self.holds("angles", angles, u64::from(pairs) * 8 * u64::from(self.step.room.rows))?;
                (angles.clone(), pairs as usize, AngleSource::Host)
            }
            Rotation::Frequencies { frequencies, scale, factor } => {
                let words: Vec<[u32; 2]> = frequencies.iter().map(|f| turns(f * scale)).collect();
                let buffer = Buffer::new(&device, "turns", words.len() as u64 * 8)?;
                buffer.write(&device, 0, &words);
                (buffer, frequencies.len(), AngleSource::Turns { factor })
            }
            Rotation::Power { theta, dims, scale, factor } => {
                let fits = theta > 1.0 && theta <= 1e15 && dims <= 512 && (0.0..=6.0).contains(&scale);
                if !fits {
                    let problem = format!("theta {theta}, {dims} dimensions, scale {scale}");
                    return Err(Error::argument("rotation", problem));
                }
                (self.step.buffer.clone(), dims as usize / 2, AngleSource::Power { factor, theta, freq_scale: scale })
            }
        };
        self.angles.push(Angles { buffer, at: 0, source });
        self.pairs.push(pairs);
        Ok(RopeId(self.angles.len() as u32 - 1))
    }

    /// Adds an op. Fails, with nothing added, if its operands do not fit each other, or if it needs more than buffers.
    pub fn add(&mut self, op: Op) -> Result<()> {
        let fits =
            matches!(op, Op::Norm(_) | Op::Rope(_) | Op::KvWrite(_) | Op::RopeKv(_) | Op::Pointwise(_) | Op::Slice(_));
        let plain = matches!(&op, Op::Linear(linear) if linear.is_canonical());
        if !fits && !plain && !matches!(op, Op::Attend(_)) {
            return Err(Error::unsupported(
                format!("{} as a single op", op.name()),
                "an executor runs it in a program",
            ));
        }
        self.known(&op)?;
        op.check(&Shapes {
            width: &|id| self.values[id.index()].width,
            matrix: &|id| self.sizes[id.index()],
            vector: &|id| self.vector_lens[id.index()],
            pairs: &|id| self.pairs[id.index()],
            state: &|_| 0,
        })?;
        self.ops.push(op);
        Ok(())
    }

    /// Fails if an op names something that is not there, or a cache of another shape.
    fn known(&self, op: &Op) -> Result<()> {
        let there = |what: &str, index: usize, count: usize| match index < count {
            true => Ok(()),
            false => Err(Error::argument(op.name(), format!("{what} {index} of {count}"))),
        };
        let mut known = Ok(());
        op.operands(&mut |_, operand| {
            let (what, index, count) = match operand {
                Operand::Value(id) => ("value", id.index(), self.values.len()),
                Operand::Weight(id) => ("matrix", id.index(), self.sizes.len()),
                Operand::Vector(id) => ("vector", id.index(), self.vector_lens.len()),
                Operand::Rope(id) => ("rotation", id.index(), self.pairs.len()),
                Operand::Cache(id) => ("cache", id.index(), self.caches.len()),
            };
            if known.is_ok() {
                known = there(what, index, count);
            }
        });
        known?;
        // A buffer cannot be bound for reading and for writing at once; a rope may have one value for both.
        let mut overlap = false;
        if let Some(out) = op.writes() {
            let own = &self.values[out.index()].buffer;
            op.reads(&mut |id| {
                let in_place = id == out && matches!(op, Op::Rope(_));
                overlap |= !in_place && self.values[id.index()].buffer.is(own);
            });
        }
        if overlap {
            return Err(Error::argument(op.name(), "out lies in the buffer of an operand"));
        }
        let cache = match op {
            Op::KvWrite(op) => Some((op.cache, op.kv_heads, op.k_dim, op.v_dim)),
            Op::RopeKv(op) => Some((op.cache, op.kv_heads, op.head_dim, op.head_dim)),
            Op::Attend(Attend { kv: Kv::Cache(cache), kv_heads, k_dim, v_dim, .. }) => {
                Some((*cache, *kv_heads, *k_dim, *v_dim))
            }
            _ => None,
        };
        if let Op::Attend(Attend { mask, kv, .. }) = op {
            let causal = matches!(mask, Mask::Causal | Mask::Window(_)) && matches!(kv, Kv::Cache(_)) && !self.v1;
            if self.step.room.tree && !causal {
                return Err(Error::unsupported(
                    "drafts of a tree in V1, among a step's rows or with rows behind",
                    "attention over a cache, causal or with a window, takes them",
                ));
            }
            if self.step.room.divided && !matches!(mask, Mask::Causal | Mask::Window(_)) {
                return Err(Error::unsupported(
                    "rows in parts that see rows behind them",
                    "a step without `Room::divided` takes them whole",
                ));
            }
            let in_order = matches!(kv, Kv::Packed { .. }) || self.search || !(self.generated || self.v1);
            if self.step.room.any_order && in_order {
                return Err(Error::unsupported(
                    "attention of rows in any order, in tiles, by search or over themselves",
                    "`Single::by_rows` over a cache takes them",
                ));
            }
            op.on_gpu()?;
        }
        if let Some((id, kv_heads, k_dim, v_dim)) = cache {
            let shape = &self.caches[id.index()].shape;
            if (shape.kv_heads, shape.k_dim, shape.v_dim) != (kv_heads, k_dim, v_dim) {
                let problem = format!(
                    "{kv_heads} heads of {k_dim} and {v_dim} elements, but the cache has {} of {} and {}",
                    shape.kv_heads, shape.k_dim, shape.v_dim
                );
                return Err(Error::argument(op.name(), problem));
            }
            if self.step.room.any_order && shape.layout == KvLayout::Vectorised && !matches!(op, Op::Attend(_)) {
                return Err(Error::unsupported(
                    "rows in any order that go to a vectorised cache",
                    "a paged one takes them",
                ));
            }
            if let (Op::Attend(op), Some(blocks)) = (op, self.v1_blocks()) {
                op.v1_scores(shape, blocks, &self.step.layout, self.pipelines.device().caps())?;
            }
        }
        Ok(())
    }

    /// The plan: its dispatches in order, to be submitted as often as the buffers change.
    pub fn finish(self) -> Result<Plan> {
        // V1, which does less, may have been chosen after an op was added.
        self.ops.iter().try_for_each(|op| self.known(op))?;
        let step = &self.step.buffer;
        let mut layout = Layout { v1: self.v1_blocks(), search: self.search, ..self.step.layout };
        if self.fast {
            let caps = self.pipelines.device().caps();
            layout.tuning = caps.fast();
            layout.attend_matrices = caps.attend_matrices();
        }
        let part_bytes = self.ops.iter().map(|op| op.gpu_needs().kv_split);
        let room = &self.step.room;
        let divided = room.divided && self.generated && !self.v1;
        let parts = u64::from(if divided { room.rows * room.items_of_row() } else { 0 });
        let parts = parts * part_bytes.max().unwrap_or(0);
        let widest = self.sizes.iter().map(|&(_, k)| k).max().filter(|_| self.fast).unwrap_or(0);
        let quants = quants_bytes(widest) * u64::from(self.step.room.rows);
        // Something must be bound.
        let [parts, quants] = [("parts", parts), ("quants", quants)]
            .map(|(name, bytes)| Buffer::new(self.pipelines.device(), name, bytes.max(16)));
        let (parts, quants) = (parts?, quants?);
        self.holds("parts of attention", &parts, 0)?;
        self.holds("rows in eight bits", &quants, 0)?;
        let mut lower = Lower {
            plan: PlanBuilder::new(self.pipelines),
            layout,
            values: &self.values,
            matrices: &self.matrices,
            weights: &self.weights,
            vectors: self.vectors.as_ref().unwrap_or(step),
            vector_at: &self.vector_at,
            bias_at: &|parts| parts[0].bias.map(|bias| self.vector_at[bias.index()]),
            caches: &self.caches,
            step,
            angles: &self.angles,
            generated: self.generated,
            scratch: step,
            sorted: None,
            quants: &quants,
            quantized: None,
            drawn: step,
            parts: &parts,
        };
        for op in &self.ops {
            op.lower(&mut lower)?;
            // Unlike in a program, a value may be written again, or lie in the buffer of another.
            lower.quantized = None;
        }
        lower.plan.finish()
    }

    /// Fails unless a buffer holds so many bytes, and a binding too.
    fn holds(&self, what: &str, buffer: &Buffer, bytes: u64) -> Result<()> {
        if buffer.size() < bytes {
            let problem = format!("{bytes} bytes are needed, the buffer has {}", buffer.size());
            return Err(Error::argument(what, problem));
        }
        let most = self.pipelines.device().caps().max_binding;
        if buffer.size() > most {
            return Err(Error::Limit {
                what: what.to_owned(),
                needed: format!("{} bytes", buffer.size()),
                available: format!("{most} in one binding on this device"),
                instead: "fewer rows a step, several buffers".to_owned(),
            });
        }
        Ok(())
    }
}

/// Radians as parts of a turn, in 2⁻³² and 2⁻⁶⁴; whole turns are dropped.
fn turns(radians: f64) -> [u32; 2] {
    const WORD: f64 = (1u64 << 32) as f64;
    let scaled = (radians / std::f64::consts::TAU).rem_euclid(1.0) * WORD;
    [scaled.floor() as u32, ((scaled - scaled.floor()) * WORD) as u32]
}
