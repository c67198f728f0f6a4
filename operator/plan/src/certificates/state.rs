//! The contents of the authority's Secret: keys, certificates that are still trusted, and the progress of a key replacement.
//!
//! The published bundle and the signing key follow from it alone, so the next pass can continue after a pass that was killed at any point.
//! Invariant: the bundle has the authority of every certificate in use, and of every one that may be issued before the bundle changes.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::{Authority, CaBundle, CertificateError, CertificatePair, InspectedCertificate};

/// Progress of a replacement of the authority's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationPhase {
    /// No replacement is in progress.
    Stable,
    /// The coming certificate is trusted; the former key signs.
    Publishing,
    /// The new key signs; the former certificate is still trusted.
    Issuing,
    /// The former certificate is no longer trusted.
    Retiring,
}

impl RotationPhase {
    const ALL: [Self; 4] = [Self::Stable, Self::Publishing, Self::Issuing, Self::Retiring];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "Stable",
            Self::Publishing => "Publishing",
            Self::Issuing => "Issuing",
            Self::Retiring => "Retiring",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text)
    }
}

/// A certificate of an authority, and its key unless that is kept elsewhere.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityEntry {
    pub certificate: String,
    pub key: Option<String>,
}

impl AuthorityEntry {
    fn inspect(&self) -> Result<InspectedCertificate, CertificateError> {
        InspectedCertificate::read(&self.certificate)
    }

    /// Returns the authority, with the stored key or with that of `given`.
    ///
    /// # Errors
    /// There is no key, or the key is unusable.
    pub fn authority(&self, given: Option<&Authority>) -> Result<Authority, CertificateError> {
        let key = match (&self.key, given) {
            (Some(key), _) => key.clone(),
            (None, Some(given)) => given.pair().key.clone(),
            (None, None) => return Err(CertificateError::Mismatch),
        };
        Authority::load(CertificatePair {
            certificate: self.certificate.clone(),
            key,
        })
    }
}

impl From<&CertificatePair> for AuthorityEntry {
    fn from(pair: &CertificatePair) -> Self {
        Self {
            certificate: pair.certificate.clone(),
            key: Some(pair.key.clone()),
        }
    }
}

/// Every key of the Secret's data.
const SECRET_KEYS: [&str; 10] = [
    "phase",
    "generation",
    "since",
    "published",
    "ca.crt",
    "ca.key",
    "next.crt",
    "next.key",
    "nextGeneration",
    "old.crt",
];

/// The state of an authority.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityState {
    /// Generation of the key that signs.
    pub generation: i32,
    pub phase: RotationPhase,
    /// When the phase began.
    pub since: Timestamp,
    /// When the bundle of this phase was first seen published.
    pub published: Option<Timestamp>,
    /// The signing authority; `None` if its key is lost.
    pub current: Option<AuthorityEntry>,
    /// The next signing authority, and its generation.
    pub next: Option<(i32, AuthorityEntry)>,
    /// Former certificates, trusted until the phase Retiring.
    pub old: CaBundle,
}

/// A step from one state to the next.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthorityChange {
    /// The first key.
    Create { generation: i32 },
    /// A new key after the former one was lost; certificates trusted so far stay trusted.
    Recreate {
        former: i32,
        generation: i32,
        trusted: CaBundle,
    },
    /// The key of the user's own authority, as the first key or as another one; certificates trusted so far stay trusted.
    Adopt {
        certificate: String,
        former: i32,
        trusted: CaBundle,
    },
    /// A later end of the certificate, with the same key and name.
    Renew,
    /// Another certificate for the same key, issued by the user.
    Renewed { certificate: String },
    /// A new key that is not used yet.
    Replace { generation: i32 },
    /// The bundle was seen published.
    Published,
    /// The new key signs from now on.
    Issue,
    /// The former certificate is no longer trusted.
    Retire,
    /// The replacement is complete.
    Finish,
    /// No change: the Secret is written as it should be.
    Keep,
}

impl AuthorityState {
    fn stable(generation: i32, current: AuthorityEntry, now: Timestamp) -> Self {
        Self {
            generation,
            phase: RotationPhase::Stable,
            since: whole(now),
            published: None,
            current: Some(current),
            next: None,
            old: CaBundle::default(),
        }
    }

