//! Who may ask: by key, by the name that the server is called, by the page that a browser shows.
//!
//! A page anywhere in the web can send requests to a loopback address, and by DNS rebinding read the answers, too. So a request
//! must call the server by an address, by `localhost` or by a name that it was given; and where a browser names the page that
//! asks, that must be the server's own or one that was allowed.

use std::hint::black_box;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{StatusCode, Uri};

use super::failure::{Failure, Outcome};
use crate::{Error, Result};

/// What [`Policy::new`] is given.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Keys, one of which each request must bring; none: no key is needed.
    pub keys: Vec<String>,
    /// Names that the server may be called besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Pages, as `https://example.org`, that may ask from a browser besides the server's own; `*`: all.
    pub origins: Vec<String>,
}

/// Who may ask.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    keys: Vec<Arc<[u8]>>,
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Who asks, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// The key: what is in the cache is shared among those who have the same.
    pub(super) salt: Option<Arc<[u8]>>,
}

impl Policy {
    /// A policy for a server at an address. Others than this machine's own need a key.
    pub(super) fn new(access: Access, address: IpAddr) -> Result<Self> {
        if access.keys.iter().any(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            let problem = "a key is empty, or holds what a header cannot; letters, digits and signs work";
            return Err(Error::argument("key", problem));
        }
        if access.keys.is_empty() && !address.is_loopback() {
            let problem = format!("{address} can be reached by others; with a key it works, or at 127.0.0.1");
            return Err(Error::argument("host", problem));
        }
        let lower = |names: Vec<String>| names.into_iter().map(|name| name.trim_end_matches('/').to_ascii_lowercase());
        Ok(Self {
            keys: access.keys.into_iter().map(|key| Arc::from(key.into_bytes())).collect(),
            hosts: lower(access.hosts).collect(),
            origins: lower(access.origins).collect(),
        })
    }

    /// Checks how the server is called, and by which page.
    pub(super) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Outcome<()> {
        let host = host(headers, uri)?;
        let name = without_port(&host);
        if !self.hosts.iter().any(|known| *known == name || *known == host) && !is_own(name) {
            let message = format!("the server is not called {name:?}; wgslm serve --allow-host {name} lets it be");
            return Err(forbidden(message, "host"));
        }
        match single(headers, &ORIGIN)? {
            None => Ok(()),
            Some(origin) if self.may_show(&origin, &host) => Ok(()),
            Some(origin) => {
                let message =
                    format!("{origin:?} may not ask from a browser; wgslm serve --allow-origin {origin} lets it");
                Err(forbidden(message, "origin"))
            }
        }
    }

    /// The page that may read the answer, where a browser names one other than the server's own.
    pub(super) fn page(&self, headers: &HeaderMap, uri: &Uri) -> Option<String> {
        let origin = single(headers, &ORIGIN).ok()??;
        let host = host(headers, uri).ok()?;
        (self.may_show(&origin, &host) && !is_page_of(&origin, &host)).then_some(origin)
    }

    fn may_show(&self, origin: &str, host: &str) -> bool {
        let allowed = self.origins.iter().any(|known| known == "*" || *known == origin);
        allowed || is_page_of(origin, host)
    }

    /// Checks the key, in a time that does not depend on how much of it is right.
    pub(super) fn check_key(&self, headers: &HeaderMap) -> Outcome<Caller> {
        if self.keys.is_empty() {
            return Ok(Caller::default());
        }
        let unauthorised = |message: &str| {
            let code = Some("invalid_api_key");
            Failure { code, ..Failure::new(StatusCode::UNAUTHORIZED, message) }
        };
        let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
        });
        let own = headers.get("x-api-key").map(|value| value.as_bytes());
        let given: Vec<&[u8]> = [bearer, own].into_iter().flatten().collect();
        if given.is_empty() {
            return Err(unauthorised("a key is needed: Authorization: Bearer KEY, or x-api-key: KEY"));
        }
        let mut found = None;
        for key in &self.keys {
            for given in &given {
                if same(given, key) {
                    found = Some(Arc::clone(key));
                }
            }
        }
        match found {
            Some(key) => Ok(Caller { salt: Some(key) }),
            None => Err(unauthorised("the key is wrong")),
        }
    }
}

