//! A master dies, and its replica takes over.

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

/// How soon the nodes agree that one is gone.
const NODE_TIMEOUT: Duration = Duration::from_secs(4);

/// Who goes.
const FAILED_MASTER: usize = 1;

/// Three masters with a replica each, and keys of the shards of each of the masters.
struct FailoverScenario {
    cluster: TestCluster,
    store: Store,
    keys_by_master: [Vec<Key>; 3],
}

impl FailoverScenario {
    async fn new(deadline: Duration) -> Self {
        let cluster = TestCluster::start(3, true, NODE_TIMEOUT).await;
        let builder = cluster.store_builder("death").call_timeout(deadline);
        let store = builder.connect().await.expect("the URL is right");
        let mut of = [Vec::new(), Vec::new(), Vec::new()];
        for key in keys_in_distinct_shards(64) {
            let owner = cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await;
            of[owner].push(key);
        }
        Self { cluster, store, keys_by_master: of }
    }

    /// Takes a lock and gives it back, once.
    async fn acquire_and_release(&self, key: &Key) -> Result<Option<u64>, Error> {
        let me = LockToken::new(self.store.node());
        let held = self.store.backend().acquire(acquire_command(key, &me)).await?;
        self.release_lock(key, me).await?;
        Ok(match held {
            AcquireReply::Granted { fence, .. } => Some(fence),
            _ => None,
        })
    }

    async fn release_lock(&self, key: &Key, me: LockToken) -> Result<ReleaseOutcome, Error> {
        self.store.backend().release(key.clone(), me, LockMode::Exclusive).await
    }

    /// The second master dies. Until its shards have another one.
    async fn kill_master(&self) {
        self.cluster.signal_node(FAILED_MASTER, "-KILL").await;
        let began = Instant::now();
        while !matches!(
            self.acquire_and_release(&self.keys_by_master[FAILED_MASTER][0]).await,
            Ok(Some(_))
        ) {
            assert!(began.elapsed() < 40 * SECOND, "nobody takes over");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
