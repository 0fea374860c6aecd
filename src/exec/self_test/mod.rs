//! The self-test: every family of kernels that a model uses, on known data, before a device is trusted with the model.
//!
//! Drivers that compute wrongly exist; without this test, readers of the answers would be the first to notice. Small
//! programs run on the device, one for each [family](family::FAMILIES) and block format. Every value that a kernel writes
//! is compared with the f64 oracle's, and every kind of sample with the CPU's. If only the subgroups, one matmul variant or
//! one attention variant is wrong, the device is used without it. Any other device that fails is refused, by name.

mod family;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};
#[cfg(not(target_arch = "wasm32"))]
use std::num::NonZero;
#[cfg(not(target_arch = "wasm32"))]
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(target_arch = "wasm32"))]
use pollster::block_on;

use super::Numerics;
use crate::gpu::compose::lib::LIB;
use crate::gpu::{Device, Matmul, MatmulTuning, Matvec};
use crate::model::{Program, WeightSource};
use crate::ops::{KERNELS, KvStorage, WeightId};
use crate::quant::BlockFormat;
use crate::{Error, Result};
use family::{ATTENTION, FAMILIES, Family};

/// The tests that devices have passed, for whoever can keep them: a line for each adapter, driver, text of the kernels and
/// family.
///
/// Failures are reported and not kept: a device that failed is tested again, so a fixed driver is not refused for ever.
#[derive(Debug, Default)]
pub struct SelfTestResults {
    passed: Mutex<BTreeSet<String>>,
    faults: Mutex<Vec<String>>,
}

impl SelfTestResults {
    /// Parses [`text`](Self::text). Lines for other versions of the kernels are left out; a damaged line matches no test.
    pub fn parse(text: &str) -> Self {
        let hash = format!("\t{:016x}\t", kernels_hash());
        let lines = text.lines().filter(|line| line.contains(&hash)).map(str::to_owned);
        Self { passed: Mutex::new(lines.collect()), faults: Mutex::default() }
    }

    /// A line for each test that was passed, in alphabetical order.
    pub fn text(&self) -> String {
        self.lines().iter().map(|line| format!("{line}\n")).collect()
    }

    /// How many tests a device has passed with the kernels of this program.
    pub fn passed(&self, device: &Device) -> usize {
        let key = key(device);
        self.lines().iter().filter(|line| line.starts_with(&key)).count()
    }

