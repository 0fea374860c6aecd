//! What a client reads when something is wrong, in the words of the API that it speaks.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::Error;

/// Whose words an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// That of an endpoint.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/v1/messages" | "/v1/messages/count_tokens" => Self::Anthropic,
            path if path.starts_with("/api/") => Self::Ollama,
            _ => Self::OpenAi,
        }
    }
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// The field that is wrong.
    pub(super) param: Option<String>,
    /// The kind, for machines.
    pub(super) code: Option<&'static str>,
    /// Seconds after which asking again may work.
    pub(super) retry_after: Option<u64>,
}

pub(super) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A field that is wrong, and what would work.
    pub(super) fn invalid(param: impl Into<String>, problem: impl AsRef<str>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", problem.as_ref());
        Self { param: Some(param), code: Some("invalid_value"), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A field that is known and does nothing here.
    pub(super) fn unsupported(param: impl Into<String>, instead: impl AsRef<str>) -> Self {
        let param = param.into();
        let message = format!("{param} is not supported; {}", instead.as_ref());
        Self { param: Some(param), code: Some("unsupported_parameter"), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// The server takes nothing now.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { retry_after: Some(5), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// The status with which it is sent.
    pub(super) fn status(&self, dialect: Dialect) -> StatusCode {
        match (dialect, self.status) {
            (Dialect::Anthropic, StatusCode::SERVICE_UNAVAILABLE) => StatusCode::from_u16(529).unwrap_or(self.status),
            (_, status) => status,
        }
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 | 405 => "not_found_error",
            429 => "rate_limit_error",
            503 => "unavailable_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            413 => "request_too_large",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => self.kind(),
        }
    }

    /// The body.
    pub(super) fn json(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => json!({ "error": {
                "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
            } }),
            Dialect::Anthropic => json!({
                "type": "error", "error": { "type": self.anthropic_kind(), "message": self.message },
            }),
            Dialect::Ollama => json!({ "error": self.message }),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let of = |status: StatusCode, code| Self { code: Some(code), ..Self::new(status, error.to_string()) };
        match error {
            Error::Shared(error) => Self::from(&**error),
            Error::Argument { name, .. } => {
                Self { param: Some(name.clone()), ..of(StatusCode::BAD_REQUEST, "invalid_value") }
            }
            Error::Limit { .. } => of(StatusCode::BAD_REQUEST, "context_length_exceeded"),
            Error::Unsupported { .. } => of(StatusCode::BAD_REQUEST, "unsupported"),
            Error::Template(_) => of(StatusCode::BAD_REQUEST, "template"),
            Error::Refused { retry_after: Some(time), .. } => {
                let retry_after = Some(time.as_secs_f64().ceil().max(1.0) as u64);
                Self { retry_after, ..of(StatusCode::TOO_MANY_REQUESTS, "queue_full") }
            }
            Error::Refused { .. } => Self { retry_after: Some(5), ..of(StatusCode::SERVICE_UNAVAILABLE, "closing") },
            Error::Device(_) | Error::DeviceLost(_) | Error::LostStep { .. } => {
                Self { retry_after: Some(10), ..of(StatusCode::SERVICE_UNAVAILABLE, error.code()) }
            }
            // Where files lie is nobody's business.
            Error::Io { .. } => {
                Self { code: Some("io"), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "a file cannot be read") }
            }
            _ => of(StatusCode::INTERNAL_SERVER_ERROR, error.code()),
        }
    }
}
