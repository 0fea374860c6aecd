//! `/api/pull`: downloads a model, and says how far it is.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

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

/// How often the bytes are reported.
const OFTEN: Duration = Duration::from_millis(100);

/// `/api/pull`. A download goes on when its client has gone: what came of it is kept.
pub(super) async fn pull(app: &Arc<App>, mut fields: Fields) -> Answer {
    let name = fields.text("model")?.or(fields.text("name")?);
    let name = fields.needed("model", name)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    fields.refuse("insecure", &[false.into()], "models come over connections that are checked; false works")?;
    let turn = Turn::take(app, &name)?;
    let app = Arc::clone(app);
    if !stream {
        on_a_thread(move || Ok(turn.app.catalog.pull(&name, &mut |_| {})?)).await?;
        return Ok(json_answer(&json!({ "status": "success" })));
    }
    let (lines, receiver) = mpsc::channel(64);
    tokio::task::spawn_blocking(move || {
        let say = |value: Value| _ = lines.blocking_send(format!("{value}\n").into());
        say(json!({ "status": "pulling manifest" }));
        let (mut digest, mut reported, mut complete) = (String::new(), None::<Instant>, false);
        let pulled = app.catalog.pull(&name, &mut |progress| match progress {
            Pulling::Found { digest: found } => digest = found,
            Pulling::Waiting => say(json!({ "status": "waiting for another download" })),
            Pulling::Bytes(have, all) => {
                let last = have >= all && !complete;
                complete |= last;
                if last || reported.is_none_or(|at| at.elapsed() >= OFTEN) {
                    reported = Some(Instant::now());
                    let short = digest.get(..12).unwrap_or(&digest);
                    say(json!({
                        "status": format!("pulling {short}"), "digest": digest, "total": all, "completed": have,
                    }));
                }
            }
        });
        drop(turn);
        match pulled {
            Ok(()) => say(json!({ "status": "success" })),
            Err(error) => say(Failure::from(error).json(Dialect::Ollama)),
        }
    });
    let mut response = Response::new(ReplyBody::Lines(receiver));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
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
