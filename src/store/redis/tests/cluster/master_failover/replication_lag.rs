//! Failover of a master with writes that its replica lacks: row 14 of locks, row 9 of quotas.
//!
//! Replication stops before those writes. So it is known exactly which writes must be lost.
//! Writes that the replica had acknowledged must not be.

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
    store::{backend::SPARE_FENCES, key_names::KeyNames, tests::test_cluster::send_signal},
};

/// The replica of [`FAILED_MASTER`].
const REPLICA: usize = FAILED_MASTER + 3;

const LIMIT: u64 = 20;

impl FailoverScenario {
    /// Stops replication to the replica. Returns its process id, by which it is resumed.
    async fn freeze_replica(&self) -> String {
        // Asked before the stop: a stopped process does not answer.
        let replica = self.cluster.process_id(REPLICA).await;
        send_signal(&replica, "-STOP");
        self.cluster.send_command(FAILED_MASTER, &["CLIENT", "KILL", "TYPE", "replica"]).await;
        replica
    }

    /// Kills the master; the replica is resumed and takes over.
    async fn fail_over_to(&self, replica: &str) {
        let resume = async {
            tokio::time::sleep(SECOND / 10).await;
            send_signal(replica, "-CONT");
        };
        tokio::join!(self.kill_master(), resume);
    }

    async fn replica_count(&self, key: &Key) -> u32 {
        let since = self.store.backend().server_generation();
        self.store.backend().wait_for_replicas(key.shard(), 1, since).await.unwrap_or(0)
    }
}

/// The last fences of the master are a minute ahead, as with a fast clock.
#[tokio::test]
async fn fences_grow_after_failover_to_replica_with_slow_clock() {
    let scenario = FailoverScenario::new(5 * SECOND).await;
    let key = scenario.keys_by_master[FAILED_MASTER][4].clone();
    let next_fence = async || {
        retry_while_unavailable(async || scenario.acquire_and_release(&key).await)
            .await
            .expect("it is free")
    };
    next_fence().await;
    let fences_key = KeyNames::new("death").clustered().shard_key(key.shard(), "f");
    let (seconds, _): (u64, u64) = scenario.cluster.query(FAILED_MASTER, &["TIME"]).await;
    // As in a namespace that is minutes old, where fences do not exceed the clock.
    let now = (seconds * 1_000_000).to_string();
    scenario.cluster.send_command(FAILED_MASTER, &["HSET", &fences_key, "fence", &now]).await;
    next_fence().await;
    wait_until("its replica to have it", async || scenario.replica_count(&key).await == 1).await;
    let replica = scenario.freeze_replica().await;
    scenario
        .cluster
        .send_command(FAILED_MASTER, &["HINCRBY", &fences_key, "fence", "60000000"])
        .await;
    let mut last = 0;
    for _ in 0..50 {
        last = next_fence().await;
    }
    scenario.fail_over_to(&replica).await;
    let next = next_fence().await;
    assert!(next > last + SPARE_FENCES, "{next} after {last}");
    // Another process does not raise the fences a second time.
    let before: u64 = scenario.cluster.query(REPLICA, &["HGET", &fences_key, "fence"]).await;
    let other = scenario.cluster.store_builder("death").call_timeout(5 * SECOND).connect().await;
    let other = acquire_with_retries(&other.expect("the URL is right").lock(key.clone())).await;
    assert_eq!(before + SPARE_FENCES + 1, other.fence());
}

impl FailoverScenario {
    /// Charges until `number` are admitted or the quota refuses. Returns how many were admitted,
    /// and how many are in doubt.
    async fn charge_up_to(&self, key: &Key, number: u64) -> (u64, u64) {
        let (mut admitted, mut in_doubt) = (0, 0);
        while admitted < number {
            match self.store.backend().charge(charge_command(key, LIMIT)).await {
                Ok(charged) if charged.admitted == 0 => break,
                Ok(_) => admitted += 1,
                Err(error) if error.kind() == ErrorKind::Timeout => in_doubt += 1,
                // Not executed: nothing was admitted or charged.
                Err(_) => tokio::time::sleep(SECOND / 100).await,
            }
        }
        (admitted, in_doubt)
    }
}

#[tokio::test]
async fn failover_readmits_only_charges_the_replica_lacked() {
    // A long timeout, so that a loaded machine is no fault.
    let scenario = FailoverScenario::new(5 * SECOND).await;
    let key = scenario.keys_by_master[FAILED_MASTER][4].clone();
    let (replicated, unreplicated) = (LIMIT / 2, LIMIT / 4);
    assert_eq!(scenario.charge_up_to(&key, replicated).await, (replicated, 0));
    wait_until("its replica to have it", async || scenario.replica_count(&key).await == 1).await;
    let replica = scenario.freeze_replica().await;
    assert_eq!(scenario.charge_up_to(&key, unreplicated).await, (unreplicated, 0));
    scenario.fail_over_to(&replica).await;
    let (after, in_doubt) = scenario.charge_up_to(&key, LIMIT).await;
    println!(
        "figure: let in beyond a quota {}",
        (replicated + unreplicated + after).saturating_sub(LIMIT)
    );
    // Charges that the replica had still count. Exactly those that it lacked are admitted again.
    assert!(
        (LIMIT - replicated - in_doubt..=LIMIT - replicated).contains(&after),
        "{after}, {in_doubt} perhaps"
    );
    assert_store_is_clean(&scenario.store).await;
}
