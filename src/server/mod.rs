//! The server: a model as the APIs of OpenAI, Anthropic and Ollama, and a page to chat on (feature `server`).
//!
//! ```text
//! connection ─ policy ─ route ─ fields ─► Ask ─► driver::Handle
//!     ▲                                              │
//!     └──── events or an object ◄── Reply ◄── Generation
//! ```
//!
//! One thread has all connections, the driver's has the engine; what a request costs before it reaches the engine (parsing,
//! templates, tokens) is done on threads of its own. A client that is gone drops its [`Generation`](crate::driver::Generation),
//! which ends it within a step.

mod anthropic;
mod app;
mod ask;
mod failure;
mod fields;
mod http;
mod metrics;
mod ollama;
mod openai;
mod page;
mod policy;
mod reply;
mod responses;
mod split;
mod stream;
mod vectors;

use std::net::TcpListener;
use std::time::Duration;

pub use policy::Access;

use crate::engine::Embedder;
use crate::language_model::ServedModel;
use crate::{Error, Result};

/// What is served.
pub enum Served {
    /// A model that answers.
    Language(ServedModel),
    /// A model that gives vectors of texts, or scores of pairs.
    Vectors(Box<Embedder>),
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
    /// An answer that is silent for so long gets a sign of life.
    pub ping: Duration,
    /// Time for requests in flight when the server is to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 16 << 20,
            connections: 1024,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            ping: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}

/// A server that is ready to run.
pub struct Server {
    listener: TcpListener,
    app: std::sync::Arc<app::App>,
}

impl Server {
    /// A server of a model, which clients call by this name. Who may ask says `access`; an address that others can reach needs a
    /// key.
    pub fn new(listener: TcpListener, name: &str, served: Served, access: Access, limits: Limits) -> Result<Self> {
        let address = listener.local_addr().map_err(|error| Error::io("the server's address", error))?;
        let policy = policy::Policy::new(access, address.ip())?;
        let app = std::sync::Arc::new(app::App::new(name.to_owned(), served, policy, limits)?);
        Ok(Self { listener, app })
    }

    /// Whether a server at an address may be opened to those who have one of the keys: said before a model is loaded.
    pub fn check(access: &Access, address: std::net::IpAddr) -> Result<()> {
        policy::Policy::new(access.clone(), address).map(drop)
    }

    /// Serves until `stop` says so; then ends what is in flight, for as long as [`Limits::drain`] allows.
    pub fn run(self, stop: impl Fn() -> bool) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::io("the server's runtime", error))?;
        let served = runtime.block_on(http::serve(self.listener, self.app, stop));
        // What is still in flight ends now.
        runtime.shutdown_timeout(Duration::from_secs(1));
        served.map_err(|error| Error::io("the server's socket", error))
    }
}
