//! The models that a server may open, and the one thing that brings new ones.

use std::thread::JoinHandle;
use std::time::SystemTime;

use crate::Result;
use crate::engine::Embedder;
use crate::language_model::ServedModel;
use crate::model::Model;

/// A model that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// What clients call it.
    pub name: String,
    /// Bytes of its files; 0 where nobody knows.
    pub bytes: u64,
    /// When it came.
    pub modified: Option<SystemTime>,
    /// The commit that it is of; empty where there is none.
    pub commit: String,
}

/// A model that was opened.
pub enum Served {
    /// One that answers.
    Language {
        /// The model.
        model: ServedModel,
        /// The thread of its driver, which ends when it is closed.
        thread: JoinHandle<()>,
        /// Whether its weights are in a GPU's memory.
        on_gpu: bool,
    },
    /// One that gives vectors of texts, or scores of pairs.
    Vectors(Box<Embedder>),
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulling {
    /// The model was found.
    Found {
        /// The commit, or the address.
        digest: String,
    },
    /// Somebody else downloads it; that is waited for.
    Waiting,
    /// Bytes that are here, and all.
    Bytes(u64, u64),
}

/// Where models come from. All is asked on threads that may wait.
pub trait Catalog: Send + Sync {
    /// The model that a client means by a name; none: there is none of it here. Opens no connection.
    fn find(&self, name: &str) -> Result<Option<Known>>;
    /// All models that are here.
    fn list(&self) -> Result<Vec<Known>>;
    /// What the files of a model say, without its weights.
    fn inspect(&self, known: &Known) -> Result<Model>;
    /// Opens a model.
    fn open(&self, known: &Known) -> Result<Served>;
    /// Downloads a model of a hub by its name: clients name it, so no address that a hub has not given is connected to. An error
    /// of `progress` ends that.
    fn pull(&self, name: &str, progress: &mut dyn FnMut(Pulling) -> Result<()>) -> Result<()>;
}
