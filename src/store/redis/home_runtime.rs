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
/// - it did not start the work within `max_start_delay`.
pub(super) async fn run_on_home_runtime<T: Send + 'static>(
    home: Option<&Handle>,
    max_start_delay: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let current_id = Handle::try_current().ok().map(|runtime| runtime.id());
    let home = home.filter(|home| current_id != Some(home.id()))?;
    let (mut tasks, (start_sender, started)) = (JoinSet::new(), oneshot::channel());
    let work = async move {
        let _ = start_sender.send(());
        work.await
    };
    tasks.spawn_on(work, home);
    timeout(max_start_delay, started).await.ok()?.ok()?;
    tasks.join_next().await?.ok()
}
