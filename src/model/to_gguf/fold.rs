//! Factors that a folder applies to values and a GGUF file has multiplied into weights (Falcon-H1).

use crate::model::program::{Node, Out, Program};
use crate::ops::{Embed, Linear, Op, Operand, OperandMut, Pointwise, ValueId};
use crate::{Error, Result};

/// What the weights of a program are multiplied by, one factor each.
#[derive(Clone, Debug)]
pub(super) struct Factors {
    pub(super) weights: Vec<f32>,
    pub(super) vectors: Vec<f32>,
}

impl Factors {
    fn ones(program: &Program) -> Self {
        Self { weights: vec![1.0; program.weights.len()], vectors: vec![1.0; program.vectors.len()] }
    }

    /// Multiplies the result of a linear op (`bias`), or its matrices alone, if its input has the factor.
    fn scale(&mut self, linear: &Linear, by: f32, bias: bool) {
        for part in &linear.parts {
            self.weights[part.weight.index()] *= by;
            if let Some(vector) = part.bias.filter(|_| bias) {
                self.vectors[vector.index()] *= by;
            }
        }
    }
}

/// `folder` without the factors that `gguf`, the same model's program from a GGUF file, lacks; and what its weights must be
/// multiplied by instead. A factor on the input or the result of a linear op moves into its matrices; one on the scores,
/// into the matrices of the keys.
pub(super) fn fold(folder: &Program, gguf: &Program) -> Result<(Program, Factors)> {
    let mut factors = Factors::ones(folder);
    let mut program = Program { values: Vec::new(), nodes: Vec::new(), ..folder.clone() };
    // What each value has become, and the factor that it lacks.
    let mut now: Vec<Option<(ValueId, f32)>> = vec![None; folder.values.len()];
    let refused = || Error::Model("a factor would be missing".to_owned());
    for node in &folder.nodes {
        let there = gguf.nodes.get(program.nodes.len()).map(|node| &node.op);
        let scales = |op: &Op| matches!(op, Op::Pointwise(Pointwise::Scale { .. }));
        if let (Op::Pointwise(Pointwise::Scale { x, by, out, .. }), false) = (&node.op, there.is_some_and(scales)) {
            let (x_now, lacks) = now[x.index()].ok_or_else(refused)?;
            now[out.index()] = match only_made_for(folder, *x) {
                Some(linear) => {
                    factors.scale(linear, *by, true);
                    Some((x_now, lacks))
                }
                None => Some((x_now, lacks * by)),
            };
            continue;
        }
        let mut op = node.op.clone();
        let mut lacking = 1.0;
        node.op.reads(&mut |v| lacking *= now[v.index()].map_or(1.0, |(_, lacks)| lacks));
        match (&mut op, there) {
            (Op::Linear(linear), _) => factors.scale(linear, lacking, false),
            _ if lacking != 1.0 => return Err(refused()),
            (Op::Embed(embed), Some(Op::Embed(Embed { scale, .. }))) => {
                factors.weights[embed.table.index()] *= embed.scale / scale;
                embed.scale = *scale;
            }
            (Op::Attend(attend), Some(Op::Attend(other))) if attend.scale != other.scale => {
                let keys = keys_of(folder, &node.op).ok_or_else(refused)?;
                factors.scale(keys, attend.scale / other.scale, true);
                attend.scale = other.scale;
            }
            _ => {}
        }
        if let Some(out) = node.op.writes() {
            now[out.index()] = Some((ValueId(program.values.len() as u32), 1.0));
            program.values.push(folder.value(out).clone());
        }
        op.operands_mut(&mut |_, operand| {
            if let OperandMut::Value(v) = operand {
                *v = now[v.index()].map_or(*v, |(now, _)| now);
            }
        });
        program.nodes.push(Node { layer: node.layer, op });
    }
    let mut uses = vec![0; folder.weights.len()];
    for node in &folder.nodes {
        node.op.operands(&mut |_, operand| {
            if let Operand::Weight(weight) = operand {
                uses[weight.index()] += 1;
            }
        });
    }
    if factors.weights.iter().zip(uses).any(|(&by, uses)| by != 1.0 && uses > 1) {
        return Err(Error::Model("a matrix with a factor is used twice".to_owned()));
    }
    let at = |out: &Out| now[out.value().index()].map(|(now, _)| now);
    if folder.outs.iter().map(at).ne(gguf.outs.iter().map(|out| Some(out.value()))) {
        return Err(refused());
    }
    program.outs.clone_from(&gguf.outs);
    Ok((program, factors))
}

/// The linear op that makes a value which one node alone reads.
fn only_made_for(program: &Program, value: ValueId) -> Option<&Linear> {
    let mut readers = 0;
    program.nodes.iter().for_each(|node| node.op.reads(&mut |v| readers += usize::from(v == value)));
    made(program, value).filter(|_| readers == 1)
}

fn made(program: &Program, value: ValueId) -> Option<&Linear> {
    program.nodes.iter().find_map(|node| match &node.op {
        Op::Linear(linear) if linear.out == value => Some(linear),
        _ => None,
    })
}

/// The linear op that makes the keys of an attention, rotated or not.
fn keys_of<'p>(program: &'p Program, attend: &Op) -> Option<&'p Linear> {
    let Op::Attend(attend) = attend else { return None };
    let keys = program.nodes.iter().find_map(|node| match &node.op {
        Op::KvWrite(write) if attend.kv == crate::ops::Kv::Cache(write.cache) => Some(write.k),
        _ => None,
    })?;
    let before = program.nodes.iter().find_map(|node| match &node.op {
        Op::Rope(rope) if rope.out == keys => Some(rope.x),
        _ => None,
    });
    only_made_for(program, before.unwrap_or(keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Builder;
    use crate::ops::Index;

    /// Embeddings, times a factor, and a head.
    fn program(factor: f32, head: &str) -> Program {
        let mut b = Builder::new(8, 16);
        let x = b.embed("table", Index::Token, 8, 4, factor);
        let weight = b.weight(head, 8, 4);
        let logits = b.linear("logits", x, weight, None);
        b.finish(vec![Out::Logits(logits)])
    }

    #[test]
    fn a_factor_moves_into_the_matrix_of_its_op_alone() {
        let (_, factors) = fold(&program(3.0, "head"), &program(1.0, "head")).unwrap();
        assert_eq!(factors.weights, [3.0, 1.0]);
        // A tied head multiplies by the same matrix, and must not have the factor.
        let tied = program(3.0, "table");
        let e = fold(&tied, &program(1.0, "table")).unwrap_err();
        assert!(e.to_string().contains("used twice"), "{e}");
        fold(&tied, &tied).unwrap();
    }
}
