//! `ChargeClient`: charges in a loop. Tests look for its acknowledged charges on a server.

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

/// No test reaches it.
const HIGH_LIMIT: u64 = 1_000_000;
const TASKS_PER_CLIENT: usize = 4;

/// Client of one store, with the number of its acknowledged charges.
pub(super) struct ChargeClient {
    pub(super) store: Store,
    pub(super) key: Key,
    acknowledged: Arc<AtomicU64>,
}

/// Tasks that charge until they are stopped.
#[derive(Default)]
pub(super) struct ChargeTasks {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl ChargeClient {
    pub(super) fn new(store: Store, key: Key) -> Self {
        Self { store, key, acknowledged: Arc::default() }
    }

    /// Charges for a while, stops, and waits until the replica has all charges.
    pub(super) async fn warm_up(&self) {
        let mut tasks = ChargeTasks::default();
        tasks.start_tasks(self);
        self.wait_for_more(100).await;
        tasks.stop_and_join().await;
        self.wait_until_replicated().await;
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until `more` further charges are acknowledged.
    pub(super) async fn wait_for_more(&self, more: u64) {
        let before = self.acknowledged();
        while self.acknowledged() < before + more {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until the replica has all charges. No call may be in flight.
    async fn wait_until_replicated(&self) {
        loop {
            let since = self.store.backend().server_generation();
            let acks = self.store.backend().wait_for_replicas(self.key.shard(), 1, since).await;
            if acks.is_ok_and(|acks| acks > 0) {
                return;
            }
        }
    }

    /// Returns the key of its counter on a server.
    pub(super) fn counter_key(&self, namespace: &str) -> String {
        format!("lg:1:{namespace}:{{{}}}:c:p:{}", self.key.shard(), self.key)
    }

    /// Returns the number of acknowledged charges beyond `spent`, the count of a server.
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
