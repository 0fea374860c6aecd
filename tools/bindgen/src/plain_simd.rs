//! A module without relaxed SIMD, from one that has it: not all browsers take its instructions. Ours uses one, which multiplies
//! bytes, and the compiler takes minima and maxima where nothing is NaN.

use std::path::Path;

use anyhow::{Result, bail};
use walrus::ir::{
    BinaryOp, Binop, Const, Instr, InstrLocId, InstrSeq, LocalGet, LocalSet, TernOp, TernaryOp, Value, VisitorMut,
    dfs_pre_order_mut,
};
use walrus::{LocalId, ModuleConfig, ValType};

/// Writes the module without relaxed SIMD; the results of its functions are the same.
pub fn write(input: &Path, output: &Path) -> Result<()> {
    let mut config = ModuleConfig::new();
    config.generate_name_section(false).generate_producers_section(false);
    let mut module = config.parse_file(input)?;
    let mut found = Vec::new();
    for (id, function) in module.funcs.iter_local_mut() {
        let mut finder = Finder::default();
        let entry = function.entry_block();
        dfs_pre_order_mut(&mut finder, function, entry);
        if let Some(other) = finder.other {
            bail!("{other} cannot be written without relaxed SIMD yet");
        }
        if finder.products {
            found.push(id);
        }
    }
    for id in found {
        let locals = [(); 3].map(|()| module.locals.add(ValType::V128));
        let function = module.funcs.get_mut(id).kind.unwrap_local_mut();
        let entry = function.entry_block();
        dfs_pre_order_mut(&mut Speller { locals }, function, entry);
    }
    module.emit_wasm_file(output)
}

fn is_product(instr: &Instr) -> bool {
    matches!(instr, Instr::TernOp(TernOp { op: TernaryOp::I32x4RelaxedDotI8x16I7x16AddS }))
}

/// What gives one of the results that a relaxed minimum or maximum may give.
fn plain(op: BinaryOp) -> Option<BinaryOp> {
    Some(match op {
        BinaryOp::F32x4RelaxedMin => BinaryOp::F32x4PMin,
        BinaryOp::F32x4RelaxedMax => BinaryOp::F32x4PMax,
        BinaryOp::F64x2RelaxedMin => BinaryOp::F64x2PMin,
        BinaryOp::F64x2RelaxedMax => BinaryOp::F64x2PMax,
        _ => return None,
    })
}

/// Replaces minima and maxima, and finds what else there is.
#[derive(Default)]
struct Finder {
    products: bool,
    /// What else is relaxed.
    other: Option<String>,
}

impl VisitorMut for Finder {
    fn visit_instr_mut(&mut self, instr: &mut Instr, _: &mut InstrLocId) {
        if is_product(instr) {
            self.products = true;
        } else if let Instr::Binop(Binop { op }) = instr
            && let Some(plain) = plain(*op)
        {
            *op = plain;
        } else if matches!(instr, Instr::TernOp(_) | Instr::Binop(_) | Instr::Unop(_)) {
            let text = format!("{instr:?}");
            if text.contains("Relaxed") {
                self.other = Some(text);
            }
        }
    }
}

/// Spells `i32x4.relaxed_dot_i8x16_i7x16_add_s` as products of 16 bits.
struct Speller {
    locals: [LocalId; 3],
}

impl VisitorMut for Speller {
    fn start_instr_seq_mut(&mut self, seq: &mut InstrSeq) {
        if !seq.instrs.iter().any(|(instr, _)| is_product(instr)) {
            return;
        }
        let all = std::mem::take(&mut seq.instrs);
        for (instr, at) in all {
            if is_product(&instr) {
                seq.instrs.extend(self.product().map(|instr| (instr, at)));
            } else {
                seq.instrs.push((instr, at));
            }
        }
    }
}

impl Speller {
    /// On the stack lie x with a sign, q of seven bits, and the sum that their products are added to, four to a word. First bytes
    /// 0 and 2 of each word, then 1 and 3.
    fn product(&self) -> [Instr; 22] {
        let [x, q, sum] = self.locals;
        let get = |local| Instr::LocalGet(LocalGet { local });
        let set = |local| Instr::LocalSet(LocalSet { local });
        let bits = |n| Instr::Const(Const { value: Value::I32(n) });
        let op = |op| Instr::Binop(Binop { op });
        let low_bytes =
            Instr::Const(Const { value: Value::V128(u128::from_le_bytes([0xff, 0].repeat(8).try_into().unwrap())) });
        [
            set(sum),
            set(q),
            set(x),
            get(sum),
            get(q),
            low_bytes,
            op(BinaryOp::V128And),
            get(x),
            bits(8),
            op(BinaryOp::I16x8Shl),
            bits(8),
            op(BinaryOp::I16x8ShrS),
            op(BinaryOp::I32x4DotI16x8S),
            op(BinaryOp::I32x4Add),
            get(q),
            bits(8),
            op(BinaryOp::I16x8ShrU),
            get(x),
            bits(8),
            op(BinaryOp::I16x8ShrS),
            op(BinaryOp::I32x4DotI16x8S),
            op(BinaryOp::I32x4Add),
        ]
    }
}
