//! Answers that are sent while they are made: lines of events, or of JSON.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Response;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use super::reply::{Piece, Reply};

/// What a response holds: all of it, or what is still made.
pub(super) enum ReplyBody {
    Whole(Option<Bytes>),
    Streamed(Box<Streamed>),
    /// Lines that a thread makes.
    Lines(tokio::sync::mpsc::Receiver<Bytes>),
}

/// Writes pieces as one of the APIs has them.
pub(super) trait Writer: Send {
    /// What comes first.
    fn begin(&mut self, out: &mut String);
    /// A piece of one of several answers; an error that ended one is a piece, too.
    fn piece(&mut self, index: usize, piece: Piece, out: &mut String);
    /// What comes when all answers have ended.
    fn end(&mut self, out: &mut String);
    /// A sign of life that means nothing; none where the API knows none.
    fn ping(&mut self, out: &mut String);
    /// `text/event-stream` or what it writes instead.
    fn content_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }
}

/// Answers, and how they are written.
pub(super) struct Streamed {
    replies: Vec<Reply>,
    writer: Box<dyn Writer>,
    ping: Duration,
    timer: Pin<Box<Sleep>>,
    out: String,
    over: bool,
}

/// A response that is sent while it is made.
pub(super) fn streamed(replies: Vec<Reply>, mut writer: Box<dyn Writer>, ping: Duration) -> Response<ReplyBody> {
    let mut out = String::new();
    writer.begin(&mut out);
    let content_type = writer.content_type();
    let timer = Box::pin(tokio::time::sleep(ping));
    let body = ReplyBody::Streamed(Box::new(Streamed { replies, writer, ping, timer, out, over: false }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy that collects the answer would defeat it.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Streamed {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.over {
            let mut pending = false;
            for (index, reply) in self.replies.iter_mut().enumerate() {
                loop {
                    match reply.poll(context) {
                        Poll::Ready(Some(piece)) => self.writer.piece(index, piece, &mut self.out),
                        Poll::Ready(None) => break,
                        Poll::Pending => {
                            pending = true;
                            break;
                        }
                    }
                }
            }
            if !pending {
                self.writer.end(&mut self.out);
                self.over = true;
            }
        }
        if self.out.is_empty() {
            if self.over {
                return Poll::Ready(None);
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.writer.ping(&mut self.out);
        }
        self.timer.as_mut().reset(Instant::now() + self.ping);
        if self.out.is_empty() {
            // Without a sign of life the timer only starts again; it must be asked once to wake.
            let _ = self.timer.as_mut().poll(context);
            return Poll::Pending;
        }
        Poll::Ready(Some(Bytes::from(std::mem::take(&mut self.out))))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Streamed(streamed) => streamed.poll(context),
            Self::Lines(lines) => lines.poll_recv(context),
        };
        data.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Streamed(streamed) => streamed.over && streamed.out.is_empty(),
            Self::Lines(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Streamed(_) | Self::Lines(_) => SizeHint::default(),
        }
    }
}

/// An event without a name.
pub(super) fn data(value: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// An event with a name, which its data repeats as `type`.
pub(super) fn event(name: &str, value: &Value, out: &mut String) {
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    data(value, out);
}
