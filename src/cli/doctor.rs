//! `wgslm doctor`: what this machine has, what is wrong with it, and what to do about it.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};

use super::exit::Exit;
use super::{inspect, memory, models, open, self_test_results, term};
use crate::exec::{DeviceChoice, Numerics, Options};
use crate::file::ModelFile;
use crate::gpu::{AdapterSummary, Choice, Device, Kind};
use crate::hub;
use crate::model::Model;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Also says whether this model fits: a file, a folder, or a name, which is downloaded if it is not here.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The device that is needed: gpu, cpu, or the number of an adapter. If it does not work, the exit code is 6.
    #[arg(long, default_value = "auto", env = "WGSLM_DEVICE", hide_env_values = true, value_parser = open::device)]
    device: DeviceChoice,
    /// Runs the kernels of a small model on the device and compares them with the CPU's; on a first start this takes a while.
    #[arg(long)]
    test: bool,
    /// Also asks the hub whether it answers.
    #[arg(long)]
    network: bool,
    /// Prints a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hub: models::HubArg,
    #[command(flatten)]
    access: open::AccessArg,
}

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Good,
    /// It works, but not as well as it could.
    Warning,
    Problem,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What was looked at, how it is, and what helps.
struct Finding {
    what: String,
    status: Status,
    found: String,
    advice: Option<String>,
}

#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
    /// For machines: more than people are shown.
    json: Map<String, Json>,
}

impl Report {
    fn good(&mut self, what: impl Into<String>, found: impl Into<String>) {
        self.add(what, Status::Good, found, None);
    }

    fn warn(&mut self, what: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) {
        self.add(what, Status::Warning, found, Some(advice.into()));
    }

    fn problem(&mut self, what: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) {
        self.add(what, Status::Problem, found, Some(advice.into()));
    }

    fn add(&mut self, what: impl Into<String>, status: Status, found: impl Into<String>, advice: Option<String>) {
        self.findings.push(Finding { what: what.into(), status, found: found.into(), advice });
    }

    fn count(&self, status: Status) -> usize {
        self.findings.iter().filter(|finding| finding.status == status).count()
    }
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let mut report = Report::default();
    program(&mut report);
    let failed = devices(&mut report, &args);
    cache(&mut report, &args);
    environment(&mut report);
    if let Some(model) = &args.model {
        let file = args.access.open(&args.hub.locate(model)?)?;
        fit(&mut report, file)?;
    }
    let (problems, warnings) = (report.count(Status::Problem), report.count(Status::Warning));
    let mut out = term::out();
    if args.json {
        let finding = |finding: &Finding| {
            json!({
                "what": finding.what,
                "status": finding.status.name(),
                "found": finding.found,
                "advice": finding.advice,
            })
        };
        report.json.insert("findings".to_owned(), report.findings.iter().map(finding).collect());
        report.json.insert("problems".to_owned(), problems.into());
        report.json.insert("warnings".to_owned(), warnings.into());
        writeln!(out, "{:#}", Json::Object(report.json))?;
    } else {
        for finding in &report.findings {
            let mark = match finding.status {
                Status::Good => "ok ",
                Status::Warning => "?  ",
                Status::Problem => "!! ",
            };
            writeln!(out, "{mark}{:<14} {}", finding.what, finding.found)?;
            if let Some(advice) = &finding.advice {
                writeln!(out, "{:<17} -> {advice}", "")?;
            }
        }
        let s = |n: usize| if n == 1 { "" } else { "s" };
        writeln!(out, "\n{problems} problem{}, {warnings} warning{}", s(problems), s(warnings))?;
    }
    out.flush()?;
    match failed {
        Some(exit) => Err(exit),
        None => Ok(()),
    }
}

