//! Certificates for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationList, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber,
};
use time::{Duration, OffsetDateTime};

/// A CA that signs certificates.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub pem: String,
    serial: u64,
}

/// A certificate and its key, in PEM.
pub struct Leaf {
    pub cert: String,
    pub key: String,
    serial: u64,
}

fn params(name: &str, days: std::ops::Range<i64>) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = OffsetDateTime::now_utc() + Duration::days(days.start) - Duration::minutes(5);
    params.not_after = OffsetDateTime::now_utc() + Duration::days(days.end);
    params
}

impl Ca {
    pub fn new(name: &str) -> Ca {
        Ca::signed_by(name, None)
    }

    /// Creates a CA whose certificate this one signs.
    pub fn intermediate(&self, name: &str) -> Ca {
        Ca::signed_by(name, Some(self))
    }

    fn signed_by(name: &str, root: Option<&Ca>) -> Ca {
        let mut params = params(name, 0..30);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let serial: u64 = rand::random::<u64>() >> 1;
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        let certificate = match root {
            None => params.self_signed(&key),
            Some(root) => params.signed_by(&key, &root.issuer),
        };
        Ca {
            pem: certificate.unwrap().pem(),
            issuer: Issuer::new(params, key),
            serial,
        }
    }

    /// Creates a certificate for `brain.example`.
    pub fn server(&self) -> Leaf {
        self.leaf("brain.example", true, 0, 10)
    }

    /// Creates a client certificate.
    pub fn client(&self, name: &str) -> Leaf {
        self.leaf(name, false, 0, 10)
    }

    /// Creates a client certificate as Kubernetes reads it: of a user, who may be in a group.
    pub fn user(&self, name: &str, group: Option<&str>) -> Leaf {
        let mut params = params(name, 0..10);
        params.subject_alt_names = Vec::new();
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(params, false)
    }

    /// Creates a certificate that is valid between two days from now.
    pub fn leaf(&self, name: &str, server: bool, from: i64, to: i64) -> Leaf {
        self.sign(params(name, from..to), server)
    }

    fn sign(&self, mut params: CertificateParams, server: bool) -> Leaf {
        let usage = if server {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        };
        params.extended_key_usages = vec![usage];
        if server {
            params
                .subject_alt_names
                .push(rcgen::SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
        }
        let serial: u64 = rand::random::<u64>() >> 1;
        params.serial_number = Some(SerialNumber::from(serial));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Leaf {
            cert,
            key: key.serialize_pem(),
            serial,
        }
    }

    /// Creates a list that revokes one certificate.
    pub fn revoke(&self, leaf: &Leaf) -> CertificateRevocationList {
        self.revoke_serial(leaf.serial)
    }

    /// Creates a list that revokes the certificate of a CA.
    pub fn revoke_ca(&self, ca: &Ca) -> CertificateRevocationList {
        self.revoke_serial(ca.serial)
    }

    fn revoke_serial(&self, serial: u64) -> CertificateRevocationList {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: OffsetDateTime::now_utc() - Duration::hours(1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: OffsetDateTime::now_utc() - Duration::hours(1),
            next_update: OffsetDateTime::now_utc() + Duration::days(1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap()
    }
}
