//! Quotas across a failover: what a replica had not got is forgotten, and may be let in again. Nothing beyond that is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinHandle;

use super::{
    super::{SECOND, cluster::charge_command},
    sentinel_setup::SentinelSetup,
};
use crate::{key::Key, store::Store};

/// More than is let in before the failover.
const LIMIT: u64 = 400;
const TASK_COUNT: u64 = 4;

#[derive(Default)]
struct ChargeCounts {
    admitted: AtomicU64,
    refused: AtomicU64,
}

impl ChargeCounts {
    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    /// Until so many have been let in.
    async fn wait_for_admitted(&self, number: u64) {
        while self.admitted() < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Asks until there is nothing left of the quota.
fn charge_until_refused(store: &Store, key: &Key, seen: &Arc<ChargeCounts>) -> JoinHandle<()> {
    let (store, key, seen) = (store.clone(), key.clone(), Arc::clone(seen));
    crate::store::spawn(async move {
        loop {
            match store.backend().charge(charge_command(&key, LIMIT)).await {
                Ok(charged) if charged.admitted > 0 => {
                    seen.admitted.fetch_add(1, Ordering::SeqCst);
                }
                Ok(_) => {
                    seen.refused.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                // Whoever asked is not let in, whether it was charged or not.
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    })
}

/// Those that the replica surely has.
async fn count_replicated_charges(store: &Store, key: &Key, seen: &ChargeCounts) -> u64 {
    loop {
        let (sure, since) = (seen.admitted(), store.backend().server_generation());
        if store.backend().wait_for_replicas(key.shard(), 1, since).await.is_ok_and(|have| have > 0)
        {
            return sure;
        }
    }
}

/// It wakes up as a master, when its successor is one already.
#[tokio::test]
async fn failover_readmits_only_charges_frozen_master_lost() {
    let sentinels = SentinelSetup::start().await;
    let store = Store::builder(&sentinels.url()).call_timeout(SECOND).connect().await;
    let (store, key) = (store.expect("the URL is right"), Key::custom("quota"));
    let seen = Arc::<ChargeCounts>::default();
    let tasks: Vec<_> =
        (0..TASK_COUNT).map(|_| charge_until_refused(&store, &key, &seen)).collect();
    seen.wait_for_admitted(LIMIT / 4).await;
    let sure = count_replicated_charges(&store, &key, &seen).await;
    sentinels.master.freeze();
    // Answers that were on their way are of the old one, too.
    let perhaps = seen.admitted() + TASK_COUNT - sure;
    sentinels.wait_for_failover().await;
    // One that wakes before that takes calls as a master does, until the sentinels have told it otherwise; what it
    // lets in then is forgotten as well.
    let before = seen.admitted();
    seen.wait_for_admitted(before + 2 * TASK_COUNT).await;
    sentinels.master.resume();
    for task in tasks {
        tokio::time::timeout(60 * SECOND, task).await.expect("it ends").expect("no panic");
    }
    let (admitted, name) = (seen.admitted(), format!("lg:1:test:{{{}}}:c:p:{key}", key.shard()));
    let spent: u64 = sentinels.replica.query(&["GET", &name]).await;
    println!(
        "{admitted} of {LIMIT} let in; {sure} of them surely on the replica, {perhaps} perhaps not"
    );
    println!("figure: let in beyond a quota {}", admitted.saturating_sub(LIMIT));
    assert_eq!((spent, seen.refused.load(Ordering::SeqCst)), (LIMIT, TASK_COUNT));
    assert!(admitted <= LIMIT + perhaps, "{admitted} of {LIMIT}, and {perhaps} may be forgotten");
    assert!(admitted > LIMIT / 2, "{admitted}");
}