/// The program and the processor.
fn program(report: &mut Report) {
    let (os, arch, version) = (std::env::consts::OS, std::env::consts::ARCH, env!("CARGO_PKG_VERSION"));
    report.good("wgslm", format!("{version} for {os} on {arch}"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let vectors = vectors();
    let found = format!("{threads} thread{}, {}", if threads == 1 { "" } else { "s" }, vectors.join(", "));
    match cfg!(target_arch = "x86_64") && !vectors.contains(&"AVX2") {
        false => report.good("CPU", found),
        true => report.warn("CPU", found, "without AVX2 the CPU runs models several times slower; a GPU does not mind"),
    }
    let memory = memory::of_machine();
    match memory {
        Some((all, free)) if free < 1 << 30 => report.warn(
            "memory",
            format!("{} free of {}", memory::bytes(free), memory::bytes(all)),
            "models of more than half a billion parameters hardly fit; other programs may give memory back",
        ),
        Some((all, free)) => report.good("memory", format!("{} free of {}", memory::bytes(free), memory::bytes(all))),
        None => report.good("memory", "this system does not say"),
    }
    report.json.insert("version".to_owned(), version.into());
    report.json.insert("os".to_owned(), os.into());
    report.json.insert("arch".to_owned(), arch.into());
    let memory = memory.map(|(all, free)| json!({ "bytes": all, "free": free }));
    report.json.insert("cpu".to_owned(), json!({ "threads": threads, "vectors": vectors, "memory": memory }));
}

/// The vector instructions that this processor has, of those that are used.
#[cfg(target_arch = "x86_64")]
fn vectors() -> Vec<&'static str> {
    let known = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
        ("AVX-VNNI", is_x86_feature_detected!("avxvnni")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("AVX-512 VNNI", is_x86_feature_detected!("avx512vnni")),
    ];
    let mut there: Vec<_> = known.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
    if there.is_empty() {
        there.push("SSE2");
    }
    there
}

/// The vector instructions that this processor has, of those that are used.
#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> Vec<&'static str> {
    if cfg!(target_arch = "aarch64") { vec!["NEON"] } else { vec!["none that are used"] }
}

/// The adapters, each opened; what is wrong with the device that was asked for.
fn devices(report: &mut Report, args: &Args) -> Option<Exit> {
    let adapters = pollster::block_on(Device::list());
    let mut listed = Vec::new();
    let mut real = false;
    for summary in &adapters {
        let (json, works) = adapter(report, summary);
        real |= works && summary.kind != Kind::Software;
        listed.push(json);
    }
    report.json.insert("adapters".to_owned(), listed.into());
    if adapters.is_empty() {
        report.warn("GPU", "none is seen: models run on the CPU", no_adapter());
    } else if !real {
        report.warn("GPU", "none but software adapters: models run on the CPU", no_adapter());
    }
    let asked = if args.device == DeviceChoice::Auto { None } else { args.device.adapter() };
    let mut failed = asked.and_then(|choice| pollster::block_on(Device::open(&choice)).err()).map(Exit::from);
    if args.test && failed.is_none() {
        failed = test(report, args);
    }
    if let Some(Exit::Failed { message, .. }) = &failed {
        report.problem("device", message.clone(), "--device cpu works everywhere; wgslm devices lists what there is");
        return Some(Exit::Failed { code: 6, message: message.clone() });
    }
    failed
}

fn no_adapter() -> &'static str {
    if cfg!(target_vendor = "apple") {
        "Metal is part of the system: a newer version of it may help"
    } else if cfg!(windows) {
        "if there is a GPU, its vendor's driver brings DirectX 12 and Vulkan"
    } else {
        "if there is a GPU: NVIDIA's driver brings Vulkan, mesa-vulkan-drivers is for AMD, Intel and others; in a container, \
         /dev/dri or the GPU itself has to be passed in"
    }
}

