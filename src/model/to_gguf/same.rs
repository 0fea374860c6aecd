//! Whether two programs of a model compute the same, and in what order the second one has the rows and columns of its weights.

use std::collections::{BTreeMap, BTreeSet};

use super::fold::{Factors, fold};
use crate::model::program::Program;
use crate::ops::{Attend, Delta, Op, Pairing, Pointwise, Rope, RopeSpec, ValueId, VectorId, WeightId};
use crate::{Error, Result};

/// An order of rows or columns that come in heads, other than the folder's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    /// Heads of so many elements, of which `dims` rotate: elements that make a pair, half of `dims` apart, become neighbours.
    Pairs { head: usize, dims: usize },
    /// Heads of `width` elements, `each` per group: first the first head of each group, then the second of each.
    Tiled { groups: usize, each: usize, width: usize },
}

impl Order {
    /// Items of a whole period.
    fn period(self) -> usize {
        match self {
            Self::Pairs { head, .. } => head,
            Self::Tiled { groups, each, width } => groups * each * width,
        }
    }

    /// The item of the folder's order that comes at place `i`.
    fn source(self, i: usize) -> usize {
        let (start, i) = (i - i % self.period(), i % self.period());
        start
            + match self {
                Self::Pairs { dims, .. } if i < dims => i % 2 * (dims / 2) + i / 2,
                Self::Pairs { .. } => i,
                Self::Tiled { groups, each, width } => {
                    let (head, inside) = (i / width, i % width);
                    (head % groups * each + head / groups) * width + inside
                }
            }
    }

    /// Items of `k` elements in this order.
    pub(super) fn apply(self, elements: &[f32], k: usize) -> Vec<f32> {
        (0..elements.len() / k).flat_map(|i| elements[self.source(i) * k..][..k].iter().copied()).collect()
    }
}

/// What becomes of a weight in the GGUF file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// The order of its rows, or elements.
    pub(super) rows: Option<Order>,
    /// The order of the columns of each row.
    pub(super) columns: Option<Order>,
    /// Times this.
    pub(super) by: f32,
}

impl Change {
    /// Nothing.
    pub(super) const NONE: Self = Self { rows: None, columns: None, by: 1.0 };

    /// Whole rows of `k` elements, changed.
    pub(super) fn apply(&self, mut elements: Vec<f32>, k: usize) -> Vec<f32> {
        if let Some(order) = self.rows {
            elements = order.apply(&elements, k);
        }
        if let Some(order) = self.columns {
            elements = elements.chunks_exact(k).flat_map(|row| order.apply(row, 1)).collect();
        }
        if self.by != 1.0 {
            elements.iter_mut().for_each(|x| *x *= self.by);
        }
        elements
    }
}

/// What becomes of all weights of a program.
#[derive(Default)]
pub(super) struct Changes {
    weights: BTreeMap<WeightId, Change>,
    vectors: BTreeMap<VectorId, Change>,
}

impl Changes {
    pub(super) fn of_weight(&self, id: WeightId) -> Change {
        self.weights.get(&id).copied().unwrap_or(Change::NONE)
    }

    pub(super) fn of_vector(&self, id: VectorId) -> Change {
        self.vectors.get(&id).copied().unwrap_or(Change::NONE)
    }

    fn weight(&mut self, id: WeightId) -> &mut Change {
        self.weights.entry(id).or_insert(Change::NONE)
    }

    fn vector(&mut self, id: VectorId) -> &mut Change {
        self.vectors.entry(id).or_insert(Change::NONE)
    }

    fn multiply(&mut self, factors: Factors) {
        for (i, by) in factors.weights.into_iter().enumerate().filter(|(_, by)| *by != 1.0) {
            self.weight(WeightId(i as u32)).by = by;
        }
        for (i, by) in factors.vectors.into_iter().enumerate().filter(|(_, by)| *by != 1.0) {
            self.vector(VectorId(i as u32)).by = by;
        }
    }
}

