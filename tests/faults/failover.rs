//! A master that sentinels watch over is killed, or stands still, under load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::{Key, NotAcquired, Store};
use lockgate_tests::Sentinels;
use tokio::task::JoinSet;

const TASKS: u64 = 8;
const PHASE: Duration = Duration::from_secs(2);

/// Until the sentinels agree, have promoted the replica and told of it, on a machine that has other things to do.
const AWAY: Duration = Duration::from_secs(40);

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    done: AtomicU64,
    refused: AtomicU64,
    longest: AtomicU64,
}

impl Load {
    /// Takes a lock of its own and gives it back, again and again. Its fences grow, whoever is the master.
    async fn go_round(self: Arc<Self>, store: Store, name: String) {
        let mut last = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let acquired = store.lock(Key::custom(&name)).wait(PHASE).acquire().await;
            let took = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.longest.fetch_max(took, Ordering::Relaxed);
            match acquired {
                Ok(guard) => {
                    assert!(guard.fence() > last, "{name}: {} after {last}", guard.fence());
                    last = guard.fence();
                    self.done.fetch_add(1, Ordering::Relaxed);
                    guard.release().await;
                }
                // A release that did not arrive: its lease is still on.
                Err(NotAcquired::Busy(_)) => {}
                Err(_) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn rate(&self, phase: &str, time: impl Future<Output = ()>) {
        let (before, began) = (self.done.load(Ordering::Relaxed), Instant::now());
        time.await;
        let done = self.done.load(Ordering::Relaxed) - before;
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        println!("figure: requests a second {phase} {}", done * 1000 / ms);
    }

    /// Until there are some again.
    async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        while self.done.load(Ordering::Relaxed) < before + 2 * TASKS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn fails_over(go: impl FnOnce(&mut Sentinels)) {
    let mut all = Sentinels::start().await;
    let store = Store::connect(&all.url("x")).await.expect("the URL is right");
    let load = Arc::new(Load::default());
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        tasks.spawn(Arc::clone(&load).go_round(store.clone(), format!("k{n}")));
    }
    load.goes_on().await;
    load.rate("before", tokio::time::sleep(PHASE)).await;
    let gone = Instant::now();
    go(&mut all);
    let back = tokio::time::timeout(AWAY, async {
        // What was under way when it went.
        tokio::time::sleep(Duration::from_millis(100)).await;
        load.rate("during", load.goes_on()).await;
    });
    back.await.expect("another one is promoted");
    println!("figure: away {} ms", gone.elapsed().as_millis());
    load.rate("after", tokio::time::sleep(PHASE)).await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("fences grow");
    }
    let longest = load.longest.load(Ordering::Relaxed);
    println!("figure: longest request {longest} ms");
    assert!(load.refused.load(Ordering::Relaxed) > 0, "nobody has noticed");
    // Nobody waits for a server that is away; a wait in line is 2 s, and a call in it 250 ms.
    assert!(longest < 4000, "{longest} ms");
}

#[tokio::test]
async fn a_master_that_is_killed_is_left_for_the_one_that_is_promoted() {
    fails_over(|all| all.master.kill()).await;
}

#[tokio::test]
async fn a_master_that_stands_still_is_left_for_the_one_that_is_promoted() {
    fails_over(|all| all.master.pause()).await;
}
