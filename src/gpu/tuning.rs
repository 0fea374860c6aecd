//! What kernels are tuned by: a table by kind of device, vendor and block format; for experiments, lines of a file override
//! it.
//!
//! Nothing here depends on load or batch. The numbers hold for an executor's life, so results do not change while it runs.

use super::Kind;
use crate::quant::BlockFormat;
use crate::{Error, Result};

/// How mat-mat is computed, for prefill rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matmul {
    /// In f32, by tiles in registers.
    Registers,
    /// The same with operands in f16, for fast numerics.
    F16,
    /// In int8, four products an instruction, where the block format allows it, for fast numerics.
    Dot,
    /// In f16 with sums in f32, by cooperative matrices, for fast numerics.
    Cooperative,
}

impl Matmul {
    /// From the one that runs everywhere to the most demanding.
    pub const ALL: [Self; 4] = [Self::Registers, Self::F16, Self::Dot, Self::Cooperative];

    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::F16 => "f16",
            Self::Dot => "dot",
            Self::Cooperative => "cooperative",
        }
    }
}

/// How mat-vec is computed, for decode rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matvec {
    /// In f32.
    Registers,
    /// With x in int8, four products an instruction, where the block format allows it, for fast numerics.
    Dot,
}

impl Matvec {
    /// From the one that runs everywhere to the more demanding.
    pub const ALL: [Self; 2] = [Self::Registers, Self::Dot];

    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Dot => "dot",
        }
    }
}

/// Who made a device, as far as kernels are tuned by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Apple.
    Apple,
    /// Qualcomm.
    Qualcomm,
    /// Someone else, or unknown (browsers do not report).
    Other,
}

impl Vendor {
    /// Whether a device takes several instructions for four products of int8, by what drivers say of theirs
    /// (`integerDotProduct4x8BitPackedSignedAccelerated`, which wgpu does not hand on): Apple's, Adreno, and AMD's before RDNA,
    /// all of whose subgroups have 64 threads.
    pub(super) fn emulates_dot(self, subgroups: Option<(u32, u32)>) -> bool {
        matches!(self, Self::Apple | Self::Qualcomm) || self == Self::Amd && subgroups == Some((64, 64))
    }

    /// By the vendor's PCI id; Metal has none, but Apple's devices have their maker's name.
    pub(super) fn of(number: u32, name: &str) -> Self {
        match number & 0xffff {
            0x10de => Self::Nvidia,
            0x1002 => Self::Amd,
            0x8086 => Self::Intel,
            0x106b => Self::Apple,
            0x5143 => Self::Qualcomm,
            _ if name.starts_with("Apple") => Self::Apple,
            _ => Self::Other,
        }
    }
}

/// The traits of a device that the table looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits<'a> {
    pub(super) kind: Kind,
    pub(super) vendor: Vendor,
    pub(super) driver: &'a str,
    /// The smallest and the largest subgroup.
    pub(super) subgroups: (u32, u32),
}

/// What is good for a device that nothing is known of.
impl Default for Tuning {
    fn default() -> Self {
        Self::of(&Traits { kind: Kind::Other, vendor: Vendor::Other, driver: "", subgroups: (0, 0) })
    }
}

/// What matmuls with matrices of a block format are tuned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulTuning {
    /// Threads of a workgroup of the mat-vec kernels.
    pub lanes: u32,
    /// Rows of x that such a workgroup takes, if there are several. No result depends on it.
    pub cols: u32,
    /// Rows of W that such a workgroup computes, in vec4s, for one row of x.
    pub row_vec4s: u32,
    /// The same for several rows of x. The order of summation depends on neither.
    pub row_vec4s_batch: u32,
    /// The preferred variant of mat-vec; if the device lacks it, the other.
    pub matvec: Matvec,
    /// The fewest columns of a matrix for which that may be int8: rounding x takes a dispatch of its own.
    pub dot_k: u32,
    /// Rows of W in a mat-mat tile, unless cooperative matrices compute it.
    pub tile_w: u32,
    /// And rows of x, for prompts of more than a few rows.
    pub tile_x: u32,
    /// Rows of x of a thread in a tile for few rows, which others give more threads.
    pub small_x: u32,
    /// The preferred mat-mat variant; if the device lacks it, the next simpler one that it has.
    pub matmul: Matmul,
}

/// What kernels are tuned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Threads of a workgroup that reduces.
    pub reduce: u32,
    /// Threads that share a head of `rope_kv` or `norm_rope_kv`, at most.
    pub head: u32,
    /// Threads of a workgroup of `attend`, at least.
    pub attend: u32,
    /// Positions that a thread of `attend_tiled` scores at a time.
    pub tiled_keys: u32,
    /// Vec4s of a value that it sums up.
    pub tiled_values: u32,
    /// By [`BlockFormat::index`].
    by_format: [MatmulTuning; BlockFormat::ALL.len()],
}

