//! Certificates: who issues them, how long they are valid, which names they carry.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::{KeyRef, LocalRef};
use super::schema;

/// Validity of a certificate if `tls.validity` is not set: 90 days.
pub const DEFAULT_VALIDITY: &str = "2160h";
/// Time before its end at which a certificate is renewed if `tls.renewBefore` is not set: 30 days.
pub const DEFAULT_RENEW_BEFORE: &str = "720h";

/// Certificates of the brains and of their clients.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("self.mode == oldSelf.mode")
        .message("tls.mode is immutable: brains and clients of the former mode would lose each other. To have cert-manager's authority sign, keep mode Operator and set tls.caSecretRef; for another mode restore a snapshot into a new cluster")
        .field_path(".mode"),
    validation = Rule::new("(self.mode == 'Secret') == has(self.secrets)")
        .message("tls.secrets is required with mode Secret and forbidden otherwise"),
    validation = Rule::new("self.mode == 'Operator' || !has(self.caSecretRef)")
        .message("tls.caSecretRef requires mode Operator: the operator signs with that authority"),
    validation = Rule::new("self.mode == 'Operator' || (!has(self.validity) && !has(self.renewBefore) && !has(self.serverAltNames))")
        .message("tls.validity, renewBefore and serverAltNames require mode Operator: remove them, or set them where the certificates are made"),
    validation = Rule::new("self.mode == 'Operator' || (!has(self.caGeneration) && !has(self.caAdvance))")
        .message("tls.caGeneration and caAdvance require mode Operator"),
    validation = Rule::new("!has(self.caSecretRef) || !has(self.caGeneration)")
        .message("tls.caGeneration replaces the operator's own key: with caSecretRef put the new key into that Secret instead"),
    validation = Rule::new("!has(self.validity) || self.validity.matches('^([0-9]+(h|m|s))+$')")
        .message("tls.validity is written in h, m and s: 90 days are 2160h")
        .field_path(".validity"),
    validation = Rule::new("!has(self.renewBefore) || self.renewBefore.matches('^([0-9]+(h|m|s))+$')")
        .message("tls.renewBefore is written in h, m and s: 30 days are 720h")
        .field_path(".renewBefore"),
    validation = Rule::new(
        "(has(self.validity) && !self.validity.matches('^([0-9]+(h|m|s))+$')) || (has(self.renewBefore) && !self.renewBefore.matches('^([0-9]+(h|m|s))+$')) || duration(has(self.renewBefore) ? self.renewBefore : (has(self.validity) && duration(self.validity) <= duration('720h') ? '0s' : '720h')) < duration(has(self.validity) ? self.validity : '2160h')"
    )
    .message("tls.renewBefore must be shorter than validity"),
    validation = Rule::new("!has(self.validity) || !self.validity.matches('^([0-9]+(h|m|s))+$') || (duration(self.validity) >= duration('1m') && duration(self.validity) <= duration('8760h'))")
        .message("tls.validity must be between 1m and 8760h")
        .field_path(".validity"),
    validation = Rule::new(
        "(has(self.caGeneration) ? self.caGeneration : 1) <= (has(oldSelf.caGeneration) ? oldSelf.caGeneration : 1) + 1"
    )
    .message("tls.caGeneration may be raised only one step at a time")
)]
pub struct Tls {
    /// Issuer of the certificates. Operator: the operator, with an authority for this cluster or with yours, such as one of cert-manager
    /// (`caSecretRef`). Secret: another issuer; name the Secrets in `secrets`. Disabled: none; brains and clients use plain HTTP/2, and anyone
    /// who can reach the port can read and write everything. It cannot be changed later.
    #[serde(default)]
    pub mode: TlsMode,

    /// Validity of a certificate, from one minute to a year, in h, m and s. Default: 2160h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub validity: Option<String>,

    /// Time before its end at which a certificate is renewed. Default: 720h, or a third of the validity if that is 720h or less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub renew_before: Option<String>,

    /// Additional DNS names and IP addresses for the server certificate, such as those of a load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::names")]
    pub server_alt_names: Vec<String>,

    /// Generation of the certificate authority's key. Raising it by one replaces the key in phases. Lower values are ignored. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ca_generation: Option<i32>,

    /// Selects how a key replacement advances from one phase to the next. Default: Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_advance: Option<Advance>,

    /// Secret with your own certificate authority, which signs instead of one created by the operator. Certificate and key are in `ca.crt`
    /// and `ca.key`, or in `tls.crt` and `tls.key` as in a Secret of cert-manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<LocalRef>,

    /// Secrets that you provide. Only with mode Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<TlsSecrets>,
}

/// Selects who issues the certificates.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum TlsMode {
    /// The operator, with a certificate authority for this cluster alone or with yours.
    #[default]
    Operator,
    /// Another issuer, such as cert-manager. Name the Secrets in `secrets`.
    Secret,
    /// No certificates: brains and clients speak plain HTTP/2. Anyone who can reach the port can read and write everything.
    Disabled,
}

/// How a key replacement advances. Manual: you confirm each phase with the annotation `kubebrain.io/ca-advance`; use it for a
/// kube-apiserver, which reads its CA file only when it starts. Auto: the operator advances when all members report the new bundle and it
/// has been published for `--ca-propagation`. Default: Manual.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Advance {
    /// A user confirms each phase with the annotation `kubebrain.io/ca-advance`. Its value is the phase to enter and the generation of the
    /// key, such as `Issuing@2`. Use this for a kube-apiserver, which reads its CA file only when it starts.
    #[default]
    Manual,
    /// The operator advances when all members report the new bundle and it has been published for a while.
    Auto,
}

/// Secrets that the operator uses but does not create.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsSecrets {
    /// CA certificates that brains and clients trust.
    pub ca_bundle: KeyRef,
    /// Certificate and key of the client port.
    pub server: LocalRef,
    /// Certificate and key of the peer port. The common name is `kubebrain-peer`.
    pub peer: LocalRef,
    /// Client certificate and key with which the operator connects to the brains.
    pub operator_client: LocalRef,
}

impl Tls {
    /// Returns the validity and the time of renewal before the end, with defaults filled in, as texts for [`crate::duration`].
    #[must_use]
    pub fn durations(&self) -> (String, String) {
        let validity = self.validity.clone().unwrap_or_else(|| DEFAULT_VALIDITY.to_owned());
        let before = self.renew_before.clone().unwrap_or_else(|| {
            let seconds = crate::duration::parse(&validity).map_or(0, |validity| validity.as_secs());
            if seconds > 720 * 3600 {
                DEFAULT_RENEW_BEFORE.to_owned()
            } else {
                format!("{}s", seconds / 3)
            }
        });
        (validity, before)
    }

    /// Returns the wanted generation of the authority's key.
    #[must_use]
    pub fn generation(&self) -> i32 {
        self.ca_generation.unwrap_or(1)
    }
}
