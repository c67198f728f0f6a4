// Copyright 2018 TiKV Project Authors. Licensed under Apache-2.0.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use log::info;
use tonic::transport::Channel;
use tonic::transport::ClientTlsConfig;
use tonic::transport::Identity;
use tonic::transport::{Certificate, Endpoint};
use tonic::Status;

use crate::internal_err;
use crate::Result;

/// The address without a scheme, if it has one.
fn host_of(addr: &str) -> &str {
    let addr = addr.trim_start();
    addr.strip_prefix("http://")
        .or_else(|| addr.strip_prefix("https://"))
        .unwrap_or(addr)
}

fn load_pem_file(tag: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| internal_err!("failed to load {} from path {}: {:?}", tag, path.display(), e))
}

/// Paths of the PEM files. They are read again for each connection, because they may have been renewed.
struct Files {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn read(&self) -> Result<(Certificate, Identity)> {
        let ca = load_pem_file("ca", &self.ca)?;
        let cert = load_pem_file("certificate", &self.cert)?;
        let key = load_pem_file("private key", &self.key)?;
        Ok((Certificate::from_pem(ca), Identity::from_pem(cert, key)))
    }
}

/// Manages the TLS protocol
#[derive(Default)]
pub(crate) struct SecurityManager {
    /// Without them, connections are made without TLS.
    files: Option<Files>,
}

impl SecurityManager {
    /// Load TLS configuration from files: the server's CA certificates, the own certificate chain and its private key.
    pub(crate) fn load(
        ca_path: impl Into<PathBuf>,
        cert_path: impl Into<PathBuf>,
        key_path: impl Into<PathBuf>,
    ) -> Result<SecurityManager> {
        let files = Files {
            ca: ca_path.into(),
            cert: cert_path.into(),
            key: key_path.into(),
        };
        files.read()?;
        Ok(SecurityManager { files: Some(files) })
    }

    /// Connect to gRPC server using TLS connection. If TLS is not configured, use normal connection.
    /// Fails if that takes longer than `timeout`.
    pub(crate) async fn connect<Factory, Client>(
        &self,
        addr: &str,
        timeout: Duration,
        factory: Factory,
    ) -> Result<Client>
    where
        Factory: FnOnce(Channel) -> Client,
    {
        info!("connect to rpc server at endpoint: {:?}", addr);
        let channel = match &self.files {
            Some(files) => tls_channel(files, addr, timeout)?,
            None => endpoint(format!("http://{}", host_of(addr)), timeout)?,
        };
        // The endpoint's own limit is for the connection, also when it is made anew; this one is for all that belongs to it.
        let ch = tokio::time::timeout(timeout, channel.connect())
            .await
            .map_err(|_| Status::unavailable(format!("no connection to {addr} within {timeout:?}")))??;

        Ok(factory(ch))
    }
}

fn tls_channel(files: &Files, addr: &str, timeout: Duration) -> Result<Endpoint> {
    let (ca, identity) = files.read()?;
    let tls = ClientTlsConfig::new().ca_certificate(ca).identity(identity);
    let endpoint = endpoint(format!("https://{}", host_of(addr)), timeout)?;
    Ok(endpoint.tls_config(tls)?)
}

fn endpoint(addr: String, timeout: Duration) -> Result<Endpoint> {
    let endpoint = Channel::from_shared(addr)?
        .connect_timeout(timeout)
        .tcp_keepalive(Some(Duration::from_secs(10)))
        .keep_alive_timeout(Duration::from_secs(3));
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_renewed_files_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let paths = ["ca", "cert", "key"].map(|name| temp.path().join(name));
        let [ca, cert, key] = &paths;
        assert!(SecurityManager::load(ca, cert, key).is_err());
        for path in &paths {
            std::fs::write(path, [0]).unwrap();
        }
        let files = SecurityManager::load(ca, cert, key).unwrap().files.unwrap();
        std::fs::write(ca, [1]).unwrap();
        std::fs::write(cert, [2]).unwrap();
        std::fs::write(key, [3]).unwrap();
        let (ca, identity) = files.read().unwrap();
        assert_eq!(ca.as_ref(), [1]);
        let identity = format!("{identity:?}");
        let renewed = Identity::from_pem([2], [3]);
        assert_eq!(identity, format!("{renewed:?}"));
    }
}
