//! A master that stood still and wakes when its replica has taken over, or is about to: what lies in its sockets it runs
//! before it hears that it is no master any more. Whoever is told that something is written must find it on the
//! successor.
//!
//! All that was written before the fault is known to be on the replica, and nobody's call is under way when it begins.
//! So the bound is exact: not one write that is acknowledged afterwards may be missing.

use std::time::Duration;

use super::{
    super::{
        super::charge_client::{ChargeClient, ChargeTasks},
        assert_store_is_clean,
    },
    FAILED_MASTER, FailoverScenario, SECOND,
};
use crate::store::tests::test_cluster::send_signal as tell;

/// Who takes over from [`FAILED_MASTER`].
const SUCCESSOR: usize = FAILED_MASTER + 3;

/// Longer than it takes the nodes to agree that one is gone.
const LONG_DEADLINE: Duration = Duration::from_secs(10);
const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

/// What writes as soon as the master stands still, and one that is idle until it is to wake.
struct ClusterClients {
    scene: FailoverScenario,
    active_client: ChargeClient,
    idle_client: ChargeClient,
}

impl ClusterClients {
    async fn new(deadline: Duration) -> Self {
        let scene = FailoverScenario::new(DEFAULT_DEADLINE).await;
        let client = async |number: usize| {
            let builder =
                scene.cluster.store_builder("death").connections_per_node(1).call_timeout(deadline);
            let store = builder.connect().await.expect("the URL is right");
            let client =
                ChargeClient::new(store, scene.keys_by_master[FAILED_MASTER][number].clone());
            client.warm_up().await;
            client
        };
        let (busy, idle) = (client(4).await, client(5).await);
        Self { scene, active_client: busy, idle_client: idle }
    }

    /// The master stands still until then, and a little longer; afterwards all go on.
    async fn assert_no_loss_when_resumed_after(&self, then: impl AsyncFnOnce(&FailoverScenario)) {
        let mut asking = ChargeTasks::default();
        let process = self.scene.cluster.process_id(FAILED_MASTER).await;
        tell(&process, "-STOP");
        asking.start_tasks(&self.active_client);
        then(&self.scene).await;
        asking.start_tasks(&self.idle_client);
        // Their first calls are in its sockets by then, if they go there.
        tokio::time::sleep(DEFAULT_DEADLINE / 5).await;
        tell(&process, "-CONT");
        let is_replica = |facts: &str| facts.contains("role:slave");
        self.scene
            .cluster
            .wait_until_node(FAILED_MASTER, &["INFO", "replication"], is_replica)
            .await;
        for client in [&self.active_client, &self.idle_client] {
            client.wait_for_more(200).await;
        }
        asking.stop_and_join().await;
        let (busy, idle) = (
            self.count_lost_on_successor(&self.active_client).await,
            self.count_lost_on_successor(&self.idle_client).await,
        );
        let all = self.active_client.acknowledged() + self.idle_client.acknowledged();
        println!("{all} acknowledged; missing {busy} of the busy ones, {idle} of the idle ones");
        println!("figure: acknowledged and lost after the freeze {}", busy + idle);
        assert_eq!((busy, idle), (0, 0), "acknowledged, and not on the successor");
        assert_store_is_clean(&self.scene.store).await;
    }

    /// How many that were acknowledged the successor has not.
    async fn count_lost_on_successor(&self, client: &ChargeClient) -> u64 {
        client.count_lost(
            self.scene.cluster.query(SUCCESSOR, &["GET", &client.counter_key("death")]).await,
        )
    }
}

async fn wait_for_promotion(scene: &FailoverScenario) {
    let is_master = |facts: &str| facts.contains("role:master");
    scene.cluster.wait_until_node(SUCCESSOR, &["INFO", "replication"], is_master).await;
}

/// With calls of those that it stood still for, and of those that have slept through it.
#[tokio::test]
async fn master_resumed_after_promotion_loses_no_writes() {
    ClusterClients::new(DEFAULT_DEADLINE)
        .await
        .assert_no_loss_when_resumed_after(wait_for_promotion)
        .await;
}

/// Whose calls were sent when it stood still, and are still waited for.
#[tokio::test]
async fn master_resumed_within_long_deadline_loses_no_writes() {
    ClusterClients::new(LONG_DEADLINE)
        .await
        .assert_no_loss_when_resumed_after(wait_for_promotion)
        .await;
}

/// The others serve its shards for a while, without those who are idle.
#[tokio::test]
async fn master_resumed_after_successor_serves_loses_no_writes() {
    let serves = async |scene: &FailoverScenario| {
        let began = tokio::time::Instant::now();
        while scene.acquire_and_release(&scene.keys_by_master[FAILED_MASTER][0]).await.is_err() {
            assert!(began.elapsed() < 40 * SECOND, "nobody takes over");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    ClusterClients::new(DEFAULT_DEADLINE).await.assert_no_loss_when_resumed_after(serves).await;
}
