//! Connections, and which path leads where.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use super::app::App;
use super::catalog::Known;
use super::failure::{Dialect, Failure, Outcome};
use super::fields::Fields;
use super::policy::Caller;
use super::stream::ReplyBody;
use super::{anthropic, metrics, ollama, openai, page, pull, responses, vectors};

pub(super) type Answer = Outcome<Response<ReplyBody>>;

/// Bytes of all headers of a request.
const HEADERS: usize = 64 << 10;

/// Takes connections until `stop` says so, and lets those in flight end.
pub(super) async fn serve(listener: TcpListener, app: Arc<App>, stop: impl Fn() -> bool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let most = app.limits.connections;
    let places = Arc::new(Semaphore::new(most));
    let (ending, ends) = watch::channel(false);
    let idle = tokio::spawn(unload_idle(Arc::clone(&app)));
    while !stop() {
        // A signal sets a flag alone, so this looks at it now and then.
        let Ok(accepted) = timeout(Duration::from_millis(100), listener.accept()).await else { continue };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(_) => {
                // No descriptors are left, say: those in use come back.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        match Arc::clone(&places).try_acquire_owned() {
            Err(_) => _ = tokio::spawn(turn_away(stream)),
            Ok(place) => {
                let (app, ends) = (Arc::clone(&app), ends.clone());
                tokio::spawn(async move {
                    connection(stream, app, ends).await;
                    drop(place);
                });
            }
        }
    }
    app.draining.store(true, Ordering::Release);
    drop(listener);
    let _ = ending.send(true);
    idle.abort();
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let _ = timeout(app.limits.drain, places.acquire_many(all)).await;
    Ok(())
}

/// Closes models that nobody uses, now and then: on a thread, since the end of one is waited for. Meanwhile it looks at whether
/// engines make progress, however rarely somebody else asks for that.
async fn unload_idle(app: Arc<App>) {
    let mut unloading = tokio::spawn(std::future::ready(()));
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        app.watch();
        if unloading.is_finished() {
            let app = Arc::clone(&app);
            unloading = tokio::task::spawn_blocking(move || app.unload_idle());
        }
    }
}

