//! Lost wake-ups: each costs a poll, and nothing else.

use std::time::{Duration, Instant};

use super::{
    SECOND, lossy_proxy::LossyProxy, server_process::ServerProcess, wait_for_lock_subscriber,
    wait_for_queue_length, wait_until,
};
use crate::{
    lock::LockGuard,
    store::{OFFER_TIMEOUT, Store},
};

/// Cost of a lost wake-up: a poll after 300 ms and its jitter, the calls, and a loaded machine. Far
/// less than a lease.
const MAX_MEDIAN_WAIT: Duration = Duration::from_secs(2);

/// An odd number, of which most must cost no more than a poll.
const ROUNDS: usize = 5;

/// Asserts that most waits take one poll. The others may meet a loaded machine, but none waits for
/// a lease.
fn assert_most_cost_one_poll(mut waited: Vec<Duration>) {
    waited.sort_unstable();
    let (median, worst) = (waited[ROUNDS / 2], waited[ROUNDS - 1]);
    println!("figure: longest wait without a message {} ms", worst.as_millis());
    println!("figure: median wait without a message {} ms", median.as_millis());
    assert!(median < MAX_MEDIAN_WAIT, "{waited:?}");
    assert!(worst < 8 * SECOND, "{waited:?}");
}

/// Returns how long a waiter of `store` waits after the release by `other`, if `fault` happens
/// while it waits.
async fn measure_wait_after(store: &Store, other: &Store, fault: impl AsyncFnOnce()) -> Duration {
    let held = other.lock("x").acquire().await.expect("it is free");
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    wait_for_queue_length(other, 1).await;
    fault().await;
    let since = Instant::now();
    let (_, guard) = tokio::join!(held.release(), waiter);
    let guard: LockGuard = guard.expect("no panic").expect("it is served");
    let waited = since.elapsed();
    guard.release().await;
    waited
}

/// Shorter than the time to the next poll, which is as far away as possible: the waiter has just
/// queued.
#[tokio::test]
async fn wakeup_reaches_waiter_of_another_process() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        waited.push(
            measure_wait_after(&store, &other, async || wait_for_lock_subscriber(&server).await)
                .await,
        );
    }
    waited.sort_unstable();
    println!("figure: median wait with a message {} ms", waited[ROUNDS / 2].as_millis());
    assert!(waited[ROUNDS / 2] < OFFER_TIMEOUT / 2, "{waited:?}");
}

#[tokio::test]
async fn killed_subscriber_is_replaced_and_costs_one_poll() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let one = measure_wait_after(&store, &other, async || {
            wait_for_lock_subscriber(&server).await;
            let killed: usize = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            assert!(killed > 0, "a subscriber was connected");
        });
        waited.push(one.await);
    }
    assert_most_cost_one_poll(waited);
    wait_until("a new subscriber", async || server.count_subscribers().await > 0).await;
    assert!(server.count_subscribers().await <= 2, "one for a process");
}

/// Neither do a holder and a refused acquire.
#[tokio::test]
async fn retrying_acquire_does_not_subscribe() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let subscribe_calls =
        async || server.info_number("commandstats", "cmdstat_subscribe:calls").await;
    let held = other.lock("x").acquire().await.expect("it is free");
    let interval = Duration::from_millis(50);
    store.lock("x").retry(2, interval).acquire().await.expect_err("it is held");
    assert!(server.count_subscribers().await <= 1, "only the holder listens, to operators");
    let retrying = crate::store::spawn(store.lock("x").retry(1000, interval).acquire());
    held.release().await;
    drop(retrying.await.expect("no panic").expect("it came free"));
    let held = other.lock("x").wait(20 * SECOND).acquire().await.expect("it comes free");
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    wait_for_queue_length(&other, 1).await;
    wait_until("the waiter to subscribe", async || subscribe_calls().await > 0).await;
    held.release().await;
    drop(waiter.await.expect("no panic").expect("it is served"));
}

/// Events on its own jobs are not sent to a worker, until a job is watched. One connection receives
/// all channels.
#[tokio::test]
async fn job_change_events_are_received_after_first_job_watch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let has_channel = async |channel: &str| {
        let list: Vec<String> = server.query(&["PUBSUB", "CHANNELS", "lg:1:test:*"]).await;
        list.iter().any(|name| name.ends_with(channel))
    };
    let _work = store.wakeups().subscribe_work();
    wait_until("a worker to listen", async || has_channel(":e").await).await;
    assert!(!has_channel(":c").await);
    let id = crate::store::JobId::new(&crate::Key::custom("x"));
    let watch = store.wakeups().subscribe_job(&id);
    let mut changes = watch.subscribe_changes();
    wait_until("changes to be listened for", async || has_channel(":c").await).await;
    // The job may have changed before the subscription.
    let resync = tokio::time::timeout(5 * SECOND, changes.changed())
        .await
        .expect("the subscription reports a possible change");
    resync.expect("it is there");
    let publish = async {
        loop {
            server.command(&["PUBLISH", "lg:1:test:c", id.as_str()]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        changed = changes.changed() => changed.expect("it is there"),
        () = publish => {}
        () = tokio::time::sleep(20 * SECOND) => panic!("the change is not reported"),
    }
    wait_until("one subscription for all channels", async || server.count_subscribers().await == 1)
        .await;
}

#[tokio::test]
async fn waiter_with_lost_wakeups_polls() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    let other = server.store_with_long_timeout().await;
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let lost = proxy.lost_message_reads();
        let fault = async || {
            wait_for_lock_subscriber(&server).await;
            proxy.set_drops_messages(true);
        };
        waited.push(measure_wait_after(&store, &other, fault).await);
        assert!(proxy.lost_message_reads() > lost, "no message was lost");
        proxy.set_drops_messages(false);
    }
    assert_most_cost_one_poll(waited);
}

/// The server disconnects a slow subscriber and discards its messages.
#[tokio::test]
async fn subscriber_dropped_for_slowness_is_replaced() {
    let server = ServerProcess::start().await;
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 256kb 256kb 1"];
    server.command(&limit).await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    let other = server.store_with_long_timeout().await;
    let mut waited = Vec::new();
    for _ in 0..ROUNDS {
        let one = measure_wait_after(&store, &other, async || {
            wait_for_lock_subscriber(&server).await;
            wait_until("holder and waiter to subscribe", async || {
                server.count_subscribers().await >= 2
            })
            .await;
            proxy.set_stalls_messages(true);
            let (event, subscribers) = ("x".repeat(64 * 1024), server.count_subscribers().await);
            assert!(subscribers > 0, "a subscriber is connected");
            wait_until("the server to end its subscriber", async || {
                server.command(&["PUBLISH", "lg:1:test:e", &event]).await;
                server.count_subscribers().await < subscribers
            })
            .await;
            proxy.set_stalls_messages(false);
        });
        waited.push(one.await);
    }
    assert_most_cost_one_poll(waited);
}
