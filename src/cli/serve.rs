//! `wgslm serve`: models as the APIs of OpenAI, Anthropic and Ollama, and a page to chat on.

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::catalog::{Given, Models, RunOptions, Shared};
use super::exit::Exit;
use super::interrupt::Listener;
use super::{memory, open, process, term};
use crate::driver::ServeOptions;
use crate::exec::{CacheSize, Options};
use crate::server::{Access, Limits, Residence, Server, duration};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Models as -m takes them. The first is loaded at once, and is meant where a request names none; the others, and all that
    /// are in the cache, when a request names them.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    words: Vec<PathBuf>,
    #[command(flatten)]
    model: open::WeightsArg,
    /// The address at which it listens. Others than this machine's own need a key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "WGSLM_HOST", hide_env_values = true)]
    host: IpAddr,
    /// The port; 0: one that is free.
    #[arg(short, long, value_name = "N", default_value_t = 8080, env = "WGSLM_PORT", hide_env_values = true)]
    port: u16,
    /// A key that requests must bring; may be given several times, or apart by commas in the environment.
    #[arg(long = "api-key", value_name = "KEY", env = "WGSLM_API_KEY", hide_env_values = true, value_delimiter = ',')]
    keys: Vec<String>,
    /// A file with keys, one a line: they are then seen neither in the list of processes nor in a history.
    #[arg(long, value_name = "FILE", env = "WGSLM_API_KEY_FILE", hide_env_values = true)]
    api_key_file: Option<PathBuf>,
    /// A name that the server may be called, besides addresses and localhost; may be given several times.
    #[arg(
        long = "allow-host",
        value_name = "NAME",
        env = "WGSLM_ALLOW_HOST",
        hide_env_values = true,
        value_delimiter = ','
    )]
    hosts: Vec<String>,
    /// A page, as https://example.org, that may ask from a browser; *: all. May be given several times.
    #[arg(
        long = "allow-origin",
        value_name = "ORIGIN",
        env = "WGSLM_ALLOW_ORIGIN",
        hide_env_values = true,
        value_delimiter = ','
    )]
    origins: Vec<String>,
    /// What clients call the first model [default: as it was asked for].
    #[arg(long, value_name = "NAME", env = "WGSLM_MODEL_NAME", hide_env_values = true)]
    name: Option<String>,
    /// Models that are loaded at once; the longest unused gives way to another one.
    #[arg(long, value_name = "N", default_value_t = 3, env = "WGSLM_MODELS_MAX", hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    models_max: u32,
    /// How long a model stays loaded that nobody asks for anything, as in 30s, 5m or 1h; a negative time: until another one needs
    /// its place [default: the first model for ever, others 5m].
    #[arg(long, value_name = "TIME", env = "WGSLM_KEEP_ALIVE", hide_env_values = true, allow_hyphen_values = true,
        value_parser = keep_alive)]
    keep_alive: Option<Keep>,
    /// Requests that run at a time; more wait.
    #[arg(long, value_name = "N", default_value_t = 16, env = "WGSLM_PARALLEL", hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Requests that may wait; more are refused.
    #[arg(long, value_name = "N", default_value_t = 256, env = "WGSLM_QUEUE", hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    queue: u32,
    /// Seconds that requests in flight get when the server is to end.
    #[arg(long, value_name = "S", default_value_t = 30, env = "WGSLM_DRAIN", hide_env_values = true,
        value_parser = clap::value_parser!(u16).range(0..=3600))]
    drain: u16,
    #[command(flatten)]
    exec: open::ExecArgs,
    /// Threads of the CPU [default: as many as prove to be fastest].
    #[arg(short, long, value_name = "N", env = "WGSLM_THREADS", hide_env_values = true,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Positions of context of a request; 0: all that the model was made for [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", alias = "ctx-size", env = "WGSLM_CONTEXT", hide_env_values = true)]
    context: Option<u32>,
    /// What the cache holds of all requests together, which share what they have in common: positions, or a size such as 2GB
    /// [default: four contexts].
    #[arg(long, value_name = "N", env = "WGSLM_CACHE", hide_env_values = true)]
    cache: Option<CacheSize>,
}

/// A time to stay; none: for ever.
#[derive(Clone, Copy, Debug)]
struct Keep(Option<Duration>);

fn keep_alive(text: &str) -> Result<Keep, String> {
    duration(text).map(Keep).ok_or_else(|| "a time as in 30s, 5m or 1h works, and -1".to_owned())
}

