//! A frozen master that resumes while sentinels replace it, or later. It accepts writes until a
//! sentinel demotes it, eight seconds later. Each acknowledged write must be on the successor.
//!
//! All writes before the fault are known to be on the replica, and no call is in flight when it
//! begins. So the bound is exact: no write that is acknowledged afterwards may be missing.

use std::time::Duration;

use super::{
    super::{
        SECOND,
        charge_client::{ChargeClient, ChargeTasks},
    },
    sentinel_setup::SentinelSetup,
};
use crate::{key::Key, store::Store};

async fn connect_client(sentinels: &SentinelSetup, name: &str) -> ChargeClient {
    let store = Store::builder(&sentinels.url()).connections_per_node(1).connect().await;
    ChargeClient::new(store.expect("the URL is right"), Key::custom(name))
}

/// Returns the number of acknowledged charges that the successor lacks.
async fn count_lost_on_replica(sentinels: &SentinelSetup, client: &ChargeClient) -> u64 {
    client.count_lost(sentinels.replica.query(&["GET", &client.counter_key("test")]).await)
}

/// A client that writes before the fault, pauses while it begins and writes again, and one that is
/// idle until the master resumes.
struct SentinelClients {
    active_client: ChargeClient,
    idle_client: ChargeClient,
}

impl SentinelClients {
    async fn new(sentinels: &SentinelSetup) -> Self {
        let (active_client, idle_client) =
            (connect_client(sentinels, "busy").await, connect_client(sentinels, "idle").await);
        for client in [&active_client, &idle_client] {
            client.warm_up().await;
        }
        sentinels.wait_for_subscribers(2).await;
        Self { active_client, idle_client }
    }

    /// Freezes the master, resumes it after `then`, and asserts that no acknowledged write is lost.
    /// All clients write until the sentinels agree on a master, and beyond.
    async fn assert_no_loss_when_resumed_after(
        &self,
        sentinels: &SentinelSetup,
        then: impl AsyncFnOnce(&SentinelSetup),
    ) {
        let mut charge_tasks = ChargeTasks::default();
        sentinels.master.freeze();
        charge_tasks.start_tasks(&self.active_client);
        then(sentinels).await;
        sentinels.master.resume();
        charge_tasks.start_tasks(&self.idle_client);
        if tokio::time::timeout(15 * SECOND, sentinels.wait_for_failover()).await.is_err() {
            // No sentinel has won the vote, and then they found the master healthy.
            sentinels.start_failover().await;
            sentinels.wait_for_failover().await;
        }
        for client in [&self.active_client, &self.idle_client] {
            client.wait_for_more(200).await;
        }
        charge_tasks.stop_and_join().await;
        let (busy, idle) = (
            count_lost_on_replica(sentinels, &self.active_client).await,
            count_lost_on_replica(sentinels, &self.idle_client).await,
        );
        let acknowledged = self.active_client.acknowledged() + self.idle_client.acknowledged();
        println!(
            "{acknowledged} acknowledged; missing {busy} of the busy ones, {idle} of the idle ones"
        );
        println!("figure: acknowledged and lost after the freeze {}", busy + idle);
        assert_eq!((busy, idle), (0, 0), "acknowledged, and not on the successor");
    }
}

async fn run_resume_case(then: impl AsyncFnOnce(&SentinelSetup)) {
    let sentinels = SentinelSetup::start().await;
    let clients = SentinelClients::new(&sentinels).await;
    clients.assert_no_loss_when_resumed_after(&sentinels, then).await;
}

/// The vote is not decided yet, and the replica still follows the master.
#[tokio::test]
async fn master_resumed_as_failover_begins_loses_no_writes() {
    run_resume_case(async |sentinels| sentinels.wait_for_flag("failover_in_progress").await).await;
}

/// The successor accepts writes, and no sentinel has seen that yet.
#[tokio::test]
async fn master_resumed_after_promotion_loses_no_writes() {
    run_resume_case(async |sentinels| {
        // A promotion closes the connections of clients.
        let is_master = |info: String| info.contains("role:master");
        while !sentinels.replica.try_query(&["INFO", "replication"]).await.is_ok_and(is_master) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Sentinels agree, and the old master accepts writes for eight more seconds.
#[tokio::test]
async fn master_resumed_after_sentinels_agree_loses_no_writes() {
    run_resume_case(async |sentinels| sentinels.wait_for_failover().await).await;
}

/// The old master is healthy, and is demoted eight seconds after the promotion.
#[tokio::test]
async fn planned_failover_loses_only_calls_in_flight() {
    let sentinels = SentinelSetup::start().await;
    let clients = SentinelClients::new(&sentinels).await;
    let mut charge_tasks = ChargeTasks::default();
    charge_tasks.start_tasks(&clients.active_client);
    clients.active_client.wait_for_more(100).await;
    sentinels.start_failover().await;
    sentinels.wait_for_failover().await;
    clients.active_client.wait_for_more(200).await;
    let task_count = charge_tasks.task_count();
    charge_tasks.stop_and_join().await;
    let lost = count_lost_on_replica(&sentinels, &clients.active_client).await;
    println!("figure: acknowledged and lost in a planned failover {lost}");
    // Writes in transit to the replica when it stopped following.
    assert!(lost <= task_count, "{lost} of {}", clients.active_client.acknowledged());
}
