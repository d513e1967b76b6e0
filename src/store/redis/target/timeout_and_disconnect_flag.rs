//! `TimeoutAndDisconnectFlag`: connect timeout of a new connection, and the flag that reports its
//! end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{AsyncConnectionConfig, PushInfo, PushKind, aio::SendError};

/// Settings of a new connection, the same for every target.
#[derive(Default)]
pub(in super::super) struct TimeoutAndDisconnectFlag {
    /// Timeout of the network connection; `None` for no timeout.
    pub(in super::super) connect_timeout: Option<Duration>,
    /// Set when the server or the network ends the connection, or when its driver ends with its
    /// runtime.
    pub(in super::super) disconnected: Arc<AtomicBool>,
}

/// Guard owned by the driver of a connection; marks the connection as disconnected when dropped.
///
/// A driver that is dropped reads and writes no more. A call that is not sent yet must use another
/// connection, because a call that fails on this one counts as in doubt.
pub(super) struct MarkDisconnectedOnDrop(Arc<AtomicBool>);

impl MarkDisconnectedOnDrop {
    fn mark_disconnected(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for MarkDisconnectedOnDrop {
    fn drop(&mut self) {
        self.mark_disconnected();
    }
}

impl TimeoutAndDisconnectFlag {
    /// Sets no response timeout: every call has its own deadline.
    pub(super) fn to_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(self.connect_timeout)
            .set_response_timeout(None)
            .set_push_sender(self.disconnect_handler())
    }

    /// Returns a handler of disconnect pushes. Only the driver task owns it, so it is dropped with
    /// the driver.
    fn disconnect_handler(
        &self,
    ) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let driver = self.driver_guard();
        move |push| {
            if push.kind == PushKind::Disconnection {
                driver.mark_disconnected();
            }
            Ok(())
        }
    }

    pub(super) fn driver_guard(&self) -> MarkDisconnectedOnDrop {
        MarkDisconnectedOnDrop(Arc::clone(&self.disconnected))
    }
}
