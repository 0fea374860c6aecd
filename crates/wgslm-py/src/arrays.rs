//! Vectors and logits, as arrays of NumPy that own what was computed.

use std::sync::{Mutex, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use wgslm::engine::{self, EmbedOptions};
use wgslm::exec::Executor;
use wgslm::{Error, LanguageModel, Options, block_on, chat};

use crate::error::to_py;
use crate::model::{How, Source};

/// A flat vector as an array of rows; nothing is copied.
fn rows(py: Python<'_>, values: Vec<f32>, width: usize) -> PyResult<Bound<'_, PyArray2<f32>>> {
    let count = values.len() / width.max(1);
    PyArray1::from_vec(py, values).reshape([count, width])
}

/// A model that turns texts into vectors.
#[pyclass(frozen, module = "wgslm._wgslm")]
pub(crate) struct Embedder {
    inner: Mutex<wgslm::Embedder>,
    #[pyo3(get)]
    width: u32,
    #[pyo3(get)]
    device: String,
}

#[pymethods]
impl Embedder {
    #[new]
    fn new(py: Python<'_>, source: Option<Source>, truncate: bool, how: How) -> PyResult<Self> {
        let open = || {
            let source = Source::model(source, &mut |what, done, all| how.report(what, done, all))?;
            let embed = EmbedOptions { context: how.context(), truncate, ..EmbedOptions::default() };
            let inner = block_on(wgslm::Embedder::open(source, &embed, &how.options()?, &mut how.progress()))?;
            let (width, device) = (inner.width(), inner.executor().device());
            Ok(Self { inner: Mutex::new(inner), width, device })
        };
        py.detach(open).map_err(to_py)
    }

    /// The vector of each text: (texts, width).
    fn embed<'py>(&self, py: Python<'py>, texts: Vec<String>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let embed = || {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            block_on(inner.embed(&texts))
        };
        let vectors = py.detach(embed).map_err(to_py)?;
        rows(py, vectors.concat(), self.width as usize)
    }
}

/// A model that gives the logits of every position.
#[pyclass(frozen, module = "wgslm._wgslm")]
pub(crate) struct Scorer {
    inner: Mutex<LanguageModel>,
}

#[pymethods]
impl Scorer {
    #[new]
    fn new(py: Python<'_>, source: Option<Source>, how: How) -> PyResult<Self> {
        let open = || {
            let source = Source::model(source, &mut |what, done, all| how.report(what, done, all))?;
            let options = Options { seqs: 1, outs: 64, ..how.options()? };
            let inner = block_on(LanguageModel::open(source, &options, &mut how.progress()))?;
            Ok(Self { inner: Mutex::new(inner) })
        };
        py.detach(open).map_err(to_py)
    }

    /// The ids of a text as a model reads it, with the token that begins one.
    fn tokenize(&self, text: &str) -> PyResult<Vec<u32>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        chat::continuation(inner.tokenizer(), text).map_err(to_py)
    }

    /// The logits after each of some tokens: (tokens, vocabulary).
    fn logits<'py>(&self, py: Python<'py>, ids: Vec<u32>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let score = || {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let program = inner.model().program.clone();
            if let Some(id) = ids.iter().find(|id| **id >= program.vocab) {
                return Err(Error::argument("ids", format!("token {id}; the vocabulary has {}", program.vocab)));
            }
            let logits = block_on(engine::score(inner.engine_mut().executor_mut(), &program, &ids))?;
            Ok((logits, program.vocab as usize))
        };
        let (logits, vocab) = py.detach(score).map_err(to_py)?;
        rows(py, logits, vocab)
    }
}
