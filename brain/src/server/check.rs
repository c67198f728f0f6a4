//! `--check`: checks what a start would read, and changes nothing. The flags are read before.

use anyhow::Context as _;

use crate::data_dir;
use crate::flags::{Config, Storage};
use crate::server::tikv::connection;
use api::auth::Authenticator;
use tls::{ServerTls, TlsOptions};

/// Fails with the first fault of a file that the flags name, or of the layout of a data directory that exists.
pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    Authenticator::new(&config.auth).context("read the keys of tokens")?;
    let clients = [
        &config.listen_client_urls,
        &config.listen_client_http_urls,
        &config.listen_metrics_urls,
    ];
    if clients.into_iter().flatten().any(|url| url.scheme().is_tls()) {
        certificates(&config.client_tls, config).context("load the certificates for clients")?;
    }
    match &config.storage {
        Storage::Embedded => {
            if config.data_dir.exists() {
                data_dir::inspect(&config.data_dir)?;
            }
        }
        Storage::Tikv(options) => {
            if config.listen_peer_urls.iter().any(|url| url.scheme().is_tls()) {
                certificates(&config.peer_tls, config).context("load the certificates for peers")?;
            }
            engine_tikv::check(&connection(options, 0)).context("check the access to TiKV")?;
        }
    }
    tracing::info!("flags and files are valid");
    Ok(())
}

/// Loads certificates, unless the member makes its own: that would write them.
fn certificates(options: &TlsOptions, config: &Config) -> anyhow::Result<()> {
    if options.self_signed.is_none() {
        ServerTls::load(options, &config.tls_policy)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::*;
    use crate::flags::{Asked, parse};

    /// Returns the fault of a command line, which is checked in a directory of its own.
    fn fault(dir: &Path, line: &str) -> Option<String> {
        let line = format!("--check --data-dir {}/data {line}", dir.display());
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let Ok(Asked::Serve(config, _)) = parse(args, []) else {
            panic!("{line} is refused")
        };
        run(&config).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn files_that_flags_name_are_checked_and_nothing_is_made() {
        let dir = tempfile::TempDir::new().unwrap();
        let faulty = |line: &str| fault(dir.path(), line);
        assert_eq!(faulty(""), None);
        assert_eq!(
            faulty("--listen-client-urls https://127.0.0.1:0 --advertise-client-urls https://a:1 --auto-tls"),
            None
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let missing = "--listen-client-urls https://127.0.0.1:0 --advertise-client-urls https://a:1 --cert-file /no/a.crt --key-file /no/a.key";
        assert!(faulty(missing).unwrap().contains("/no/a.crt"));
        let tikv =
            "--storage tikv --tikv-pd-endpoints pd:2379 --tikv-ca /no/ca --tikv-cert /no/cert --tikv-key /no/key";
        assert!(faulty(tikv).unwrap().contains("/no/ca"));
        let jwt = "--auth-token jwt,sign-method=RS256,pub-key=/no/pub,priv-key=/no/priv";
        assert!(faulty(jwt).unwrap().contains("/no/p"));
        std::fs::create_dir_all(dir.path().join("data/member")).unwrap();
        assert!(faulty("").unwrap().contains("does not belong to kubebrain"));
    }
}
