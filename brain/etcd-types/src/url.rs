//! URLs in the format of etcd's flags: `http://127.0.0.1:2379`, `https://[::1]:2379`, `unix:///run/brain.sock`.

use std::fmt;
use std::net::IpAddr;

/// The transport of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// TCP.
    Http,
    /// TLS over TCP.
    Https,
    /// A Unix socket in the file system.
    Unix,
    /// TLS over a Unix socket in the file system.
    Unixs,
}

impl Scheme {
    /// Returns true if the transport is TLS.
    #[must_use]
    pub fn is_tls(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Unixs)
    }

    fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        }
    }
}

/// A URL without path, query or user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    scheme: Scheme,
    address: String,
}

impl Url {
    /// Returns its scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns `host:port`, or the path of the socket.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the host without brackets, and the port; `None` for Unix sockets.
    #[must_use]
    pub fn host_port(&self) -> Option<(&str, u16)> {
        match self.scheme {
            Scheme::Http | Scheme::Https => split(&self.address),
            Scheme::Unix | Scheme::Unixs => None,
        }
    }

    /// Returns true if its host is a wildcard address, which no client can dial.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        let ip = self.host_port().and_then(|(host, _)| host.parse::<IpAddr>().ok());
        ip.is_some_and(|ip| ip.is_unspecified())
    }

    /// Parses one URL as Go does: the scheme in any case; a user, a query and a fragment are left out. The error describes the fault.
    pub fn parse(text: &str) -> Result<Url, String> {
        let text = text.trim();
        let no_url = || format!("{text:?} is not a URL such as http://127.0.0.1:2379");
        let (scheme, rest) = text.split_once(':').ok_or_else(no_url)?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let authority = rest.strip_prefix("//");
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ if authority.is_none() => return Err(no_url()),
            other => {
                return Err(format!(
                    "URL scheme must be http, https, unix, or unixs: {other:?} in {text:?}"
                ));
            }
        };
        match (scheme, authority) {
            (Scheme::Unix | Scheme::Unixs, None) if rest.starts_with('/') => Ok(Url::new(scheme, rest)),
            (Scheme::Unix | Scheme::Unixs, Some(address)) if !address.is_empty() => Ok(Url::new(scheme, address)),
            (Scheme::Unix | Scheme::Unixs, _) => Err(format!("no path of a socket in {text:?}")),
            (Scheme::Http | Scheme::Https, None) => {
                Err(format!("URL address does not have the form \"host:port\": {text:?}"))
            }
            (Scheme::Http | Scheme::Https, Some(authority)) if authority.contains('/') => {
                Err(format!("URL must not contain a path: {text:?}"))
            }
            (Scheme::Http | Scheme::Https, Some(authority)) => {
                let address = authority.rsplit('@').next().unwrap_or_default();
                match split(address) {
                    Some(_) => Ok(Url::new(scheme, address)),
                    None => Err(format!("URL address does not have the form \"host:port\": {text:?}")),
                }
            }
        }
    }

    fn new(scheme: Scheme, address: &str) -> Url {
        let address = address.to_owned();
        Url { scheme, address }
    }

    /// Parses a comma-separated list and removes duplicates; an empty text is an empty list. The error describes the first bad URL.
    pub fn parse_list(text: &str) -> Result<Vec<Url>, String> {
        let mut urls = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let url = Url::parse(part)?;
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        Ok(urls)
    }

    /// Checks that a server can listen on it. Fails if the host is a name other than `localhost`.
    pub fn check_bind(&self) -> Result<(), String> {
        match self.host_port() {
            Some((host, _)) if host != "localhost" && host.parse::<IpAddr>().is_err() => {
                Err(format!("expected IP in URL for binding ({self})"))
            }
            _ => Ok(()),
        }
    }
}

