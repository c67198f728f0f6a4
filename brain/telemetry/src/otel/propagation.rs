//! The W3C trace context in the headers of requests.

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, Injector};
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};

/// The longest value that is taken, in bytes: what the W3C recommendation has everybody take. Spans keep it.
const MAX_HEADER_VALUE_BYTES: usize = 512;

/// The headers of a request that has arrived.
pub(super) struct HeaderExtractor<'a>(pub(super) &'a HeaderMap);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key).filter(|value| value.len() <= MAX_HEADER_VALUE_BYTES);
        value?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// The metadata of a request that is sent.
pub(super) struct MetadataInjector<'a>(pub(super) &'a mut MetadataMap);

impl Injector for MetadataInjector<'_> {
    /// Replaces an entry; an empty value removes it. Names and values are of the propagator's making, and always valid.
    fn set(&mut self, key: &str, value: String) {
        let Ok(key) = MetadataKey::from_bytes(key.as_bytes()) else {
            return;
        };
        match MetadataValue::try_from(value) {
            Ok(value) if !value.is_empty() => {
                self.0.insert(key, value);
            }
            _ => {
                self.0.remove(key);
            }
        }
    }
}
