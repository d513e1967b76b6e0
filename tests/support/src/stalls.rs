//! Times in which a process did not run, or the server did not respond.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    fleet::clock,
    redis_server::{RedisServer, long_timeout_config},
};

/// A gap after which a process counts as not having run, and the others with it: they may not have run either, nor the
/// server.
const STALL_THRESHOLD: u64 = 50 * clock::NS_PER_MS;

/// Tells of each gap, from when to when.
pub async fn report_process_stalls(tell: impl Fn(u64, u64)) {
    loop {
        let from = clock::now_ns();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = clock::now_ns();
        if now - from > STALL_THRESHOLD {
            tell(from, now);
        }
    }
}

/// The longest time for which this process was not given a processor from now on, in ms. It is a thread of its own that
/// looks: a runtime that something blocks is not meant.
#[must_use]
pub fn track_longest_stall() -> Arc<AtomicU64> {
    let longest = Arc::<AtomicU64>::default();
    let seen = Arc::downgrade(&longest);
    std::thread::spawn(move || {
        let mut from = clock::now_ns();
        while let Some(longest) = seen.upgrade() {
            let now = clock::now_ns();
            longest.fetch_max((now - from) / clock::NS_PER_MS, Ordering::Relaxed);
            from = now;
            drop(longest);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    longest
}

/// Tells of each time in which the server has not answered who asked it nothing but that. It has each write on its disk before
/// it answers anybody, and a disk has other things to do.
///
/// # Panics
///
/// If the server's URL is wrong.
pub fn report_server_stalls<T: Fn(u64, u64)>(
    server: &RedisServer,
    tell: T,
) -> impl Future<Output = ()> + use<T> {
    let server = server.client().expect("its URL is right");
    ping_server(server, tell)
}

async fn ping_server(server: redis::Client, tell: impl Fn(u64, u64)) {
    let config = long_timeout_config();
    let mut heard = clock::now_ns();
    loop {
        let connection = server.get_multiplexed_async_connection_with_config(&config).await;
        if let Ok(mut connection) = connection {
            while redis::cmd("PING").exec_async(&mut connection).await.is_ok() {
                let now = clock::now_ns();
                if now - heard > STALL_THRESHOLD {
                    tell(heard, now);
                }
                heard = now;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
