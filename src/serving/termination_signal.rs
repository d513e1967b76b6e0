//! Signals by which an operator or an orchestrator ends a process.

use std::io;

/// Catches SIGTERM and SIGINT (ctrl-c) from now on. The returned future resolves at the first one.
///
/// # Panics
///
/// Outside a tokio runtime with IO enabled.
#[cfg(unix)]
pub(super) fn termination_signal() -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// Catches ctrl-c when it is first polled.
#[cfg(not(unix))]
pub(super) fn termination_signal() -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "ctrl-c cannot be caught; set with_shutdown(..)");
            std::future::pending::<()>().await;
        }
    })
}
