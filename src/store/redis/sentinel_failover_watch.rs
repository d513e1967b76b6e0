//! Watch of the sentinels for failovers: their messages are followed, and they are polled.
//!
//! In a manual failover, or one by sentinels that do not see the outage that clients see, no server
//! is suspended, and the messages are the only sign. A subscription may be interrupted just then,
//! so the sentinels are also polled with each round of pings.

use std::{sync::Weak, time::Duration};

use futures_util::{StreamExt as _, future::join_all};
use tokio::time::timeout;

use super::{
    connection_lanes::ConnectionLanes, ping_and_failover_watch::INITIAL_PAUSE,
    subscriber::RetryDelay, target::SentinelTarget,
};

/// Follows all sentinels, without an end, and polls them until the store is dropped.
pub(super) async fn watch_sentinels(
    sentinels: &SentinelTarget,
    lanes: Weak<ConnectionLanes>,
    deadline: Duration,
) {
    let followers =
        (0..sentinels.sentinel_count()).map(|number| follow_sentinel(sentinels, number, deadline));
    tokio::join!(join_all(followers), poll_sentinels(lanes, sentinels, deadline));
}

/// Polls the sentinels as often as idle connections are pinged.
async fn poll_sentinels(
    lanes: Weak<ConnectionLanes>,
    sentinels: &SentinelTarget,
    deadline: Duration,
) {
    while let Some(pause) = lanes.upgrade().map(|lanes| lanes.ping_interval()) {
        tokio::time::sleep(pause.unwrap_or(INITIAL_PAUSE)).await;
        let _ = timeout(deadline * 2, sentinels.check_for_failover()).await;
    }
}

/// Follows one sentinel, without an end. After each new subscription the sentinels are polled,
/// since messages may have been missed.
async fn follow_sentinel(sentinels: &SentinelTarget, number: usize, deadline: Duration) {
    let mut retry_delay = RetryDelay::default();
    loop {
        let subscription = timeout(deadline * 2, sentinels.subscribe_to_failovers(number)).await;
        let is_subscribed = matches!(subscription, Ok(Ok(_)));
        if let Ok(Ok(mut messages)) = subscription {
            let _ = timeout(deadline * 2, sentinels.check_for_failover()).await;
            while let Some(message) = messages.next().await {
                sentinels.handle_failover_message(&message);
            }
        }
        retry_delay.record_outcome(is_subscribed);
        retry_delay.sleep().await;
    }
}
