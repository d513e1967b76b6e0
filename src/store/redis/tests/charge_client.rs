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

use super::cluster::charge_command;
use crate::{key::Key, store::Store};

/// Nobody comes near it.
const HIGH_LIMIT: u64 = 1_000_000;
const TASKS_PER_CLIENT: usize = 4;

/// Of one store.
pub(super) struct ChargeClient {
    pub(super) store: Store,
    pub(super) key: Key,
    acknowledged: Arc<AtomicU64>,
}

/// Tasks of clients that ask until they are told to stop.
#[derive(Default)]
pub(super) struct ChargeTasks {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl ChargeClient {
    pub(super) fn new(store: Store, key: Key) -> Self {
        Self { store, key, acknowledged: Arc::default() }
    }

    /// It has written, rests, and a replica has all of it.
    pub(super) async fn warm_up(&self) {
        let mut asking = ChargeTasks::default();
        asking.start_tasks(self);
        self.wait_for_more(100).await;
        asking.stop_and_join().await;
        self.wait_until_replicated().await;
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Until so many more are acknowledged.
    pub(super) async fn wait_for_more(&self, more: u64) {
        let before = self.acknowledged();
        while self.acknowledged() < before + more {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// With nobody's call under way: until the replica has all of it.
    async fn wait_until_replicated(&self) {
        loop {
            let since = self.store.backend().server_generation();
            let have = self.store.backend().wait_for_replicas(self.key.shard(), 1, since).await;
            if have.is_ok_and(|have| have > 0) {
                return;
            }
        }
    }

    /// Where its charges are, on a server.
    pub(super) fn counter_key(&self, namespace: &str) -> String {
        format!("lg:1:{namespace}:{{{}}}:c:p:{}", self.key.shard(), self.key)
    }

    /// How many of those that were acknowledged are not among so many.
    pub(super) fn count_lost(&self, spent: Option<u64>) -> u64 {
        self.acknowledged().saturating_sub(spent.unwrap_or(0))
    }
}

impl ChargeTasks {
    pub(super) fn start_tasks(&mut self, client: &ChargeClient) {
        for _ in 0..TASKS_PER_CLIENT {
            let (store, key) = (client.store.clone(), client.key.clone());
            let (stop, acknowledged) = (Arc::clone(&self.stop), Arc::clone(&client.acknowledged));
            self.tasks.push(crate::store::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let charged = store.backend().charge(charge_command(&key, HIGH_LIMIT)).await;
                    if charged.is_ok_and(|charged| charged.admitted > 0) {
                        acknowledged.fetch_add(1, Ordering::SeqCst);
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }));
        }
    }

    /// How many tasks there are.
    pub(super) fn task_count(&self) -> u64 {
        self.tasks.len() as u64
    }

    pub(super) async fn stop_and_join(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in join_all(self.tasks).await {
            task.expect("no panic");
        }
    }
}
