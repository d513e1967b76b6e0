//! What the connection does when the server or the network does not: each test has a server of its own
//! that it kills, stops and restarts, or a proxy that loses replies.

mod alike;
mod begun;
mod breaker;
mod charges;
mod clients;
mod clock;
mod cluster;
mod concerns;
mod crowd;
mod dead;
mod disks;
mod doubts;
mod drops;
mod ends;
mod enqueues;
#[cfg(target_os = "linux")]
mod failovers;
mod faults;
mod forgotten;
mod full;
mod heavy;
mod hello;
mod identity;
mod late;
mod layout;
mod logins;
mod mends;
mod not_run;
#[cfg(feature = "bb8-redis")]
mod pool;
mod proxy;
mod refusals;
mod refused_pushes;
mod renewals;
mod replicas;
mod replies;
mod room;
mod runs;
mod runtimes;
mod scripts;
mod sentinel;
mod server;
mod several;
mod silent;
mod tasks;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod unmended;
mod unsent;
mod versions;
mod wakes;
mod windows;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::{AcquireError, LockGuard, LockRequest, store::Store};

const SECOND: Duration = Duration::from_secs(1);

/// Only what never comes takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a store may take to give back what it has. A lease is longer: none has ended instead.
const GIVEN_BACK: Duration = Duration::from_secs(8);

/// A port at which nobody listens: no test's own server is given it, however late it starts.
const NOBODY: &str = "1";

/// Waits, by asking, until the store is usable again.
async fn usable(store: &Store) {
    for _ in 0..1000 {
        if store.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the store did not come back");
}

/// Awaits what has to come, with an end that says what did not.
async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited too long: {what}"),
    }
}

/// A lock that is asked for again while the store is away: to a short deadline a loaded machine is that.
async fn granted(request: &LockRequest) -> LockGuard {
    let granted = async {
        let mut doubt: Option<Instant> = None;
        loop {
            match request.clone().acquire().await {
                Ok(guard) => return guard,
                Err(AcquireError::Fault(_)) => doubt = Some(Instant::now()),
                // Its own, whose answer was lost: that is given back, and does not end with its lease.
                Err(AcquireError::Busy(_)) if doubt.is_some_and(|at| at.elapsed() < GIVEN_BACK) => {
                }
                Err(other) => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the lock", granted).await
}

/// Looks until it is so, for what nobody announces.
async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Until so many places are in line for `x`, which is held.
async fn in_line(store: &Store, places: u64) {
    eventually("the line to have that length", async || {
        match store.as_another_process().lock("x").acquire().await {
            Err(AcquireError::Busy(busy)) => busy.queue_length == places,
            other => panic!("it is held: {other:?}"),
        }
    })
    .await;
}

/// Until subscribers listen for places in line; what is said before that is lost.
async fn hears_of_locks(server: &server::Server) {
    eventually("somebody to listen for the lock", async || {
        let channels: Vec<String> = server.ask(&["PUBSUB", "CHANNELS", "lg:1:test:w:*"]).await;
        !channels.is_empty()
    })
    .await;
}
