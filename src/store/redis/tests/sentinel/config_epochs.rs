//! Configurations of two numbers: whoever knows the later one may be late with his answer, or gone.

use std::time::{Duration, Instant};

use super::{
    super::{cluster::charge_command, wait_for},
    ConnectionSettings, ConnectionTarget, FakeSentinel, RedisTlsSettings, SECOND, ServerProcess,
    StoreUrl,
};
use crate::{key::Key, store::Store};

/// Two who call themselves masters, and three sentinels that name the first.
struct EpochScenario {
    old_master: ServerProcess,
    new_master: ServerProcess,
    sentinels: [FakeSentinel; 3],
}

impl EpochScenario {
    async fn start() -> Self {
        let (old, new) = (ServerProcess::start().await, ServerProcess::start().await);
        let sentinel = async || {
            let sentinel = FakeSentinel::monitoring(old.port()).await;
            sentinel.set_epoch("5");
            sentinel
        };
        let sentinels = [sentinel().await, sentinel().await, sentinel().await];
        Self { old_master: old, new_master: new, sentinels }
    }

    fn url(&self) -> String {
        let nodes = self.sentinels.each_ref().map(|one| format!("127.0.0.1:{}", one.port()));
        format!("redis+sentinel://{}/mymaster?ns=test", nodes.join(","))
    }

    /// One of them knows that there is a new one.
    fn fail_over(&self) {
        self.sentinels[0].set_epoch("6");
        self.sentinels[0].set_master(self.new_master.port());
    }

    /// How many of so many charges of different shards are acknowledged.
    async fn count_admitted_charges(&self, store: &Store) -> usize {
        let mut done = 0;
        for n in 0..64 {
            let key = Key::custom(&format!("{n}"));
            done +=
                usize::from(store.backend().charge(charge_command(&key, 1 << 30)).await.is_ok());
        }
        // Refused at once, they let nobody else run.
        tokio::time::sleep(Duration::from_millis(1)).await;
        done
    }
}

#[tokio::test]
async fn replaced_master_is_not_used_again_while_sentinel_is_late() {
    let scene = EpochScenario::start().await;
    for sentinel in &scene.sentinels {
        // They are asked eight times a second.
        sentinel.set_down_after("1000");
    }
    let builder = Store::builder(&scene.url()).connections_per_node(4).call_timeout(4 * SECOND);
    let store = builder.connect().await.expect("the URL is right");
    wait_for("the old one", async { while scene.count_admitted_charges(&store).await < 64 {} })
        .await;
    assert_eq!(scene.new_master.count_script_calls().await, 0);
    scene.fail_over();
    wait_for("the new one", async {
        let moved = async || {
            let before = scene.old_master.count_script_calls().await;
            scene.count_admitted_charges(&store).await == 64
                && scene.old_master.count_script_calls().await == before
        };
        while !moved().await {}
    })
    .await;
    let before = scene.old_master.count_script_calls().await;
    // Longer than anybody waits for him when the others have answered.
    scene.sentinels[0].set_delay(300);
    scene.new_master.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let late = Instant::now();
    while late.elapsed() < SECOND {
        scene.count_admitted_charges(&store).await;
    }
    assert_eq!(scene.old_master.count_script_calls().await, before, "written to the old one");
    scene.sentinels[0].set_delay(0);
    wait_for("the new one", async { while scene.count_admitted_charges(&store).await < 64 {} })
        .await;
    assert_eq!(scene.old_master.count_script_calls().await, before, "written to the old one");
}

/// So much later, for whoever looks at the clock of the runtime.
async fn advance_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// He has gone before he told anybody, or all of them were set up anew.
#[tokio::test]
async fn older_epoch_of_majority_is_accepted_in_the_end() {
    let scene = EpochScenario::start().await;
    let address = StoreUrl::parse(&scene.url()).expect("the URL is right");
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), SECOND)
        .expect("the URL is right");
    let leads_to = async || {
        let opened = target.open(0, &ConnectionSettings::default()).await.ok();
        opened.and_then(|opened| opened.endpoint).map(|(_, port)| port)
    };
    let [old, new] = [&scene.old_master, &scene.new_master].map(|server| Some(server.port()));
    assert_eq!(leads_to().await, old);
    scene.fail_over();
    assert_eq!(leads_to().await, new);
    scene.sentinels[0].stop_answering();
    for second in 0..6 {
        assert_eq!(leads_to().await, None, "after {second} s");
        advance_time(SECOND).await;
    }
    let mut last = None;
    for _ in 0..10 {
        advance_time(SECOND).await;
        last = last.or(leads_to().await);
    }
    assert_eq!(last, old, "nobody can use it any more");
}