fn forbidden(message: String, param: &str) -> Failure {
    Failure { param: Some(param.to_owned()), ..Failure::new(StatusCode::FORBIDDEN, message) }
}

/// A header that may stand once, in lower case.
fn single(headers: &HeaderMap, name: &HeaderName) -> Outcome<Option<String>> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    let text = text.ok_or_else(|| Failure::new(StatusCode::BAD_REQUEST, format!("{name}: one name works")))?;
    Ok(Some(text.trim().to_ascii_lowercase()))
}

/// What the server is called, port included.
fn host(headers: &HeaderMap, uri: &Uri) -> Outcome<String> {
    if let Some(authority) = uri.authority() {
        return Ok(authority.as_str().to_ascii_lowercase());
    }
    let host = single(headers, &HOST)?.filter(|host| !host.is_empty());
    host.ok_or_else(|| Failure::new(StatusCode::BAD_REQUEST, "host: the header is missing"))
}

/// A name or address without its port.
fn without_port(host: &str) -> &str {
    if host.starts_with('[') {
        return host.split_inclusive(']').next().unwrap_or(host);
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// An address, which no name server can have changed, or this machine's own name.
fn is_own(name: &str) -> bool {
    let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match v6 {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name == "localhost" || name.ends_with(".localhost") || name.parse::<std::net::Ipv4Addr>().is_ok()
        }
    }
}

/// Whether a page is the server's own.
fn is_page_of(origin: &str, host: &str) -> bool {
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest == host)
}

