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

/// Gap after which a process counts as stalled. The other processes and the server may have stalled
/// too.
const STALL_THRESHOLD: u64 = 50 * clock::NS_PER_MS;

/// Reports the start and the end of each gap.
pub async fn report_process_stalls(report: impl Fn(u64, u64)) {
    loop {
        let from = clock::now_ns();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = clock::now_ns();
        if now - from > STALL_THRESHOLD {
            report(from, now);
        }
    }
}

/// Measures the longest time in ms for which this process got no processor. A separate thread
/// measures, so a blocked runtime does not count.
#[must_use]
pub fn track_longest_stall() -> Arc<AtomicU64> {
    let longest = Arc::<AtomicU64>::default();
    let weak = Arc::downgrade(&longest);
    std::thread::spawn(move || {
        let mut from = clock::now_ns();
        while let Some(longest) = weak.upgrade() {
            let now = clock::now_ns();
            longest.fetch_max((now - from) / clock::NS_PER_MS, Ordering::Relaxed);
            from = now;
            drop(longest);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    longest
}

/// Reports each time in which the server did not answer a ping. Its fsync precedes all replies, and
/// the disk may be busy.
///
/// # Panics
///
/// If the server's URL is invalid.
pub fn report_server_stalls<T: Fn(u64, u64)>(
    server: &RedisServer,
    report: T,
) -> impl Future<Output = ()> + use<T> {
    let server = server.client().expect("its URL is right");
    ping_server(server, report)
}

async fn ping_server(server: redis::Client, report: impl Fn(u64, u64)) {
    let config = long_timeout_config();
    let mut last_reply = clock::now_ns();
    loop {
        let connection = server.get_multiplexed_async_connection_with_config(&config).await;
        if let Ok(mut connection) = connection {
            while redis::cmd("PING").exec_async(&mut connection).await.is_ok() {
                let now = clock::now_ns();
                if now - last_reply > STALL_THRESHOLD {
                    report(last_reply, now);
                }
                last_reply = now;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
