//! Configurations of two numbers: whoever knows the later one may be late with his answer, or gone.

use std::time::{Duration, Instant};

use super::{
    super::{cluster::charge, within},
    ConnectionSettings, ConnectionTarget, FakeSentinel, RedisTlsSettings, SECOND, Server, StoreUrl,
};
use crate::{key::Key, store::Store};

/// Two who call themselves masters, and three sentinels that name the first.
struct Scene {
    old: Server,
    new: Server,
    sentinels: [FakeSentinel; 3],
}

impl Scene {
    async fn start() -> Self {
        let (old, new) = (Server::start().await, Server::start().await);
        let sentinel = async || {
            let sentinel = FakeSentinel::of(old.port()).await;
            sentinel.epoch("5");
            sentinel
        };
        let sentinels = [sentinel().await, sentinel().await, sentinel().await];
        Self { old, new, sentinels }
    }

    fn url(&self) -> String {
        let nodes = self.sentinels.each_ref().map(|one| format!("127.0.0.1:{}", one.port()));
        format!("redis+sentinel://{}/mymaster?ns=test", nodes.join(","))
    }

    /// One of them knows that there is a new one.
    fn fails_over(&self) {
        self.sentinels[0].epoch("6");
        self.sentinels[0].name(self.new.port());
    }

    /// How many of so many charges of different shards are acknowledged.
    async fn charged(&self, store: &Store) -> usize {
        let mut done = 0;
        for n in 0..64 {
            let key = Key::custom(&format!("{n}"));
            done += usize::from(store.backend().charge(charge(&key, 1 << 30)).await.is_ok());
        }
        // Refused at once, they let nobody else run.
        tokio::time::sleep(Duration::from_millis(1)).await;
        done
    }
}

#[tokio::test]
async fn a_master_that_was_replaced_is_not_gone_back_to_while_whoever_knows_is_late() {
    let scene = Scene::start().await;
    for sentinel in &scene.sentinels {
        // They are asked eight times a second.
        sentinel.down_after("1000");
    }
    let builder = Store::builder(&scene.url()).connections_per_node(4).call_timeout(4 * SECOND);
    let store = builder.connect().await.expect("the URL is right");
    within("the old one", async { while scene.charged(&store).await < 64 {} }).await;
    assert_eq!(scene.new.calls().await, 0);
    scene.fails_over();
    within("the new one", async {
        let moved = async || {
            let before = scene.old.calls().await;
            scene.charged(&store).await == 64 && scene.old.calls().await == before
        };
        while !moved().await {}
    })
    .await;
    let before = scene.old.calls().await;
    // Longer than anybody waits for him when the others have answered.
    scene.sentinels[0].delay(300);
    scene.new.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let late = Instant::now();
    while late.elapsed() < SECOND {
        scene.charged(&store).await;
    }
    assert_eq!(scene.old.calls().await, before, "written to the old one");
    scene.sentinels[0].delay(0);
    within("the new one", async { while scene.charged(&store).await < 64 {} }).await;
    assert_eq!(scene.old.calls().await, before, "written to the old one");
}

/// So much later, for whoever looks at the clock of the runtime.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// He has gone before he told anybody, or all of them were set up anew.
#[tokio::test]
async fn what_most_sentinels_stay_at_is_believed_in_the_end() {
    let scene = Scene::start().await;
    let address = StoreUrl::parse(&scene.url()).expect("the URL is right");
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), SECOND)
        .expect("the URL is right");
    let leads_to = async || {
        let opened = target.open(0, &ConnectionSettings::default()).await.ok();
        opened.and_then(|opened| opened.endpoint).map(|(_, port)| port)
    };
    let [old, new] = [&scene.old, &scene.new].map(|server| Some(server.port()));
    assert_eq!(leads_to().await, old);
    scene.fails_over();
    assert_eq!(leads_to().await, new);
    scene.sentinels[0].hang();
    for second in 0..6 {
        assert_eq!(leads_to().await, None, "after {second} s");
        pass(SECOND).await;
    }
    let mut last = None;
    for _ in 0..10 {
        pass(SECOND).await;
        last = last.or(leads_to().await);
    }
    assert_eq!(last, old, "nobody can use it any more");
}