/// One adapter.
fn adapter(report: &mut Report, summary: &AdapterSummary) -> (Json, bool) {
    let AdapterSummary { index, name, driver, backend, kind } = summary;
    let what = format!("GPU {index}");
    let kind = match kind {
        Kind::Discrete => "discrete",
        Kind::Integrated => "integrated",
        Kind::Software => "software",
        Kind::Other => "other",
    };
    let mut about = json!({ "index": index, "name": name, "driver": driver, "backend": backend, "kind": kind });
    let title = format!("{name} ({kind}, {backend}, {driver})");
    let tuning = open::tuning().unwrap_or_default();
    let device = match pollster::block_on(Device::open(&Choice { index: Some(*index), tuning, ..Choice::default() })) {
        Ok(device) => device,
        Err(error) => {
            about["problem"] = error.to_string().into();
            report.problem(what, format!("{title}: {error}"), "a newer driver may work; --device cpu does");
            return (about, false);
        }
    };
    let (caps, results) = (device.caps(), self_test_results::known());
    let passed = results.passed(&device);
    let mib = |bytes: u64| bytes >> 20;
    let yes = |there| if there { "yes" } else { "no" };
    let subgroups = caps.subgroups.map_or("none".to_owned(), |(least, most)| format!("{least} to {most}"));
    let test = match passed {
        0 if results.passed(&device.without_subgroups()) > 0 => "passed without subgroups alone".to_owned(),
        0 => "not run yet: the first start of a model runs it, or --test".to_owned(),
        n => format!("{n} parts passed with this driver"),
    };
    let found = format!(
        "{title}: f16 {}, subgroups {subgroups}, cooperative matrices {}, {} MiB a binding, {} MiB a buffer; self-test {test}",
        yes(caps.f16),
        yes(caps.cooperative.is_some()),
        mib(caps.max_binding),
        mib(caps.max_buffer),
    );
    about["f16"] = caps.f16.into();
    about["subgroups"] = caps.subgroups.map_or(Json::Null, |(least, most)| json!([least, most]));
    about["cooperative_matrices"] = caps.cooperative.is_some().into();
    about["int8_dot"] = caps.dot.into();
    about["timestamps"] = device.has_timestamps().into();
    about["limits"] = json!({
        "max_binding": caps.max_binding,
        "max_buffer": caps.max_buffer,
        "max_workgroups": caps.max_groups,
        "workgroup_memory": caps.workgroup_memory,
    });
    about["self_test_passed"] = passed.into();
    match summary.kind {
        Kind::Software => {
            report.warn(
                what,
                found,
                "it computes on the CPU, slowly: --device auto leaves it alone, --device cpu is faster",
            );
        }
        _ if caps.subgroups.is_none() => {
            report.warn(what, found, "without subgroups it is slower; a newer driver may have them")
        }
        _ => report.good(what, found),
    }
    (about, true)
}

/// Runs the self-test with the model that is compiled in.
fn test(report: &mut Report, args: &Args) -> Option<Exit> {
    #[cfg(feature = "tiny")]
    {
        let options = Options { device: args.device.clone(), numerics: Numerics::Fast, ..Options::default() };
        let tried = ModelFile::from_bytes("tiny.gguf", crate::TINY)
            .map_err(Exit::from)
            .and_then(|file| Ok(pollster::block_on(Model::open(file))?))
            .and_then(|model| open::executor(&model, &options));
        match tried {
            Ok(executor) => {
                use crate::exec::Executor;
                report.good("self-test", format!("a small model is ready on {}", executor.device()));
                None
            }
            Err(exit) => Some(exit),
        }
    }
    #[cfg(not(feature = "tiny"))]
    {
        let _ = (args, Options::default(), Numerics::Fast);
        report.warn(
            "self-test",
            "no model is compiled in (feature tiny)",
            "wgslm run -m MODEL runs it at its first start",
        );
        None
    }
}

