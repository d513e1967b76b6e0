//! What the connection does when the server or the network does not: each test has a server of its own
//! that it kills, stops and restarts, or a proxy that loses replies.

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

/// Only what never comes takes this long.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// How long a store may take to give back what it has. A lease is longer: none has ended instead.
const RELEASE_LIMIT: Duration = Duration::from_secs(8);

/// A port at which nobody listens: no test's own server is given it, however late it starts.
const UNUSED_PORT: &str = "1";

/// Waits, by asking, until the store is usable again.
async fn wait_until_usable(store: &Store) {
    for _ in 0..1000 {
        if store.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the store did not come back");
}

/// Awaits what has to come, with an end that says what did not.
async fn wait_for<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(MAX_WAIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited too long: {what}"),
    }
}

/// A lock that is asked for again while the store is away: to a short deadline a loaded machine is that.
async fn acquire_with_retries(request: &LockRequest) -> LockGuard {
    let granted = async {
        let mut doubt: Option<Instant> = None;
        loop {
            match request.clone().acquire().await {
                Ok(guard) => return guard,
                Err(AcquireError::Fault(_)) => doubt = Some(Instant::now()),
                // Its own, whose answer was lost: that is given back, and does not end with its lease.
                Err(AcquireError::Busy(_))
                    if doubt.is_some_and(|at| at.elapsed() < RELEASE_LIMIT) => {}
                Err(other) => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    wait_for("the lock", granted).await
}

/// Looks until it is so, for what nobody announces.
async fn wait_until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    wait_for(what, async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Until so many places are in line for `x`, which is held.
async fn wait_for_queue_length(store: &Store, places: u64) {
    wait_until("the line to have that length", async || {
        match store.as_another_process().lock("x").acquire().await {
            Err(AcquireError::Busy(busy)) => busy.queue_length == places,
            other => panic!("it is held: {other:?}"),
        }
    })
    .await;
}

/// Until subscribers listen for places in line; what is said before that is lost.
async fn wait_for_lock_subscriber(server: &server_process::ServerProcess) {
    wait_until("somebody to listen for the lock", async || {
        let channels: Vec<String> = server.query(&["PUBSUB", "CHANNELS", "lg:1:test:w:*"]).await;
        !channels.is_empty()
    })
    .await;
}
