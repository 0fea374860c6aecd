//! WGSL composition: plain concatenation of fragments and a kernel.
//!
//! A kernel's header has a line `//! use: lib/batch, <weights>`: fragments by name, and *slots* in angle brackets, which the
//! op fills (a block format, a KV storage type, a reduction). A fragment has such a line if it needs others. Numbers and
//! switches are pipeline overrides, not text, but for lengths of arrays, which WGSL wants as constants: those are lines
//! `const NAME: u32 = 1u;  // set: …`, whose value is replaced.

use std::borrow::Cow;

use crate::wgsl::wgsl;
use crate::{Error, Result};

/// A piece of WGSL that kernels are composed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// `lib/batch`, `quant/q8_0`.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
}

/// The value of a pipeline override, of the type that it has in WGSL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Override {
    /// `bool`
    Bool(bool),
    /// `u32`
    U32(u32),
    /// `f32`
    F32(f32),
}

impl Override {
    /// The name of its type in WGSL.
    pub const fn ty(self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::U32(_) => "u32",
            Self::F32(_) => "f32",
        }
    }

    /// As pipelines take it: every value of the three types is an f64.
    pub(super) fn constant(self) -> f64 {
        match self {
            Self::Bool(on) => f64::from(u8::from(on)),
            Self::U32(n) => n.into(),
            Self::F32(x) => x.into(),
        }
    }
}

impl From<bool> for Override {
    fn from(on: bool) -> Self {
        Self::Bool(on)
    }
}

impl From<u32> for Override {
    fn from(n: u32) -> Self {
        Self::U32(n)
    }
}

impl From<f32> for Override {
    fn from(x: f32) -> Self {
        Self::F32(x)
    }
}

/// What a kernel's `use` line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Fragment(&'static str),
    Slot(&'static str),
}

/// A kernel, with the fragments for its slots and the values of its overrides: all that a pipeline is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The file's name, the entry point, the label in the profiler.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
    /// The fragment of each slot in its header, in the order in which they were filled.
    pub slots: Vec<(&'static str, Fragment)>,
    /// Values of its overrides.
    pub overrides: Vec<(&'static str, Override)>,
    /// Its `use` line, taken apart.
    uses: Vec<Use>,
}

impl Kernel {
    /// A kernel with empty slots, and overrides that have their defaults.
    pub fn new(name: &'static str, source: &'static str) -> Self {
        let slot = |name: &'static str| name.strip_prefix('<').and_then(|name| name.strip_suffix('>'));
        let uses = used(source).map(|name| slot(name).map_or(Use::Fragment(name), Use::Slot)).collect();
        Self { name, source, slots: Vec::new(), overrides: Vec::new(), uses }
    }

    /// Whether its header leaves a slot of this name open.
    pub fn has_slot(&self, name: &str) -> bool {
        self.open_slots().any(|slot| slot == name)
    }

    /// The slots that its header names.
    pub fn open_slots(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.uses.iter().filter_map(|name| match name {
            Use::Slot(slot) => Some(*slot),
            Use::Fragment(_) => None,
        })
    }

    /// Whether its header names a fragment.
    pub fn uses(&self, fragment: Fragment) -> bool {
        self.uses.contains(&Use::Fragment(fragment.name))
    }

    /// Puts a fragment into a slot.
    pub fn fill(&mut self, slot: &'static str, fragment: Fragment) {
        self.slots.push((slot, fragment));
    }

    /// Gives an override a value, which replaces one that it had.
    pub fn set(&mut self, name: &'static str, value: impl Into<Override>) {
        let value = value.into();
        match self.overrides.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.overrides.push((name, value)),
        }
    }

    /// A line of its text; one that declares a constant which was set, with that value.
    fn with_value<'a>(&self, line: &'a str) -> Cow<'a, str> {
        let Some((name, ty)) = set_constant(line) else { return line.into() };
        let value = self.overrides.iter().find(|(known, _)| *known == name).map(|(_, value)| value.constant());
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        value.map_or(line.into(), |value| format!("const {name}: {ty} = {ty}({value});  //{comment}").into())
    }

    /// Fails if a value is of no override of its composed text, or of one of another type: WGSL would take 1.5 for 1.
    pub(super) fn check(&self, text: &str) -> Result<()> {
        for (name, value) in &self.overrides {
            let declared =
                overrides(text).chain(set_constants(text)).find(|(known, _)| known == name).map(|(_, ty)| ty);
            if declared != Some(value.ty()) {
                let problem = format!("override {name} is set as {}, its text has {declared:?}", value.ty());
                return Err(Error::argument(format!("kernel {}", self.name), problem));
            }
        }
        Ok(())
    }
}

