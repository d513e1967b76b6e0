//! Charges that are counted when they are acknowledged, and looked for afterwards where they should be.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::cluster::charge;
use crate::{key::Key, store::Store};

/// Nobody comes near it.
const LIMIT: u64 = 1_000_000;
const TASKS: usize = 4;

/// Of one store.
pub(super) struct Client {
    pub(super) store: Store,
    pub(super) key: Key,
    acknowledged: Arc<AtomicU64>,
}

/// Tasks of clients that ask until they are told to stop.
#[derive(Default)]
pub(super) struct Asking {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Client {
    pub(super) fn new(store: Store, key: Key) -> Self {
        Self { store, key, acknowledged: Arc::default() }
    }

    /// It has written, rests, and a replica has all of it.
    pub(super) async fn warms_up(&self) {
        let mut asking = Asking::default();
        asking.begins(self);
        self.goes_on(100).await;
        asking.ends().await;
        self.is_replicated().await;
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Until so many more are acknowledged.
    pub(super) async fn goes_on(&self, more: u64) {
        let before = self.acknowledged();
        while self.acknowledged() < before + more {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// With nobody's call under way: until the replica has all of it.
    async fn is_replicated(&self) {
        loop {
            let since = self.store.backend().server_generation();
            let have = self.store.backend().wait_for_replicas(self.key.shard(), 1, since).await;
            if have.is_ok_and(|have| have > 0) {
                return;
            }
        }
    }

    /// Where its charges are, on a server.
    pub(super) fn window(&self, namespace: &str) -> String {
        format!("lg:1:{namespace}:{{{}}}:c:p:{}", self.key.shard(), self.key)
    }

    /// How many of those that were acknowledged are not among so many.
    pub(super) fn lost(&self, spent: Option<u64>) -> u64 {
        self.acknowledged().saturating_sub(spent.unwrap_or(0))
    }
}

impl Asking {
    pub(super) fn begins(&mut self, client: &Client) {
        for _ in 0..TASKS {
            let (store, key) = (client.store.clone(), client.key.clone());
            let (stop, acknowledged) = (Arc::clone(&self.stop), Arc::clone(&client.acknowledged));
            self.tasks.push(crate::store::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let charged = store.backend().charge(charge(&key, LIMIT)).await;
                    if charged.is_ok_and(|charged| charged.admitted > 0) {
                        acknowledged.fetch_add(1, Ordering::SeqCst);
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }));
        }
    }

    /// How many tasks there are.
    pub(super) fn number(&self) -> u64 {
        self.tasks.len() as u64
    }

    pub(super) async fn ends(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in join_all(self.tasks).await {
            task.expect("no panic");
        }
    }
}