/// Splits an address into the host without brackets, and the port.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .filter(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())?,
        None if host.contains([':', ']', '@', '%', '\\', '^', '`', '{', '|', '}', ' ']) => return None,
        None => host,
    };
    if !port.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some((bare, port.parse().ok()?))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_their_parts() {
        for (text, host_port, address) in [
            ("http://127.0.0.1:2379", Some(("127.0.0.1", 2379)), "127.0.0.1:2379"),
            ("https://[::1]:0", Some(("::1", 0)), "[::1]:0"),
            ("http://localhost:1", Some(("localhost", 1)), "localhost:1"),
            ("unix:///run/a.sock", None, "/run/a.sock"),
            ("unixs://localhost:m0", None, "localhost:m0"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host_port(), url.address()), (host_port, address), "{text}");
            assert_eq!(url.to_string(), text);
        }
    }

    /// The results that etcd 3.6 has for these texts.
    #[test]
    fn urls_are_read_as_by_go() {
        for (text, url) in [
            ("HTTP://127.0.0.1:2379", Some("http://127.0.0.1:2379")),
            (" http://127.0.0.1:2379 ", Some("http://127.0.0.1:2379")),
            ("http://a_b:2379", Some("http://a_b:2379")),
            ("http://u@h:2379", Some("http://h:2379")),
            ("http://u:p@h:2379", Some("http://h:2379")),
            ("http://127.0.0.1:2379?x=1", Some("http://127.0.0.1:2379")),
            ("http://127.0.0.1:2379#f", Some("http://127.0.0.1:2379")),
            ("http://a!b:1", Some("http://a!b:1")),
            ("http://:2379", Some("http://:2379")),
            ("https://127.0.0.1:02379", Some("https://127.0.0.1:02379")),
            ("unix:///run/a.sock", Some("unix:///run/a.sock")),
            ("UNIX:///run/a.sock", Some("unix:///run/a.sock")),
            ("unix:/run/a.sock", Some("unix:///run/a.sock")),
            ("unix://localhost:1", Some("unix://localhost:1")),
            ("http://127.0.0.1:2379/", None),
            ("http://127.0.0.1", None),
            ("http://127.0.0.1:port", None),
            ("http://127.0.0.1:-1", None),
            ("http://127.0.0.1:+1", None),
            ("http://::1:2379", None),
            ("http://[fe80::1]", None),
            ("http://[127.0.0.1]:1", None),
            ("http://[::1%eth0]:2379", None),
            ("http://a%41:1", None),
            ("http://a b:1", None),
            ("http:127.0.0.1:1", None),
            ("http:///127.0.0.1:1", None),
            ("127.0.0.1:2379", None),
            ("localhost:2379", None),
            ("unix:a.sock", None),
            ("unix://", None),
        ] {
            let found = Url::parse(text).ok().map(|url| url.to_string());
            assert_eq!(found.as_deref(), url, "{text:?}");
        }
        // Go takes these, and then cannot listen on them or dial them; the second one it refuses.
        for (text, is_taken) in [
            ("http://127.0.0.1:70000", false),
            ("unix://localhost:m0", true),
            ("http://127.0.0.1:", false),
            ("http://[::1%25eth0]:2379", false),
        ] {
            assert_eq!(Url::parse(text).is_ok(), is_taken, "{text}");
        }
    }

    #[test]
    fn bad_urls_are_refused() {
        for (text, reason) in [
            ("127.0.0.1:2379", "is not a URL"),
            ("ftp://127.0.0.1:2379", "scheme must be"),
            ("http://127.0.0.1", "form \"host:port\""),
            ("http://127.0.0.1:port", "form \"host:port\""),
            ("http://127.0.0.1:70000", "form \"host:port\""),
            ("http://::1:2379", "form \"host:port\""),
            ("http://127.0.0.1:2379/v3", "must not contain a path"),
            ("unix://", "no path"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn only_addresses_can_be_bound() {
        for (text, ok) in [
            ("http://0.0.0.0:1", true),
            ("http://localhost:1", true),
            ("unix://x", true),
            ("http://example.org:1", false),
            ("http://:1", false),
        ] {
            assert_eq!(Url::parse(text).unwrap().check_bind().is_ok(), ok, "{text}");
        }
    }

    #[test]
    fn lists_take_duplicates_once() {
        assert_eq!(Url::parse_list(""), Ok(vec![]));
        assert_eq!(Url::parse_list("http://a:1,http://b:2,http://a:1").unwrap().len(), 2);
        assert!(Url::parse_list("http://a:1,").is_err());
    }
}