    /// The faults found since this was made: a line each, with what is used instead. For such a fault a device was passed
    /// over, or used without its subgroups or without a variant of matmul or attention.
    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn report(&self, fault: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    fn lines(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A panic while it is held cannot leave a line half written.
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device, if the kernels that a model uses compute correctly on it. If they do so only without subgroups, or with a
/// simpler variant of mat-mat or attention, the device restricted to that.
///
/// Keys and values are stored as `kv` says; none: as the numerics have it. Tests that `self_test_results` lists as passed
/// are not run again. Works on any device, a caller's too.
pub async fn self_test(
    device: &Device,
    program: &Program,
    weights: &impl WeightSource,
    numerics: Numerics,
    kv: Option<KvStorage>,
    self_test_results: &SelfTestResults,
) -> Result<Device> {
    let ids = (0..program.weights.len() as u32).map(WeightId);
    let formats: HashSet<BlockFormat> = ids.map(|id| weights.format(id)).collect();
    let stored = (numerics, kv.unwrap_or(numerics.kv()));
    let device = match passes(device, program, &formats, stored, self_test_results).await {
        Err(wrong) if is_fault(&wrong) && device.caps().subgroups.is_some() => {
            let plain = device.without_subgroups();
            match passes(&plain, program, &formats, stored, self_test_results).await {
                Ok(()) => {
                    self_test_results.report(format!("used without subgroups: {wrong}"));
                    Ok(plain)
                }
                Err(_) => Err(wrong),
            }
        }
        result => result.map(|()| device.clone()),
    }?;
    // In exact numerics, matmul, matvec and attention have one variant each, which the families cover.
    if numerics == Numerics::Exact {
        return Ok(device);
    }
    let device = match FAMILIES[0].is_used_by(program) {
        true => {
            let device = multiplying(device, &formats, self_test_results).await?;
            decoding(device, program, &formats, self_test_results).await?
        }
        false => device,
    };
    match ATTENTION.is_used_by(program) {
        true => attending(device, stored.1, self_test_results).await,
        false => Ok(device),
    }
}

/// Whether an error is the kernels' fault: one that a driver does not compile counts as wrong.
fn is_fault(error: &Error) -> bool {
    matches!(error, Error::Miscomputed { .. } | Error::Device(_) | Error::Limit { .. })
}

/// The device, with attention by cooperative matrices if it has them and they compute correctly.
async fn attending(device: Device, kv: KvStorage, self_test_results: &SelfTestResults) -> Result<Device> {
    let line = format!("{}attention cooperative {kv:?}", key(&device));
    let with = device.with_attend_matrices(true);
    if with.caps().attend_matrices().is_none() || self_test_results.lines().contains(&line) {
        return Ok(with);
    }
    match run::attention(&with, kv).await {
        Ok(_modules) => {
            self_test_results.lines().insert(line);
            Ok(with)
        }
        Err(error) if is_fault(&error) => {
            self_test_results.report(format!("used without cooperative attention: {error}"));
            Ok(device.with_attend_matrices(false))
        }
        Err(error) => Err(error),
    }
}

/// The device with the best mat-mat variants that it has and that compute correctly.
async fn multiplying(
    mut device: Device,
    formats: &HashSet<BlockFormat>,
    self_test_results: &SelfTestResults,
) -> Result<Device> {
    let key = key(&device);
    loop {
        let mut wrong = None;
        for &format in BlockFormat::ALL.iter().filter(|format| formats.contains(*format)) {
            let form = form(&device, format);
            let line = format!("{key}matmul {} {}", form.name(), format.info().name);
            if form == Matmul::Registers || self_test_results.lines().contains(&line) {
                continue;
            }
            match run::matmul(&device, format, form).await {
                Ok(_modules) => self_test_results.lines().insert(line),
                Err(error) if is_fault(&error) => {
                    wrong = Some((form, error));
                    break;
                }
                Err(error) => return Err(error),
            };
        }
        let Some((form, wrong)) = wrong else { return Ok(device) };
        self_test_results.report(format!("used without the {} kernels of matmul: {wrong}", form.name()));
        let simpler = Matmul::ALL.into_iter().rfind(|other| *other < form).unwrap_or(Matmul::Registers);
        // Formats that use another variant keep it.
        let caps = device.caps();
        device = device.with_matmul(|format, requested| if caps.matmul(format) == form { simpler } else { requested });
    }
}

/// The device, with mat-vec in int8 where it is to be so, if that computes correctly.
async fn decoding(
    device: Device,
    program: &Program,
    formats: &HashSet<BlockFormat>,
    self_test_results: &SelfTestResults,
) -> Result<Device> {
    let longest = program.weights.iter().map(|weight| weight.k).max().unwrap_or(0);
    let caps = device.caps();
    let in_int8 = |format: &&BlockFormat| {
        let long = longest >= caps.tuning.matmul(**format).dot_k;
        formats.contains(*format) && long && caps.matvec(**format) == Matvec::Dot
    };
    for &format in BlockFormat::ALL.iter().filter(in_int8) {
        let line = format!("{}matvec {} {}", key(&device), Matvec::Dot.name(), format.info().name);
        if self_test_results.lines().contains(&line) {
            continue;
        }
        match run::matvec(&device, format).await {
            Ok(_modules) => self_test_results.lines().insert(line),
            Err(error) if is_fault(&error) => {
                self_test_results.report(format!("used without the dot kernels of matvec: {error}"));
                return Ok(device.with_matvec(Matvec::Registers));
            }
            Err(error) => return Err(error),
        };
    }
    Ok(device)
}

/// The mat-mat variant that a device uses for matrices of a format.
fn form(device: &Device, format: BlockFormat) -> Matmul {
    device.caps().matmul(format)
}

/// Fails with the first kernel that computes wrongly.
async fn passes(
    device: &Device,
    program: &Program,
    formats: &HashSet<BlockFormat>,
    stored: (Numerics, KvStorage),
    self_test_results: &SelfTestResults,
) -> Result<()> {
    let tests = Tests::new(device, program, formats, stored, self_test_results);
    #[cfg(not(target_arch = "wasm32"))]
    if let others @ [_, ..] = &others(device, tests.tests.len()).await[..] {
        return tests.run_with(device, others);
    }
    tests.run(device, &AtomicUsize::new(0)).await
}

/// A test that a device passes before a model runs on it at all.
enum Test {
    Family(&'static Family, BlockFormat),
    Samples,
}

/// The tests for a model that a device has not passed yet, each with its line of the results.
struct Tests<'a> {
    tests: Vec<(String, Test)>,
    stored: (Numerics, KvStorage),
    results: &'a SelfTestResults,
}

impl<'a> Tests<'a> {
    fn new(
        device: &Device,
        program: &Program,
        formats: &HashSet<BlockFormat>,
        stored: (Numerics, KvStorage),
        results: &'a SelfTestResults,
    ) -> Self {
        let key = key(device);
        let (numerics, kv) = stored;
        let mut tests = Vec::new();
        for family in FAMILIES.iter().filter(|family| family.is_used_by(program)) {
            let formats = BlockFormat::ALL.iter().filter(|format| match family.format {
                Some(fixed) => **format == fixed,
                None => formats.contains(*format),
            });
            tests.extend(formats.map(|&format| {
                let line = format!("{key}{} {} {numerics:?} {kv:?}", family.name, format.info().name);
                (line, Test::Family(family, format))
            }));
        }
        if program.logits().is_some() {
            tests.push((format!("{key}samples"), Test::Samples));
        }
        tests.retain(|(line, _)| !results.lines().contains(line));
        Self { tests, stored, results }
    }

    /// Runs those that `next` counts, which other devices may count at the same time, up to the first that fails.
    async fn run(&self, device: &Device, next: &AtomicUsize) -> Result<()> {
        let (numerics, kv) = self.stored;
        while let Some((line, test)) = self.tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            if self.results.lines().contains(line) {
                continue;
            }
            let tested = match test {
                Test::Family(family, format) => run::family(device, family, *format, numerics, kv).await,
                Test::Samples => run::samples(device).await,
            };
            if let Err(error) = tested {
                next.store(self.tests.len(), Ordering::Relaxed);
                return Err(error);
            }
            self.results.lines().insert(line.clone());
        }
        Ok(())
    }

    /// Runs them on other devices, too, at the same time. What fails there is run again on the device itself, which alone
    /// decides: another one may lack memory, or be lost.
    #[cfg(not(target_arch = "wasm32"))]
    fn run_with(&self, device: &Device, others: &[Device]) -> Result<()> {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = others.iter().map(|other| scope.spawn(|| block_on(self.run(other, &next)))).collect();
            let own = block_on(self.run(device, &next));
            for thread in threads {
                let _ = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            own
        })?;
        block_on(self.run(device, &AtomicUsize::new(0)))
    }
}

/// Devices on which tests run at the same time as on this one, each in a thread of its own: a software adapter compiles
/// kernels in one thread of each device's, which takes most of the time of a first start.
#[cfg(not(target_arch = "wasm32"))]
async fn others(device: &Device, tests: usize) -> Vec<Device> {
    use crate::gpu::Kind;
    /// More would wait for the largest family.
    const DEVICES: usize = 4;
    let mut others = Vec::new();
    if device.caps().kind == Kind::Software {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        while others.len() + 1 < cores.min(tests).min(DEVICES) {
            let Some(other) = device.beside().await else { break };
            others.push(other);
        }
    }
    others
}

/// What a self-test result holds for: adapter, driver, variant of the kernels, their text.
fn key(device: &Device) -> String {
    let caps = device.caps();
    let form = if caps.subgroups.is_some() { "subgroups" } else { "plain" };
    let (name, backend, driver) = (&caps.name, &caps.backend, &caps.driver);
    // Tile sizes depend on it.
    let form = format!("{form} {}", caps.workgroup_memory);
    let mut tuned = caps.tuning.numbers().iter().map(|(name, n)| format!(" {name}={n}")).collect::<String>();
    for (MatmulTuning { lanes, cols, row_vec4s, row_vec4s_batch, tile_w, tile_x, small_x, .. }, formats) in
        caps.tuning.groups()
    {
        tuned += &format!(
            " {lanes},{cols},{row_vec4s},{row_vec4s_batch},{tile_w},{tile_x},{small_x}={}",
            BlockFormat::names_of(&formats, ",")
        );
    }
    format!("{name}\t{backend}\t{driver}\t{form}{tuned}\t{:016x}\t", kernels_hash()).replace('\n', " ")
}

/// FNV-1a over all the texts that kernels are composed of, and the version of the code that dispatches them.
fn kernels_hash() -> u64 {
    let formats = BlockFormat::ALL.iter().map(|f| f.info().wgsl);
    let texts = KERNELS.iter().map(|kernel| kernel.source).chain(LIB.iter().map(|f| f.source)).chain(formats);
    let bytes = texts.chain([env!("CARGO_PKG_VERSION")]).flat_map(str::bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
