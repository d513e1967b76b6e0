//! `TestCase`: one row of the table, in one framework on one store.

use std::{
    future::Future,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lockgate::{Store, StoreBuilder};

use crate::{
    redis_cluster::shared_cluster,
    redis_server::shared_server,
    scripted_handler::ScriptedHandler,
    site::{TestSite, TestSiteBuilder, WebFramework},
    wait::TEST_TIMEOUT,
};

/// Backend of the stores of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// The embedded store.
    Memory,
    /// A Redis server, in a namespace of the case's own.
    Redis,
    /// A Redis Cluster of three nodes, in a namespace of the case's own.
    Cluster,
}

/// Row in one framework on one store.
#[derive(Debug)]
pub struct TestCase {
    /// The framework of its sites, unless a builder sets another one.
    pub framework: WebFramework,
    store_kind: StoreKind,
    /// State that the handlers of all its sites share.
    pub handler: ScriptedHandler,
    memory_store: Store,
    namespace: String,
    started_sites: AtomicUsize,
}

/// Runs a row.
///
/// # Panics
///
/// If the row fails, or takes too long.
pub fn run_case<F, R>(framework: WebFramework, store_kind: StoreKind, row: F)
where
    F: FnOnce(TestCase) -> R,
    R: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let row = row(TestCase::new(framework, store_kind));
        let ended = tokio::time::timeout(TEST_TIMEOUT * 2, row).await;
        assert!(ended.is_ok(), "the row takes too long");
    });
    // Tasks that the row left running end with their sockets.
    runtime.shutdown_background();
}

impl TestCase {
    fn new(framework: WebFramework, store_kind: StoreKind) -> Self {
        Self {
            framework,
            store_kind,
            handler: ScriptedHandler::default(),
            memory_store: Store::memory(),
            namespace: uuid::Uuid::new_v4().simple().to_string(),
            started_sites: AtomicUsize::new(0),
        }
    }

    /// Returns another store on the case's data; it counts as a separate process.
    pub async fn new_store(&self) -> Store {
        match self.store_kind {
            StoreKind::Memory => self.memory_store.as_another_process(),
            StoreKind::Redis | StoreKind::Cluster => {
                self.connect_to_namespace(&self.namespace).await
            }
        }
    }

    /// Returns a store without common data: another namespace on the same server.
    pub async fn new_unrelated_store(&self) -> Store {
        match self.store_kind {
            StoreKind::Memory => Store::memory(),
            StoreKind::Redis | StoreKind::Cluster => {
                self.connect_to_namespace(&uuid::Uuid::new_v4().simple().to_string()).await
            }
        }
    }

    /// Returns a store in another database, with the server and the namespace of the case.
    pub async fn new_store_in_other_database(&self) -> Store {
        match self.store_kind {
            StoreKind::Memory => Store::memory(),
            StoreKind::Redis => self
                .store_builder(&self.namespace)
                .await
                .database(1)
                .connect()
                .await
                .expect("a store"),
            StoreKind::Cluster => panic!("a cluster has one database"),
        }
    }

    async fn connect_to_namespace(&self, namespace: &str) -> Store {
        self.store_builder(namespace).await.connect().await.expect("a store")
    }

    async fn store_builder(&self, namespace: &str) -> StoreBuilder {
        let url = match self.store_kind {
            StoreKind::Cluster => shared_cluster().await.url(namespace),
            _ => shared_server().await.url(namespace),
        };
        // Far above the duration of a call: a loaded machine is no outage.
        Store::builder(&url).call_timeout(Duration::from_secs(10))
    }

    /// Starts a site with a worker, as a process of its own.
    pub async fn start_site(&self) -> TestSite {
        self.site_builder().await.start().await
    }

    /// Returns the builder of a site.
    pub async fn site_builder(&self) -> TestSiteBuilder {
        self.site_builder_on(self.new_store().await)
    }

    /// Returns the builder of a site on this store.
    pub fn site_builder_on(&self, store: Store) -> TestSiteBuilder {
        let number = self.started_sites.fetch_add(1, Ordering::Relaxed);
        TestSiteBuilder::new(self.framework, store, self.handler.clone(), format!("site {number}"))
    }
}

/// Runs tests that use no framework on the embedded store and on Redis. Each test is a function
/// that takes a [`TestCase`]; it becomes a module of two tests.
#[macro_export]
macro_rules! on_both_stores {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            #[test]
            fn on_memory() {
                $crate::run_case($crate::WebFramework::Axum, $crate::StoreKind::Memory, super::$test);
            }

            #[test]
            fn on_redis() {
                $crate::run_case($crate::WebFramework::Axum, $crate::StoreKind::Redis, super::$test);
            }
        }
    )+};
}
