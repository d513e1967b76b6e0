//! A master dies, and its replica takes over.

mod lag;
mod thaw;

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{
    super::granted,
    ask,
    ear::{Ear, SECOND},
    insist, is_clean, keys,
    requests::Requests,
};
use crate::{
    error::Error,
    key::Key,
    store::{
        Store,
        backend::{Acquired, GaveBack, Mode, Token},
        tests::cluster::Cluster,
    },
};

/// How soon the nodes agree that one is gone.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Who goes.
const GOES: usize = 1;

/// Three masters with a replica each, and keys of the shards of each of the masters.
struct Scene {
    cluster: Cluster,
    store: Store,
    of: [Vec<Key>; 3],
}

impl Scene {
    async fn new(deadline: Duration) -> Self {
        let cluster = Cluster::start(3, true, TIMEOUT).await;
        let builder = cluster.builder("death").deadline(deadline);
        let store = builder.connect().await.expect("the URL is right");
        let mut of = [Vec::new(), Vec::new(), Vec::new()];
        for key in keys(64) {
            let owner = cluster.owner(cluster.slot(key.shard()).await).await;
            of[owner].push(key);
        }
        Self { cluster, store, of }
    }

    /// Takes a lock and gives it back, once.
    async fn pass(&self, key: &Key) -> Result<Option<u64>, Error> {
        let me = Token::new(self.store.node());
        let held = self.store.backend().acquire(ask(key, &me)).await?;
        self.give_back(key, me).await?;
        Ok(match held {
            Acquired::Held { fence, .. } => Some(fence),
            _ => None,
        })
    }

    async fn give_back(&self, key: &Key, me: Token) -> Result<GaveBack, Error> {
        self.store.backend().release(key.clone(), me, Mode::Exclusive).await
    }

    /// One request after the other for a lock of each node.
    async fn is_used(&self, requests: &Requests) {
        let each = self.of.iter().map(async |keys| {
            while requests.goes_on() {
                let me = Token::new(self.store.node());
                let acquire = async || {
                    self.store.backend().acquire(ask(&keys[3], &me)).await?;
                    self.give_back(&keys[3], me.clone()).await
                };
                requests.insist(acquire).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        join_all(each).await;
    }

    /// The second master dies. Until its shards have another one: their first fence.
    async fn goes(&self) -> (u64, Outage) {
        let [mut gone, mut there] = [Seen::default(), Seen::default()];
        self.cluster.signal(GOES, "-KILL").await;
        let began = Instant::now();
        loop {
            let back = gone.of(self.pass(&self.of[GOES][0])).await;
            if let Some(back) = back {
                return (back, Outage { away: began.elapsed(), gone, there });
            }
            assert!(began.elapsed() < 40 * SECOND, "nobody takes over");
            there.of(self.pass(&self.of[2][1])).await;
            there.of(self.pass(&self.of[0][1])).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// How long calls took, and how many failed.
#[derive(Debug, Default)]
struct Seen {
    longest: Duration,
    failed: u32,
    calls: u32,
}

impl Seen {
    async fn of<T>(&mut self, call: impl Future<Output = Result<Option<T>, Error>>) -> Option<T> {
        let began = Instant::now();
        let answer = call.await;
        self.longest = self.longest.max(began.elapsed());
        self.calls += 1;
        self.failed += u32::from(answer.is_err());
        answer.unwrap_or_default()
    }
}

struct Outage {
    away: Duration,
    /// By the shards of who has gone, and by those of the others.
    gone: Seen,
    there: Seen,
}

impl Outage {
    fn judge(&self, requests: &Requests) {
        let Self { away, gone, there } = self;
        println!("away for {away:?}; its shards {gone:?}, the others {there:?}");
        println!("figure: shards of the dead away {} ms", away.as_millis());
        requests.tell();
        // A call's deadline is 250 ms; the failover takes more than the four seconds that nodes wait.
        assert!(gone.longest < 4 * SECOND && there.longest < 4 * SECOND, "{gone:?} {there:?}");
        // The others go on; a machine that is busy may be late now and then.
        assert!(there.failed * 10 < there.calls, "{there:?}");
        // Who asks again is served as soon as there is somebody to serve.
        let longest = requests.longest();
        assert!(longest < *away + 10 * SECOND, "{longest:?}, and it was away for {away:?}");
    }
}

/// A lock is held, waited for and passed on, and messages arrive, as before.
async fn all_is_as_before(scene: &Scene, ears: &mut [Ear]) {
    for ear in ears {
        ear.resyncs().await;
        ear.hears(&scene.store, &scene.of[2][0]).await;
    }
    // All that it had.
    for key in &scene.of[GOES] {
        insist(async || scene.pass(key).await).await;
    }
    let key = &scene.of[GOES][0];
    let held = granted(&scene.store.lock(key.clone())).await;
    let waiting = scene.store.as_another_process().lock(key.clone()).wait(60 * SECOND).acquire();
    let waiting = crate::store::spawn(waiting);
    tokio::task::yield_now().await;
    held.release().await;
    waiting.await.expect("no panic").expect("it is served").release().await;
    is_clean(&scene.store).await;
}

#[tokio::test]
async fn a_master_that_dies_is_replaced_by_its_replica() {
    let scene = Scene::new(SECOND / 4).await;
    let Scene { store, of, .. } = &scene;
    let mut fence = None;
    for _ in 0..20 {
        fence = fence.max(scene.pass(&of[GOES][0]).await.unwrap_or_default());
    }
    assert!(fence.is_some());
    // Held all the while, on a node that lives.
    let guard = granted(&store.lock(of[2][0].clone()).lease(6 * SECOND)).await;
    let waiter = store.as_another_process().lock(of[2][0].clone()).wait(60 * SECOND);
    let waiter = crate::store::spawn(waiter.acquire());
    let mut ears = Vec::new();
    for _ in 0..3 {
        ears.push(Ear::new(store).await);
    }
    // A grant waits for the replica of the node it is on.
    for its in of {
        granted(&store.lock(its[2].clone()).replicas(1)).await.release().await;
    }
    let requests = Requests::default();
    let fails_over = async {
        requests.rate("before", tokio::time::sleep(SECOND)).await;
        let seen = requests.rate("during", scene.goes()).await;
        requests.rate("after", tokio::time::sleep(SECOND)).await;
        requests.stop();
        seen
    };
    let ((back, outage), ()) = tokio::join!(fails_over, scene.is_used(&requests));
    outage.judge(&requests);
    assert!(Some(back) > fence, "{back:?} after {fence:?}");
    assert!(guard.remaining() > Duration::ZERO);
    guard.release().await;
    let served = waiter.await.expect("no panic").expect("it is served");
    served.release().await;
    all_is_as_before(&scene, &mut ears).await;
}