fn differs<T>(what: &str) -> Result<T> {
    Err(Error::Model(format!("{what} would differ from the folder's")))
}

/// Checks that two programs compute the same, up to the order of their weights and factors that the second one has in them.
pub(super) fn changes(folder: &Program, gguf: &Program) -> Result<Changes> {
    let mut changes = Changes::default();
    let folded;
    let mut folder = folder;
    if folder.nodes.len() > gguf.nodes.len() {
        let (program, factors) = fold(folder, gguf)?;
        changes.multiply(factors);
        folded = program;
        folder = &folded;
    }
    if folder.nodes.len() != gguf.nodes.len() || folder.weights.len() != gguf.weights.len() {
        return differs("its operations");
    }
    let counts = |p: &Program| (p.vectors.len(), p.values.len(), p.groups, p.vocab);
    if counts(folder) != counts(gguf) || folder.caches != gguf.caches || folder.outs != gguf.outs {
        return differs("its shape");
    }
    same_rotations(folder, gguf)?;
    for (a, b) in folder.nodes.iter().zip(&gguf.nodes) {
        match (&a.op, &b.op) {
            (Op::Rope(x), Op::Rope(y)) if x.spec.pairing != y.spec.pairing => pair_up(folder, [x, y], &mut changes)?,
            (Op::Delta(x), Op::Delta(y)) if x.tiled != y.tiled => {
                if x.tiled || *x != (Delta { tiled: false, ..y.clone() }) {
                    return differs("the order of value heads");
                }
                tile(folder, x, &mut changes)?;
            }
            // Its parts are written as f32.
            (Op::Attend(x), Op::Attend(y))
                if (x.scale - y.scale).abs() <= 1e-6 * x.scale.abs()
                    && *x == (Attend { scale: x.scale, ..y.clone() }) => {}
            (x, y) if x != y => {
                let layer = a.layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
                return differs(&format!("{}{layer}", x.name()));
            }
            _ => {}
        }
    }
    Ok(changes)
}

