//! `PingAndFailoverWatch`: background task for servers that may be replaced. It pings idle
//! connections, and watches the sentinels for failovers
//! ([`sentinel_failover_watch`](super::sentinel_failover_watch)).
//!
//! There is one task per store, from its creation until it is dropped. If its runtime ends earlier,
//! connections that are due for a ping are made anew instead
//! (`connection_lanes::connection_silence_guard`), and messages are missed. After a master was
//! suspended, that only costs time.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    connection_lanes::ConnectionLanes, sentinel_failover_watch::watch_sentinels,
    target::ConnectionTarget,
};

/// Pause while the longest silence of lanes is not known yet.
pub(super) const INITIAL_PAUSE: Duration = Duration::from_millis(500);

/// Handle of the task, which ends when this is dropped.
pub(super) struct PingAndFailoverWatch {
    task: JoinHandle<()>,
}

impl PingAndFailoverWatch {
    pub(super) fn spawn(
        target: &ConnectionTarget,
        lanes: &Arc<ConnectionLanes>,
        deadline: Duration,
    ) -> Option<Self> {
        let sentinels = match target {
            ConnectionTarget::Sentinel(sentinels) => Some(sentinels.clone()),
            ConnectionTarget::Cluster(_) => None,
            ConnectionTarget::Single(_) => return None,
            #[cfg(feature = "bb8-redis")]
            ConnectionTarget::Pool(_) => return None,
        };
        let lanes = Arc::downgrade(lanes);
        let task = async move {
            // Apart from the pings: sentinels that do not answer must not delay them.
            let sentinel_watch = async {
                if let Some(sentinels) = &sentinels {
                    watch_sentinels(sentinels, lanes.clone(), deadline).await;
                }
            };
            tokio::join!(sentinel_watch, ping_idle_connections(lanes.clone()));
        };
        Some(Self { task: Handle::try_current().ok()?.spawn(task) })
    }
}

impl Drop for PingAndFailoverWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ping_idle_connections(lanes: Weak<ConnectionLanes>) {
    while let Some(live_lanes) = lanes.upgrade() {
        let pause = live_lanes.ping_idle_connections().await.unwrap_or(INITIAL_PAUSE);
        drop(live_lanes);
        tokio::time::sleep(pause).await;
    }
}
