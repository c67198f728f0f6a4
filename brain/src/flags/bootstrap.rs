//! The flags that begin a store. etcd reads them where there is no store yet, and ignores them on later starts: a flag that was changed,
//! or a host name that is gone, must not keep a member from its data.

use std::collections::BTreeSet;
use std::net::ToSocketAddrs as _;

use etcd_types::url::Url;

/// The flags that describe a store that does not exist yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bootstrap {
    /// The faults of these flags that are known without DNS.
    pub(super) faults: Vec<String>,
    /// The name of this member.
    pub(super) name: String,
    /// The peer URLs of this member in `--initial-cluster`; empty if it does not name this member, or is not given.
    pub(super) listed: Vec<Url>,
    /// The peer URLs of this member in `--initial-advertise-peer-urls`.
    pub(super) advertised: Vec<Url>,
}

/// The reason why no store can be begun by these flags.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// They do not fit.
    #[error("{0}")]
    Invalid(String),
    /// A host name does not resolve: try again.
    #[error("{0}")]
    Unresolved(String),
}

impl Bootstrap {
    /// Returns the faults that do not matter where there is a store.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Checks the flags as etcd does before it begins a store. May wait for DNS.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), BootstrapError> {
        match self.faults.first() {
            Some(fault) => Err(BootstrapError::Invalid(fault.clone())),
            None if self.listed.is_empty() => Ok(()),
            None => self.check_advertised(),
        }
    }

    /// Checks that the peer URLs of this member are the same in both flags, literally or after resolving their hosts.
    fn check_advertised(&self) -> Result<(), BootstrapError> {
        let (listed, advertised) = (&self.listed, &self.advertised);
        let (missing, unlisted) = (without(listed, advertised), without(advertised, listed));
        if missing.is_empty() && unlisted.is_empty() {
            return Ok(());
        }
        let (reason, is_final) = match (resolve(listed), resolve(advertised)) {
            (Ok(listed), Ok(advertised)) if listed == advertised => return Ok(()),
            (Ok(_), Ok(_)) => ("the URLs resolve to different addresses".to_owned(), true),
            (Err(error), _) | (_, Err(error)) => (error, false),
        };
        let text = self.difference(&missing, &unlisted, &reason);
        Err(if is_final {
            BootstrapError::Invalid(text)
        } else {
            BootstrapError::Unresolved(text)
        })
    }

    /// Says in etcd's words which URLs are in one flag only.
    fn difference(&self, missing: &[&Url], unlisted: &[&Url], reason: &str) -> String {
        let joined = |urls: &[&Url], prefix: &str| {
            let texts: Vec<String> = urls.iter().map(|url| format!("{prefix}{url}")).collect();
            texts.join(",")
        };
        let prefix = format!("{}=", self.name);
        if missing.is_empty() {
            format!(
                "--initial-advertise-peer-urls has {} but missing from --initial-cluster={} ({reason})",
                joined(unlisted, &prefix),
                joined(&self.listed.iter().collect::<Vec<_>>(), &prefix),
            )
        } else {
            format!(
                "--initial-cluster has {} but missing from --initial-advertise-peer-urls={} ({reason})",
                joined(missing, &prefix),
                joined(&self.advertised.iter().collect::<Vec<_>>(), ""),
            )
        }
    }
}

/// Returns the URLs in `urls` that are not in `others`.
fn without<'a>(urls: &'a [Url], others: &[Url]) -> Vec<&'a Url> {
    urls.iter().filter(|url| !others.contains(url)).collect()
}

/// Returns the schemes and first addresses that URLs resolve to.
fn resolve(urls: &[Url]) -> Result<BTreeSet<(bool, String)>, String> {
    let resolved = urls.iter().map(|url| {
        let is_tls = url.scheme().is_tls();
        let Some(host_port) = url.host_port() else {
            return Ok((is_tls, url.address().to_owned()));
        };
        let found = host_port.to_socket_addrs();
        let mut found = found.map_err(|error| format!("{url} does not resolve: {error}"))?;
        let first = found.next().ok_or_else(|| format!("{url} does not resolve"))?;
        Ok((is_tls, first.to_string()))
    });
    resolved.collect()
}
