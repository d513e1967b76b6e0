//! A master that stood still and wakes when its replica has taken over, or is about to: what lies in its sockets it runs
//! before it hears that it is no master any more. Whoever is told that something is written must find it on the
//! successor.
//!
//! All that was written before the fault is known to be on the replica, and nobody's call is under way when it begins.
//! So the bound is exact: not one write that is acknowledged afterwards may be missing.

use std::time::Duration;

use super::{
    super::{
        super::clients::{Asking, Client},
        is_clean,
    },
    GOES, SECOND, Scene,
};
use crate::store::tests::cluster::signal as tell;

/// Who takes over from [`GOES`].
const SUCCESSOR: usize = GOES + 3;

/// Longer than it takes the nodes to agree that one is gone.
const PATIENT: Duration = Duration::from_secs(10);
const USUAL: Duration = Duration::from_millis(250);

/// What writes as soon as the master stands still, and one that is idle until it is to wake.
struct Clients {
    scene: Scene,
    busy: Client,
    idle: Client,
}

impl Clients {
    async fn new(deadline: Duration) -> Self {
        let scene = Scene::new(USUAL).await;
        let client = async |number: usize| {
            let builder =
                scene.cluster.builder("death").connections_per_node(1).call_timeout(deadline);
            let store = builder.connect().await.expect("the URL is right");
            let client = Client::new(store, scene.of[GOES][number].clone());
            client.warms_up().await;
            client
        };
        let (busy, idle) = (client(4).await, client(5).await);
        Self { scene, busy, idle }
    }

    /// The master stands still until then, and a little longer; afterwards all go on.
    async fn lost_when_it_wakes(&self, then: impl AsyncFnOnce(&Scene)) {
        let mut asking = Asking::default();
        let process = self.scene.cluster.process(GOES).await;
        tell(&process, "-STOP");
        asking.begins(&self.busy);
        then(&self.scene).await;
        asking.begins(&self.idle);
        // Their first calls are in its sockets by then, if they go there.
        tokio::time::sleep(USUAL / 5).await;
        tell(&process, "-CONT");
        let is_replica = |facts: &str| facts.contains("role:slave");
        self.scene.cluster.until(GOES, &["INFO", "replication"], is_replica).await;
        for client in [&self.busy, &self.idle] {
            client.goes_on(200).await;
        }
        asking.ends().await;
        let (busy, idle) = (self.lost(&self.busy).await, self.lost(&self.idle).await);
        let all = self.busy.acknowledged() + self.idle.acknowledged();
        println!("{all} acknowledged; missing {busy} of the busy ones, {idle} of the idle ones");
        println!("figure: acknowledged and lost after the freeze {}", busy + idle);
        assert_eq!((busy, idle), (0, 0), "acknowledged, and not on the successor");
        is_clean(&self.scene.store).await;
    }

    /// How many that were acknowledged the successor has not.
    async fn lost(&self, client: &Client) -> u64 {
        client.lost(self.scene.cluster.ask(SUCCESSOR, &["GET", &client.window("death")]).await)
    }
}

async fn is_promoted(scene: &Scene) {
    let is_master = |facts: &str| facts.contains("role:master");
    scene.cluster.until(SUCCESSOR, &["INFO", "replication"], is_master).await;
}

/// With calls of those that it stood still for, and of those that have slept through it.
#[tokio::test]
async fn nothing_is_lost_to_a_master_that_wakes_when_its_successor_is_promoted() {
    Clients::new(USUAL).await.lost_when_it_wakes(is_promoted).await;
}

/// Whose calls were sent when it stood still, and are still waited for.
#[tokio::test]
async fn nothing_is_lost_to_a_master_that_wakes_within_a_long_deadline() {
    Clients::new(PATIENT).await.lost_when_it_wakes(is_promoted).await;
}

/// The others serve its shards for a while, without those who are idle.
#[tokio::test]
async fn nothing_is_lost_to_a_master_that_wakes_when_its_successor_is_used() {
    let serves = async |scene: &Scene| {
        let began = tokio::time::Instant::now();
        while scene.pass(&scene.of[GOES][0]).await.is_err() {
            assert!(began.elapsed() < 40 * SECOND, "nobody takes over");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Clients::new(USUAL).await.lost_when_it_wakes(serves).await;
}
