//! A master dies, or stands still, and its replica takes over.

use std::time::{Duration, Instant};

use super::{ask, insist, keys};
use crate::{
    key::Key,
    store::{
        Store,
        backend::{Acquired, Mode, Token},
        tests::cluster::Cluster,
    },
};

/// How soon the nodes agree that one is gone.
const TIMEOUT: Duration = Duration::from_millis(1500);

const SECOND: Duration = Duration::from_secs(1);

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
    let waiter = store.as_another_process().lock(alive).wait(60 * SECOND);
    let waiter = tokio::spawn(waiter.acquire());
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
    assert!(back.is_some_and(|back| back > fence), "{back:?} after {fence}");
    // Far below the seconds that the failover takes.
    assert!(gone.longest < SECOND && there.longest < SECOND, "{gone:?} {there:?}");
    // The others go on; a machine that is busy may be late now and then.
    assert!(there.failed * 10 < there.calls, "{there:?}");
    assert!(guard.remaining() > Duration::ZERO);
    guard.release().await;
    let served = waiter.await.expect("no panic").expect("it is served");
    served.release().await;
    // All that it had, and messages of each node.
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
