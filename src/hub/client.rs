//! Requests to the hub and to where it redirects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::reference::bare;
use crate::{Error, Result};

/// How long a server may be silent, and how often it is asked again.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The longest wait for a connection, for an answer, and for the next bytes of a body.
    pub stall: Duration,
    /// Attempts in a row that bring no byte.
    pub tries: u32,
    /// The wait before the second attempt; it doubles with each.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stall: Duration::from_secs(30), tries: 6, pause: Duration::from_secs(1) }
    }
}

/// What says who asks. It is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token; none if the text cannot be one.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.len() <= 4096 && text.chars().all(|c| c.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A connection to a hub, and to the hosts that it sends one to.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
    pub(super) patience: Patience,
}

/// Who answers at an address: scheme, host and port.
#[derive(PartialEq, Eq)]
struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &str) -> Result<Self> {
        let wrong = || network(url, "this is no address that can be asked");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?.to_ascii_lowercase();
        Ok(Self { https, host, port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }) })
    }

    /// Whether nobody between here and there can listen.
    fn is_private(&self) -> bool {
        self.https || matches!(self.host.as_str(), "localhost" | "127.0.0.1" | "[::1]")
    }
}

/// Longer lists than any repository's are refused.
const MAX_JSON: u64 = 32 << 20;
const MAX_REDIRECTS: usize = 10;

impl Client {
    pub(super) fn new(endpoint: &str, token: Option<Token>, patience: Patience) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        // Redirects are followed here, so that each is looked at. Proxies are those of the environment.
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("wgslm/", env!("CARGO_PKG_VERSION")))
            .accept("*/*")
            .timeout_resolve(Some(patience.stall))
            .timeout_connect(Some(patience.stall))
            .timeout_send_request(Some(patience.stall))
            .timeout_recv_response(Some(patience.stall))
            .timeout_per_read(Some(patience.stall))
            .input_buffer_size(512 << 10)
            .build();
        Self { agent: config.into(), endpoint: endpoint.to_owned(), token, patience }
    }

    /// Asks for an address, from a byte on, if the file is still the one with this validator. Follows redirects; the token goes
    /// to the hub's own origin alone.
    pub(super) fn get(&self, url: &str, from: u64, validator: Option<&str>) -> Result<Response<Body>> {
        let own = Origin::of(&self.endpoint)?;
        let mut url = url.to_owned();
        let mut linked = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&url)?;
            let mut request = self.agent.get(&url);
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
                if let Some(validator) = validator {
                    request = request.header(header::IF_RANGE, validator);
                }
            }
            if let Some(token) = self.token.as_ref().filter(|_| origin == own && origin.is_private()) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.0));
            }
            let mut response = request.call().map_err(|error| network(&url, &self.words(&error)))?;
            if !response.status().is_redirection() || response.status() == 304 {
                // What the hub said of the file, before it sent us to where it is.
                for (name, value) in &linked {
                    response.headers_mut().entry(name).or_insert_with(|| value.clone());
                }
                return Ok(response);
            }
            for (name, value) in response.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-")) {
                linked.insert(name.clone(), value.clone());
            }
            let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let location = location.ok_or_else(|| network(&url, "it redirects to nowhere"))?;
            let next = joined(&url, location);
            if origin.https && !Origin::of(&next)?.https {
                return Err(network(&url, &format!("it redirects to {}, which is not encrypted", bare(&next))));
            }
            url = next;
        }
        Err(network(&url, &format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// The JSON at an address.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, url: &str) -> Result<Response<T>> {
        self.again(url, || {
            let response = self.get(url, 0, None)?;
            if self.is_transient(response.status().as_u16()) {
                return Err(network(url, &format!("it answers {}", response.status())));
            }
            let (parts, body) = response.into_parts();
            if !parts.status.is_success() {
                return Ok(Err(parts));
            }
            let bytes = body.into_with_config().limit(MAX_JSON).read_to_vec();
            Ok(Ok((parts, bytes.map_err(|error| network(url, &self.words(&error)))?)))
        })
        .and_then(|answer| match answer {
            Ok((parts, bytes)) => {
                let json = serde_json::from_slice(&bytes)
                    .map_err(|error| network(url, &format!("it answers no JSON that is understood: {error}")))?;
                Ok(Response::from_parts(parts, json))
            }
            Err(parts) => Err(refusal(url, parts.status.as_u16(), &parts.headers, self.token.is_some())),
        })
    }

    /// Tries until it works, or has failed too often in a row.
    fn again<T>(&self, url: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 1;
        loop {
            match attempt() {
                Err(Error::Network { .. }) if tries < self.patience.tries.min(3) => {
                    std::thread::sleep(self.pause(tries));
                    tries += 1;
                }
                Err(Error::Network { problem, .. }) => return Err(network(url, &problem)),
                other => return other,
            }
        }
    }

    /// How long to wait after so many attempts.
    pub(super) fn pause(&self, tries: u32) -> Duration {
        self.patience.pause.saturating_mul(1 << tries.saturating_sub(1).min(5))
    }

    /// Whether an answer may be another one soon.
    pub(super) fn is_transient(&self, status: u16) -> bool {
        matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
    }

    /// A refusal as an error with advice.
    pub(super) fn refused(&self, url: &str, response: &Response<Body>) -> Error {
        refusal(url, response.status().as_u16(), response.headers(), self.token.is_some())
    }

    /// What went wrong, in words that hold no secret.
    fn words(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => format!("nothing came for {:.0} s", self.patience.stall.as_secs_f64()),
            ureq::Error::HostNotFound => "there is no such host, or no connection to the network".to_owned(),
            ureq::Error::InvalidProxyUrl => "the proxy of the environment is no address".to_owned(),
            ureq::Error::Io(error) => io_words(error, self.patience.stall),
            ureq::Error::BodyExceedsLimit(most) => format!("it answers more than {most} bytes"),
            ureq::Error::Rustls(error) => format!("no secure connection: {error}"),
            other => other.to_string(),
        }
    }
}

