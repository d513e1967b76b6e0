//! What goes on beside the calls where a master may be replaced: lanes give signs of life, and the words of sentinels are
//! heard.
//!
//! One task a store, from when it is made until it is dropped. Should its runtime end before, connections are made anew
//! where they would have been asked for a sign of life (`connect::life`), and words are missed: after a master stood
//! still that costs time alone. After a failover that somebody asked for, or one by sentinels that do not see what
//! clients see, nothing stood still, and the words are what there is: a subscription may be away just then, so with each
//! round of signs the sentinels are asked as well.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all};
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use super::{
    ConnectionLanes,
    subscriber::RetryDelay,
    target::{ConnectionTarget, SentinelTarget},
};

/// Until it is known how long lanes may be silent.
const INITIAL_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct FailoverMonitor(JoinHandle<()>);

impl FailoverMonitor {
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
            // Sentinels that do not answer keep no lane waiting for its sign of life.
            let looks = poll_sentinels(lanes.clone(), sentinels.as_ref(), deadline);
            tokio::join!(join_all(words), ping_idle_connections(lanes), looks);
        };
        Some(Self(Handle::try_current().ok()?.spawn(watch)))
    }
}

impl Drop for FailoverMonitor {
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

/// As often as lanes are asked for signs of life.
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

/// For ever. After a silence somebody looks, since words may have been missed.
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