/// Says to a client that there are too many, without waiting for what it asks.
async fn turn_away(mut stream: TcpStream) {
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
        content-type: application/json\r\ncontent-length: 121\r\n\r\n\
        {\"error\":{\"message\":\"there are too many connections\",\"type\":\"unavailable_error\",\"param\":null,\"code\":\"connections_full\"}}\n";
    let turn_away = async {
        let mut rest = FULL;
        while !rest.is_empty() {
            if stream.writable().await.is_err() {
                return;
            }
            match stream.try_write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        // To close with something unread resets the connection, and then the client may lose what it was sent.
        let _ = std::future::poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await;
        let mut unread = [0; 4096];
        while stream.readable().await.is_ok() {
            match stream.try_read(&mut unread) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    };
    let _ = timeout(Duration::from_secs(1), turn_away).await;
}

async fn connection(stream: TcpStream, app: Arc<App>, mut ends: watch::Receiver<bool>) {
    let header_time = app.limits.header_time;
    // A client that takes nothing of its answer would keep its place for good.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(app.limits.write_time));
    let service = service_fn(move |request| {
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(respond(&app, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_headers(100)
        .max_buf_size(HEADERS)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    let mut ending = pin!(async move { ends.wait_for(|ending| *ending).await.is_ok() });
    let mut ended = false;
    // What a client does wrong is said to it; where it cannot be, nobody is left to say it to.
    let _ = std::future::poll_fn(|context| {
        if !ended && ending.as_mut().poll(context).is_ready() {
            ended = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await;
}

/// Answers a request, whatever it is.
async fn respond(app: &Arc<App>, request: Request<Incoming>) -> Response<ReplyBody> {
    let dialect = Dialect::of(request.uri().path());
    let called = app.policy.check_host(request.headers(), request.uri());
    let page = called.ok().and_then(|()| app.policy.page(request.headers(), request.uri()));
    let mut response = match answer(app, request).await {
        Ok(response) => response,
        Err(failure) => failed(&failure, dialect),
    };
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Some(page) = page.and_then(|page| HeaderValue::from_str(&page).ok()) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
    response
}

fn failed(failure: &Failure, dialect: Dialect) -> Response<ReplyBody> {
    let mut response = json_answer(&failure.json(dialect));
    *response.status_mut() = failure.status(dialect);
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if failure.status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
    }
    response
}

/// A response of one JSON object.
pub(super) fn json_answer(value: &Value) -> Response<ReplyBody> {
    text_answer("application/json", value.to_string())
}

/// A response of one text.
pub(super) fn text_answer(content_type: &'static str, text: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Whole(Some(text.into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Runs what takes a while on a thread of its own, so that answers in flight go on.
pub(super) async fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> Outcome<T> + Send + 'static) -> Outcome<T> {
    let done = tokio::task::spawn_blocking(run).await;
    done.map_err(|_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be read"))?
}

/// What takes a body.
const POSTS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/api/embed",
    "/api/embeddings",
    "/api/pull",
];

/// What takes none.
const GETS: &[&str] = &[
    "/",
    "/chat.js",
    "/chat.css",
    "/health",
    "/health/live",
    "/health/ready",
    "/metrics",
    "/v1/models",
    "/api/tags",
    "/api/ps",
    "/api/version",
];

/// What says nothing about anybody: for those who watch over the server, and the page before it has the key.
const OPEN: &[&str] = &["/", "/chat.js", "/chat.css", "/health", "/health/live", "/health/ready"];

async fn answer(app: &Arc<App>, request: Request<Incoming>) -> Answer {
    app.policy.check_host(request.headers(), request.uri())?;
    if request.method() == Method::OPTIONS {
        return Ok(preflight(request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS)));
    }
    let path = request.uri().path().to_owned();
    let get = request.method() == Method::GET || request.method() == Method::HEAD;
    let caller = match OPEN.contains(&path.as_str()) {
        true => Caller::default(),
        false => app.policy.check_key(request.headers())?,
    };
    let post = request.method() == Method::POST;
    let model = path.strip_prefix("/v1/models/").filter(|name| !name.is_empty());
    match (GETS.contains(&path.as_str()) || model.is_some(), POSTS.contains(&path.as_str())) {
        (true, _) if get => match model {
            Some(name) => Ok(json_answer(&model_card(app, &app.known(Some(unescaped(name))).await?))),
            None => got(app, &path).await,
        },
        (_, true) if post => {
            app.taking()?;
            let fields = parsed(body(app, request).await?).await?;
            posted(app, caller, &path, fields).await
        }
        (false, false) => {
            let message = format!("there is nothing at {path}; {} and {} work", GETS.join(", "), POSTS.join(", "));
            Err(Failure { code: Some("not_found"), ..Failure::not_found(message) })
        }
        (takes_none, _) => {
            let method = if takes_none { "GET" } else { "POST" };
            let message = format!("{path}: {method} works");
            let mut response = failed(&Failure::new(StatusCode::METHOD_NOT_ALLOWED, message), Dialect::of(&path));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
            Ok(response)
        }
    }
}

async fn got(app: &Arc<App>, path: &str) -> Answer {
    Ok(match path {
        "/" => page::page(),
        "/chat.js" => page::script(),
        "/chat.css" => page::style(),
        "/health/live" => json_answer(&json!({ "status": "ok" })),
        "/health" | "/health/ready" => {
            app.ready()?;
            json_answer(&json!({ "status": "ok" }))
        }
        "/metrics" => text_answer("text/plain; version=0.0.4; charset=utf-8", metrics::text(app)),
        "/v1/models" => {
            let known = all(app).await?;
            let cards: Vec<Value> = known.iter().map(|known| model_card(app, known)).collect();
            json_answer(&json!({ "object": "list", "data": cards }))
        }
        "/api/tags" => json_answer(&ollama::tags(app, &all(app).await?)),
        "/api/ps" => json_answer(&ollama::ps(app)),
        _ => json_answer(&json!({ "version": env!("CARGO_PKG_VERSION") })),
    })
}

async fn posted(app: &Arc<App>, caller: Caller, path: &str, fields: Fields) -> Answer {
    let app = Arc::clone(app);
    match path {
        "/v1/chat/completions" => openai::chat(app, caller, fields).await,
        "/v1/completions" => openai::completions(app, caller, fields).await,
        "/v1/messages" => anthropic::messages(app, caller, fields).await,
        "/v1/messages/count_tokens" => anthropic::count_tokens(app, caller, fields).await,
        "/v1/responses" => responses::create(app, caller, fields).await,
        "/v1/embeddings" => vectors::embeddings(&app, fields).await,
        "/v1/rerank" | "/rerank" => vectors::rerank(&app, fields).await,
        "/tokenize" => vectors::tokenize(app, caller, fields).await,
        "/detokenize" => vectors::detokenize(app, fields).await,
        "/api/chat" => ollama::chat(app, caller, fields).await,
        "/api/generate" => ollama::generate(app, caller, fields).await,
        "/api/embed" => ollama::embed(&app, fields).await,
        "/api/embeddings" => ollama::embeddings(&app, fields).await,
        "/api/pull" => pull::pull(&app, fields).await,
        _ => ollama::show(&app, fields).await,
    }
}

impl App {
    /// Refuses what is new when the server is about to end.
    fn taking(&self) -> Outcome<()> {
        if self.draining.load(Ordering::Acquire) {
            return Err(Failure::unavailable("the server is about to end"));
        }
        Ok(())
    }
}

/// All models that are here.
async fn all(app: &Arc<App>) -> Outcome<Vec<Known>> {
    let app = Arc::clone(app);
    on_a_thread(move || Ok(app.catalog.list()?)).await
}

fn model_card(app: &App, known: &Known) -> Value {
    let since = known.modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let created = since.map_or(app.created, |since| since.as_secs());
    json!({ "id": known.name, "object": "model", "created": created, "owned_by": "wgslm" })
}

/// A name in a path: models are called ORG/REPO:QUANT.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The fields of a body. A large one takes too long for the thread that all connections share.
async fn parsed(body: Bytes) -> Outcome<Fields> {
    const LARGE: usize = 64 << 10;
    match body.len() {
        ..=LARGE => Fields::parse(&body),
        _ => on_a_thread(move || Fields::parse(&body)).await,
    }
}

/// The body of a request, if it is neither too large nor too slow.
async fn body(app: &App, request: Request<Incoming>) -> Outcome<Bytes> {
    let most = app.limits.body;
    let too_large = || {
        let message = format!("the body is too large; {most} bytes work");
        Failure { code: Some("too_large"), ..Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message) }
    };
    let length = request.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let read = Limited::new(request.into_body(), most).collect();
    match timeout(app.limits.body_time, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Failure::invalid("body", "it broke off")),
        Err(_) => Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "body: it came too slowly")),
    }
}

/// What a browser asks before it sends what a page asks for, with headers of its client's choice. Which page may was checked.
fn preflight(wanted: Option<&HeaderValue>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Whole(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    let usual = HeaderValue::from_static("authorization, content-type, x-api-key, anthropic-version, anthropic-beta");
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.cloned().unwrap_or(usual));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}
