//! A master dies, or stands still, and its replica takes over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, time::timeout};

use super::{ask, insist, keys};
use crate::{
    key::Key,
    store::{
        Store,
        backend::{Acquired, JobId, Mode, Node, Token},
        hints::{Hint, Hints},
        tests::cluster::Cluster,
    },
};

/// How soon the nodes agree that one is gone.
const TIMEOUT: Duration = Duration::from_millis(1500);

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// How long calls took, and how many failed.
#[derive(Debug, Default)]
struct Seen {
    longest: Duration,
    failed: u32,
    calls: u32,
}

impl Seen {
    /// Takes a lock and gives it back; its fence, if the store was there.
    async fn try_lock(&mut self, store: &Store, key: &Key) -> Option<u64> {
        let me = Token::new(store.node());
        let began = Instant::now();
        let held = store.backend().acquire(ask(key, &me)).await;
        self.longest = self.longest.max(began.elapsed());
        self.calls += 1;
        let Ok(held) = held else {
            self.failed += 1;
            return None;
        };
        let _ = store.backend().release(key.clone(), me, Mode::Exclusive).await;
        match held {
            Acquired::Held { fence, .. } => Some(fence),
            _ => None,
        }
    }
}

/// One that hears messages by one of the nodes.
pub(super) struct Ear {
    pub(super) node: Node,
    _hints: Arc<Hints>,
    heard: mpsc::UnboundedReceiver<Hint>,
}

impl Ear {
    pub(super) async fn new(store: &Store) -> Self {
        let (node, hints) = (Node::new(), Arc::new(Hints::default()));
        let heard = hints.work();
        drop(store.backend().listen(node.clone(), &hints));
        let mut ear = Self { node, _hints: hints, heard };
        ear.resyncs().await;
        ear
    }

    /// It is told that it may have missed something.
    pub(super) async fn resyncs(&mut self) {
        let heard = async { while self.heard.recv().await != Some(Hint::Resync) {} };
        timeout(20 * SECOND, heard).await.expect("it listens again");
    }

    /// Whatever comes before it.
    pub(super) async fn hears_this(&mut self, hint: &Hint) {
        let heard = async { while self.heard.recv().await.as_ref() != Some(hint) {} };
        timeout(20 * SECOND, heard).await.expect("it is told");
    }

    /// Until a message arrives: it may be on its way from one node to another.
    async fn hears(&mut self, store: &Store, key: &Key) {
        for _ in 0..20 {
            let hint = Hint::Work(key.clone(), JobId::new(key));
            let told = async || store.backend().tell(self.node.clone(), hint.clone()).await;
            insist(told).await;
            let heard = async { while self.heard.recv().await != Some(hint.clone()) {} };
            if timeout(SECOND, heard).await.is_ok() {
                return;
            }
        }
        panic!("messages do not arrive");
    }
}

async fn a_master_goes(signal: &str) {
    let cluster = Cluster::start(3, true, TIMEOUT).await;
    let store = cluster.builder("death").connect().await.unwrap();
    let mut of = [Vec::new(), Vec::new(), Vec::new()];
    for key in keys(64) {
        let owner = cluster.owner(cluster.slot(key.shard()).await).await;
        of[owner].push(key);
    }
    let (dead, alive) = (of[1][0].clone(), of[2][0].clone());
    let mut fence = 0;
    for _ in 0..20 {
        let (mut seen, key) = (Seen::default(), dead.clone());
        fence = seen.try_lock(&store, &key).await.unwrap_or(fence);
    }
    assert!(fence > 0);
    // Held all the while, on a node that lives.
    let guard = store.lock(alive.clone()).lease(3 * SECOND).acquire().await.unwrap();
    let waiter = store.as_another_process().lock(alive.clone()).wait(60 * SECOND);
    let waiter = tokio::spawn(waiter.acquire());
    let mut ears = Vec::new();
    for _ in 0..3 {
        ears.push(Ear::new(&store).await);
    }
    // A grant waits for the replica of the node it is on.
    for its in &of {
        let granted = store.lock(its[2].clone()).replicas(1).acquire();
        timeout(20 * SECOND, granted).await.unwrap().expect("it has one").release().await;
    }
    let [mut gone, mut there] = [Seen::default(), Seen::default()];
    cluster.signal(1, signal).await;
    let began = Instant::now();
    let mut back = None;
    while back.is_none() && began.elapsed() < 40 * SECOND {
        back = gone.try_lock(&store, &dead).await;
        there.try_lock(&store, &of[2][1]).await;
        there.try_lock(&store, &of[0][1]).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let outage = began.elapsed();
    println!("{signal}: away for {outage:?}; its shards {gone:?}, the others {there:?}");
    println!("figure: longest call {} ms", gone.longest.max(there.longest).as_millis());
    println!("figure: shards of the dead away {} ms", outage.as_millis());
    assert!(back.is_some_and(|back| back > fence), "{back:?} after {fence}");
    // Far below the seconds that the failover takes.
    assert!(gone.longest < 2 * SECOND && there.longest < 2 * SECOND, "{gone:?} {there:?}");
    // The others go on; a machine that is busy may be late now and then.
    assert!(there.failed * 10 < there.calls, "{there:?}");
    assert!(guard.remaining() > Duration::ZERO);
    guard.release().await;
    let served = waiter.await.expect("no panic").expect("it is served");
    served.release().await;
    for ear in &mut ears {
        ear.resyncs().await;
        ear.hears(&store, &alive).await;
    }
    // All that it had.
    for key in &of[1] {
        insist(async || {
            let me = Token::new(store.node());
            store.backend().acquire(ask(key, &me)).await?;
            store.backend().release(key.clone(), me, Mode::Exclusive).await
        })
        .await;
    }
    let held = store.lock(dead.clone()).acquire().await.unwrap();
    let waiting = store.as_another_process().lock(dead).wait(60 * SECOND).acquire();
    let waiting = tokio::spawn(waiting);
    tokio::task::yield_now().await;
    held.release().await;
    waiting.await.expect("no panic").expect("it is served").release().await;
}

#[tokio::test]
async fn a_master_that_dies_is_replaced_by_its_replica() {
    a_master_goes("-KILL").await;
}

#[tokio::test]
async fn a_master_that_stands_still_is_replaced_by_its_replica() {
    a_master_goes("-STOP").await;
}
