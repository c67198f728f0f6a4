//! The span of an RPC.

use std::fmt;
use std::sync::{Arc, Mutex};

use tonic::transport::Endpoint;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::{Running, Store, check};

/// RPCs in which a span is looked for.
const MAX_RPC_TRIES: usize = 10;

/// The spans that were created, as text.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if attributes.metadata().target().starts_with("net::") {
            let mut text = Text(attributes.metadata().name().to_owned());
            attributes.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
    }
}

async fn serve_a_check() {
    let server = Running::plain(Store::with(0));
    let channel = Endpoint::from_shared(server.urls[0].clone()).unwrap().connect().await;
    check(&channel.unwrap(), "").await.unwrap();
    server.end().await;
}

async fn spans_of_a_check(level: LevelFilter) -> Vec<String> {
    let seen = Seen::default();
    let subscriber = tracing_subscriber::registry().with(seen.clone().with_filter(level));
    let _default = tracing::subscriber::set_default(subscriber);
    // The interest of subscribers in a span is cached for the whole process. Another test that begins or ends a subscriber at this moment
    // may have cached that no subscriber is interested.
    for _ in 0..MAX_RPC_TRIES {
        tracing::callsite::rebuild_interest_cache();
        serve_a_check().await;
        let seen = seen.0.lock().unwrap();
        if !seen.is_empty() {
            return seen.clone();
        }
    }
    Vec::new()
}

#[tokio::test]
async fn rpc_span_names_method_and_client_at_debug_level_alone() {
    assert_eq!(
        spans_of_a_check(LevelFilter::DEBUG).await,
        [r#"rpc method="/grpc.health.v1.Health/Check" client=127.0.0.1"#]
    );
    assert_eq!(spans_of_a_check(LevelFilter::INFO).await, [""; 0]);
}
