//! Certificates: who makes them, how long they last, which names they carry.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::{KeyRef, LocalRef, ObjectRef};
use super::schema;

/// Certificates of the brains and of their clients.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("(self.mode == 'CertManager') == has(self.issuerRef)")
        .message("issuerRef goes with mode CertManager and only with it"),
    validation = Rule::new("(self.mode == 'Secret') == has(self.secrets)")
        .message("secrets goes with mode Secret and only with it"),
    validation = Rule::new("duration(self.renewBefore) < duration(self.validity)")
        .message("renewBefore must be shorter than validity"),
    validation = Rule::new("duration(self.validity) >= duration('1m') && duration(self.validity) <= duration('8760h')")
        .message("validity must be between 1m and 8760h")
        .field_path(".validity"),
    validation = Rule::new("self.caGeneration <= oldSelf.caGeneration + 1")
        .message("caGeneration may be raised only one step at a time")
        .field_path(".caGeneration")
)]
pub struct Tls {
    /// Who makes the certificates.
    #[serde(default)]
    pub mode: TlsMode,

    /// How long a certificate is valid, from one minute to a year, in h, m and s.
    #[serde(default = "ninety_days")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub validity: String,

    /// How long before its end a certificate is renewed; never more often than every tenth of `validity`.
    #[serde(default = "thirty_days")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub renew_before: String,

    /// Further DNS names and IP addresses of the server certificate, such as those of a load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::names")]
    pub extra_sans: Vec<String>,

    /// Generation of the certificate authority's key. Raised by one, the key is replaced in phases; lower values are ignored.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub ca_generation: i32,

    /// Whether the phases of a key replacement follow each other by themselves.
    #[serde(default)]
    pub ca_advance: Advance,

    /// The issuer of cert-manager; only with mode CertManager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<ObjectRef>,

    /// The given Secrets; only with mode Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<TlsSecrets>,
}

/// Who makes the certificates.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum TlsMode {
    /// The operator, with a certificate authority for this cluster alone.
    #[default]
    Operator,
    /// The cert-manager issuer named in `issuerRef`.
    CertManager,
    /// Somebody else; the Secrets are named in `secrets`.
    Secret,
    /// Nobody: brains and clients speak plain HTTP/2. Whoever reaches the port reads and writes everything.
    Disabled,
}

/// How a replacement of the certificate authority's key goes on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Advance {
    /// Somebody confirms each phase: a kube-apiserver reads its CA file only when it starts.
    #[default]
    Manual,
    /// By itself, after a while.
    Auto,
}

/// Secrets made by somebody else.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsSecrets {
    /// The certificates that brains and clients trust.
    pub ca_bundle: KeyRef,
    /// Certificate and key of the client port.
    pub server: LocalRef,
    /// Certificate and key of the peer port.
    pub peer: LocalRef,
    /// Certificate and key with which the operator asks the brains.
    pub operator_client: LocalRef,
}

fn ninety_days() -> String {
    "2160h".to_owned()
}

fn thirty_days() -> String {
    "720h".to_owned()
}

fn one() -> i32 {
    1
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            mode: TlsMode::default(),
            validity: ninety_days(),
            renew_before: thirty_days(),
            extra_sans: Vec::new(),
            ca_generation: one(),
            ca_advance: Advance::default(),
            issuer_ref: None,
            secrets: None,
        }
    }
}
