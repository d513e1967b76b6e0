//! A case: one row of the table, in one framework on one store.

use std::{
    future::Future,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lockgate::{Store, StoreBuilder};

use crate::{
    cluster::shared_cluster,
    desk::Desk,
    redis::shared_server,
    site::{Framework, Plan, Site},
    wait::PATIENCE,
};

/// What the stores of a case stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// The embedded store.
    Memory,
    /// A Redis server, in a namespace of the case's own.
    Redis,
    /// A Redis Cluster of three nodes, in a namespace of the case's own.
    Cluster,
}

/// One row in one framework on one store.
#[derive(Debug)]
pub struct Case {
    /// The framework of its sites, unless a plan says otherwise.
    pub framework: Framework,
    backing: Backing,
    /// Where the handlers of all its sites meet.
    pub desk: Desk,
    memory: Store,
    namespace: String,
    sites: AtomicUsize,
}

/// Runs a row.
///
/// # Panics
///
/// If the row fails, or takes too long.
pub fn run<F, R>(framework: Framework, backing: Backing, row: F)
where
    F: FnOnce(Case) -> R,
    R: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let row = row(Case::new(framework, backing));
        let ended = tokio::time::timeout(PATIENCE * 2, row).await;
        assert!(ended.is_ok(), "the row takes too long");
    });
    // What a row has left running ends with its sockets; nothing waits for it.
    runtime.shutdown_background();
}

impl Case {
    fn new(framework: Framework, backing: Backing) -> Self {
        Self {
            framework,
            backing,
            desk: Desk::default(),
            memory: Store::memory(),
            namespace: uuid::Uuid::new_v4().simple().to_string(),
            sites: AtomicUsize::new(0),
        }
    }

    /// A store on the case's data that counts as a process of its own.
    pub async fn store(&self) -> Store {
        match self.backing {
            Backing::Memory => self.memory.as_another_process(),
            Backing::Redis | Backing::Cluster => self.connect(&self.namespace).await,
        }
    }

    /// A store that shares nothing with the case's: another namespace on the same server.
    pub async fn stranger(&self) -> Store {
        match self.backing {
            Backing::Memory => Store::memory(),
            Backing::Redis | Backing::Cluster => {
                self.connect(&uuid::Uuid::new_v4().simple().to_string()).await
            }
        }
    }

    /// A store that shares the server and the namespace with the case's, and nothing else: another database.
    pub async fn other_database(&self) -> Store {
        match self.backing {
            Backing::Memory => Store::memory(),
            Backing::Redis => {
                self.builder(&self.namespace).await.database(1).connect().await.expect("a store")
            }
            Backing::Cluster => panic!("a cluster has one database"),
        }
    }

    async fn connect(&self, namespace: &str) -> Store {
        self.builder(namespace).await.connect().await.expect("a store")
    }

    async fn builder(&self, namespace: &str) -> StoreBuilder {
        let url = match self.backing {
            Backing::Cluster => shared_cluster().await.url(namespace),
            _ => shared_server().await.url(namespace),
        };
        // Far more than a call takes: a loaded machine is no outage.
        Store::builder(&url).call_timeout(Duration::from_secs(10))
    }

    /// A site with a worker, as a process of its own.
    pub async fn site(&self) -> Site {
        self.plan().await.start().await
    }

    /// A site in the making.
    pub async fn plan(&self) -> Plan {
        self.plan_on(self.store().await)
    }

    /// A site in the making, on this store.
    pub fn plan_on(&self, store: Store) -> Plan {
        let number = self.sites.fetch_add(1, Ordering::Relaxed);
        Plan::new(self.framework, store, self.desk.clone(), format!("site {number}"))
    }
}

/// Tests that are the same on the embedded store and on Redis, for what knows no framework: each is a function that takes
/// a [`Case`], and becomes a module of two.
#[macro_export]
macro_rules! on_both_stores {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            #[test]
            fn on_memory() {
                $crate::run($crate::Framework::Axum, $crate::Backing::Memory, super::$test);
            }

            #[test]
            fn on_redis() {
                $crate::run($crate::Framework::Axum, $crate::Backing::Redis, super::$test);
            }
        }
    )+};
}
