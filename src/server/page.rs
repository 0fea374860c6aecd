//! The page to chat on: three files, no framework, nothing from elsewhere.

use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY};

use super::http::text_answer;
use super::stream::ReplyBody;

/// What the page may load and reach: itself and this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `/`.
pub(super) fn page() -> Response<ReplyBody> {
    let mut response = file("text/html; charset=utf-8", include_str!("page/index.html"));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// `/chat.js`.
pub(super) fn script() -> Response<ReplyBody> {
    file("text/javascript; charset=utf-8", include_str!("page/chat.js"))
}

/// `/chat.css`.
pub(super) fn style() -> Response<ReplyBody> {
    file("text/css; charset=utf-8", include_str!("page/chat.css"))
}

fn file(content_type: &'static str, text: &'static str) -> Response<ReplyBody> {
    let mut response = text_answer(content_type, text);
    // Another version of the program has another page.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
