//! What kernels are tuned by: a table by kind of device, and lines of a file in its place for experiments.
//!
//! Nothing here depends on load or batch. The numbers hold for an executor's life, so results do not change while it runs.

use super::Kind;
use crate::{Error, Result};

/// How matrix times matrix is computed, for the rows of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matmul {
    /// In f32, by tiles in registers.
    Registers,
    /// In whole numbers of eight bits, four products an instruction, where the block format has them and numerics are fast.
    Dot,
    /// In f16 with sums in f32, by small matrices that a subgroup multiplies at once, where numerics are fast.
    Cooperative,
}

impl Matmul {
    /// From the one that runs everywhere to the one that asks for most.
    pub const ALL: [Self; 3] = [Self::Registers, Self::Dot, Self::Cooperative];

    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Dot => "dot",
            Self::Cooperative => "cooperative",
        }
    }
}

/// What kernels are tuned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Threads of a workgroup that reduces.
    pub reduce: u32,
    /// Threads that have a head of `rope_kv` or `norm_rope_kv` together, at most.
    pub head: u32,
    /// Threads of a workgroup of `attend`, at least.
    pub attend: u32,
    /// Fours of rows of W that a workgroup of the matrix-times-vector kernels makes, for one row of x.
    pub fours: u32,
    /// The same for several rows of x. The order of a sum depends on neither.
    pub fours_batch: u32,
    /// The form of matrix times matrix that is taken, if the device has it; else the next one before it that it has.
    pub matmul: Matmul,
}

/// A number by its name in files, what it is, and what it may be.
type Entry = (&'static str, fn(&mut Tuning) -> &mut u32, std::ops::RangeInclusive<u32>);

const ENTRIES: [Entry; 5] = [
    ("reduce", |t| &mut t.reduce, 4..=256),
    ("head", |t| &mut t.head, 1..=64),
    ("attend", |t| &mut t.attend, 16..=256),
    ("fours", |t| &mut t.fours, 1..=4),
    ("fours_batch", |t| &mut t.fours_batch, 1..=4),
];

impl Tuning {
    /// What is known to be good for a kind of device.
    pub fn of(kind: Kind) -> Self {
        match kind {
            // SwiftShader pays 35 µs a workgroup of 64 threads with barriers and 3 µs one of 8; lavapipe 2.2 and 0.3.
            // A thread that has a head alone needs no barrier: a head of 128 then takes 1/4 of the time on lavapipe.
            // On processors a load costs as much as ten multiplications, and registers nothing: many rows for each element of x.
            // 4 fours for one row take 0.4 of the time in Q6_K and as long in Q4_K on lavapipe, but three times as long to compile.
            // Products of whole numbers take 0.55 of the time on lavapipe, 0.36 on SwiftShader.
            Kind::Software => Self { reduce: 8, head: 1, attend: 16, fours: 2, fours_batch: 4, matmul: Matmul::Dot },
            // Not measured yet: four rows, as others have it, and eight rows of x are all that registers hold.
            Kind::Discrete | Kind::Integrated => {
                Self { reduce: 32, head: 32, attend: 64, fours: 1, fours_batch: 1, matmul: Matmul::Cooperative }
            }
            // Browsers do not tell whether whole numbers are multiplied by an instruction or by a detour.
            Kind::Other => Self { matmul: Matmul::Registers, ..Self::of(Kind::Discrete) },
        }
    }

    /// The same but for what a text says, in lines `name = number` or `matmul = form`; `#` begins a comment.
    pub fn with(mut self, text: &str) -> Result<Self> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
        for line in lines.filter(|line| !line.is_empty()) {
            let wrong = |problem: String| Error::argument("tuning", format!("{line:?}: {problem}"));
            let (name, value) = line.split_once('=').ok_or_else(|| wrong("name = number works".to_owned()))?;
            if name.trim() == "matmul" {
                let form = Matmul::ALL.into_iter().find(|form| form.name() == value.trim());
                self.matmul = form.ok_or_else(|| wrong(Matmul::ALL.map(Matmul::name).join(", ") + " work"))?;
                continue;
            }
            let Some((_, field, range)) = ENTRIES.iter().find(|(known, ..)| *known == name.trim()) else {
                let names = ENTRIES.map(|(name, ..)| name).join(", ");
                return Err(wrong(format!("{names}, matmul work")));
            };
            let fits = |n: &u32| n.is_power_of_two() && range.contains(n);
            let number = value.trim().parse().ok().filter(fits);
            let wanted = || wrong(format!("a power of two from {} to {} works", range.start(), range.end()));
            *field(&mut self) = number.ok_or_else(wanted)?;
        }
        Ok(self)
    }

    /// Each number with its name.
    pub fn numbers(mut self) -> Vec<(&'static str, u32)> {
        ENTRIES.iter().map(|(name, field, _)| (*name, *field(&mut self))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_what_it_names() {
        let table = Tuning::of(Kind::Discrete);
        assert_eq!(table.with("").unwrap(), table);
        let changed = table.with("# of an experiment\n\n  reduce = 64 # threads\n").unwrap();
        assert_eq!(changed, Tuning { reduce: 64, ..table });
        assert_eq!(changed.numbers()[0], ("reduce", 64));
        assert_eq!(table.with("matmul = registers").unwrap(), Tuning { matmul: Matmul::Registers, ..table });
        for (text, problem) in [
            ("reduce", "name = number"),
            ("rows = 4", "reduce, head, attend, fours, fours_batch, matmul work"),
            ("matmul = 2", "registers, dot, cooperative work"),
            ("attend = 24", "a power of two from 16 to 256"),
            ("attend = 8", "a power of two from 16 to 256"),
            ("reduce = many", "a power of two"),
        ] {
            let error = table.with(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
