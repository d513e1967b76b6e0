//! Failover behind sentinels.

use super::{FailoverPlan, FailoverTopology, check_failover};

#[tokio::test]
async fn killed_master_is_replaced_by_promoted_replica() {
    check_failover(
        FailoverTopology::start_sentinels().await,
        FailoverPlan { min_replicas: 0, kills_master: true },
    )
    .await;
}

#[tokio::test]
async fn replicated_locks_have_one_holder_when_master_is_killed() {
    check_failover(
        FailoverTopology::start_sentinels().await,
        FailoverPlan { min_replicas: 1, kills_master: true },
    )
    .await;
}

#[tokio::test]
async fn replicated_locks_have_one_holder_when_master_is_paused() {
    check_failover(
        FailoverTopology::start_sentinels().await,
        FailoverPlan { min_replicas: 1, kills_master: false },
    )
    .await;
}
