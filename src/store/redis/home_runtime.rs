//! Execution of work on the runtime on which the store was created.
//!
//! A connection is read by a task of the runtime that opened it. If that were the runtime of the
//! first caller, it might have a single thread, such as that of an actix worker. While a handler
//! blocked that thread, no reply would reach any caller in the process.

use std::{future::Future, time::Duration};

use tokio::{runtime::Handle, sync::oneshot, task::JoinSet, time::timeout};

/// Runs `work` on the runtime `home`. Dropping the future aborts the work.
///
/// Returns `None` if
///
/// - there is no such runtime, or it has ended,
/// - the caller runs on it already,
/// - it did not start the work within `patience`.
pub(super) async fn run_on_home_runtime<T: Send + 'static>(
    home: Option<&Handle>,
    patience: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let here = Handle::try_current().ok().map(|here| here.id());
    let home = home.filter(|home| here != Some(home.id()))?;
    let (mut working, (begins, begun)) = (JoinSet::new(), oneshot::channel());
    let work = async move {
        let _ = begins.send(());
        work.await
    };
    working.spawn_on(work, home);
    timeout(patience, begun).await.ok()?.ok()?;
    working.join_next().await?.ok()
}
