//! Quotas while one node is frozen: keys of the other nodes are limited as before.

use std::time::{Duration, Instant};

use super::keys_in_distinct_shards;
use crate::{
    Quota,
    key::Key,
    rate_limit::RateLimiter,
    store::tests::test_cluster::{TestCluster, send_signal},
};

const SECOND: Duration = Duration::from_secs(1);
const FROZEN_NODE: usize = 1;

/// Returns, for each key, whether the store counted the request.
async fn are_counted_by_store(limit: &RateLimiter, keys: &[Key]) -> Vec<bool> {
    let mut counted = Vec::new();
    for key in keys {
        let decision = limit.check(key.clone(), 1).await.expect("it can do without the store");
        assert!(decision.is_admitted(), "{decision:?}");
        counted.push(!decision.is_local());
    }
    counted
}

/// Repeats checks until the store counts all of them again.
async fn wait_until_counted(limit: &RateLimiter, keys: &[Key]) {
    for _ in 0..3000 {
        if are_counted_by_store(limit, keys).await.iter().all(|counted| *counted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not come back");
}

/// Keys of the frozen node are limited locally, without waiting for it. All others are limited by
/// the store.
#[tokio::test]
async fn frozen_node_makes_only_its_own_keys_limited_locally() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let store = cluster.store_builder("quota").call_timeout(SECOND / 4).connect().await.unwrap();
    let (mut frozen_keys, mut live_keys) = (Vec::new(), Vec::new());
    for key in keys_in_distinct_shards(64) {
        let owner = cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await;
        if owner == FROZEN_NODE { frozen_keys.push(key) } else { live_keys.push(key) }
    }
    let limit = store.rate_limiter(Quota::requests(1_000_000).per(60 * SECOND));
    wait_until_counted(&limit, &frozen_keys).await;
    wait_until_counted(&limit, &live_keys).await;

    let process = cluster.process_id(FROZEN_NODE).await;
    send_signal(&process, "-STOP");
    // The first checks detect the outage.
    for _ in 0..3 {
        assert!(!are_counted_by_store(&limit, &frozen_keys).await.contains(&true));
    }
    let (mut check_count, mut local_count) = (0, 0);
    for _ in 0..20 {
        let counted_by_store = are_counted_by_store(&limit, &live_keys).await;
        (check_count, local_count) = (
            check_count + counted_by_store.len(),
            local_count + counted_by_store.iter().filter(|counted| !**counted).count(),
        );
        let started = Instant::now();
        assert!(!are_counted_by_store(&limit, &frozen_keys).await.contains(&true));
        assert!(started.elapsed() < SECOND, "a check waits for an unavailable cluster node");
    }
    // On a loaded machine, some checks may time out.
    assert!(local_count * 10 < check_count, "{local_count} of {check_count}: {limit:?}");
    send_signal(&process, "-CONT");
    wait_until_counted(&limit, &frozen_keys).await;
}
