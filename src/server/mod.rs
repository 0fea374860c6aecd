//! The server: models as the APIs of OpenAI, Anthropic and Ollama, and a page to chat on (feature `server`).
//!
//! ```text
//! connection ─ policy ─ route ─ fields ─► Ask ─► driver::Handle
//!     ▲                                              │
//!     └──── events or an object ◄── Reply ◄── Generation
//! ```
//!
//! One thread has all connections, the driver's has the engine; what a request costs around the engine (large bodies, templates,
//! tokens, vectors as text) is done on threads of its own. A client that is gone drops its [`Generation`](crate::driver::Generation),
//! which ends it within a step.

mod anthropic;
mod app;
mod ask;
mod catalog;
mod failure;
mod fields;
mod http;
mod metrics;
mod ollama;
mod openai;
mod page;
mod policy;
mod pull;
mod reply;
mod responses;
mod stream;
#[cfg(all(test, feature = "tiny"))]
mod tests;
mod vectors;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

pub use catalog::{Catalog, Known, Pulling, Served};
#[cfg(feature = "cli")]
pub(crate) use ollama::duration;
pub use policy::Access;

use crate::{Error, Result};

/// Which models are open, and for how long.
#[derive(Clone, Debug)]
pub struct Residence {
    /// Models that are open at once.
    pub most: usize,
    /// Bytes of weights of all of them together; one alone may have more.
    pub bytes: u64,
    /// Time without requests after which a model is closed that a request has opened; none: it stays until another one needs
    /// its place.
    pub keep_alive: Option<Duration>,
}

impl Default for Residence {
    fn default() -> Self {
        Self { most: 3, bytes: u64::MAX, keep_alive: Some(Duration::from_secs(300)) }
    }
}

/// How much of everything.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Connections at a time; others are refused.
    pub connections: usize,
    /// Time for the headers of a request, and between two requests of a connection.
    pub header_time: Duration,
    /// Time for the body of a request.
    pub body_time: Duration,
    /// A client that takes nothing of its answer for so long is let go.
    pub write_time: Duration,
    /// An answer that is silent for so long gets a sign of life.
    pub ping: Duration,
    /// Time for requests in flight when the server is to end.
    pub drain: Duration,
    /// An engine that has requests and comes to no end of a step for so long is not ready.
    pub stuck: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 16 << 20,
            connections: 1024,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(30),
            ping: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            stuck: Duration::from_secs(60),
        }
    }
}

/// A server that is ready to run.
pub struct Server {
    listener: TcpListener,
    app: Arc<app::App>,
}

impl Server {
    /// A server of the models of a catalog; the one that is called `name` is meant where a request names none. Who may ask says
    /// `access`; an address that others can reach needs a key.
    pub fn new(
        listener: TcpListener,
        name: &str,
        catalog: Box<dyn Catalog>,
        access: Access,
        limits: Limits,
        residence: &Residence,
    ) -> Result<Self> {
        let address = listener.local_addr().map_err(|error| Error::io("the server's address", error))?;
        let policy = policy::Policy::new(access, address.ip())?;
        let app = Arc::new(app::App::new(name.to_owned(), catalog, policy, limits, residence));
        Ok(Self { listener, app })
    }

    /// Opens the model that is meant where a request names none, which then stays for so long without requests; may be asked on
    /// another thread while the server runs, which is not ready until then.
    pub fn first(&self) -> impl Fn(Option<Duration>) -> Result<()> + Send + use<> {
        self.app.expect_first();
        // A server that has ended needs none.
        let app = Arc::downgrade(&self.app);
        move |keep| app.upgrade().map_or(Ok(()), |app| app.load_first(keep))
    }

    /// Whether a server at an address may be opened to those who have one of the keys: said before a model is loaded.
    pub fn check(access: &Access, address: std::net::IpAddr) -> Result<()> {
        policy::Policy::new(access.clone(), address).map(drop)
    }

    /// Serves until `stop` says so; then ends what is in flight, for as long as [`Limits::drain`] allows. Gives whether all
    /// engines have ended: one that is stuck never does, and is not waited for.
    pub fn run(self, stop: impl Fn() -> bool) -> Result<bool> {
        /// Time for engines to end once nobody waits for an answer.
        const ENDING: Duration = Duration::from_secs(2);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::io("the server's runtime", error))?;
        let served = runtime.block_on(http::serve(self.listener, Arc::clone(&self.app), stop));
        // What is still in flight ends now.
        runtime.shutdown_timeout(Duration::from_secs(1));
        let (ended, has_ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(self.app);
            // Nobody waits any more if it took too long.
            let _ = ended.send(());
        });
        let in_time = has_ended.recv_timeout(ENDING).is_ok();
        served.map_err(|error| Error::io("the server's socket", error))?;
        Ok(in_time)
    }
}
