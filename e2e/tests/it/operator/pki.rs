//! An authority of a test's own, and what it signs.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};

/// An authority that the operator did not make.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(common: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate().unwrap();
        Self {
            certificate: params.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A Secret with a certificate for this common name and these names, for servers and clients.
    pub(super) fn secret(&self, name: &str, common: &str, serves: &[&str]) -> Value {
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.secret_for(name, common, serves, &usages)
    }

    /// The same for some usages only.
    pub(crate) fn secret_for(
        &self,
        name: &str,
        common: &str,
        serves: &[&str],
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Value {
        let serves: Vec<String> = serves.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(serves).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        params.extended_key_usages = usages.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": name},
            "stringData": {"tls.crt": certificate.pem(), "tls.key": key.serialize_pem(), "ca.crt": self.certificate},
        })
    }

    /// A Secret with the certificate alone.
    pub(super) fn bundle(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {"ca.crt": self.certificate},
        })
    }

    /// A Secret with certificate and key, with which another party can sign.
    pub(super) fn signer(&self, name: &str) -> Value {
        let mut secret = self.bundle(name);
        secret["stringData"]["ca.key"] = json!(self.key);
        secret
    }
}
