//! A master dies with what its replica has not got: row 14 of locks, row 9 of quotas.
//!
//! The replica hears nothing more of its master before that is written. So what must be lost is known one by one, and so
//! is what must not: all that a replica was known to have.

use super::{
    super::{
        super::{acquire_with_retries, wait_until},
        assert_store_is_clean, charge_command, retry_while_unavailable,
    },
    FAILED_MASTER, FailoverScenario, SECOND,
};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{backend::SPARE_FENCES, key_names::KeyNames, tests::test_cluster::send_signal as tell},
};

/// The replica of [`FAILED_MASTER`].
const REPLICA: usize = FAILED_MASTER + 3;

const LIMIT: u64 = 20;

impl FailoverScenario {
    /// From now on the replica hears nothing; how it is woken.
    async fn freeze_replica(&self) -> String {
        // It answers nothing once it stands still.
        let replica = self.cluster.process_id(REPLICA).await;
        tell(&replica, "-STOP");
        self.cluster.send_command(FAILED_MASTER, &["CLIENT", "KILL", "TYPE", "replica"]).await;
        replica
    }

    /// The master dies, and the replica wakes and takes over.
    async fn fail_over_to(&self, replica: &str) {
        let wakes = async {
            tokio::time::sleep(SECOND / 10).await;
            tell(replica, "-CONT");
        };
        tokio::join!(self.kill_master(), wakes);
    }

    async fn replica_count(&self, key: &Key) -> u32 {
        let since = self.store.backend().server_generation();
        self.store.backend().wait_for_replicas(key.shard(), 1, since).await.unwrap_or(0)
    }
}

/// The clock of the master is a minute ahead: as far as its last grants tell.
#[tokio::test]
async fn fences_grow_after_failover_to_replica_with_slow_clock() {
    let scene = FailoverScenario::new(5 * SECOND).await;
    let key = scene.keys_by_master[FAILED_MASTER][4].clone();
    let pass = async || {
        retry_while_unavailable(async || scene.acquire_and_release(&key).await)
            .await
            .expect("it is free")
    };
    pass().await;
    let f = KeyNames::new("death").clustered().shard_key(key.shard(), "f");
    let (seconds, _): (u64, u64) = scene.cluster.query(FAILED_MASTER, &["TIME"]).await;
    // The namespace is minutes old: fences are no further than the clock.
    let now = (seconds * 1_000_000).to_string();
    scene.cluster.send_command(FAILED_MASTER, &["HSET", &f, "fence", &now]).await;
    pass().await;
    wait_until("its replica to have it", async || scene.replica_count(&key).await == 1).await;
    let replica = scene.freeze_replica().await;
    scene.cluster.send_command(FAILED_MASTER, &["HINCRBY", &f, "fence", "60000000"]).await;
    let mut last = 0;
    for _ in 0..50 {
        last = pass().await;
    }
    scene.fail_over_to(&replica).await;
    let next = pass().await;
    assert!(next > last + SPARE_FENCES, "{next} after {last}");
    // By no other process a second time.
    let before: u64 = scene.cluster.query(REPLICA, &["HGET", &f, "fence"]).await;
    let other = scene.cluster.store_builder("death").call_timeout(5 * SECOND).connect().await;
    let other = acquire_with_retries(&other.expect("the URL is right").lock(key.clone())).await;
    assert_eq!(before + SPARE_FENCES + 1, other.fence());
}

impl FailoverScenario {
    /// So many charges, if the quota has as many: how many were let in, and of how many nobody knows.
    async fn charge_up_to(&self, key: &Key, number: u64) -> (u64, u64) {
        let (mut admitted, mut perhaps) = (0, 0);
        while admitted < number {
            match self.store.backend().charge(charge_command(key, LIMIT)).await {
                Ok(charged) if charged.admitted == 0 => break,
                Ok(_) => admitted += 1,
                Err(error) if error.kind() == ErrorKind::Timeout => perhaps += 1,
                // Nobody is let in, and nothing is charged.
                Err(_) => tokio::time::sleep(SECOND / 100).await,
            }
        }
        (admitted, perhaps)
    }
}

#[tokio::test]
async fn failover_readmits_only_charges_the_replica_lacked() {
    // A machine that has other things to do is no fault here.
    let scene = FailoverScenario::new(5 * SECOND).await;
    let key = scene.keys_by_master[FAILED_MASTER][4].clone();
    let (with, without) = (LIMIT / 2, LIMIT / 4);
    assert_eq!(scene.charge_up_to(&key, with).await, (with, 0));
    wait_until("its replica to have it", async || scene.replica_count(&key).await == 1).await;
    let replica = scene.freeze_replica().await;
    assert_eq!(scene.charge_up_to(&key, without).await, (without, 0));
    scene.fail_over_to(&replica).await;
    let (after, perhaps) = scene.charge_up_to(&key, LIMIT).await;
    println!("figure: let in beyond a quota {}", (with + without + after).saturating_sub(LIMIT));
    // What the replica had is kept, and what it had not is let in again: not one more, nor less.
    assert!((LIMIT - with - perhaps..=LIMIT - with).contains(&after), "{after}, {perhaps} perhaps");
    assert_store_is_clean(&scene.store).await;
}
