//! An answer that is being generated.

use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use wgslm::driver::{self, Canceller, GenerationEvent};
use wgslm::engine::Finish;

use crate::error::to_py;
use crate::model::Served;

/// An answer that is being generated.
#[pyclass(frozen, module = "wgslm._wgslm")]
pub(crate) struct Generation {
    reader: Mutex<Reader>,
    canceller: Canceller,
}

/// A conversation whose answer is remembered.
pub(crate) struct Asked {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) salt: Option<Arc<[u8]>>,
}

struct Reader {
    /// None when it was closed. Before what it belongs to: the last one ends the thread that serves it.
    generation: Option<driver::Generation>,
    asked: Option<Asked>,
    ids: Vec<u32>,
    text: String,
    served: Arc<Served>,
}

/// How long a wait goes on until signals are looked for.
const SLICE: Duration = Duration::from_millis(50);

impl Generation {
    pub(crate) fn new(generation: driver::Generation, served: Arc<Served>, asked: Option<Asked>) -> Self {
        let canceller = generation.canceller();
        let reader = Reader { generation: Some(generation), asked, ids: Vec::new(), text: String::new(), served };
        Self { reader: Mutex::new(reader), canceller }
    }

    fn lock(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// An event as Python gets it: `(text, id, logprobs)`, or of the last one
    /// `(text, reason, prompt, reused, generated, ids, [queued, prefill, decode])`.
    fn give<'py>(&mut self, py: Python<'py>, event: GenerationEvent) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            GenerationEvent::Token { id, text, logprobs } => {
                self.ids.push(id);
                if self.asked.is_some() {
                    self.text += &text;
                }
                let logprobs: Vec<(u32, f32)> = logprobs.iter().map(|of| (of.token, of.logprob)).collect();
                (text, id, logprobs).into_pyobject(py)
            }
            GenerationEvent::Finished { reason: Finish::Error(error), .. } => {
                self.generation = None;
                Err(to_py(wgslm::Error::from_shared(error)))
            }
            GenerationEvent::Finished { text, reason, usage, timings, .. } => {
                self.generation = None;
                // Where a string ended it, the ids hold more than the text.
                if let Some(Asked { text: asked, ids, salt }) = self.asked.take()
                    && !matches!(reason, Finish::StopString(_))
                {
                    self.served.answers().keep(
                        (asked, ids),
                        &self.ids,
                        &(std::mem::take(&mut self.text) + &text),
                        salt,
                    );
                }
                let times = [timings.queued, timings.prefill, timings.decode].map(|time| time.as_secs_f64());
                let ids = std::mem::take(&mut self.ids);
                let counts = (usage.prompt, usage.reused, usage.generated);
                (text, reason.name(), counts.0, counts.1, counts.2, ids, times.to_vec()).into_pyobject(py)
            }
        }
    }
}

#[pymethods]
impl Generation {
    /// The next event; none after the last. Waits in slices, so that Ctrl-C ends it, and leaves the interpreter to others.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        loop {
            let wait = || {
                let mut reader = self.lock();
                let Some(generation) = &mut reader.generation else { return (true, None) };
                (false, generation.wait_for(SLICE))
            };
            let (over, event) = py.detach(wait);
            if let Some(event) = event {
                return self.lock().give(py, event).map(Some);
            }
            if over {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// The next event if it is there. Else `wake` is called once, when there is one; None stands for that, False for the end.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let mut reader = self.lock();
        let Some(generation) = &mut reader.generation else {
            return Ok(false.into_pyobject(py)?.to_owned().into_any());
        };
        let waker = Waker::from(Arc::new(Callback(Mutex::new(Some(wake)))));
        match Pin::new(generation).poll_next(&mut Context::from_waker(&waker)) {
            Poll::Pending => Ok(py.None().into_bound(py)),
            Poll::Ready(None) => Ok(false.into_pyobject(py)?.to_owned().into_any()),
            Poll::Ready(Some(event)) => Ok(reader.give(py, event)?.into_any()),
        }
    }

    /// Ends the request. Events that are there already, and the last one, still come.
    fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Ends the request; no event comes any more.
    fn close(&self, py: Python<'_>) {
        self.canceller.cancel();
        let generation = self.lock().generation.take();
        py.detach(|| drop(generation));
    }
}

/// A function of Python's that is called once.
struct Callback(Mutex<Option<Py<PyAny>>>);

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        let function = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread that computes does not wait for the interpreter.
        function.into_iter().for_each(|function| _ = CALLS.send(function));
    }
}

/// A thread that calls what shall be called.
static CALLS: LazyLock<Sender<Py<PyAny>>> = LazyLock::new(|| {
    let (sender, calls) = channel::<Py<PyAny>>();
    std::thread::spawn(move || {
        while let Ok(first) = calls.recv() {
            let called = Instant::now();
            Python::try_attach(|py| {
                // Those that came in the meantime, as long as that is a moment.
                let mut next = Some(first);
                while let Some(function) = next {
                    // The loop that it would wake may have been closed.
                    _ = function.call0(py);
                    next = if called.elapsed() < Duration::from_millis(5) { calls.try_recv().ok() } else { None };
                }
            });
        }
    });
    sender
});
