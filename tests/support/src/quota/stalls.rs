//! Times in which a process did not run, or the server.

use std::time::Duration;

use redis::Client;

use crate::{history::clock, redis::patient};

/// A gap after which a process counts as not having run, and the others with it: they may not have run either, nor the
/// server.
const STALL: u64 = 50 * clock::MS;

/// Tells of each gap, from when to when.
pub(super) async fn watch(tell: impl Fn(u64, u64)) {
    loop {
        let from = clock::now();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = clock::now();
        if now - from > STALL {
            tell(from, now);
        }
    }
}

/// Tells of each time in which the server has not answered who asked it nothing but that. It has each write on its disk before
/// it answers anybody, and a disk has other things to do.
pub(super) async fn silences(server: Client, tell: impl Fn(u64, u64)) {
    let config = patient();
    let mut heard = clock::now();
    loop {
        let connection = server.get_multiplexed_async_connection_with_config(&config).await;
        if let Ok(mut connection) = connection {
            while redis::cmd("PING").exec_async(&mut connection).await.is_ok() {
                let now = clock::now();
                if now - heard > STALL {
                    tell(heard, now);
                }
                heard = now;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