/// The cache of models, and what else is kept.
fn cache(report: &mut Report, args: &Args) {
    let hub = match args.hub.hub() {
        Ok(hub) => hub,
        Err(Exit::Failed { message, .. }) => {
            return report.problem("models", message, "HF_HUB_CACHE=FOLDER says where models are kept");
        }
        Err(_) => return,
    };
    let folder = hub.folder().display().to_string();
    let models = hub.list().unwrap_or_default();
    let bytes = models.iter().fold(0u64, |all, model| all.saturating_add(model.bytes));
    let free = hub::free_space(hub.folder());
    let space = free.map_or(String::new(), |free| format!(", {} free on its disk", memory::bytes(free)));
    let found = format!(
        "{} in {folder} ({}){space}",
        match models.len() {
            1 => "1 model".to_owned(),
            n => format!("{n} models"),
        },
        memory::bytes(bytes)
    );
    let writable = hub::is_writable(hub.folder());
    match (writable, free) {
        (false, _) => report.problem(
            "models",
            format!("{found}: it cannot be written"),
            "HF_HUB_CACHE=FOLDER names another folder",
        ),
        (_, Some(free)) if free < 5_000_000_000 => {
            report.warn(
                "models",
                found,
                "a model of 8 billion parameters takes 5 GB; wgslm rm removes some, HF_HUB_CACHE moves them",
            );
        }
        _ => report.good("models", found),
    }
    let token = if hub.has_token() { "there" } else { "none: gated and private repositories need one" };
    report.good("hub", format!("{}, {}token {token}", hub.endpoint(), if hub.is_offline() { "offline, " } else { "" }));
    if args.network {
        match hub.reach() {
            Ok(()) => report.good("network", "the hub answers"),
            Err(error) => report.problem(
                "network",
                error.to_string(),
                "HTTPS_PROXY names a proxy, HF_ENDPOINT another hub; --offline does without",
            ),
        }
    }
    report.json.insert(
        "hub".to_owned(),
        json!({
            "endpoint": hub.endpoint(),
            "offline": hub.is_offline(),
            "token": hub.has_token(),
            "folder": folder,
            "writable": writable,
            "models": models.len(),
            "bytes": bytes,
            "free": free,
        }),
    );
    match self_test_results::path() {
        Some(path) => report.good("self-tests", format!("kept in {}", path.display())),
        None => report.warn(
            "self-tests",
            "there is no folder to keep them in",
            "XDG_CACHE_HOME or HOME names one; else each start runs them",
        ),
    }
}

/// Variables that change what commands do: their names, and values that are no secrets.
fn environment(report: &mut Report) {
    let names = |name: &String| {
        name.starts_with("WGSLM_")
            || name.starts_with("WGPU_")
            || ["HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"].contains(&name.as_str())
    };
    let set: Map<String, Json> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| names(name))
        .map(|(name, value)| (name, value.into()))
        .collect();
    if !set.is_empty() {
        let shown: Vec<_> =
            set.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
        report.good("environment", shown.join(" "));
    }
    report.json.insert("environment".to_owned(), set.into());
}

/// Whether a model fits.
fn fit(report: &mut Report, file: ModelFile) -> Result<(), Exit> {
    let weights = file.tensors().iter().fold(0u64, |all, tensor| all.saturating_add(tensor.bytes));
    let model = pollster::block_on(Model::open(file))?;
    let program = &model.program;
    let usual = program.context.min(Options::default().context);
    let needs = |context| weights.saturating_add(inspect::cache_bytes(program, context));
    let (least, most) = (needs(usual), needs(program.context));
    let found = format!(
        "{}: {} with a context of {usual}, {} with all {} positions",
        model.name,
        memory::bytes(least),
        memory::bytes(most),
        program.context
    );
    report.json.insert(
        "model".to_owned(),
        json!({
            "name": model.name,
            "weights": weights,
            "memory": [{ "context": usual, "bytes": least }, { "context": program.context, "bytes": most }],
        }),
    );
    let free = memory::of_machine();
    match free {
        Some((all, _)) if least > all => {
            report.problem("fits", found, "a smaller quantisation, or a smaller model; wgslm convert makes the former");
        }
        Some((_, free)) if least > free => report.warn("fits", found, "only if other programs give memory back"),
        Some((all, _)) if most > all => {
            report.warn("fits", found, "a long context does not fit: --context N, --kv-type q8")
        }
        _ => report.good("fits", found),
    }
    Ok(())
}
