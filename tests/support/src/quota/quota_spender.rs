//! Process that spends a quota to its end, beside other processes.

use std::{io::BufRead as _, time::Duration};

use lockgate::{Policy, Quota};

use crate::redis_server::connect_with_long_timeout;

/// Concurrent tasks of each process.
const CONCURRENT_TASKS: usize = 16;

/// Number of consecutive refusals after which a task stops.
const REFUSALS_TO_STOP: usize = 3;

/// Key that all processes spend.
pub const SHARED_KEY: &str = "hot";

/// One of the quotas of [`run_quota_spender`].
#[derive(Debug)]
pub struct SpenderQuota {
    /// Policy of a standalone limiter, without a layer.
    pub policy: Policy,
    /// Units of the quota.
    pub total_limit: u64,
    /// Largest number of leased and unspent units of a process.
    pub max_unspent_lease: u64,
}

/// Returns quotas whose windows outlast any test, so no units return.
#[must_use]
pub fn spender_quotas(limit: u64) -> [SpenderQuota; 5] {
    let quota = || Quota::requests(limit).per(Duration::from_secs(86_400 * 30));
    let spender_quota = |quota, name, limit, max_lease: u32| SpenderQuota {
        policy: Policy::new(quota).with_name(name).quota_lease(max_lease),
        total_limit: limit,
        max_unspent_lease: max_lease.into(),
    };
    let half = limit.div_ceil(2);
    [
        spender_quota(quota(), "fixed", limit, 0),
        spender_quota(quota().sliding(), "sliding", limit, 0),
        // A unit returns after 2592 s / limit at the earliest, so none within a test.
        spender_quota(quota().burst(half), "paced", half, 0),
        spender_quota(quota(), "leased", limit, 7),
        // Large enough that leases are renewed before they are spent.
        spender_quota(quota(), "ahead", limit, 64),
    ]
}

/// For each policy: prints `ready`, waits for a line, spends the quota, and prints the number of
/// admissions.
///
/// # Panics
///
/// If the URL is invalid, or the store does not respond for ten seconds.
pub async fn run_quota_spender(url: &str, limit: u64) {
    // A long timeout: a local decision during an outage would count by another quota.
    let store = connect_with_long_timeout(url).await;
    for SpenderQuota { policy, .. } in spender_quotas(limit) {
        // Connects before the start.
        store.rate_limiter(policy).peek(SHARED_KEY, 1).await.expect("the store answers");
    }
    for SpenderQuota { policy, .. } in spender_quotas(limit) {
        // All processes start each policy together.
        println!("ready");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("the start command arrives");
        let limit = store.rate_limiter(policy.clone());
        let tasks = (0..CONCURRENT_TASKS).map(|_| {
            let limit = limit.clone();
            tokio::spawn(async move {
                let (mut admitted, mut refused) = (0, 0);
                while refused < REFUSALS_TO_STOP {
                    let decision = limit.check(SHARED_KEY, 1).await.expect("the store answers");
                    assert!(!decision.is_local(), "the store answers");
                    admitted += u64::from(decision.is_admitted());
                    refused = if decision.is_admitted() { 0 } else { refused + 1 };
                }
                admitted
            })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += task.await.expect("no task panics");
        }
        println!("{} {admitted}", policy.name());
    }
    // Refunds the leased and unspent units.
    store.shutdown(Duration::from_secs(10)).await;
    println!("done");
}
