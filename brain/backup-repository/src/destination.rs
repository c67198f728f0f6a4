//! Destinations: a URL, and what is needed to reach it.
//!
//! | URL | where |
//! |---|---|
//! | `file:///directory` | a directory of this machine |
//! | `s3://bucket/prefix` | S3, or a store with its protocol |
//! | `gs://bucket/prefix` | Google Cloud Storage |
//! | `az://container/prefix`, `azblob://…` | Azure Blob Storage |

use std::path::PathBuf;
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStore};

use crate::last_failure::LastFailure;

mod client;
mod credentials;
mod http;
mod reloading;

/// A destination, as flags give it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestinationOptions {
    pub url: String,
    /// The URL of the service, instead of the provider's.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// PEM file of the CAs that the service is trusted by, instead of those of this system.
    pub ca_file: Option<PathBuf>,
    /// True if the bucket is in the path of a URL, not in its host; `None` if it is for an endpoint only.
    pub path_style: Option<bool>,
    /// The storage class, or the access tier, of objects.
    pub storage_class: Option<String>,
    /// The way in which S3 encrypts objects.
    pub server_side_encryption: Option<String>,
    /// The key of the provider's key service that it encrypts them with.
    pub kms_key_id: Option<String>,
    /// The provider's file of credentials.
    pub credentials_file: Option<PathBuf>,
    /// A directory of files with the names of the provider's variables, which take precedence over them.
    pub credentials_dir: Option<PathBuf>,
    /// True if credentials come from files and variables alone, never from a service of the machine or pod.
    pub explicit_credentials: bool,
    /// The provider's variables.
    pub variables: Variables,
}

/// The variable with the content of Google's file of credentials, which has lines.
const SERVICE_ACCOUNT_KEY: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";

/// Variables by which a provider is given credentials.
const CREDENTIALS: [&[&str]; 3] = [
    &[
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_SHARED_CREDENTIALS_FILE",
    ],
    &[
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        SERVICE_ACCOUNT_KEY,
    ],
    &[
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
    ],
];

