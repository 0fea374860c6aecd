//! `/api/pull`: downloads a model, and says how far it is.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::app::App;
use super::catalog::Pulling;
use super::failure::{Dialect, Failure, Outcome};
use super::fields::Fields;
use super::http::{Answer, json_answer, on_a_thread};
use super::stream::ReplyBody;
use crate::{Error, Result};

/// How often the bytes are reported.
const OFTEN: Duration = Duration::from_millis(100);

/// `/api/pull`. A download ends when its client has gone; the next one goes on from there.
pub(super) async fn pull(app: &Arc<App>, mut fields: Fields) -> Answer {
    let name = fields.text("model")?.or(fields.text("name")?);
    let name = fields.needed("model", name)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    fields.refuse("insecure", &[false.into()], "models come over connections that are checked; false works")?;
    let turn = Turn::take(app, &name)?;
    let (lines, receiver) = mpsc::channel(64);
    if !stream {
        let pulled =
            move || turn.app.catalog.pull(&name, &mut |_| still_read(&lines)).map_err(|error| why(&name, error));
        on_a_thread(pulled).await?;
        drop(receiver);
        return Ok(json_answer(&json!({ "status": "success" })));
    }
    tokio::task::spawn_blocking(move || {
        let say = |value: Value| lines.blocking_send(format!("{value}\n").into()).map_err(|_| gone());
        let (mut digest, mut reported, mut complete) = (String::new(), None::<Instant>, false);
        let mut report = |progress| match progress {
            Pulling::Found { digest: found } => {
                digest = found;
                Ok(())
            }
            Pulling::Waiting => say(json!({ "status": "waiting for another download" })),
            Pulling::Bytes(have, all) => {
                let last = have >= all && !complete;
                complete |= last;
                if !last && reported.is_some_and(|at| at.elapsed() < OFTEN) {
                    return still_read(&lines);
                }
                reported = Some(Instant::now());
                let short = digest.get(..12).unwrap_or(&digest);
                say(json!({ "status": format!("pulling {short}"), "digest": digest, "total": all, "completed": have }))
            }
        };
        let manifest = say(json!({ "status": "pulling manifest" }));
        let pulled = manifest.and_then(|()| turn.app.catalog.pull(&name, &mut report));
        drop(turn);
        // Whether anybody reads the end makes no difference.
        _ = match pulled {
            Ok(()) => say(json!({ "status": "success" })),
            Err(error) => say(why(&name, error).json(Dialect::Ollama)),
        };
    });
    let mut response = Response::new(ReplyBody::Lines(receiver));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// Why a model was not downloaded. Which folder has no space is nobody's business.
fn why(name: &str, error: Error) -> Failure {
    match error {
        Error::Limit { needed, available, .. } => {
            let message = format!("{name}: the server needs {needed}; {available}");
            Failure { code: Some("no_space"), ..Failure::new(StatusCode::INSUFFICIENT_STORAGE, message) }
        }
        error => Failure::from(error),
    }
}

fn still_read(lines: &mpsc::Sender<Bytes>) -> Result<()> {
    if lines.is_closed() { Err(gone()) } else { Ok(()) }
}

fn gone() -> Error {
    Error::Network { address: "/api/pull".to_owned(), problem: "its client has gone".to_owned() }
}

/// While a model is downloaded: nobody else asks for it.
struct Turn {
    app: Arc<App>,
    name: String,
}

impl Turn {
    fn take(app: &Arc<App>, name: &str) -> Outcome<Self> {
        /// Downloads at a time.
        const MOST: usize = 4;
        let mut pulling = app.pulling.lock().unwrap_or_else(PoisonError::into_inner);
        if pulling.len() >= MOST || pulling.iter().any(|other| other == name) {
            let message = format!("{} downloads go on, of one model once; later it works", pulling.len());
            return Err(Failure { retry_after: Some(10), ..Failure::new(StatusCode::TOO_MANY_REQUESTS, message) });
        }
        pulling.push(name.to_owned());
        Ok(Self { app: Arc::clone(app), name: name.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.app.pulling.lock().unwrap_or_else(PoisonError::into_inner).retain(|name| *name != self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_shows_no_folder() {
        let failure = why(
            "org/repo",
            Error::Limit {
                what: "org/repo in /home/somebody/.cache".to_owned(),
                needed: "8 bytes more".to_owned(),
                available: "7 free on this disk".to_owned(),
                instead: "HF_HUB_CACHE names a folder elsewhere".to_owned(),
            },
        );
        assert_eq!(failure.message, "org/repo: the server needs 8 bytes more; 7 free on this disk");
        assert_eq!(failure.status, 507);
    }
}
