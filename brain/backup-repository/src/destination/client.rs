//! The clients of object stores, made of options, and of credentials as they are in files and variables now.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::http::HyperConnector;
use super::{DestinationError, DestinationOptions, Location, Variables, credentials};
use crate::last_failure::LastFailure;

/// Attempts that the client of a store makes, within those that are logged.
const CLIENT_RETRIES: usize = 2;

/// The time in which it makes them.
const CLIENT_RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a client, which has sent no request. A directory has none.
///
/// # Errors
/// Credentials are missing or cannot be read, or the client takes none of the options.
pub(super) fn open(
    options: &DestinationOptions,
    failure: &LastFailure,
) -> Result<Arc<dyn ObjectStore>, DestinationError> {
    let variables = match &options.credentials_dir {
        Some(directory) => options.variables.overlaid(credentials::in_directory(directory)?),
        None => options.variables.clone(),
    };
    let location = options.location()?;
    variables.check(match location {
        Location::S3 { .. } => "AWS_",
        Location::Gcs { .. } => "GOOGLE_",
        Location::Directory(_) | Location::Azure { .. } => "AZURE_",
    })?;
    if options.explicit_credentials {
        options.check_credentials(&location, &variables)?;
    }
    let built: object_store::Result<Arc<dyn ObjectStore>> = match location {
        Location::Directory(directory) => {
            let why = format!("{} is no object store", directory.display());
            return Err(DestinationError(why));
        }
        Location::S3 { bucket, .. } => s3(options, &variables, &bucket, failure)?
            .build()
            .map(|store| Arc::new(store) as _),
        Location::Gcs { bucket, .. } => gcs(options, &variables, bucket, failure)?
            .build()
            .map(|store| Arc::new(store) as _),
        Location::Azure { container, .. } => azure(options, &variables, container, failure)?
            .build()
            .map(|store| Arc::new(store) as _),
    };
    built.map_err(|error| options.failed(&error))
}

fn s3(
    options: &DestinationOptions,
    variables: &Variables,
    bucket: &str,
    failure: &LastFailure,
) -> Result<AmazonS3Builder, DestinationError> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in variables.keys::<AmazonS3ConfigKey>("AWS_") {
        builder = builder.with_config(key, value);
    }
    let named = options.credentials_file.clone();
    let shared = named.or_else(|| variables.get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from));
    if let Some(file) = shared {
        let profile = variables.get("AWS_PROFILE").unwrap_or("default");
        let found = credentials::read(&file, profile)?;
        builder = builder
            .with_access_key_id(found.access_key_id)
            .with_secret_access_key(found.secret_access_key);
        if let Some(token) = found.session_token {
            builder = builder.with_token(token);
        }
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    let endpoint = options
        .endpoint
        .as_deref()
        .or_else(|| variables.get("AWS_ENDPOINT_URL"));
    let path_style = options.path_style.unwrap_or(endpoint.is_some());
    if let Some(endpoint) = endpoint {
        let endpoint = endpoint.trim_end_matches('/');
        builder = builder.with_endpoint(match endpoint.split_once("://") {
            // The host is that of the bucket.
            Some((scheme, host)) if !path_style => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.to_owned(),
        });
    }
    let encryption = [
        ("aws_server_side_encryption", options.encryption_type()?),
        ("aws_sse_kms_key_id", options.kms_key_id.as_deref()),
    ];
    for (key, value) in encryption {
        let key: AmazonS3ConfigKey = key.parse().expect("the client has these keys");
        builder = value
            .into_iter()
            .fold(builder, |builder, value| builder.with_config(key, value));
    }
    Ok(builder
        .with_bucket_name(bucket)
        .with_virtual_hosted_style_request(!path_style)
        .with_client_options(client_options(endpoint))
        .with_retry(retries())
        .with_http_connector(HyperConnector::new(options.ca_file.as_deref(), failure)?))
}

fn gcs(
    options: &DestinationOptions,
    variables: &Variables,
    bucket: String,
    failure: &LastFailure,
) -> Result<GoogleCloudStorageBuilder, DestinationError> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in variables.keys::<GoogleConfigKey>("GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    if let Some(file) = &options.credentials_file {
        builder = builder.with_application_credentials(file.display().to_string());
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
    }
    Ok(builder
        .with_bucket_name(bucket)
        .with_client_options(client_options(options.endpoint.as_deref()))
        .with_retry(retries())
        .with_http_connector(HyperConnector::new(options.ca_file.as_deref(), failure)?))
}

fn azure(
    options: &DestinationOptions,
    variables: &Variables,
    container: String,
    failure: &LastFailure,
) -> Result<MicrosoftAzureBuilder, DestinationError> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in variables.keys::<AzureConfigKey>("AZURE_") {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok(builder
        .with_container_name(container)
        .with_client_options(client_options(options.endpoint.as_deref()))
        .with_retry(retries())
        .with_http_connector(HyperConnector::new(options.ca_file.as_deref(), failure)?))
}

fn client_options(endpoint: Option<&str>) -> ClientOptions {
    ClientOptions::new().with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
}

fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: CLIENT_RETRIES,
        retry_timeout: CLIENT_RETRY_TIMEOUT,
        ..RetryConfig::default()
    }
}