/// Variables of the environment, which may be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(Vec<(String, String)>);

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Variables {
    /// Keeps the variables of providers, without white space at their ends.
    pub fn of(all: impl IntoIterator<Item = (String, String)>) -> Self {
        let kept = all
            .into_iter()
            .map(|(name, value)| (name, value.trim().to_owned()))
            .filter(|(name, value)| Self::is_of_provider(name) && !value.is_empty());
        Self(kept.collect())
    }

    fn is_of_provider(name: &str) -> bool {
        ["AWS_", "GOOGLE_", "AZURE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns these variables, with others that take precedence: credentials are taken from one of the two.
    fn overlaid(&self, others: Self) -> Self {
        let is_replaced = |name: &str| {
            let set = CREDENTIALS.iter().find(|set| set.contains(&name));
            set.map_or(&[name][..], |set| set)
                .iter()
                .any(|name| others.get(name).is_some())
        };
        let kept = self.0.iter().filter(|(name, _)| !is_replaced(name)).cloned();
        Self(kept.chain(others.0.iter().cloned()).collect())
    }

    /// Fails if a value of a provider has a line break, which only its files have: clients put values into headers.
    fn check(&self, prefix: &str) -> Result<(), DestinationError> {
        let mut of_provider = self
            .0
            .iter()
            .filter(|(name, _)| name.starts_with(prefix) && name != SERVICE_ACCOUNT_KEY);
        match of_provider.find(|(_, value)| value.chars().any(char::is_control)) {
            Some((name, _)) => Err(DestinationError(format!(
                "{name} has a line break or another control character"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the keys that a provider has for the variables; it has none for some.
    fn keys<K: std::str::FromStr>(&self, prefix: &'static str) -> impl Iterator<Item = (K, String)> {
        let of_provider = self.0.iter().filter(move |(name, _)| name.starts_with(prefix));
        of_provider.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.clone())))
    }
}

/// The options do not describe a destination that can be opened.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DestinationError(pub(crate) String);

/// Which kind of store it is, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Location {
    Directory(PathBuf),
    S3 { bucket: String, prefix: Path },
    Gcs { bucket: String, prefix: Path },
    Azure { container: String, prefix: Path },
}

/// An opened destination.
pub(crate) struct Destination {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    pub(crate) attributes: Attributes,
    pub(crate) directory: Option<PathBuf>,
    /// The failure of its requests.
    pub(crate) failure: LastFailure,
}

impl DestinationOptions {
    /// Fails if the URL is none of a destination, or if an option has no effect there.
    pub fn check(&self) -> Result<(), DestinationError> {
        let location = self.location()?;
        let given = [
            ("--destination-endpoint", self.endpoint.is_some()),
            ("--destination-ca-file", self.ca_file.is_some()),
            ("--destination-credentials-file", self.credentials_file.is_some()),
            ("--destination-credentials-dir", self.credentials_dir.is_some()),
            ("--storage-class", self.storage_class.is_some()),
            ("--destination-region", self.region.is_some()),
            ("--destination-path-style", self.path_style.is_some()),
            ("--server-side-encryption", self.server_side_encryption.is_some()),
            ("--kms-key-id", self.kms_key_id.is_some()),
        ];
        let (scheme, idle) = match location {
            Location::Directory(_) => ("file", &given[..]),
            Location::S3 { .. } => ("s3", &given[..0]),
            Location::Gcs { .. } => ("gs", &given[5..]),
            // Its credentials are variables.
            Location::Azure { .. } => {
                if self.credentials_file.is_some() {
                    return Err(no_effect("--destination-credentials-file", "az"));
                }
                ("az", &given[5..])
            }
        };
        if let Some((flag, _)) = idle.iter().find(|(_, is_given)| *is_given) {
            return Err(no_effect(flag, scheme));
        }
        if let Some(endpoint) = &self.endpoint
            && !endpoint.starts_with("http://")
            && !endpoint.starts_with("https://")
        {
            return Err(DestinationError(format!(
                "--destination-endpoint {endpoint:?} is not a URL with the scheme http or https"
            )));
        }
        if self.kms_key_id.is_some()
            && !self
                .server_side_encryption
                .as_deref()
                .is_some_and(|it| it.starts_with("aws:kms"))
        {
            return Err(DestinationError(
                "--kms-key-id needs --server-side-encryption aws:kms or aws:kms:dsse".to_owned(),
            ));
        }
        self.encryption_type().map(drop)
    }

    /// Creates the directory, if it is one.
    pub fn prepare(&self) -> Result<(), DestinationError> {
        match self.location()? {
            Location::Directory(directory) => std::fs::create_dir_all(&directory)
                .map_err(|error| DestinationError(format!("cannot create {}: {error}", directory.display()))),
            _ => Ok(()),
        }
    }

    /// Fails unless the file or the variables have credentials: without them the client of a store asks a service of the machine or pod.
    fn check_credentials(&self, location: &Location, variables: &Variables) -> Result<(), DestinationError> {
        let has = |names: &[&str]| names.iter().all(|name| variables.get(name).is_some());
        let (is_given, wanted) = match location {
            Location::Directory(_) => (true, ""),
            Location::S3 { .. } => (
                self.credentials_file.is_some()
                    || has(&["AWS_SHARED_CREDENTIALS_FILE"])
                    || has(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]),
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ),
            Location::Gcs { .. } => (
                self.credentials_file.is_some() || has(&["GOOGLE_APPLICATION_CREDENTIALS"]),
                "GOOGLE_APPLICATION_CREDENTIALS",
            ),
            Location::Azure { .. } => (
                has(&["AZURE_STORAGE_ACCOUNT_KEY"])
                    || has(&["AZURE_STORAGE_SAS_TOKEN"])
                    || has(&["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"]),
                "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
            ),
        };
        match is_given {
            true => Ok(()),
            false => Err(DestinationError(format!(
                "no credentials were given for the destination {:?}: set {wanted}, or allow other sources with --destination-explicit-credentials=false",
                self.url
            ))),
        }
    }

    fn failed(&self, error: &object_store::Error) -> DestinationError {
        DestinationError(format!("the destination {:?}: {error}", self.url))
    }

    fn location(&self) -> Result<Location, DestinationError> {
        let url = &self.url;
        let invalid = |why: &str| DestinationError(format!("the destination {url:?} {why}"));
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("is not a URL, such as s3://bucket/prefix or file:///directory"))?;
        if scheme == "file" {
            if !rest.starts_with('/') {
                return Err(invalid("must name an absolute directory: file:///directory"));
            }
            return Ok(Location::Directory(rest.into()));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if bucket.is_empty() || !bucket.chars().all(is_host) {
            return Err(invalid("must name a bucket, and nothing else, before its path"));
        }
        let prefix =
            Path::parse(prefix.trim_matches('/')).map_err(|error| invalid(&format!("has a bad path: {error}")))?;
        let bucket = bucket.to_owned();
        match scheme {
            "s3" => Ok(Location::S3 { bucket, prefix }),
            "gs" => Ok(Location::Gcs { bucket, prefix }),
            "az" | "azblob" => Ok(Location::Azure {
                container: bucket,
                prefix,
            }),
            _ => Err(invalid("has a scheme other than file, s3, gs, az and azblob")),
        }
    }

    /// Returns the word of the client for the encryption on the server.
    fn encryption_type(&self) -> Result<Option<&'static str>, DestinationError> {
        match self.server_side_encryption.as_deref() {
            None => Ok(None),
            Some("AES256") => Ok(Some("AES256")),
            Some("aws:kms") => Ok(Some("sse:kms")),
            Some("aws:kms:dsse") => Ok(Some("sse:kms:dsse")),
            Some(other) => Err(DestinationError(format!(
                "--server-side-encryption must be AES256, aws:kms or aws:kms:dsse, not {other:?}"
            ))),
        }
    }
}

fn no_effect(flag: &str, scheme: &str) -> DestinationError {
    DestinationError(format!("{flag} has no effect for a destination {scheme}://"))
}

impl Destination {
    pub(crate) fn open(options: &DestinationOptions) -> Result<Self, DestinationError> {
        options.check()?;
        let failure = LastFailure::default();
        let mut attributes = Attributes::new();
        if let Some(class) = &options.storage_class {
            attributes.insert(Attribute::StorageClass, class.clone().into());
        }
        let (store, prefix, directory): (Arc<dyn ObjectStore>, _, _) = match options.location()? {
            Location::Directory(directory) => {
                let store = LocalFileSystem::new_with_prefix(&directory).map_err(|error| options.failed(&error))?;
                let store = store.with_automatic_cleanup(true).with_fsync(true);
                (Arc::new(store), Path::default(), Some(directory))
            }
            Location::S3 { prefix, .. } | Location::Gcs { prefix, .. } | Location::Azure { prefix, .. } => {
                (reloading::open(options, &failure)?, prefix, None)
            }
        };
        Ok(Self {
            store,
            prefix,
            attributes,
            directory,
            failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> DestinationOptions {
        DestinationOptions {
            url: url.to_owned(),
            ..DestinationOptions::default()
        }
    }

    #[test]
    fn urls_name_a_store_and_a_place_in_it() {
        let location = |url: &str| options(url).location().unwrap();
        assert_eq!(location("file:///a/b c"), Location::Directory("/a/b c".into()));
        let (bucket, prefix) = ("b".to_owned(), Path::from("p/q"));
        for url in ["s3://b/p/q", "s3://b/p/q/"] {
            let (bucket, prefix) = (bucket.clone(), prefix.clone());
            assert_eq!(location(url), Location::S3 { bucket, prefix });
        }
        let root = Path::default();
        for url in ["gs://b", "gs://b/"] {
            let (bucket, prefix) = (bucket.clone(), root.clone());
            assert_eq!(location(url), Location::Gcs { bucket, prefix });
        }
        for url in ["az://b/p/q", "azblob://b/p/q"] {
            let (container, prefix) = (bucket.clone(), prefix.clone());
            assert_eq!(location(url), Location::Azure { container, prefix });
        }
    }

    #[test]
    fn bad_urls_are_refused() {
        for (url, why) in [
            ("", "is not a URL"),
            ("/backups", "is not a URL"),
            ("file://backups", "must name an absolute directory"),
            ("http://b/p", "has a scheme other than"),
            ("s3://", "must name a bucket"),
            ("s3:///p", "must name a bucket"),
            ("s3://key:secret@b/p", "must name a bucket"),
            ("s3://b/p//q", "has a bad path"),
        ] {
            let error = options(url).check().unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn options_without_effect_are_refused() {
        type Change = fn(&mut DestinationOptions);
        let changes: [(&str, &str, Change); 9] = [
            ("endpoint", "file", |o| o.endpoint = Some("http://e".to_owned())),
            ("ca-file", "file", |o| o.ca_file = Some("f".into())),
            ("credentials-file", "file az", |o| o.credentials_file = Some("f".into())),
            ("credentials-dir", "file", |o| o.credentials_dir = Some("d".into())),
            ("--storage-class", "file", |o| o.storage_class = Some("c".to_owned())),
            ("region", "file gs az", |o| o.region = Some("r".to_owned())),
            ("path-style", "file gs az", |o| o.path_style = Some(true)),
            ("--server-side-encryption", "file gs az", |o| {
                o.server_side_encryption = Some("AES256".to_owned());
            }),
            ("--kms-key-id", "file gs az", |o| {
                o.server_side_encryption = Some("aws:kms".to_owned());
                o.kms_key_id = Some("k".to_owned());
            }),
        ];
        for (flag, idle, change) in changes {
            for url in ["file:///d", "s3://b", "gs://b", "az://b"] {
                let mut options = options(url);
                change(&mut options);
                let scheme = url.split(':').next().unwrap();
                let refused = options.check().err().map(|error| error.to_string());
                let is_idle = idle.split(' ').any(|idle| idle == scheme);
                assert_eq!(refused.is_some(), is_idle, "{flag} with {url}: {refused:?}");
            }
        }
        let mut options = options("s3://b");
        options.kms_key_id = Some("k".to_owned());
        assert!(options.check().unwrap_err().to_string().contains("--kms-key-id needs"));
        options.server_side_encryption = Some("rot13".to_owned());
        options.kms_key_id = None;
        assert!(options.check().unwrap_err().to_string().contains("not \"rot13\""));
        options.server_side_encryption = None;
        options.endpoint = Some("minio:9000".to_owned());
        assert!(
            options
                .check()
                .unwrap_err()
                .to_string()
                .contains("is not a URL with the scheme")
        );
    }

    #[test]
    fn explicit_credentials_are_never_those_of_the_machine() {
        let opened = |url: &str, variables: &[&str]| {
            let variables = variables.iter().map(|name| ((*name).to_owned(), "eA==".to_owned()));
            let options = DestinationOptions {
                explicit_credentials: true,
                variables: Variables::of(variables),
                ..options(url)
            };
            options.check_credentials(&options.location().unwrap(), &options.variables)
        };
        let key = &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        assert!(opened("file:///d", &[]).is_ok() && opened("s3://b", key).is_ok());
        assert!(opened("az://b", &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"]).is_ok());
        for (url, variables) in [
            ("s3://b", &[][..]),
            ("s3://b", &["AWS_ACCESS_KEY_ID"]),
            ("s3://b", &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"]),
            ("gs://b", &[]),
            ("az://b", &["AZURE_STORAGE_ACCOUNT_NAME"]),
            ("az://b", &["AZURE_TENANT_ID", "AZURE_CLIENT_ID"]),
        ] {
            let error = opened(url, variables).unwrap_err().to_string();
            assert!(error.contains("no credentials were given"), "{url}: {error}");
        }
        let ambient = DestinationOptions {
            explicit_credentials: true,
            ..options("s3://b")
        };
        assert!(Destination::open(&ambient).is_err());
    }

    #[test]
    fn variables_are_those_of_providers_and_are_not_printed() {
        let all = [
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("HOME", "/root"),
            ("AWS_REGION", ""),
        ];
        let variables = Variables::of(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(format!("{variables:?}"), r#"["AWS_SECRET_ACCESS_KEY"]"#);
        let of = |all: &[(&str, &str)]| Variables::of(all.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
        let own = of(&[
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SESSION_TOKEN", "t"),
            ("AWS_REGION", "r"),
        ]);
        let others = of(&[("AWS_ACCESS_KEY_ID", "b")]);
        let both = own.overlaid(others);
        let names: Vec<_> = ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION"]
            .map(|name| both.get(name))
            .into();
        assert_eq!(names, [Some("b"), None, Some("r")], "a token of another key");
        assert!(both.check("AWS_").is_ok());
        let lines = of(&[(SERVICE_ACCOUNT_KEY, "{\n}"), ("AWS_ACCESS_KEY_ID", "a\nb")]);
        assert!(lines.check("GOOGLE_").is_ok() && lines.check("AWS_").is_err());
    }
}