/// What differs from the defaults on some devices, for some formats.
struct Row {
    fits: fn(&Traits<'_>) -> bool,
    formats: fn(BlockFormat) -> bool,
    set: fn(&mut MatmulTuning),
    why: &'static str,
}

/// Later rows override earlier ones. Those for GPU vendors follow published figures; nothing was measured on such a device.
const TABLE: &[Row] = &[
    Row {
        fits: |_| true,
        formats: |format| !format.has_ints(),
        set: |p| p.row_vec4s_batch = 1,
        why: "floats: a chunk of them fills 32 registers",
    },
    Row {
        fits: |t| t.kind == Kind::Software,
        formats: |format| !format.has_ints(),
        set: |p| p.matmul = Matmul::Registers,
        why: "processors: f16 must be converted and gains nothing",
    },
    // `mul_mat_l` of ggml-vulkan.cpp: its tiles of 128 are left out on AMD, Intel before Xe2 and Apple, which take 64.
    Row {
        fits: |t| t.vendor == Vendor::Nvidia,
        formats: |_| true,
        set: |p| p.tile_w = 128,
        why: "NVIDIA: tiles of 128 rows of W, as llama.cpp has them there and 64 elsewhere",
    },
    // Measured (docs/benchmarks-history.md): it unrolls a loop over an array only if that goes over all of it.
    Row {
        fits: |t| t.driver.contains("llvmpipe"),
        formats: |_| true,
        set: |p| p.row_vec4s = 1,
        why: "lavapipe: one vec4 takes 0.7 to 0.9 of the time of two",
    },
    // ggml-vulkan.cpp (llama.cpp): mat-vec workgroups of one subgroup, 32 threads on NVIDIA and Apple, which is the
    // default; 16 on Intel. MatMulNBits of ONNX Runtime has 16, too: onnxruntime#27834.
    Row {
        fits: |t| t.vendor == Vendor::Intel,
        formats: |_| true,
        set: |p| p.lanes = 16,
        why: "Intel: workgroups of a subgroup of 16, as llama.cpp and ONNX Runtime have them",
    },
    // docs/drivers.md: eight rows spill 33 to 156 registers there, by Mesa's compilers; four spill none.
    Row {
        fits: |t| t.vendor == Vendor::Intel || t.vendor == Vendor::Apple,
        formats: |_| true,
        set: |p| p.cols = 4,
        why: "Intel, Apple: four rows of x at a time fit into registers, eight do not",
    },
    Row {
        fits: |t| t.vendor == Vendor::Amd,
        formats: |_| true,
        set: |p| p.lanes = 64,
        why: "AMD: workgroups of a subgroup of 64, as llama.cpp has them",
    },
    // `rm_iq` of ggml-vulkan.cpp, 8 rows where all subgroups have 64 threads; elsewhere it has four rows, or fewer than our
    // kernels can make.
    Row {
        fits: |t| t.vendor == Vendor::Amd && t.subgroups == (64, 64),
        formats: BlockFormat::has_codebook,
        set: |p| p.row_vec4s = 2,
        why: "AMD GCN: eight rows of formats with code books, as llama.cpp has them",
    },
    // `ggml_vk_khr_cooperative_matrix_support` leaves that driver's out but on RDNA3, of which an adapter says nothing.
    Row {
        fits: |t| {
            let own = ["AMD proprietary", "AMD open-source"].iter().any(|name| t.driver.contains(name));
            t.vendor == Vendor::Amd && own
        },
        formats: |_| true,
        set: |p| p.matmul = p.matmul.min(Matmul::Dot),
        why: "AMD's own drivers: they list cooperative matrices where there are no units for them, llama.cpp found",
    },
    // The same function has them on Intel's Xe2 alone, of which an adapter says nothing either.
    Row {
        fits: |t| t.vendor == Vendor::Intel,
        formats: |_| true,
        set: |p| p.matmul = p.matmul.min(Matmul::Dot),
        why: "Intel: cooperative matrices are slower before Xe2, llama.cpp found",
    },
];

/// A number by its name in files, what it is, and what it may be.
type Entry<T> = (&'static str, fn(&mut T) -> &mut u32, std::ops::RangeInclusive<u32>);

const ENTRIES: [Entry<Tuning>; 5] = [
    ("reduce", |t| &mut t.reduce, 4..=256),
    ("head", |t| &mut t.head, 1..=64),
    ("attend", |t| &mut t.attend, 16..=128),
    ("tiled_keys", |t| &mut t.tiled_keys, 4..=8),
    ("tiled_values", |t| &mut t.tiled_values, 1..=2),
];

/// Of a format.
const OF_FORMAT: [Entry<MatmulTuning>; 8] = [
    ("lanes", |p| &mut p.lanes, 4..=64),
    ("cols", |p| &mut p.cols, 2..=8),
    ("row_vec4s", |p| &mut p.row_vec4s, 1..=4),
    ("row_vec4s_batch", |p| &mut p.row_vec4s_batch, 1..=4),
    ("dot_k", |p| &mut p.dot_k, 32..=65_536),
    ("tile_w", |p| &mut p.tile_w, 64..=128),
    ("tile_x", |p| &mut p.tile_x, 64..=128),
    ("small_x", |p| &mut p.small_x, 2..=8),
];

impl Tuning {
    /// What is known to be good for a device.
    pub(super) fn of(traits: &Traits<'_>) -> Self {
        // The tiles of most GPUs in llama.cpp. Its tiles of floats are in f16 wherever there is f16 (mul_mm.comp). So are
        // ours where there are no cooperative matrices: that takes half the workgroup memory.
        let usual = MatmulTuning {
            lanes: 32,
            cols: 8,
            row_vec4s: 1,
            row_vec4s_batch: 1,
            matvec: Matvec::Registers,
            dot_k: 2048,
            tile_w: 64,
            tile_x: 64,
            small_x: 2, // 64 threads in a tile of 64 x 16
            matmul: Matmul::Cooperative,
        };
        let (reduce, head, attend, matmul) = match traits.kind {
            // SwiftShader pays 35 µs a workgroup of 64 threads with barriers and 3 µs one of 8; lavapipe 2.2 and 0.3.
            // A thread that handles a head alone needs no barrier: a head of 128 then takes 1/4 of the time on lavapipe.
            // On processors a load costs as much as ten multiplications, and registers cost nothing: many rows for each
            // element of x.
            // Integer dot products take 0.55 of the time on lavapipe, 0.36 on SwiftShader.
            Kind::Software => (
                8,
                1,
                16,
                MatmulTuning { lanes: 8, row_vec4s: 4, row_vec4s_batch: 4, small_x: 8, matmul: Matmul::Dot, ..usual },
            ),
            // Not measured yet: four rows, as others have it, and eight rows of x are all that registers hold.
            Kind::Discrete | Kind::Integrated => (32, 32, 64, usual),
            // Browsers do not report whether integer dot products are an instruction or emulated.
            Kind::Other => (32, 32, 64, MatmulTuning { matmul: Matmul::Registers, ..usual }),
        };
        // docs/drivers.md: the larger spill 145 and 339 registers there, by Mesa's compilers.
        let few_registers = matches!(traits.vendor, Vendor::Intel | Vendor::Apple);
        let (tiled_keys, tiled_values) = if few_registers { (4, 1) } else { (8, 2) };
        let mut tuning =
            Self { reduce, head, attend, tiled_keys, tiled_values, by_format: [matmul; BlockFormat::ALL.len()] };
        for row in rows(traits) {
            tuning.all().filter(|(format, _)| (row.formats)(*format)).for_each(|(_, choice)| (row.set)(choice));
        }
        tuning
    }

    /// Why matmul settings differ from the defaults.
    pub(super) fn reasons(traits: &Traits<'_>) -> Vec<&'static str> {
        rows(traits).map(|row| row.why).collect()
    }

    /// The same with overrides from a text, in lines `name = value`; `#` begins a comment. A format's setting applies to
    /// all formats, or with `name.FORMAT` to that one; the latter takes precedence, wherever it stands.
    pub fn with(mut self, text: &str) -> Result<Self> {
        let lines = || text.lines().map(|line| line.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty());
        for of_format in [false, true] {
            for line in lines() {
                let wrong = |problem: String| Error::argument("tuning", format!("{line:?}: {problem}"));
                let (name, value) = line.split_once('=').ok_or_else(|| wrong("name = number works".to_owned()))?;
                let (name, format) = match name.trim().split_once('.') {
                    Some((name, format)) => {
                        let unknown = || wrong(format!("the formats are {}", BlockFormat::names()));
                        (name, Some(BlockFormat::from_name(format).ok_or_else(unknown)?))
                    }
                    None => (name.trim(), None),
                };
                if format.is_some() == of_format {
                    self.set(name, format, value.trim()).map_err(wrong)?;
                }
            }
        }
        // Each thread's share of every sum must fit into workgroup memory.
        if let Some((format, p)) = self.all().find(|(_, p)| p.lanes * p.row_vec4s_batch > 64) {
            let name = format.name();
            let problem =
                format!("{name}: lanes times row_vec4s_batch is {}, 64 is the most", p.lanes * p.row_vec4s_batch);
            return Err(Error::argument("tuning", problem));
        }
        Ok(self)
    }

    fn set(&mut self, name: &str, format: Option<BlockFormat>, value: &str) -> std::result::Result<(), String> {
        if let (None, Some((_, field, range))) = (format, ENTRIES.iter().find(|(known, ..)| *known == name)) {
            *field(self) = number(value, range)?;
            return Ok(());
        }
        let chosen = self.all().filter(|(of, _)| format.is_none_or(|format| format == *of)).map(|(_, choice)| choice);
        if name == "matmul" {
            let form = Matmul::ALL.into_iter().find(|form| form.name() == value);
            let form = form.ok_or_else(|| Matmul::ALL.map(Matmul::name).join(", ") + " work")?;
            chosen.for_each(|choice| choice.matmul = form);
            return Ok(());
        }
        if name == "matvec" {
            let form = Matvec::ALL.into_iter().find(|form| form.name() == value);
            let form = form.ok_or_else(|| Matvec::ALL.map(Matvec::name).join(", ") + " work")?;
            chosen.for_each(|choice| choice.matvec = form);
            return Ok(());
        }
        let Some((_, field, range)) = OF_FORMAT.iter().find(|(known, ..)| *known == name) else {
            let (all, some) = (ENTRIES.map(|(name, ..)| name).join(", "), OF_FORMAT.map(|(name, ..)| name).join(", "));
            return Err(format!("{all} work, and for all formats or one (name.Q4_K) {some}, matvec, matmul"));
        };
        let number = number(value, range)?;
        chosen.for_each(|choice| *field(choice) = number);
        Ok(())
    }

    fn all(&mut self) -> impl Iterator<Item = (BlockFormat, &mut MatmulTuning)> {
        BlockFormat::ALL.iter().copied().zip(&mut self.by_format)
    }

    /// What matmuls with matrices of a format are tuned by.
    pub fn matmul(&self, format: BlockFormat) -> &MatmulTuning {
        &self.by_format[format.index()]
    }

    /// The same, with what `form` makes of each format's mat-mat variant.
    pub(crate) fn with_matmul(mut self, form: impl Fn(BlockFormat, Matmul) -> Matmul) -> Self {
        self.all().for_each(|(format, choice)| choice.matmul = form(format, choice.matmul));
        self
    }

    /// The same for mat-vec.
    pub(crate) fn with_matvec(mut self, form: impl Fn(BlockFormat, Matvec) -> Matvec) -> Self {
        self.all().for_each(|(format, choice)| choice.matvec = form(format, choice.matvec));
        self
    }

    /// Whether some format has rows of x in int8.
    pub(crate) fn rounds_rows(&self) -> bool {
        self.by_format.iter().any(|choice| choice.matmul == Matmul::Dot || choice.matvec == Matvec::Dot)
    }

    /// Each number with its name.
    pub fn numbers(mut self) -> Vec<(&'static str, u32)> {
        ENTRIES.iter().map(|(name, field, _)| (*name, *field(&mut self))).collect()
    }

    /// The matmul settings, each with the formats that share it.
    pub fn groups(&self) -> Vec<(MatmulTuning, Vec<BlockFormat>)> {
        let mut groups: Vec<(MatmulTuning, Vec<BlockFormat>)> = Vec::new();
        for (format, choice) in BlockFormat::ALL.iter().zip(&self.by_format) {
            match groups.iter_mut().find(|(of, _)| of == choice) {
                Some((_, formats)) => formats.push(*format),
                None => groups.push((*choice, vec![*format])),
            }
        }
        groups
    }
}

fn rows<'a>(traits: &'a Traits<'_>) -> impl Iterator<Item = &'static Row> + 'a {
    TABLE.iter().filter(|row| (row.fits)(traits))
}

fn number(value: &str, range: &std::ops::RangeInclusive<u32>) -> std::result::Result<u32, String> {
    let number = value.parse().ok().filter(|n: &u32| n.is_power_of_two() && range.contains(n));
    number.ok_or_else(|| format!("a power of two from {} to {} works", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use BlockFormat::{F16, IQ4_NL, Q4_K, Q8_0};

    const TRAITS: Traits<'_> =
        Traits { kind: Kind::Discrete, vendor: Vendor::Other, driver: "Mesa", subgroups: (32, 64) };

    #[test]
    fn a_file_replaces_what_it_names() {
        let table = Tuning::of(&TRAITS);
        assert_eq!(table.with("").unwrap(), table);
        let changed = table.with("# of an experiment\n\n  reduce = 64 # threads\n").unwrap();
        assert_eq!(changed, Tuning { reduce: 64, ..table });
        assert_eq!(changed.numbers()[0], ("reduce", 64));
        // A format's line takes precedence over one for all, wherever it stands.
        let changed = table.with("row_vec4s.Q4_K = 4\nmatmul.Q8_0 = dot\nrow_vec4s = 2\nmatmul = registers").unwrap();
        let of = |format| (changed.matmul(format).row_vec4s, changed.matmul(format).matmul);
        assert_eq!([Q4_K, Q8_0, F16].map(of), [(4, Matmul::Registers), (2, Matmul::Dot), (2, Matmul::Registers)]);
        assert_eq!(changed.matmul(Q4_K).lanes, table.matmul(Q4_K).lanes);
        for (text, problem) in [
            ("reduce", "name = number"),
            (
                "rows = 4",
                "reduce, head, attend, tiled_keys, tiled_values work, and for all formats or one (name.Q4_K) lanes, cols, row_vec4s, row_vec4s_batch, dot_k, tile_w, tile_x, small_x, matvec, matmul",
            ),
            ("reduce.Q4_K = 8", "reduce, head, attend, tiled_keys, tiled_values work"),
            ("row_vec4s.Q4_L = 2", "the formats are F32"),
            ("matmul = 2", "registers, f16, dot, cooperative work"),
            ("matvec.Q4_K = f16", "registers, dot work"),
            ("dot_k = 100", "a power of two from 32 to 65536"),
            ("tile_w = 32", "a power of two from 64 to 128"),
            ("attend = 24", "a power of two from 16 to 128"),
            ("attend = 8", "a power of two from 16 to 128"),
            ("lanes.F16 = many", "a power of two"),
            ("lanes.Q4_K = 64\nrow_vec4s_batch = 2", "Q4_K: lanes times row_vec4s_batch is 128, 64 is the most"),
        ] {
            let error = table.with(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    /// Later rows override earlier ones, rows of vendors the defaults; every number is one that files may set, too.
    #[test]
    fn vendors_have_rows_of_their_own() {
        let of = |vendor, driver, subgroups, format| {
            *Tuning::of(&Traits { vendor, driver, subgroups, ..TRAITS }).matmul(format)
        };
        let usual = of(Vendor::Other, "", (32, 32), Q4_K);
        assert_eq!(of(Vendor::Nvidia, "", (32, 32), Q4_K), MatmulTuning { tile_w: 128, ..usual });
        assert_eq!(
            of(Vendor::Intel, "", (8, 32), Q4_K),
            MatmulTuning { lanes: 16, cols: 4, matmul: Matmul::Dot, ..usual }
        );
        assert_eq!(of(Vendor::Amd, "Mesa", (32, 64), IQ4_NL), MatmulTuning { lanes: 64, ..usual });
        let lavapipe = Traits { kind: Kind::Software, driver: "llvmpipe", ..TRAITS };
        assert_eq!(Tuning::of(&lavapipe).matmul(Q4_K).row_vec4s, 1);
        let own = of(Vendor::Amd, "AMD proprietary driver 25.1", (64, 64), IQ4_NL);
        assert_eq!(own, MatmulTuning { lanes: 64, row_vec4s: 2, matmul: Matmul::Dot, ..usual });
        for vendor in [Vendor::Nvidia, Vendor::Amd, Vendor::Intel, Vendor::Apple, Vendor::Other] {
            for kind in [Kind::Discrete, Kind::Integrated, Kind::Software, Kind::Other] {
                let traits = Traits { kind, vendor, subgroups: (64, 64), ..TRAITS };
                let mut tuning = Tuning::of(&traits);
                // Nobody who makes GPUs makes software adapters.
                assert!(kind == Kind::Software && vendor != Vendor::Other || tuning.with("").is_ok(), "{traits:?}");
                for (_, choice) in tuning.all() {
                    for (name, field, range) in &OF_FORMAT {
                        let n = *field(choice);
                        assert!(n.is_power_of_two() && range.contains(&n), "{name} = {n}: {traits:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn vendors_are_known_by_number_or_name() {
        let of =
            [(0x10de, "NVIDIA H100"), (0, "Apple M2"), (0x10005, "llvmpipe")].map(|(id, name)| Vendor::of(id, name));
        assert_eq!(of, [Vendor::Nvidia, Vendor::Apple, Vendor::Other]);
    }
}
