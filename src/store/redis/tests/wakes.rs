//! Messages that do not arrive: they cost a look, and nothing else.

use std::time::{Duration, Instant};

use super::{SECOND, proxy::Proxy, server::Server};
use crate::{
    lock::LockGuard,
    store::{ACCEPT_WINDOW, Store},
};

/// What a lost message costs: a look after 300 ms and its jitter, and the calls.
const LOOK: Duration = ACCEPT_WINDOW.saturating_add(Duration::from_millis(150));

/// An odd number, of which most must cost no more than a look.
const ROUNDS: usize = 5;

/// Most rounds: the others may meet a loaded machine. But none waits for a lease.
fn cost_a_look(mut waited: Vec<Duration>) {
    waited.sort_unstable();
    let (median, worst) = (waited[ROUNDS / 2], waited[ROUNDS - 1]);
    println!("figure: longest wait without a message {} ms", worst.as_millis());
    println!("figure: median wait without a message {} ms", median.as_millis());
    assert!(median < LOOK, "{waited:?}");
    assert!(worst < 5 * SECOND, "{waited:?}");
}

/// How long a waiter of `store` stands there after `other` has given the lock back, if `fault` happens
/// while it waits.
async fn waited_after(store: &Store, other: &Store, fault: impl AsyncFnOnce()) -> Duration {
    let held = other.lock("x").acquire().await.expect("it is free");
    let waiter = tokio::spawn(store.lock("x").wait(20 * SECOND).acquire());
    in_line(other, 1).await;
    fault().await;
    let since = Instant::now();
    let (_, guard) = tokio::join!(held.release(), waiter);
    let guard: LockGuard = guard.expect("no panic").expect("it is served");
    let waited = since.elapsed();
    guard.release().await;
    waited
}

/// Until so many places are in line.
async fn in_line(store: &Store, places: u64) {
    loop {
        let asked = store.as_another_process().lock("x").acquire().await;
        let Err(crate::NotAcquired::Busy(busy)) = asked else { panic!("{asked:?}") };
        if busy.line == places {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn listeners(server: &Server) -> usize {
    let list: String = server.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    list.lines().count()
}

#[tokio::test]
async fn a_subscriber_that_is_killed_is_replaced_and_misses_nothing_for_long() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let one = waited_after(&store, &other, async || {
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        });
        waited.push(one.await);
    }
    cost_a_look(waited);
    while listeners(&server).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(listeners(&server).await <= 2, "one for a process");
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
    let _work = store.hints().work();
    while !heard(":e").await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!heard(":c").await);
    let id = crate::store::JobId::new(&crate::Key::custom("x"));
    let bell = store.hints().job(&id);
    while !heard(":c").await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It may have changed before anybody heard of it.
    tokio::time::timeout(5 * SECOND, bell.notified()).await.expect("it looks again");
    let told = async {
        loop {
            server.command(&["PUBLISH", "lg:1:test:c", id.as_str()]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = bell.notified() => {}
        () = told => {}
        () = tokio::time::sleep(5 * SECOND) => panic!("it is told of nothing"),
    }
    while listeners(&server).await > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_waiter_whose_messages_are_lost_looks_for_itself() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    let other = server.patient_store().await;
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        waited.push(waited_after(&store, &other, async || proxy.lose_messages(true)).await);
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
            proxy.stall_messages(true);
            let (event, subscribers) = ("x".repeat(64 * 1024), listeners(&server).await);
            while subscribers > 0 && listeners(&server).await >= subscribers {
                server.command(&["PUBLISH", "lg:1:test:e", &event]).await;
            }
            proxy.stall_messages(false);
        });
        waited.push(one.await);
    }
    cost_a_look(waited);
}
