//! Quotas across a failover: charges that the replica lacked may be admitted again, and no others.

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

/// More than is admitted before the failover.
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

    /// Waits until `number` charges were admitted.
    async fn wait_for_admitted(&self, number: u64) {
        while self.admitted() < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Charges until the quota refuses.
fn charge_until_refused(store: &Store, key: &Key, counts: &Arc<ChargeCounts>) -> JoinHandle<()> {
    let (store, key, counts) = (store.clone(), key.clone(), Arc::clone(counts));
    crate::store::spawn(async move {
        loop {
            match store.backend().charge(charge_command(&key, LIMIT)).await {
                Ok(charged) if charged.admitted > 0 => {
                    counts.admitted.fetch_add(1, Ordering::SeqCst);
                }
                Ok(_) => {
                    counts.refused.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                // The request is not admitted, whether it was charged or not.
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    })
}

/// Returns a number of admitted charges that the replica certainly has.
async fn count_replicated_charges(store: &Store, key: &Key, counts: &ChargeCounts) -> u64 {
    loop {
        let (admitted, since) = (counts.admitted(), store.backend().server_generation());
        if store.backend().wait_for_replicas(key.shard(), 1, since).await.is_ok_and(|acks| acks > 0)
        {
            return admitted;
        }
    }
}

/// The frozen master resumes as a master, when its successor is one already.
#[tokio::test]
async fn failover_readmits_only_charges_frozen_master_lost() {
    let sentinels = SentinelSetup::start().await;
    let store = Store::builder(&sentinels.url()).call_timeout(SECOND).connect().await;
    let (store, key) = (store.expect("the URL is right"), Key::custom("quota"));
    let counts = Arc::<ChargeCounts>::default();
    let tasks: Vec<_> =
        (0..TASK_COUNT).map(|_| charge_until_refused(&store, &key, &counts)).collect();
    counts.wait_for_admitted(LIMIT / 4).await;
    let replicated = count_replicated_charges(&store, &key, &counts).await;
    sentinels.master.freeze();
    // Replies in flight come from the old master, too.
    let in_doubt = counts.admitted() + TASK_COUNT - replicated;
    sentinels.wait_for_failover().await;
    // A master that resumes before that accepts calls until the sentinels demote it. Its charges
    // would be lost as well.
    let before = counts.admitted();
    counts.wait_for_admitted(before + 2 * TASK_COUNT).await;
    sentinels.master.resume();
    for task in tasks {
        tokio::time::timeout(60 * SECOND, task).await.expect("it ends").expect("no panic");
    }
    let (admitted, name) = (counts.admitted(), format!("lg:1:test:{{{}}}:c:p:{key}", key.shard()));
    let spent: u64 = sentinels.replica.query(&["GET", &name]).await;
    println!(
        "{admitted} of {LIMIT} let in; {replicated} of them surely on the replica, {in_doubt} perhaps not"
    );
    println!("figure: let in beyond a quota {}", admitted.saturating_sub(LIMIT));
    assert_eq!((spent, counts.refused.load(Ordering::SeqCst)), (LIMIT, TASK_COUNT));
    assert!(admitted <= LIMIT + in_doubt, "{admitted} of {LIMIT}, and {in_doubt} may be forgotten");
    assert!(admitted > LIMIT / 2, "{admitted}");
}
