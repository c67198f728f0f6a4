//! Translation of large messages: on threads that may block, and few at a time, because a second of work must delay no other request.

use std::num::NonZero;
use std::sync::LazyLock;

use tokio::sync::Semaphore;
use tonic::Status;

/// Half of the processors may do so.
static TRANSLATION_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Semaphore::new((processors / 2).max(1))
});

/// Translates a message when it is its turn.
pub(super) async fn on_a_turn<T: Send + 'static>(translate: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let turn = TRANSLATION_PERMITS.acquire().await;
    let translated = tokio::task::spawn_blocking(move || {
        let translated = translate();
        drop(turn);
        translated
    });
    translated
        .await
        .map_err(|error| Status::internal(format!("translate a message: {error}")))
}