    /// Reads the data of the Secret. A Secret with only `ca.crt` and `ca.key` is stable, of `generation`.
    ///
    /// Older operators left data that no longer applies in a later phase: a coming authority that is already the signing one, and former
    /// certificates after the end of a replacement. They are ignored.
    ///
    /// # Errors
    /// A certificate or key does not decode or does not match, or the parts contradict each other.
    pub fn read(data: &BTreeMap<String, String>, generation: i32) -> Result<Self, CertificateError> {
        let text = |key: &str| data.get(key).filter(|text| !text.is_empty());
        let time = |key: &'static str| match text(key) {
            Some(text) => text
                .parse::<Timestamp>()
                .map(Some)
                .map_err(|_| CertificateError::Field(key)),
            None => Ok(None),
        };
        let number = |key: &'static str| match text(key) {
            Some(text) => text.parse::<i32>().map(Some).map_err(|_| CertificateError::Field(key)),
            None => Ok(None),
        };
        let entry = |certificate: &str, key: &str| {
            text(certificate).map(|certificate| AuthorityEntry {
                certificate: certificate.clone(),
                key: text(key).cloned(),
            })
        };
        let current = entry("ca.crt", "ca.key");
        let begin = match &current {
            Some(current) => current.inspect()?.not_before,
            None => Timestamp::UNIX_EPOCH,
        };
        let phase = match text("phase") {
            Some(text) => RotationPhase::parse(text).ok_or(CertificateError::Field("phase"))?,
            None => RotationPhase::Stable,
        };
        let generation = number("generation")?.unwrap_or(generation);
        let next = entry("next.crt", "next.key")
            .filter(|next| phase == RotationPhase::Publishing || current.as_ref() != Some(next));
        let state = Self {
            generation,
            phase,
            since: time("since")?.unwrap_or(begin),
            published: time("published")?,
            current,
            next: next
                .map(|next| Ok::<_, CertificateError>((number("nextGeneration")?.unwrap_or(generation + 1), next)))
                .transpose()?,
            old: match text("old.crt").filter(|_| phase != RotationPhase::Stable) {
                Some(old) => CaBundle::parse(old)?,
                None => CaBundle::default(),
            },
        };
        state.check()?;
        Ok(state)
    }

    fn check(&self) -> Result<(), CertificateError> {
        match (self.phase, &self.current, &self.next) {
            (RotationPhase::Publishing, _, Some(_))
            | (RotationPhase::Issuing | RotationPhase::Retiring | RotationPhase::Stable, Some(_), None) => {}
            (RotationPhase::Publishing, _, None) => return Err(CertificateError::Field("next.crt")),
            (_, None, _) => return Err(CertificateError::Field("ca.crt")),
            (_, _, Some(_)) => return Err(CertificateError::Field("next.crt")),
        }
        for entry in self.current.iter().chain(self.next.iter().map(|(_, next)| next)) {
            if entry.key.is_some() {
                entry.authority(None)?;
            } else if !entry.inspect()?.is_authority {
                return Err(CertificateError::NoAuthority);
            }
        }
        Ok(())
    }

    /// Returns the data of the Secret. A key without a value gets an empty text: if an apply omitted it, a value from the creation of the
    /// Secret would stay.
    pub fn data(&self) -> BTreeMap<String, String> {
        let mut data: BTreeMap<String, String> = SECRET_KEYS.map(|key| (key.to_owned(), String::new())).into();
        let mut put = |key: &str, text: String| drop(data.insert(key.to_owned(), text));
        put("phase", self.phase.as_str().to_owned());
        put("generation", self.generation.to_string());
        put("since", self.since.to_string());
        if let Some(published) = self.published {
            put("published", published.to_string());
        }
        if let Some((generation, _)) = &self.next {
            put("nextGeneration", generation.to_string());
        }
        let next = self.next.as_ref().map(|(_, next)| next);
        for (name, entry) in [("ca", self.current.as_ref()), ("next", next)] {
            let Some(entry) = entry else { continue };
            put(&format!("{name}.crt"), entry.certificate.clone());
            put(&format!("{name}.key"), entry.key.clone().unwrap_or_default());
        }
        if !self.old.is_empty() {
            put("old.crt", self.old.to_pem());
        }
        data
    }

    /// Returns the certificates to trust.
    ///
    /// # Errors
    /// A certificate does not decode. This cannot happen after [`AuthorityState::read`].
    pub fn bundle(&self) -> Result<CaBundle, CertificateError> {
        let mut bundle = match self.phase {
            RotationPhase::Retiring => CaBundle::default(),
            RotationPhase::Stable | RotationPhase::Publishing | RotationPhase::Issuing => self.old.clone(),
        };
        for entry in self.current.iter().chain(self.next.iter().map(|(_, next)| next)) {
            bundle.extend(&CaBundle::parse(&entry.certificate)?);
        }
        Ok(bundle)
    }

    /// Returns the fingerprint of the signing key.
    pub fn fingerprint(&self) -> Option<String> {
        self.current.as_ref()?.inspect().ok().map(|found| found.fingerprint())
    }

    /// Returns the generation and fingerprint of the key that signs next.
    pub fn next_fingerprint(&self) -> Option<(i32, String)> {
        let (generation, next) = self.next.as_ref()?;
        Some((*generation, next.inspect().ok()?.fingerprint()))
    }

    /// Returns the state after `change`. The change is complete only once that state is stored. `before` is the stored state.
    ///
    /// # Errors
    /// `change` does not follow from this state, or a key cannot be created.
    pub fn after(
        before: Option<&Self>,
        change: &AuthorityChange,
        cluster: &str,
        now: Timestamp,
    ) -> Result<Self, CertificateError> {
        let entry = |generation| {
            Ok::<_, CertificateError>(AuthorityEntry::from(
                Authority::create(cluster, generation, now)?.pair(),
            ))
        };
        let lost = |former, generation, next, trusted: &CaBundle| Self {
            generation: former,
            phase: RotationPhase::Publishing,
            since: whole(now),
            published: None,
            current: None,
            next: Some((generation, next)),
            old: trusted.clone(),
        };
        match change {
            AuthorityChange::Create { generation } => return Ok(Self::stable(*generation, entry(*generation)?, now)),
            AuthorityChange::Recreate {
                former,
                generation,
                trusted,
            } => {
                let made = entry(*generation)?;
                if trusted.is_empty() {
                    return Ok(Self::stable(*generation, made, now));
                }
                return Ok(lost(*former, *generation, made, trusted));
            }
            AuthorityChange::Adopt {
                certificate,
                former,
                trusted,
            } => {
                let given = AuthorityEntry {
                    certificate: certificate.clone(),
                    key: None,
                };
                let mut others = trusted.clone();
                others.remove(&CaBundle::parse(certificate)?);
                if others.is_empty() {
                    return Ok(Self::stable((*former).max(1), given, now));
                }
                return Ok(lost(*former, former + 1, given, trusted));
            }
            _ => {}
        }
        let mut state = before.cloned().ok_or(CertificateError::Transition)?;
        state.change(change, cluster, now)?;
        Ok(state)
    }

    fn change(&mut self, change: &AuthorityChange, cluster: &str, now: Timestamp) -> Result<(), CertificateError> {
        match (change, self.phase) {
            (AuthorityChange::Renew, _) => {
                let current = self.current.as_ref().ok_or(CertificateError::Transition)?;
                self.current = Some(AuthorityEntry::from(current.authority(None)?.renew(now)?.pair()));
            }
            (AuthorityChange::Renewed { certificate }, _) => {
                let current = self.current.as_mut().ok_or(CertificateError::Transition)?;
                current.certificate.clone_from(certificate);
            }
            (AuthorityChange::Replace { generation }, RotationPhase::Stable) => {
                let made = Authority::create(cluster, *generation, now)?;
                self.next = Some((*generation, AuthorityEntry::from(made.pair())));
                self.enter(RotationPhase::Publishing, now);
            }
            (AuthorityChange::Published, _) => self.published = Some(whole(now)),
            (AuthorityChange::Issue, RotationPhase::Publishing) => {
                let (generation, next) = self.next.take().ok_or(CertificateError::Transition)?;
                if let Some(former) = self.current.replace(next) {
                    self.old.extend(&CaBundle::parse(&former.certificate)?);
                }
                self.generation = generation;
                // The bundle does not change.
                let published = self.published;
                self.enter(RotationPhase::Issuing, now);
                self.published = published;
            }
            (AuthorityChange::Retire, RotationPhase::Issuing) => self.enter(RotationPhase::Retiring, now),
            (AuthorityChange::Finish, RotationPhase::Retiring) => {
                self.old = CaBundle::default();
                self.enter(RotationPhase::Stable, now);
            }
            (AuthorityChange::Keep, _) => {}
            _ => return Err(CertificateError::Transition),
        }
        Ok(())
    }

    fn enter(&mut self, phase: RotationPhase, now: Timestamp) {
        (self.phase, self.since, self.published) = (phase, whole(now), None);
    }
}

/// Truncates a time to whole seconds, in which times are stored.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
