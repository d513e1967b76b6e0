//! What the connection does when the server or the network does not: each test has a server of its own
//! that it kills, stops and restarts, or a proxy that loses replies.

mod begun;
mod charges;
mod cluster;
mod concerns;
mod cost;
mod crowd;
mod dead;
mod disks;
mod doubts;
mod drops;
mod ends;
mod enqueues;
mod faults;
mod forgotten;
mod late;
mod logins;
mod mends;
#[cfg(feature = "bb8-redis")]
mod pool;
mod proxy;
mod refusals;
mod refused_pushes;
mod replicas;
mod replies;
mod runs;
mod runtimes;
mod sentinel;
mod server;
mod several;
mod silent;
mod tasks;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod unmended;
mod versions;
mod wakes;

use std::time::Duration;

use crate::store::Store;

const SECOND: Duration = Duration::from_secs(1);

/// Waits, by asking, until the store is usable again.
async fn usable(store: &Store) {
    for _ in 0..200 {
        if store.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the store did not come back");
}
