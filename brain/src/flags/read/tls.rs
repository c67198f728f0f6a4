//! Certificates and TLS versions. Files are only named here; `tls` reads them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::config::{Config, Storage};
use super::Values;
use etcd_types::url::Url;
use tls::{SelfSigned, TlsOptions, TlsPolicy, TlsVersion};

/// The longest validity of a certificate that is made here.
const MAX_YEARS: u32 = 100;

/// Reads the certificates for clients. Where no URL has TLS, what does not fit has no effect, as in etcd.
pub(super) fn client(values: &Values<'_>, urls: &[&Url], warnings: &mut Vec<String>) -> Result<TlsOptions, String> {
    let mut scheme = Scheme::of(urls, warnings);
    let options = TlsOptions {
        pair: scheme.judge(pair(values, "cert-file", "key-file"))?,
        dial_pair: None,
        trusted_ca: path(values, "trusted-ca-file"),
        system_roots: false,
        crl: path(values, "client-crl-file"),
        allowed_hostnames: values.list("client-cert-allowed-hostname"),
        allowed_common_names: values.list("client-cert-allowed-cn"),
        self_signed: None,
    };
    scheme.judge(check(values, &options, ""))?;
    Ok(options)
}

/// The same for peers.
pub(super) fn peer(values: &Values<'_>, urls: &[&Url], warnings: &mut Vec<String>) -> Result<TlsOptions, String> {
    let mut scheme = Scheme::of(urls, warnings);
    let options = TlsOptions {
        pair: scheme.judge(pair(values, "peer-cert-file", "peer-key-file"))?,
        dial_pair: scheme.judge(pair(values, "peer-client-cert-file", "peer-client-key-file"))?,
        trusted_ca: path(values, "peer-trusted-ca-file"),
        system_roots: false,
        crl: path(values, "peer-crl-file"),
        allowed_hostnames: values.list("peer-cert-allowed-hostname"),
        allowed_common_names: values.list("peer-cert-allowed-cn"),
        self_signed: None,
    };
    scheme.judge(check(values, &options, "peer-"))?;
    Ok(options)
}

/// The scheme of the URLs that certificates are for.
struct Scheme<'a> {
    is_tls: bool,
    warnings: &'a mut Vec<String>,
}

impl<'a> Scheme<'a> {
    fn of(urls: &[&Url], warnings: &'a mut Vec<String>) -> Self {
        let is_tls = urls.iter().any(|url| url.scheme().is_tls());
        Self { is_tls, warnings }
    }

    /// Refuses a fault with TLS, and warns of it without.
    fn judge<T: Default>(&mut self, outcome: Result<T, String>) -> Result<T, String> {
        match outcome {
            Err(fault) if !self.is_tls => {
                self.warnings.push(format!(
                    "{fault}; it has no effect: no URL to listen on is https or unixs"
                ));
                Ok(T::default())
            }
            outcome => outcome,
        }
    }
}

/// Has the member make certificates for the URLs with TLS, if `--auto-tls` or `--peer-auto-tls` ask for it.
pub(super) fn self_sign(values: &Values<'_>, config: &mut Config, warnings: &mut Vec<String>) -> Result<(), String> {
    let years: u32 = values.number("self-signed-cert-validity")?;
    let fixtures = config.data_dir.join("fixtures");
    let client = [
        &config.listen_client_urls,
        &config.listen_client_http_urls,
        &config.listen_metrics_urls,
    ];
    let client: Vec<&Url> = client.into_iter().flatten().collect();
    let peer: Vec<&Url> = config.listen_peer_urls.iter().collect();
    for (flag, urls, options, dir) in [
        ("auto-tls", client, &mut config.client_tls, "client"),
        ("peer-auto-tls", peer, &mut config.peer_tls, "peer"),
    ] {
        if !values.bool(flag) {
            continue;
        }
        if options.pair.is_some() {
            warnings.push(format!("--{flag} has no effect: a certificate is given"));
            continue;
        }
        if years == 0 || years > MAX_YEARS {
            return Err(values.error(
                "self-signed-cert-validity",
                format!("{years} is not in 1 to {MAX_YEARS}"),
            ));
        }
        if flag == "peer-auto-tls" && options.trusted_ca.is_some() {
            return Err(format!(
                "--{flag} creates a certificate that --peer-trusted-ca-file did not sign"
            ));
        }
        let secure = urls.into_iter().filter(|url| url.scheme().is_tls());
        let hosts: BTreeSet<String> = secure
            .map(|url| url.host_port().map_or("localhost", |(host, _)| host).to_owned())
            .collect();
        if hosts.is_empty() {
            warnings.push(format!("--{flag} has no effect: no URL to listen on is https or unixs"));
            continue;
        }
        let dir = fixtures.join(dir);
        options.pair = Some((dir.join("cert.pem"), dir.join("key.pem")));
        options.self_signed = Some(SelfSigned {
            hosts: hosts.into_iter().collect(),
            years,
        });
    }
    Ok(())
}

