//! Two configuration epochs: the sentinel that knows the later one may answer late, or not at all.

use std::time::{Duration, Instant};

use super::{
    super::{cluster::charge_command, wait_for},
    ConnectionTarget, FakeSentinel, RedisTlsSettings, SECOND, ServerProcess, StoreUrl,
    TimeoutAndDisconnectFlag,
};
use crate::{key::Key, store::Store};

/// Two servers that act as masters, and three sentinels that name the first.
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
        let nodes =
            self.sentinels.each_ref().map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
        format!("redis+sentinel://{}/mymaster?ns=test", nodes.join(","))
    }

    /// Lets one sentinel name the new master, in a later epoch.
    fn fail_over(&self) {
        self.sentinels[0].set_epoch("6");
        self.sentinels[0].set_master(self.new_master.port());
    }

    /// Returns how many of 64 charges in different shards are admitted.
    async fn count_admitted_charges(&self, store: &Store) -> usize {
        let mut admitted = 0;
        for n in 0..64 {
            let key = Key::custom(&format!("{n}"));
            admitted +=
                usize::from(store.backend().charge(charge_command(&key, 1 << 30)).await.is_ok());
        }
        // Charges that are refused at once do not yield to other tasks.
        tokio::time::sleep(Duration::from_millis(1)).await;
        admitted
    }
}

#[tokio::test]
async fn replaced_master_is_not_used_again_while_sentinel_is_late() {
    let scenario = EpochScenario::start().await;
    for sentinel in &scenario.sentinels {
        // Sentinels are polled eight times a second.
        sentinel.set_down_after("1000");
    }
    let builder = Store::builder(&scenario.url()).connections_per_node(4).call_timeout(4 * SECOND);
    let store = builder.connect().await.expect("the URL is right");
    wait_for("the old one", async { while scenario.count_admitted_charges(&store).await < 64 {} })
        .await;
    assert_eq!(scenario.new_master.count_script_calls().await, 0);
    scenario.fail_over();
    wait_for("the new one", async {
        let has_moved = async || {
            let before = scenario.old_master.count_script_calls().await;
            scenario.count_admitted_charges(&store).await == 64
                && scenario.old_master.count_script_calls().await == before
        };
        while !has_moved().await {}
    })
    .await;
    let before = scenario.old_master.count_script_calls().await;
    // Longer than a late sentinel is awaited after the others have answered.
    scenario.sentinels[0].set_delay(300);
    scenario.new_master.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let started = Instant::now();
    while started.elapsed() < SECOND {
        scenario.count_admitted_charges(&store).await;
    }
    assert_eq!(scenario.old_master.count_script_calls().await, before, "written to the old one");
    scenario.sentinels[0].set_delay(0);
    wait_for("the new one", async { while scenario.count_admitted_charges(&store).await < 64 {} })
        .await;
    assert_eq!(scenario.old_master.count_script_calls().await, before, "written to the old one");
}

/// Advances the clock of the runtime.
async fn advance_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// The sentinel ended before the others learned of the epoch, or all sentinels were set up anew.
#[tokio::test]
async fn older_epoch_of_majority_is_accepted_in_the_end() {
    let scenario = EpochScenario::start().await;
    let address = StoreUrl::parse(&scenario.url()).expect("the URL is right");
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), SECOND)
        .expect("the URL is right");
    let master_port = async || {
        let opened = target.open(0, &TimeoutAndDisconnectFlag::default()).await.ok();
        opened.and_then(|opened| opened.endpoint).map(|(_, port)| port)
    };
    let [old, new] = [&scenario.old_master, &scenario.new_master].map(|server| Some(server.port()));
    assert_eq!(master_port().await, old);
    scenario.fail_over();
    assert_eq!(master_port().await, new);
    scenario.sentinels[0].stop_answering();
    for second in 0..6 {
        assert_eq!(master_port().await, None, "after {second} s");
        advance_time(SECOND).await;
    }
    let mut accepted = None;
    for _ in 0..10 {
        advance_time(SECOND).await;
        accepted = accepted.or(master_port().await);
    }
    assert_eq!(accepted, old, "the remaining sentinels agree on the old master");
}
