//! Fills the counter maps of a process before a measurement, so that their growth is not reported
//! as a leak.
//!
//! A row of the maps allocates its memory with its first key. With as many keys as a map has
//! entries, all but a few rows are allocated. Later allocations have another cause.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use lockgate::{Policy, Quota, RateLimitOutage, RateLimiter, Store};

use crate::{
    fleet::{ChildProcess, process_control::print_line},
    resource_usage::ResourceUsage,
};

/// Number of entries of a map.
const KEY_COUNT: u64 = 65_536;

const CONCURRENT_CHECKS: usize = 64;

/// Far longer than the fill takes.
const FILL_TIMEOUT: Duration = Duration::from_secs(180);

/// In the process: checks each key once and reports the end.
pub(super) async fn fill_counter_maps(store: Store) {
    // A quota lease fills the lease map and the refusal cache. The window ends before an idle lease
    // is refunded.
    let quota = Quota::requests(2).per(Duration::from_secs(1));
    let policy =
        Policy::new(quota).with_name("fill").quota_lease(2).on_outage(RateLimitOutage::Refuse);
    let (limiter, next_key) = (store.rate_limiter(policy), AtomicU64::new(0));
    join_all((0..CONCURRENT_CHECKS).map(|_| check_each_key(&limiter, &next_key))).await;
    print_line("full");
}

async fn check_each_key(limiter: &RateLimiter, next_key: &AtomicU64) {
    loop {
        let key = next_key.fetch_add(1, Ordering::Relaxed);
        if key >= KEY_COUNT {
            return;
        }
        while limiter.check(format!("fill-{key}"), 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Fills the maps of a process. Returns the memory before and after as text.
///
/// # Panics
///
/// If the fill does not end in time.
pub(super) async fn measure_counter_map_fill(process: &mut ChildProcess) -> String {
    let memory = |process: &ChildProcess| {
        process.pid().and_then(|pid| ResourceUsage::of_process(pid).memory_kib)
    };
    let before = memory(process);
    process.send_line("fill").await;
    let line = tokio::time::timeout(FILL_TIMEOUT, process.next_line()).await;
    assert_eq!(line.ok().flatten().as_deref(), Some("full"), "the maps are not filled");
    let after = memory(process);
    format!("memory of the quota process for {KEY_COUNT} keys: KiB {before:?}, then {after:?}")
}