pub(super) fn policy(values: &Values<'_>) -> Result<TlsPolicy, String> {
    let versions = [
        ("", TlsVersion::Tls13),
        ("TLS1.2", TlsVersion::Tls12),
        ("TLS1.3", TlsVersion::Tls13),
    ];
    let min = match values.text("tls-min-version") {
        "" => TlsVersion::Tls12,
        _ => values.one_of("tls-min-version", &versions[1..])?,
    };
    let max = values.one_of("tls-max-version", &versions)?;
    if min > max {
        return Err("min version (TLS1.3) is greater than max version (TLS1.2)".to_owned());
    }
    let cipher_suites = values.list("cipher-suites");
    if min == TlsVersion::Tls13 && !cipher_suites.is_empty() {
        return Err("cipher suites cannot be configured when only TLS1.3 is enabled".to_owned());
    }
    Ok(TlsPolicy {
        min,
        max,
        cipher_suites,
    })
}

/// Requires certificates for URLs with TLS; warns about certificates without such a URL.
pub(super) fn check_schemes(config: &Config, warnings: &mut Vec<String>) -> Result<(), String> {
    let client = [
        &config.listen_client_urls,
        &config.listen_client_http_urls,
        &config.listen_metrics_urls,
    ];
    let client: Vec<&Url> = client.into_iter().flatten().collect();
    let peer: Vec<&Url> = config.listen_peer_urls.iter().collect();
    for (urls, options, cert, key) in [
        (client, &config.client_tls, "--cert-file", "--key-file"),
        (peer, &config.peer_tls, "--peer-cert-file", "--peer-key-file"),
    ] {
        let secure = urls.iter().find(|url| url.scheme().is_tls());
        match (secure, &options.pair) {
            (Some(url), None) => return Err(format!("{url} needs a certificate: set {cert} and {key}")),
            (None, Some(_)) => warnings.push(format!("{cert} has no effect: no URL to listen on is https or unixs")),
            _ => {}
        }
    }
    let plain = config.listen_peer_urls.iter().find(|url| !url.scheme().is_tls());
    if let (Storage::Tikv(_), Some(_), Some(url)) = (&config.storage, &config.client_tls.trusted_ca, plain) {
        warnings.push(format!(
            "clients need certificates, but {url} is plain: members authenticate each other, but send all data unencrypted"
        ));
    }
    Ok(())
}

fn check(values: &Values<'_>, options: &TlsOptions, prefix: &str) -> Result<(), String> {
    if values.bool(&format!("{prefix}client-cert-auth")) && options.trusted_ca.is_none() {
        return Err(format!("--{prefix}client-cert-auth needs --{prefix}trusted-ca-file"));
    }
    let restricted =
        options.crl.is_some() || !options.allowed_hostnames.is_empty() || !options.allowed_common_names.is_empty();
    if restricted && options.trusted_ca.is_none() {
        return Err(format!(
            "restrictions of client certificates need --{prefix}trusted-ca-file"
        ));
    }
    if !options.allowed_hostnames.is_empty() && !options.allowed_common_names.is_empty() {
        let of = if prefix.is_empty() { "client-" } else { prefix };
        return Err(format!(
            "--{of}cert-allowed-cn and --{of}cert-allowed-hostname exclude each other"
        ));
    }
    Ok(())
}

fn path(values: &Values<'_>, name: &str) -> Option<PathBuf> {
    Some(values.text(name))
        .filter(|text| !text.is_empty())
        .map(PathBuf::from)
}

fn pair(values: &Values<'_>, cert: &str, key: &str) -> Result<Option<(PathBuf, PathBuf)>, String> {
    match (path(values, cert), path(values, key)) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(format!("--{cert} needs --{key}")),
        (None, Some(_)) => Err(format!("--{key} needs --{cert}")),
    }
}
