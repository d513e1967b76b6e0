//! Faults of the server and the network. Each test has a server of its own that it kills, freezes
//! and restarts, or a proxy that loses replies.

mod acl_users;
mod acquire_all;
mod batched_enqueues;
mod batched_lock_calls;
mod batched_renewals;
mod batched_runs;
mod charge_client;
mod charges;
mod circuit_breaker;
mod client_limit;
mod cluster;
mod dead_waiters;
mod disk_replication;
mod dropped_futures;
mod ended_runtimes;
#[cfg(target_os = "linux")]
mod fence_failovers;
mod fixed_windows;
mod full_server;
mod hello_errors;
mod holder_ends;
mod idempotent_runs;
mod large_requests;
mod late_calls;
mod layout_versions;
mod lossy_proxy;
mod lost_data;
mod lost_replies;
mod lost_wakeups;
mod outage_costs;
mod policy_changes;
#[cfg(feature = "bb8-redis")]
mod pool_store;
mod queue_fairness;
mod queue_scripts;
mod reader_fairness;
mod readonly_repair;
mod refused_pushes;
mod replica_grants;
mod resent_calls;
mod script_versions;
mod sentinel;
mod server_concerns;
mod server_faults;
mod server_process;
mod server_refusals;
mod silent_servers;
mod skewed_clock;
mod store_identity;
mod task_queues;
#[cfg(feature = "tls")]
mod tls;
mod uncertain_refusals;
mod unsent_pushes;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::{AcquireError, LockGuard, LockRequest, store::Store};

const SECOND: Duration = Duration::from_secs(1);

/// Longest wait for an event. Only a failure takes this long.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Longest time in which a store releases its locks. Leases are longer, so none has expired
/// instead.
const RELEASE_LIMIT: Duration = Duration::from_secs(8);

/// A port without a listener. No server of a test gets it, however late it starts.
const UNUSED_PORT: &str = "1";

/// Pings the store until it is usable again.
async fn wait_until_usable(store: &Store) {
    for _ in 0..1000 {
        if store.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the store did not come back");
}

/// Awaits a future. Panics with `what` after [`MAX_WAIT`].
async fn wait_for<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(MAX_WAIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("timed out waiting for: {what}"),
    }
}

/// Acquires a lock, and retries while the store is unavailable. With a short deadline, a loaded
/// machine is unavailable.
async fn acquire_with_retries(request: &LockRequest) -> LockGuard {
    let granted = async {
        let mut in_doubt_since: Option<Instant> = None;
        loop {
            match request.clone().acquire().await {
                Ok(guard) => return guard,
                Err(AcquireError::Fault(_)) => in_doubt_since = Some(Instant::now()),
                // A grant of its own whose reply was lost. It is undone before its lease ends.
                Err(AcquireError::Busy(_))
                    if in_doubt_since.is_some_and(|since| since.elapsed() < RELEASE_LIMIT) => {}
                Err(other) => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    wait_for("the lock", granted).await
}

/// Polls a condition that no event announces.
async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    wait_for(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Waits until the queue of lock `x`, which is held, has this length.
async fn wait_for_queue_length(store: &Store, length: u64) {
    wait_until("the line to have that length", async || {
        match store.as_another_process().lock("x").acquire().await {
            Err(AcquireError::Busy(busy)) => busy.queue_length == length,
            other => panic!("it is held: {other:?}"),
        }
    })
    .await;
}

/// Waits until a waiter's channel has a subscriber. Earlier messages are lost.
async fn wait_for_lock_subscriber(server: &server_process::ServerProcess) {
    wait_until("a subscriber of the lock", async || {
        let channels: Vec<String> = server.query(&["PUBSUB", "CHANNELS", "lg:1:test:w:*"]).await;
        !channels.is_empty()
    })
    .await;
}
