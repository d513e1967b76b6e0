//! A stopped master that resumes when its replica has taken over, or is about to. It executes the
//! commands in its sockets before it learns that it is no longer a master. Each acknowledged write
//! must be on the successor.
//!
//! All writes before the fault are known to be on the replica, and no call is in flight when it
//! begins. So the bound is exact: no write that is acknowledged afterwards may be missing.

use std::time::Duration;

use super::{
    super::{
        super::charge_client::{ChargeClient, ChargeTasks},
        assert_store_is_clean,
    },
    FAILED_MASTER, FailoverScenario, SECOND,
};
use crate::store::tests::test_cluster::send_signal;

/// The replica that takes over from [`FAILED_MASTER`].
const SUCCESSOR: usize = FAILED_MASTER + 3;

/// Longer than the nodes take to agree that one has failed.
const LONG_DEADLINE: Duration = Duration::from_secs(10);
const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

/// A client that writes once the master is stopped, and one that is idle until it resumes.
struct ClusterClients {
    scene: FailoverScenario,
    active_client: ChargeClient,
    idle_client: ChargeClient,
}

impl ClusterClients {
    async fn new(timeout: Duration) -> Self {
        let scene = FailoverScenario::new(DEFAULT_DEADLINE).await;
        let client = async |number: usize| {
            let builder =
                scene.cluster.store_builder("death").connections_per_node(1).call_timeout(timeout);
            let store = builder.connect().await.expect("the URL is right");
            let client =
                ChargeClient::new(store, scene.keys_by_master[FAILED_MASTER][number].clone());
            client.warm_up().await;
            client
        };
        let (active_client, idle_client) = (client(4).await, client(5).await);
        Self { scene, active_client, idle_client }
    }

    /// Stops the master, resumes it shortly after `then`, and asserts that no acknowledged write is
    /// lost.
    async fn assert_no_loss_when_resumed_after(&self, then: impl AsyncFnOnce(&FailoverScenario)) {
        let mut charge_tasks = ChargeTasks::default();
        let process = self.scene.cluster.process_id(FAILED_MASTER).await;
        send_signal(&process, "-STOP");
        charge_tasks.start_tasks(&self.active_client);
        then(&self.scene).await;
        charge_tasks.start_tasks(&self.idle_client);
        // First calls that go to the old master are in its sockets by then.
        tokio::time::sleep(DEFAULT_DEADLINE / 5).await;
        send_signal(&process, "-CONT");
        let is_replica = |info: &str| info.contains("role:slave");
        self.scene
            .cluster
            .wait_until_node(FAILED_MASTER, &["INFO", "replication"], is_replica)
            .await;
        for client in [&self.active_client, &self.idle_client] {
            client.wait_for_more(200).await;
        }
        charge_tasks.stop_and_join().await;
        let (busy, idle) = (
            self.count_lost_on_successor(&self.active_client).await,
            self.count_lost_on_successor(&self.idle_client).await,
        );
        let acknowledged = self.active_client.acknowledged() + self.idle_client.acknowledged();
        println!(
            "{acknowledged} acknowledged; missing {busy} of the busy ones, {idle} of the idle ones"
        );
        println!("figure: acknowledged and lost after the freeze {}", busy + idle);
        assert_eq!((busy, idle), (0, 0), "acknowledged, and not on the successor");
        assert_store_is_clean(&self.scene.store).await;
    }

    /// Returns the number of acknowledged charges that the successor lacks.
    async fn count_lost_on_successor(&self, client: &ChargeClient) -> u64 {
        client.count_lost(
            self.scene.cluster.query(SUCCESSOR, &["GET", &client.counter_key("death")]).await,
        )
    }
}

async fn wait_for_promotion(scene: &FailoverScenario) {
    let is_master = |info: &str| info.contains("role:master");
    scene.cluster.wait_until_node(SUCCESSOR, &["INFO", "replication"], is_master).await;
}

/// With a client that was active during the stop, and one that was idle.
#[tokio::test]
async fn master_resumed_after_promotion_loses_no_writes() {
    ClusterClients::new(DEFAULT_DEADLINE)
        .await
        .assert_no_loss_when_resumed_after(wait_for_promotion)
        .await;
}

/// Calls sent to the stopped master are still awaited when it resumes.
#[tokio::test]
async fn master_resumed_within_long_deadline_loses_no_writes() {
    ClusterClients::new(LONG_DEADLINE)
        .await
        .assert_no_loss_when_resumed_after(wait_for_promotion)
        .await;
}

/// The active client uses the successor for a while, and the idle one does not.
#[tokio::test]
async fn master_resumed_after_successor_serves_loses_no_writes() {
    let wait_until_served = async |scene: &FailoverScenario| {
        let started = tokio::time::Instant::now();
        while scene.acquire_and_release(&scene.keys_by_master[FAILED_MASTER][0]).await.is_err() {
            assert!(started.elapsed() < 40 * SECOND, "no replica is promoted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    ClusterClients::new(DEFAULT_DEADLINE)
        .await
        .assert_no_loss_when_resumed_after(wait_until_served)
        .await;
}
