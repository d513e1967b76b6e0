//! Failover from a killed master to its replica.

mod replication_lag;
mod resumed_master;

use std::time::{Duration, Instant};

use super::{acquire_command, keys_in_distinct_shards, wakeup_listener::SECOND};
use crate::{
    error::Error,
    key::Key,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken, ReleaseOutcome},
        tests::test_cluster::TestCluster,
    },
};

/// Time after which the nodes agree that one has failed.
const NODE_TIMEOUT: Duration = Duration::from_secs(4);

/// The node that fails.
const FAILED_MASTER: usize = 1;

/// Three masters with a replica each, and keys grouped by the master of their shard.
struct FailoverScenario {
    cluster: TestCluster,
    store: Store,
    keys_by_master: [Vec<Key>; 3],
}

impl FailoverScenario {
    async fn new(timeout: Duration) -> Self {
        let cluster = TestCluster::start(3, true, NODE_TIMEOUT).await;
        let builder = cluster.store_builder("death").call_timeout(timeout);
        let store = builder.connect().await.expect("the URL is right");
        let mut keys_by_master = [Vec::new(), Vec::new(), Vec::new()];
        for key in keys_in_distinct_shards(64) {
            let owner = cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await;
            keys_by_master[owner].push(key);
        }
        Self { cluster, store, keys_by_master }
    }

    /// Acquires and releases a lock. Returns its fence if it was free.
    async fn acquire_and_release(&self, key: &Key) -> Result<Option<u64>, Error> {
        let token = LockToken::new(self.store.node());
        let held = self.store.backend().acquire(acquire_command(key, &token)).await?;
        self.release_lock(key, token).await?;
        Ok(match held {
            AcquireReply::Granted { fence, .. } => Some(fence),
            _ => None,
        })
    }

    async fn release_lock(&self, key: &Key, token: LockToken) -> Result<ReleaseOutcome, Error> {
        self.store.backend().release(key.clone(), token, LockMode::Exclusive).await
    }

    /// Kills the master and waits until its shards have another one.
    async fn kill_master(&self) {
        self.cluster.signal_node(FAILED_MASTER, "-KILL").await;
        let started = Instant::now();
        while !matches!(
            self.acquire_and_release(&self.keys_by_master[FAILED_MASTER][0]).await,
            Ok(Some(_))
        ) {
            assert!(started.elapsed() < 40 * SECOND, "no replica is promoted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
