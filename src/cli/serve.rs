//! `wgslm serve`: a model as the APIs of OpenAI, Anthropic and Ollama, and a page to chat on.

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::exit::Exit;
use super::interrupt::Listener;
use super::{open, self_test_results, term};
use crate::driver::ServeOptions;
use crate::engine::{EmbedOptions, Embedder};
use crate::exec::{AnyExecutor, CacheSize, Options};
use crate::server::{Access, Limits, Served, Server};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model as -m takes it.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    word: Option<PathBuf>,
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
    /// What clients call the model [default: as it was asked for].
    #[arg(long, value_name = "NAME", env = "WGSLM_MODEL_NAME", hide_env_values = true)]
    name: Option<String>,
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

pub(super) fn run(mut args: Args) -> Result<(), Exit> {
    let access = Access { keys: keys(&args)?, hosts: args.hosts.clone(), origins: args.origins.clone() };
    // What is wrong is said before a model is loaded.
    Server::check(&access, args.host).map_err(advised)?;
    let listener = TcpListener::bind((args.host, args.port))
        .map_err(|error| Exit::failure(format!("{}:{}: {error}; --port N takes another", args.host, args.port)))?;
    let address = listener.local_addr().map_err(|error| Exit::failure(error.to_string()))?;
    if let Some(word) = args.word.take() {
        args.model.set(word);
    }
    let chosen = args.model.chosen();
    let name = args.name.clone().unwrap_or_else(|| chosen.as_deref().map_or("tiny".to_owned(), name_of));
    let model = args.model.open_any()?;
    let threads = args.threads.map(usize::from);
    let (served, thread) = if model.program.logits().is_some() {
        let context = match args.context {
            None => model.program.context.min(4096),
            Some(0) => model.program.context,
            Some(context) => context,
        };
        let cache = args.cache.unwrap_or(CacheSize::Positions(context.saturating_mul(args.parallel.min(4))));
        let base = Options { context, seqs: args.parallel, cache, ..Options::default() };
        let options = args.exec.options(threads, base);
        let model = open::language_model(model, &options)?;
        let serve = ServeOptions { queue_requests: args.queue as usize, ..ServeOptions::default() };
        let (driver, model) = model.driver(serve);
        let again = model.clone();
        // A device that is lost is opened again, and answers go on.
        let driver = driver.reopen_with(Box::new(move || {
            let (model, options) = (again.clone(), options.clone());
            Box::pin(async move { AnyExecutor::open(model.model(), &options, &mut |_| {}).await })
        }));
        let thread = std::thread::spawn(move || driver.run());
        (Served::Language(model), Some(thread))
    } else {
        let run = args.exec.options(threads, Options::default());
        let options = EmbedOptions { context: args.context.filter(|context| *context > 0), ..EmbedOptions::default() };
        let embedder = self_test_results::keeping(|self_test_results| {
            let run = Options { self_test_results: Some(self_test_results), ..run };
            pollster::block_on(Embedder::open(model, &options, &run, &mut |_| {}))
        })?;
        (Served::Vectors(Box::new(embedder)), None)
    };
    let limits = Limits { drain: Duration::from_secs(args.drain.into()), ..Limits::default() };
    let handle = match &served {
        Served::Language(model) => Some(model.handle().clone()),
        Served::Vectors(_) => None,
    };
    let server = Server::new(listener, &name, served, access, limits)?;
    let signals = Listener::new();
    term::note(&format!("{name} at http://{address}; Ctrl-C ends it"));
    let served = server.run(|| signals.pressed());
    if let (Some(handle), Some(thread)) = (handle, thread) {
        handle.close();
        let _ = thread.join();
    }
    Ok(served?)
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
