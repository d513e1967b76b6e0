//! Messages that do not arrive: they cost a look, and nothing else.

use std::time::{Duration, Instant};

use super::{SECOND, eventually, hears_of_locks, in_line, proxy::Proxy, server::Server};
use crate::{
    lock::LockGuard,
    store::{OFFER_TIMEOUT, Store},
};

/// What a lost message costs: a look after 300 ms and its jitter, the calls, and a loaded machine; far less than a lease.
const LOOK: Duration = Duration::from_secs(2);

/// An odd number, of which most must cost no more than a look.
const ROUNDS: usize = 5;

/// Most rounds: the others may meet a loaded machine. But none waits for a lease.
fn cost_a_look(mut waited: Vec<Duration>) {
    waited.sort_unstable();
    let (median, worst) = (waited[ROUNDS / 2], waited[ROUNDS - 1]);
    println!("figure: longest wait without a message {} ms", worst.as_millis());
    println!("figure: median wait without a message {} ms", median.as_millis());
    assert!(median < LOOK, "{waited:?}");
    assert!(worst < 8 * SECOND, "{waited:?}");
}

/// How long a waiter of `store` stands there after `other` has given the lock back, if `fault` happens
/// while it waits.
async fn waited_after(store: &Store, other: &Store, fault: impl AsyncFnOnce()) -> Duration {
    let held = other.lock("x").acquire().await.expect("it is free");
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    in_line(other, 1).await;
    fault().await;
    let since = Instant::now();
    let (_, guard) = tokio::join!(held.release(), waiter);
    let guard: LockGuard = guard.expect("no panic").expect("it is served");
    let waited = since.elapsed();
    guard.release().await;
    waited
}

/// Below the look that comes without it, which is as far away as it can be: the waiter has just taken its place.
#[tokio::test]
async fn a_message_wakes_a_waiter_of_another_process() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        waited.push(waited_after(&store, &other, async || hears_of_locks(&server).await).await);
    }
    waited.sort_unstable();
    println!("figure: median wait with a message {} ms", waited[ROUNDS / 2].as_millis());
    assert!(waited[ROUNDS / 2] < OFFER_TIMEOUT / 2, "{waited:?}");
}

#[tokio::test]
async fn a_subscriber_that_is_killed_is_replaced_and_misses_nothing_for_long() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let one = waited_after(&store, &other, async || {
            hears_of_locks(&server).await;
            let killed: usize = server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            assert!(killed > 0, "nobody listened");
        });
        waited.push(one.await);
    }
    cost_a_look(waited);
    eventually("a new subscriber", async || server.subscribers().await > 0).await;
    assert!(server.subscribers().await <= 2, "one for a process");
}

/// Nor does who holds a lock, or is refused one.
#[tokio::test]
async fn who_asks_again_after_a_pause_hears_no_messages() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    let subscribed = async || server.info("commandstats", "cmdstat_subscribe:calls").await;
    let held = other.lock("x").acquire().await.expect("it is free");
    let every = Duration::from_millis(50);
    store.lock("x").retry(2, every).acquire().await.expect_err("it is held");
    let again = crate::store::spawn(store.lock("x").retry(1000, every).acquire());
    held.release().await;
    drop(again.await.expect("no panic").expect("it came free"));
    assert_eq!((subscribed().await, server.subscribers().await), (0, 0));
    let held = other.lock("x").wait(20 * SECOND).acquire().await.expect("it comes free");
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    in_line(&other, 1).await;
    eventually("who waits to hear", async || subscribed().await > 0).await;
    held.release().await;
    drop(waiter.await.expect("no panic").expect("it is served"));
}

/// A worker is spared a message for each of its own steps; one connection hears all the same.
#[tokio::test]
async fn changes_of_jobs_are_heard_by_those_who_have_waited_for_one() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let heard = async |channel: &str| {
        let list: Vec<String> = server.ask(&["PUBSUB", "CHANNELS", "lg:1:test:*"]).await;
        list.iter().any(|name| name.ends_with(channel))
    };
    let _work = store.wakeups().subscribe_work();
    eventually("a worker to listen", async || heard(":e").await).await;
    assert!(!heard(":c").await);
    let id = crate::store::JobId::new(&crate::Key::custom("x"));
    let watch = store.wakeups().subscribe_job(&id);
    let mut changes = watch.subscribe_changes();
    eventually("changes to be listened for", async || heard(":c").await).await;
    // It may have changed before anybody heard of it.
    let again = tokio::time::timeout(5 * SECOND, changes.changed()).await.expect("it looks again");
    again.expect("it is there");
    let told = async {
        loop {
            server.command(&["PUBLISH", "lg:1:test:c", id.as_str()]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        told = changes.changed() => told.expect("it is there"),
        () = told => {}
        () = tokio::time::sleep(20 * SECOND) => panic!("it is told of nothing"),
    }
    eventually("one connection to hear all", async || server.subscribers().await == 1).await;
}

#[tokio::test]
async fn a_waiter_whose_messages_are_lost_looks_for_itself() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    let other = server.patient_store().await;
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let lost = proxy.lost();
        let fault = async || {
            hears_of_locks(&server).await;
            proxy.lose_messages(true);
        };
        waited.push(waited_after(&store, &other, fault).await);
        assert!(proxy.lost() > lost, "no message was lost");
        proxy.lose_messages(false);
    }
    cost_a_look(waited);
}

/// The server ends a subscriber that does not keep up, with all that was meant for it.
#[tokio::test]
async fn a_subscriber_too_slow_for_its_server_is_replaced() {
    let server = Server::start().await;
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 256kb 256kb 1"];
    server.command(&limit).await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    let other = server.patient_store().await;
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let one = waited_after(&store, &other, async || {
            hears_of_locks(&server).await;
            proxy.stall_messages(true);
            let (event, subscribers) = ("x".repeat(64 * 1024), server.subscribers().await);
            assert!(subscribers > 0, "nobody listens");
            eventually("the server to end its subscriber", async || {
                server.command(&["PUBLISH", "lg:1:test:e", &event]).await;
                server.subscribers().await < subscribers
            })
            .await;
            proxy.stall_messages(false);
        });
        waited.push(one.await);
    }
    cost_a_look(waited);
}
