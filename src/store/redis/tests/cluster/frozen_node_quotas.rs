//! Quotas while one of the nodes is away: whose keys are on the others are limited as before.

use std::time::{Duration, Instant};

use super::keys_in_distinct_shards;
use crate::{
    Quota,
    key::Key,
    rate_limit::RateLimiter,
    store::tests::test_cluster::{TestCluster, send_signal as tell},
};

const SECOND: Duration = Duration::from_secs(1);
const FROZEN_NODE: usize = 1;

/// Whether each of these was counted by the store.
async fn are_counted_by_store(limit: &RateLimiter, keys: &[Key]) -> Vec<bool> {
    let mut counted = Vec::new();
    for key in keys {
        let decision = limit.check(key.clone(), 1).await.expect("it can do without the store");
        assert!(decision.is_admitted(), "{decision:?}");
        counted.push(!decision.is_local());
    }
    counted
}

/// Checks until all of them are counted by the store again, as an application would.
async fn wait_until_counted(limit: &RateLimiter, keys: &[Key]) {
    for _ in 0..3000 {
        if are_counted_by_store(limit, keys).await.iter().all(|counted| *counted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not come back");
}

/// What it had is limited here meanwhile, without waiting for it, and all else by the store.
#[tokio::test]
async fn frozen_node_makes_only_its_own_keys_limited_locally() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let store = cluster.store_builder("quota").call_timeout(SECOND / 4).connect().await.unwrap();
    let (mut gone, mut there) = (Vec::new(), Vec::new());
    for key in keys_in_distinct_shards(64) {
        let owner = cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await;
        if owner == FROZEN_NODE { gone.push(key) } else { there.push(key) }
    }
    let limit = store.rate_limiter(Quota::requests(1_000_000).per(60 * SECOND));
    wait_until_counted(&limit, &gone).await;
    wait_until_counted(&limit, &there).await;

    let process = cluster.process_id(FROZEN_NODE).await;
    tell(&process, "-STOP");
    // The first to ask find it out.
    for _ in 0..3 {
        assert!(!are_counted_by_store(&limit, &gone).await.contains(&true));
    }
    let (mut asked, mut missed) = (0, 0);
    for _ in 0..20 {
        let told = are_counted_by_store(&limit, &there).await;
        (asked, missed) =
            (asked + told.len(), missed + told.iter().filter(|counted| !**counted).count());
        let began = Instant::now();
        assert!(!are_counted_by_store(&limit, &gone).await.contains(&true));
        assert!(began.elapsed() < SECOND, "each waits for who is known to be away");
    }
    // A machine that has other things to do may be late with some.
    assert!(missed * 10 < asked, "{missed} of {asked}: {limit:?}");
    tell(&process, "-CONT");
    wait_until_counted(&limit, &gone).await;
}
