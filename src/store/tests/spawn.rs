//! Tasks of tests.

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

/// Spawns a boxed future. Tokio's task code is compiled for each spawned type, twice: for the
/// single-threaded and the multi-threaded scheduler.
pub(crate) fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(Box::pin(future) as BoxFuture<'static, T>)
}
