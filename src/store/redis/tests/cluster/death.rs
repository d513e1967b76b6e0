//! A master dies, and its replica takes over.

mod lag;
mod thaw;

use std::time::{Duration, Instant};

use super::{ask, ear::SECOND, keys};
use crate::{
    error::Error,
    key::Key,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken, ReleaseOutcome},
        tests::cluster::Cluster,
    },
};

/// How soon the nodes agree that one is gone.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Who goes.
const GOES: usize = 1;

/// Three masters with a replica each, and keys of the shards of each of the masters.
struct Scene {
    cluster: Cluster,
    store: Store,
    of: [Vec<Key>; 3],
}

impl Scene {
    async fn new(deadline: Duration) -> Self {
        let cluster = Cluster::start(3, true, TIMEOUT).await;
        let builder = cluster.builder("death").call_timeout(deadline);
        let store = builder.connect().await.expect("the URL is right");
        let mut of = [Vec::new(), Vec::new(), Vec::new()];
        for key in keys(64) {
            let owner = cluster.owner(cluster.slot(key.shard()).await).await;
            of[owner].push(key);
        }
        Self { cluster, store, of }
    }

    /// Takes a lock and gives it back, once.
    async fn pass(&self, key: &Key) -> Result<Option<u64>, Error> {
        let me = LockToken::new(self.store.node());
        let held = self.store.backend().acquire(ask(key, &me)).await?;
        self.give_back(key, me).await?;
        Ok(match held {
            AcquireReply::Granted { fence, .. } => Some(fence),
            _ => None,
        })
    }

    async fn give_back(&self, key: &Key, me: LockToken) -> Result<ReleaseOutcome, Error> {
        self.store.backend().release(key.clone(), me, LockMode::Exclusive).await
    }

    /// The second master dies. Until its shards have another one.
    async fn goes(&self) {
        self.cluster.signal(GOES, "-KILL").await;
        let began = Instant::now();
        while !matches!(self.pass(&self.of[GOES][0]).await, Ok(Some(_))) {
            assert!(began.elapsed() < 40 * SECOND, "nobody takes over");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
