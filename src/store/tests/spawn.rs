//! Tasks of tests.

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

/// Spawns a boxed future. Tokio's task machinery is compiled for each type that is spawned, twice:
/// for the scheduler of one thread and for that of many.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(Box::pin(work) as BoxFuture<'static, T>)
}