pub(super) fn run(mut args: Args) -> Result<(), Exit> {
    let access = Access { keys: keys(&args)?, hosts: args.hosts.clone(), origins: args.origins.clone() };
    // What is wrong is said before a model is loaded.
    Server::check(&access, args.host).map_err(advised)?;
    let listener = TcpListener::bind((args.host, args.port))
        .map_err(|error| Exit::failure(format!("{}:{}: {error}; --port N takes another", args.host, args.port)))?;
    let address = listener.local_addr().map_err(|error| Exit::failure(error.to_string()))?;
    let given = given(&mut args)?;
    let name = given[0].name.clone();
    let options = args.exec.options(args.threads.map(usize::from), Options::default());
    let run = RunOptions {
        options: Options { tuning: open::tuning()?, ..options },
        serve: ServeOptions { queue_requests: args.queue as usize, ..ServeOptions::default() },
        parallel: args.parallel,
        context: args.context,
        cache: args.cache,
    };
    // Without HOME there is no cache; the models of the command line work as ever.
    let hub = args.model.hub().hub().ok();
    let models = Models { given, weights: args.model, hub, run, device: Shared::default() };
    let limits = Limits::default();
    // A connection is a file to the system; models and devices have theirs, and those that are turned away.
    process::allow_files(2 * limits.connections as u64 + 512);
    let limits = Limits { drain: Duration::from_secs(args.drain.into()), ..limits };
    let keep = args.keep_alive.map(|keep| keep.0);
    let residence = Residence {
        most: args.models_max as usize,
        // A fifth is left to caches and to others.
        bytes: memory::of_machine().map_or(u64::MAX, |(all, _)| all / 5 * 4),
        keep_alive: keep.unwrap_or(Residence::default().keep_alive),
    };
    let server = Server::new(listener, &name, Box::new(models), access, limits, &residence)?;
    let first = server.first();
    let (failed, signals) = (AtomicBool::new(false), OnceLock::new());
    // It says that it loads while it does.
    std::thread::scope(|scope| {
        let stop = || failed.load(Ordering::Acquire) || signals.get().is_some_and(Listener::pressed);
        let served = scope.spawn(move || server.run(stop));
        if let Err(error) = first(keep.unwrap_or(None)) {
            failed.store(true, Ordering::Release);
            return Err(super::models::of_open(error));
        }
        let _ = signals.set(Listener::new());
        term::note(&format!("{name} at http://{address}; Ctrl-C ends it"));
        let served = served.join().map_err(|_| Exit::failure("the server's thread has ended"))?;
        drop(first);
        if !served? {
            term::note("warning: an engine does not end; the program ends without it");
        }
        Ok(())
    })
}

/// The models of the command line, downloaded if they are not here; the first is the one of `-m` and of the environment.
fn given(args: &mut Args) -> Result<Vec<Given>, Exit> {
    let words: Vec<Option<PathBuf>> = match std::mem::take(&mut args.words) {
        words if words.is_empty() => vec![args.model.chosen()],
        words => words.into_iter().map(Some).collect(),
    };
    let mut all: Vec<Given> = Vec::new();
    for word in words {
        let name = word.as_deref().map_or("tiny".to_owned(), name_of);
        let name = args.name.take().unwrap_or(name);
        let path = word.map(|word| args.model.hub().locate(&word)).transpose()?;
        if all.iter().any(|given| given.name.eq_ignore_ascii_case(&name)) {
            return Err(Exit::usage(format!("two models are called {name}; --name NAME renames the first")));
        }
        all.push(Given { name, path });
    }
    Ok(all)
}

/// The keys of the command line and of a file.
fn keys(args: &Args) -> Result<Vec<String>, Exit> {
    let mut keys = args.keys.clone();
    if let Some(path) = &args.api_key_file {
        let failed = |error| Exit::usage(format!("--api-key-file {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let before = keys.len();
        keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        if keys.len() == before {
            return Err(Exit::usage(format!("--api-key-file {}: it holds no key", path.display())));
        }
    }
    Ok(keys)
}

fn advised(error: crate::Error) -> Exit {
    Exit::usage(format!("{error}; --api-key-file FILE gives keys"))
}

/// What a model is called that was asked for so: a file's name without its ending, or all of a reference.
fn name_of(model: &Path) -> String {
    if !model.exists() {
        return model.display().to_string();
    }
    let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}
