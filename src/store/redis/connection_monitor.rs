//! Background task for servers that may be replaced: it pings idle connections and follows the
//! messages of sentinels.
//!
//! There is one task per store, from its creation until it is dropped. If its runtime ends earlier,
//! connections that are due for a ping are made anew instead (`connection_lanes::liveness`), and
//! messages are missed. After a master was suspended, that only costs time. In a manual failover,
//! or one by sentinels that do not see the outage that clients see, no server is suspended, and the
//! messages are the only sign. A subscription may be interrupted just then, so the sentinels are
//! also polled with each round of pings.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all};
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use super::{
    connection_lanes::ConnectionLanes,
    subscriber::RetryDelay,
    target::{ConnectionTarget, SentinelTarget},
};

/// Pause while the longest silence of lanes is not known yet.
const INITIAL_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct ConnectionMonitor(JoinHandle<()>);

impl ConnectionMonitor {
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
        let watch = async move {
            let all =
                sentinels.iter().flat_map(|all| (0..all.sentinel_count()).map(move |n| (all, n)));
            let words = all.map(|(sentinels, number)| follow_sentinel(sentinels, number, deadline));
            // Apart from the pings: sentinels that do not answer must not delay them.
            let looks = poll_sentinels(lanes.clone(), sentinels.as_ref(), deadline);
            tokio::join!(join_all(words), ping_idle_connections(lanes), looks);
        };
        Some(Self(Handle::try_current().ok()?.spawn(watch)))
    }
}

impl Drop for ConnectionMonitor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ping_idle_connections(lanes: Weak<ConnectionLanes>) {
    while let Some(alive) = lanes.upgrade() {
        let pause = alive.ping_idle_connections().await.unwrap_or(INITIAL_PAUSE);
        drop(alive);
        tokio::time::sleep(pause).await;
    }
}

/// Polls the sentinels as often as idle connections are pinged.
async fn poll_sentinels(
    lanes: Weak<ConnectionLanes>,
    sentinels: Option<&SentinelTarget>,
    deadline: Duration,
) {
    let Some(sentinels) = sentinels else { return };
    while let Some(pause) = lanes.upgrade().map(|alive| alive.ping_interval()) {
        tokio::time::sleep(pause.unwrap_or(INITIAL_PAUSE)).await;
        let _ = timeout(deadline * 2, sentinels.check_for_failover()).await;
    }
}

/// Follows one sentinel, without an end. After each new subscription the sentinels are polled,
/// since messages may have been missed.
async fn follow_sentinel(sentinels: &SentinelTarget, number: usize, deadline: Duration) {
    let mut pause = RetryDelay::default();
    loop {
        let words = timeout(deadline * 2, sentinels.subscribe_to_failovers(number)).await;
        let heard = matches!(words, Ok(Ok(_)));
        if let Ok(Ok(mut words)) = words {
            let _ = timeout(deadline * 2, sentinels.check_for_failover()).await;
            while let Some(message) = words.next().await {
                sentinels.handle_failover_message(&message);
            }
        }
        pause.record_outcome(heard);
        pause.sleep().await;
    }
}