/// What an error of a connection means.
pub(super) fn io_words(error: &std::io::Error, stall: Duration) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("nothing came for {:.0} s", stall.as_secs_f64()),
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe => "the connection broke off".to_owned(),
        ErrorKind::ConnectionRefused => "nobody answers there (connection refused)".to_owned(),
        // ureq's own errors travel in io's: a timeout is one of them.
        _ if error.to_string().starts_with("timeout") => format!("nothing came for {:.0} s", stall.as_secs_f64()),
        _ => error.to_string(),
    }
}

pub(super) fn network(url: &str, problem: &str) -> Error {
    Error::Network { address: bare(url), problem: problem.to_owned() }
}

/// What a refusal means, and what helps.
fn refusal(url: &str, status: u16, headers: &HeaderMap, with_token: bool) -> Error {
    let address = bare(url);
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let code = said("x-error-code");
    let login = "HF_TOKEN=… or hf auth login gives a token of https://huggingface.co/settings/tokens";
    match (status, code) {
        (_, "GatedRepo") => Error::Denied {
            what: format!("{address}: the repository is gated"),
            instead: if with_token {
                "its page on the hub says how its terms are accepted, by the account that the token is of".to_owned()
            } else {
                format!("accept its terms on its page on the hub; then {login}")
            },
        },
        (401 | 404, "RepoNotFound") | (401, "") if !with_token => Error::NotFound {
            what: format!("{address}: there is no such repository, or it is private or gated"),
            instead: format!("look at its spelling; if it is there, {login}"),
        },
        (401, "RepoNotFound") | (404, _) => Error::NotFound {
            what: format!(
                "{address}: there is no such {}",
                if code == "EntryNotFound" { "file" } else { "repository or revision" }
            ),
            instead: "look at its spelling on the hub's page".to_owned(),
        },
        (401 | 403, _) => Error::Denied {
            what: format!("{address}: access is refused ({status})"),
            instead: if with_token {
                "the token may be wrong, have expired, or lack the right to read gated repositories".to_owned()
            } else {
                format!("if it is yours, or its terms were accepted, {login}")
            },
        },
        (429, _) => {
            network(url, "it asks to wait (429: too many requests); try again later, or with a token (HF_TOKEN)")
        }
        _ => network(url, &format!("it answers {status}")),
    }
}

/// Where a redirect leads.
fn joined(url: &str, location: &str) -> String {
    // A query may hold addresses, too.
    let scheme = location.split(['/', '?', '#']).next().unwrap_or_default();
    if scheme.ends_with(':') && location[scheme.len()..].starts_with("//") {
        return location.to_owned();
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let path = rest[authority.len()..].split(['?', '#']).next().unwrap_or_default();
    match location {
        same if same.starts_with("//") => format!("{scheme}:{same}"),
        root if root.starts_with('/') => format!("{scheme}://{authority}{root}"),
        below => {
            let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
            format!("{scheme}://{authority}{folder}{below}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_joined() {
        let from = "https://h:8/a/b?x#y";
        for (to, expected) in [
            ("https://o/c", "https://o/c"),
            ("//o/c", "https://o/c"),
            ("/c?k=1", "https://h:8/c?k=1"),
            ("c", "https://h:8/a/c"),
            ("c?to=http://o/d", "https://h:8/a/c?to=http://o/d"),
            ("/c?to=http://o/d", "https://h:8/c?to=http://o/d"),
        ] {
            assert_eq!(joined(from, to), expected);
        }
        assert_eq!(joined("http://h", "c"), "http://h/c");
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_eq!(token.0, "hf_secret");
        for wrong in ["", " \n", "a b", "a\nb: c", "ü"] {
            assert!(Token::new(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |url: &str| Origin::of(url).unwrap();
        assert!(of("https://HF.co/x") == of("https://hf.co:443/y"));
        assert!(of("https://hf.co") != of("http://hf.co"));
        assert!(of("http://127.0.0.1:80/") != of("http://127.0.0.1:81/"));
        assert!(of("http://127.0.0.1:8").is_private() && !of("http://hf.co").is_private());
        for wrong in ["ftp://x/y", "x", "https://", "file:///etc/passwd"] {
            assert!(Origin::of(wrong).is_err(), "{wrong}");
        }
    }
}