/// The overrides that a composed text declares, with the names of their types.
pub fn overrides(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| declared(line.strip_prefix("override ")?))
}

/// The constants of a composed text that kernels set like overrides, with the names of their types.
pub fn set_constants(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(set_constant)
}

fn set_constant(line: &str) -> Option<(&str, &str)> {
    let (code, comment) = line.split_once("//")?;
    comment.trim_start().starts_with("set:").then(|| declared(code.strip_prefix("const ")?))?
}

/// The name and the type of `NAME: TYPE = value`.
fn declared(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once(':')?;
    Some((name, rest.split_once('=')?.0.trim()))
}

/// What the `use` line of a text names.
fn used(source: &str) -> impl Iterator<Item = &str> {
    let line = source.lines().find_map(|line| line.strip_prefix("//! use:")).unwrap_or("");
    line.split(',').map(str::trim).filter(|name| !name.is_empty())
}

macro_rules! fragments {
    ($($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
        $($(#[$doc])*
        pub const $constant: Fragment =
            Fragment { name: $name, source: wgsl!($name) };)*

        /// The fragments of `wgsl/lib`.
        pub const LIB: &[Fragment] = &[$($constant,)*];
    };
}

/// The fragments that kernels share.
pub mod lib {
    use super::{Fragment, wgsl};

    fragments! {
        /// Parameters and bindings of the kernels of W x.
        LINEAR = "lib/linear";
        /// Which rows of W a tile takes, and what is done with its sums.
        TILE = "lib/tile";
        /// Tiles hold f32.
        TILE_F32 = "lib/tile_f32";
        /// Tiles hold f16.
        TILE_F16 = "lib/tile_f16";
        /// Cooperative matrices, from workgroup memory and back.
        COOPERATIVE = "lib/cooperative";
        /// Cooperative matrices of 8 x 8.
        COOPERATIVE_8 = "lib/cooperative_8";
        /// Cooperative matrices of 16 x 16.
        COOPERATIVE_16 = "lib/cooperative_16";
        /// Clamps f32 to the range of f16.
        F16 = "lib/f16";
        /// Unpacks rows of weights by chunks.
        UNPACK = "lib/unpack";
        /// Scales and minima of six bits.
        SIX_BITS = "lib/six_bits";
        /// Reads the step buffer.
        BATCH = "lib/batch";
        /// Activation functions.
        ACT = "lib/act";
        /// Where a position lies in the pages of a cache.
        PAGED = "lib/paged";
        /// What the attention kernels share.
        ATTEND = "lib/attend";
        /// Keys and values in the step's rows.
        KV_ROWS = "lib/kv_rows";
        /// Sums of four threads and maxima of a workgroup, through workgroup memory.
        EXCHANGE = "lib/exchange";
        /// Sums of four threads and maxima of a workgroup, through subgroups of any size.
        EXCHANGE_SUBGROUP = "lib/exchange_subgroup";
        /// KV elements stored as f32.
        KV_F32 = "lib/kv_f32";
        /// KV elements stored as f16.
        KV_F16 = "lib/kv_f16";
        /// KV elements stored in 8 bits.
        KV_Q8 = "lib/kv_q8";
        /// Stores KV elements as f32.
        KV_STORE_F32 = "lib/kv_store_f32";
        /// Stores KV elements as f16.
        KV_STORE_F16 = "lib/kv_store_f16";
        /// Stores KV elements as 8-bit integers.
        KV_STORE_Q8 = "lib/kv_store_q8";
        /// Where a position lies in a cache whose keys are vectors and whose values lie by elements.
        VECTORISED = "lib/vectorised";
        /// Heads of q, k and v on their way to the cache.
        HEADS = "lib/heads";
        /// Which rows a thread stores for.
        OWNER = "lib/owner";
        /// Moves elements of 32 bits.
        SCALAR = "lib/scalar";
        /// Moves elements of 128 bits.
        VEC4 = "lib/vec4";
        /// Angles from the host.
        ANGLES_TABLE = "lib/angles_table";
        /// Angles from positions.
        ANGLES_COMPUTED = "lib/angles_computed";
        /// Sums over a workgroup through workgroup memory.
        REDUCE = "lib/reduce";
        /// Sums over a workgroup through subgroups of any size.
        REDUCE_SUBGROUP = "lib/reduce_subgroup";
        /// Many sums over a workgroup through workgroup memory.
        SUMS = "lib/sums";
        /// Many sums over a workgroup through subgroups of any size.
        SUMS_SUBGROUP = "lib/sums_subgroup";
        /// Rotates four elements that are stored together.
        ROTATE = "lib/rotate";
        /// Parameters and bindings of the kernels of many matrices.
        EXPERTS = "lib/experts";
        /// Parameters and bindings of the recurrent kernels, and where states lie.
        RECUR = "lib/recur";
        /// The products of mat-vec in f32.
        MATVEC = "lib/matvec";
        /// The same with rows of x in int8.
        MATVEC_INT8 = "lib/matvec_int8";
        /// How mat-vec adds up its sums.
        RESULTS = "lib/results";
        /// Rows of x in int8.
        INT8 = "lib/int8";
        /// The noise of a sample.
        NOISE = "lib/noise";
        /// The best token of a workgroup.
        BEST = "lib/best";
        /// The first candidates of a workgroup.
        TOP = "lib/top";
        /// The settings of samples.
        SAMPLE = "lib/sample";
        /// A token's logit, after penalties and bias.
        LOGIT = "lib/logit";
    }
}

/// A folder like `wgsl` whose files stand in place of the texts that are compiled in.
#[cfg(feature = "unstable_internals")]
static FOLDER: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();

/// Takes the texts of kernels and fragments from a folder like `wgsl` from now on: to try a change without a build. What a
/// kernel uses is still what it was compiled with. Fails if a folder was given before.
#[cfg(feature = "unstable_internals")]
pub fn read_texts_from(folder: std::path::PathBuf) -> Result<()> {
    FOLDER.set(folder).map_err(|_| Error::argument("a folder of kernels", "another one was given before".to_owned()))
}

#[cfg(feature = "unstable_internals")]
fn text_of(name: &str, compiled_in: &'static str) -> Result<Cow<'static, str>> {
    let Some(folder) = FOLDER.get() else { return Ok(compiled_in.into()) };
    // A block format's fragment has the format's name.
    let of_format = || folder.join(format!("quant/{}.wgsl", name.to_lowercase()));
    let paths = [folder.join(format!("{name}.wgsl")), of_format()];
    let Some(path) = paths.iter().find(|path| path.exists()) else { return Ok(compiled_in.into()) };
    let text = std::fs::read_to_string(path).map_err(|e| Error::argument(path.display().to_string(), e.to_string()))?;
    Ok(text.into())
}

#[cfg(not(feature = "unstable_internals"))]
fn text_of(_: &str, compiled_in: &'static str) -> Result<Cow<'static, str>> {
    Ok(compiled_in.into())
}

/// Puts a kernel's text together: its fragments, in the order of its `use` line, then itself.
pub fn compose(kernel: &Kernel) -> Result<String> {
    let mut text = String::new();
    let known = |name: &str| lib::LIB.iter().find(|f| f.name == name);
    for name in &kernel.uses {
        let (name, fragment) = match name {
            Use::Slot(slot) => (slot, kernel.slots.iter().find(|(filled, _)| filled == slot).map(|(_, f)| f)),
            Use::Fragment(name) => (name, known(name)),
        };
        let missing =
            |name: &str| Error::argument(format!("kernel {}", kernel.name), format!("no fragment for {name}"));
        let fragment = fragment.ok_or_else(|| missing(name))?;
        let others = used(fragment.source).map(|name| known(name).ok_or_else(|| missing(name)));
        for fragment in others.chain([Ok(fragment)]) {
            let fragment = fragment?;
            text.push_str(&text_of(fragment.name, fragment.source)?);
            text.push('\n');
        }
    }
    text.push_str(&text_of(kernel.name, kernel.source)?);
    let lines = text.lines().map(|line| kernel.with_value(line));
    // Extensions must be named before all else.
    let (enabled, rest): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("enable "));
    Ok([enabled, rest].concat().join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_have_the_names_and_types_of_the_text() {
        let text = "override WG: u32 = 64u;\noverride HAS_BIAS: bool = false;\noverride TILE: u32 = 8u * WG;\n";
        let declared: Vec<_> = overrides(text).collect();
        assert_eq!(declared, [("WG", "u32"), ("HAS_BIAS", "bool"), ("TILE", "u32")]);
        let checked = |name, value: Override| {
            let mut kernel = Kernel::new("norm", text);
            kernel.set(name, value);
            kernel.check(text).map_err(|error| error.to_string())
        };
        assert_eq!(checked("WG", 8u32.into()), Ok(()));
        assert_eq!(checked("HAS_BIAS", true.into()), Ok(()));
        let text = "const COLS: u32 = 1u;   // set: at most 8\nconst KEYS: u32 = 4u;  // of a thread\nvar a: array<f32, COLS>;\n";
        assert_eq!(set_constants(text).collect::<Vec<_>>(), [("COLS", "u32")]);
        let mut kernel = Kernel::new("norm", text);
        kernel.set("COLS", 8);
        kernel.check(text).unwrap();
        assert_eq!(compose(&kernel).unwrap(), text.replace("1u;   //", "u32(8);  //"));
        for (name, value) in [("WG", 1.5f32.into()), ("HAS_BIAS", 1u32.into()), ("HAS_BIASES", true.into())] {
            let error = checked(name, value).unwrap_err();
            assert!(error.contains(name) && error.contains("norm"), "{error}");
        }
    }

    #[test]
    fn fragments_bring_those_that_they_use() {
        let mut kernel = Kernel::new("one", "//! use: <products>\n");
        kernel.fill("products", lib::MATVEC_INT8);
        let text = compose(&kernel).unwrap();
        assert!(text.find("fn dot16").unwrap() < text.find("fn multiply").unwrap(), "{text}");
        kernel = Kernel::new("one", "//! use: <products>\n");
        kernel.fill("products", Fragment { name: "two", source: "//! use: lib/none\n" });
        assert!(compose(&kernel).unwrap_err().to_string().contains("no fragment for lib/none"));
    }

    #[test]
    fn slots_are_those_of_the_use_line() {
        let mut kernel = Kernel::new("one", "//! one: <kv>, not lib/batch\n//! use: lib/act, <cache>\n");
        assert_eq!(kernel.open_slots().collect::<Vec<_>>(), ["cache"]);
        assert!(kernel.uses(lib::ACT) && !kernel.uses(lib::BATCH) && !kernel.has_slot("kv"));
        assert!(compose(&kernel).is_err());
        kernel.fill("cache", lib::PAGED);
        assert!(compose(&kernel).unwrap().contains("PAGE_SLOTS"));
        kernel.set("WG", 8);
        kernel.set("WG", 16);
        assert_eq!(kernel.overrides, [("WG", Override::U32(16))]);
    }
}
