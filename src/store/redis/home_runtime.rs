//! Work on the runtime that the store was made on.
//!
//! What reads a connection is a task of the runtime that it was opened on. That of whoever asked first may be one thread, as
//! of a worker of actix; while a handler has that, nobody in the process would hear an answer.

use std::{future::Future, time::Duration};

use tokio::{runtime::Handle, sync::oneshot, task::JoinSet, time::timeout};

/// Does it there; `None` if that is where the caller is, or it has ended, or stands still for so long. Dropped, it ends the
/// work.
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