/// Whether two keys are the same: the time depends on their lengths alone.
fn same(given: &[u8], key: &[u8]) -> bool {
    let mut difference = given.len() ^ key.len();
    for (i, byte) in given.iter().enumerate() {
        difference |= usize::from(byte ^ key[i % key.len()]);
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn policy(keys: &[&str], hosts: &[&str], origins: &[&str]) -> Policy {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Policy::new(Access { keys: own(keys), hosts: own(hosts), origins: own(origins) }, LOCAL).unwrap()
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn status(policy: &Policy, pairs: &[(&'static str, &str)]) -> u16 {
        let checked = policy.check_host(&headers(pairs), &"/v1/models".parse().unwrap());
        checked.map_or_else(|failure| failure.status.as_u16(), |()| 200)
    }

    #[test]
    fn the_server_answers_to_its_own_names() {
        let policy = policy(&[], &["box.lan", "proxy.example:8443"], &[]);
        for (host, expected) in [
            ("localhost", 200),
            ("localhost:11434", 200),
            ("LOCALHOST:1", 200),
            ("localhost.", 200),
            ("a.localhost:80", 200),
            ("127.0.0.1", 200),
            ("127.0.0.1:8080", 200),
            ("192.168.1.5:8080", 200),
            ("[::1]", 200),
            ("[::1]:8080", 200),
            ("[fe80::1]:8080", 200),
            ("box.lan", 200),
            ("BOX.lan:8080", 200),
            ("proxy.example:8443", 200),
            ("proxy.example", 403),
            ("evil.example", 403),
            ("evil.example:8080", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("127.0.0.1.nip.io", 403),
            ("localhost:evil", 403),
            ("localhost@evil.example", 403),
            ("evil.example#localhost", 403),
            ("0x7f.1", 403),
            ("2130706433", 403),
            ("127.1", 403),
            ("[::1", 403),
            ("[evil]", 403),
            ("::1", 403),
            ("notlocalhost", 403),
            ("", 400),
        ] {
            assert_eq!(status(&policy, &[("host", host)]), expected, "{host}");
        }
        assert_eq!(status(&policy, &[]), 400);
        assert_eq!(status(&policy, &[("host", "localhost"), ("host", "evil.example")]), 400);
        // The line of the request counts more than the header.
        let uri = "http://evil.example/v1/models".parse().unwrap();
        assert!(policy.check_host(&headers(&[("host", "localhost")]), &uri).is_err());
    }

    #[test]
    fn pages_may_ask_if_they_are_allowed() {
        let closed = policy(&[], &[], &[]);
        let open = policy(&[], &[], &["https://chat.example/", "HTTP://localhost:3000"]);
        let all = policy(&[], &[], &["*"]);
        for (origin, expected) in [
            ("http://localhost:8080", [200, 200, 200]),
            ("https://localhost:8080", [200, 200, 200]),
            ("http://localhost:3000", [403, 200, 200]),
            ("https://chat.example", [403, 200, 200]),
            ("http://chat.example", [403, 403, 200]),
            ("https://chat.example:444", [403, 403, 200]),
            ("https://chat.example.evil", [403, 403, 200]),
            ("http://localhost", [403, 403, 200]),
            ("http://127.0.0.1:8080", [403, 403, 200]),
            ("http://localhost:8080.evil.example", [403, 403, 200]),
            ("null", [403, 403, 200]),
            ("file://", [403, 403, 200]),
            ("localhost:8080", [403, 403, 200]),
            ("", [403, 403, 200]),
        ] {
            let of = |policy| status(policy, &[("host", "localhost:8080"), ("origin", origin)]);
            assert_eq!([of(&closed), of(&open), of(&all)], expected, "{origin}");
        }
        let page = |policy: &Policy, origin: &str| {
            policy.page(&headers(&[("host", "localhost:8080"), ("origin", origin)]), &"/".parse().unwrap())
        };
        assert_eq!(page(&open, "https://chat.example").as_deref(), Some("https://chat.example"));
        assert_eq!(page(&open, "http://localhost:8080"), None);
        assert_eq!(page(&closed, "https://chat.example"), None);
    }

    #[test]
    fn keys_are_needed_where_there_are_any() {
        let none = policy(&[], &[], &[]);
        let two = policy(&["secret-1", "other"], &[], &[]);
        let of = |policy: &Policy, pairs: &[(&'static str, &str)]| {
            let checked = policy.check_key(&headers(pairs));
            checked.map_or_else(|failure| Err(failure.status.as_u16()), |caller| Ok(caller.salt))
        };
        assert_eq!(of(&none, &[]), Ok(None));
        assert_eq!(of(&none, &[("authorization", "Bearer anything")]), Ok(None));
        for (name, value, expected) in [
            ("authorization", "Bearer secret-1", Some("secret-1")),
            ("authorization", "bearer other", Some("other")),
            ("authorization", "Bearer   other  ", Some("other")),
            ("x-api-key", "other", Some("other")),
            ("x-api-key", "secret-1", Some("secret-1")),
            ("authorization", "Basic other", None),
            ("authorization", "other", None),
            ("authorization", "Bearer", None),
            ("authorization", "Bearer ", None),
            ("authorization", "Bearer othe", None),
            ("authorization", "Bearer otherother", None),
            ("authorization", "Bearer Other", None),
            ("authorization", "Bearer secret-2", None),
            ("x-api-key", "", None),
            ("cookie", "other", None),
        ] {
            let found = of(&two, &[(name, value)]);
            assert_eq!(found, expected.map_or(Err(401), |key| Ok(Some(Arc::from(key.as_bytes())))), "{name}: {value}");
        }
        assert_eq!(of(&two, &[]), Err(401));
    }

    #[test]
    fn other_addresses_need_a_key() {
        let of = |address: &str, keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            Policy::new(Access { keys, ..Access::default() }, address.parse().unwrap()).is_ok()
        };
        for address in ["127.0.0.1", "127.8.9.1", "::1"] {
            assert!(of(address, &[]) && of(address, &["key"]), "{address}");
        }
        for address in ["0.0.0.0", "::", "192.168.0.1", "10.0.0.1", "::ffff:192.168.0.1", "8.8.8.8"] {
            assert!(!of(address, &[]) && of(address, &["key"]), "{address}");
        }
        assert!(!of("127.0.0.1", &[""]) && !of("127.0.0.1", &["two words"]) && !of("127.0.0.1", &["ä"]));
    }
}