fn same_rotations(folder: &Program, gguf: &Program) -> Result<()> {
    for (a, b) in folder.ropes.iter().zip(&gguf.ropes) {
        let near = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-6 * x.abs() + 1e-20;
        let angles = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(near);
        let long = match (&a.long, &b.long) {
            (Some((x, a)), Some((y, b))) => x == y && angles(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let factors = (a.factor - b.factor).abs() <= 1e-6 && a.temperature_scaling == b.temperature_scaling;
        if !angles(&a.divisors, &b.divisors) || !long || !factors {
            return differs("what rope_parameters say");
        }
    }
    Ok(())
}

/// Where the first program has rotate-half pairs and the second interleaved ones, the rows that make the rotated value are
/// permuted.
fn pair_up(program: &Program, [x, y]: [&Rope; 2], changes: &mut Changes) -> Result<()> {
    let spec = RopeSpec { pairing: x.spec.pairing, ..y.spec };
    let turned = x.spec.pairing == Pairing::Neox && *x == (Rope { spec, ..y.clone() });
    let made = program.nodes.iter().find_map(|node| match &node.op {
        Op::Linear(linear) if linear.out == x.x => Some(linear),
        _ => None,
    });
    let Some(linear) = made.filter(|_| turned) else { return differs("the order of rotated pairs") };
    let order = Order::Pairs { head: x.head_dim as usize, dims: x.spec.dims as usize };
    for part in &linear.parts {
        changes.weight(part.weight).rows = Some(order);
        part.bias.into_iter().for_each(|bias| changes.vector(bias).rows = Some(order));
    }
    Ok(())
}

/// Reorders the value heads of a delta rule to tiles, in all values that reach it or leave it element by element.
fn tile(program: &Program, delta: &Delta, changes: &mut Changes) -> Result<()> {
    let (groups, each) = (delta.key_heads as usize, (delta.heads / delta.key_heads) as usize);
    let order = |width| Order::Tiled { groups, each, width };
    let single = order(1);
    for vector in [delta.decay.bias, delta.decay.a] {
        changes.vector(vector).rows = Some(single);
    }
    let mut tiles = Tiles { program, changes, order: single, done: BTreeSet::new() };
    tiles.sources(delta.beta)?;
    tiles.sources(delta.decay.x)?;
    tiles.order = order(delta.v_dim as usize);
    tiles.sources(delta.v)?;
    tiles.done.insert(delta.out);
    tiles.readers(delta.out)
}

struct Tiles<'p> {
    program: &'p Program,
    changes: &'p mut Changes,
    order: Order,
    /// Values that are done.
    done: BTreeSet<ValueId>,
}

impl Tiles<'_> {
    /// Reorders the columns of a value: the rows of the matrix that makes it.
    fn sources(&mut self, value: ValueId) -> Result<()> {
        if !self.done.insert(value) {
            return Ok(());
        }
        let rows = Some(self.order);
        let made = self.program.nodes.iter().find(|node| node.op.writes() == Some(value)).map(|node| &node.op);
        match made {
            Some(Op::Linear(linear)) if linear.parts.len() == 1 => {
                self.changes.weight(linear.parts[0].weight).rows = rows;
                linear.parts[0].bias.into_iter().for_each(|bias| self.changes.vector(bias).rows = rows);
                Ok(())
            }
            Some(Op::Conv(conv)) => {
                self.changes.weight(conv.weight).rows = rows;
                conv.bias.into_iter().for_each(|bias| self.changes.vector(bias).rows = rows);
                self.sources(conv.x)
            }
            Some(Op::Pointwise(Pointwise::Act { x, .. })) => self.sources(*x),
            _ => differs("the order of value heads"),
        }
    }

    /// Reorders what reads a value whose columns are in the new order.
    fn readers(&mut self, value: ValueId) -> Result<()> {
        for node in &self.program.nodes {
            let mut reads = false;
            node.op.reads(&mut |v| reads |= v == value);
            match &node.op {
                _ if !reads => {}
                Op::Linear(linear) if linear.parts.len() == 1 => {
                    self.changes.weight(linear.parts[0].weight).columns = Some(self.order);
                }
                Op::Norm(norm) if !norm.per_group && self.order.period().is_multiple_of(norm.spec.n as usize) => {
                    self.readers(norm.out)?;
                }
                Op::Pointwise(Pointwise::Mul { a, b, out, .. }) => {
                    self.sources(if *a == value { *b } else { *a })?;
                    self.readers(*out)?;
                }
                _ => return differs("the order of value heads"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_the_converter() {
        let items: Vec<f32> = (0..12).map(|i| i as f32).collect();
        // Two heads of six elements, four of which rotate.
        let pairs = Order::Pairs { head: 6, dims: 4 };
        assert_eq!(pairs.apply(&items, 1), [0., 2., 1., 3., 4., 5., 6., 8., 7., 9., 10., 11.]);
        // Two key heads with three value heads each, of two elements.
        let tiled = Order::Tiled { groups: 2, each: 3, width: 2 };
        assert_eq!(tiled.apply(&items, 1), [0., 1., 6., 7., 2., 3., 8., 9., 4., 5., 10., 11.]);
        let rows = Change { rows: Some(Order::Tiled { groups: 2, each: 2, width: 1 }), by: 2.0, ..Change::NONE };
        assert_eq!(rows.apply(items[..8].to_vec(), 2), [0., 2., 8., 10., 4., 6., 12., 14.]);
        let columns = Change { columns: Some(Order::Tiled { groups: 2, each: 2, width: 1 }), ..Change::NONE };
        assert_eq!(columns.apply(items[..8].to_vec(), 4), [0., 2., 1., 3., 4., 6., 5., 7.]);
    }
}
