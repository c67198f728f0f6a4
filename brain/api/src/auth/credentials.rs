//! The credentials of a client: a token, or the certificate of its connection.

use std::sync::Arc;

use tonic::Request;
use tonic::metadata::MetadataMap;
use tonic::transport::CertificateDer;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo, UdsConnectInfo};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use engine::log::Slot;

/// The metadata in which etcd's clients send their token, and the one in which clients of its HTTP gateway do.
const TOKEN_METADATA_KEYS: [&str; 2] = ["token", "authorization"];

/// Set by etcd's HTTP gateway, which shows its own certificate for all of its clients.
const GATEWAY_METADATA_KEY: &str = "grpcgateway-accept";

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    token: Option<Arc<str>>,
    certificates: Option<Arc<Vec<CertificateDer<'static>>>>,
}

impl Credentials {
    /// Returns those of a request.
    #[must_use]
    pub fn of<T>(request: &Request<T>) -> Self {
        if let Some(credentials) = request.extensions().get::<Credentials>() {
            return credentials.clone();
        }
        let extensions = request.extensions();
        let tcp = extensions.get::<TlsConnectInfo<TcpConnectInfo>>();
        let unix = extensions.get::<TlsConnectInfo<UdsConnectInfo>>();
        let certificates = tcp.map_or_else(|| unix.and_then(TlsConnectInfo::peer_certs), TlsConnectInfo::peer_certs);
        Self {
            token: token(request.metadata()),
            certificates: certificates.filter(|_| !request.metadata().contains_key(GATEWAY_METADATA_KEY)),
        }
    }

    /// Returns the same without the certificate.
    #[must_use]
    pub fn without_certificate(self) -> Self {
        Self {
            certificates: None,
            ..self
        }
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Returns the slot that a simple token names. The token's record is before this slot.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        let (_, slot) = self.token()?.split_once('.')?;
        slot.parse().ok().map(Slot)
    }

    /// The common name of the certificate, which was verified when the connection was made; empty if it has none. As in Go, the last
    /// one counts.
    #[must_use]
    pub fn common_name(&self) -> Option<String> {
        let leaf = self.certificates.as_ref()?.first()?;
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let names = certificate.subject().iter_common_name();
        let name = names.last().and_then(|name| name.as_str().ok());
        Some(name.unwrap_or_default().to_owned())
    }
}

/// Returns the token of a request. One that is no text is none that was given out.
fn token(metadata: &MetadataMap) -> Option<Arc<str>> {
    let value = TOKEN_METADATA_KEYS.iter().find_map(|key| metadata.get(*key))?;
    let token = value.to_str().unwrap_or_default();
    Some(token.strip_prefix("Bearer ").unwrap_or(token).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_read_before_authorization() {
        let mut request = Request::new(());
        assert_eq!(Credentials::of(&request).token(), None);
        request
            .metadata_mut()
            .insert("authorization", "Bearer a.7".parse().unwrap());
        let credentials = Credentials::of(&request);
        assert_eq!((credentials.token(), credentials.slot()), (Some("a.7"), Some(Slot(7))));
        request.metadata_mut().insert("token", "b".parse().unwrap());
        let credentials = Credentials::of(&request);
        assert_eq!((credentials.token(), credentials.slot()), (Some("b"), None));
    }
}
