//! Process that spends a quota to its end, beside other processes.

use std::{io::BufRead as _, time::Duration};

use lockgate::{Policy, Quota};

use crate::redis_server::connect_with_long_timeout;

/// At once in each process.
const CONCURRENT_TASKS: usize = 16;

/// A task has seen the end of a quota when it was refused so often in a row.
const REFUSALS_TO_STOP: usize = 3;

/// What all of them spend.
pub const SHARED_KEY: &str = "hot";

/// One of the quotas of [`run_quota_spender`].
#[derive(Debug)]
pub struct SpenderQuota {
    /// Used by a limiter of its own, without a layer.
    pub policy: Policy,
    /// How many it lets in altogether.
    pub total_limit: u64,
    /// How many of them a process may have that it has not spent.
    pub max_unspent_lease: u64,
}

/// Far longer than any test: nothing comes back meanwhile.
#[must_use]
pub fn spender_quotas(limit: u64) -> [SpenderQuota; 5] {
    let quota = || Quota::requests(limit).per(Duration::from_secs(86_400 * 30));
    let of = |quota, name, limit, leased: u32| SpenderQuota {
        policy: Policy::new(quota).with_name(name).quota_lease(leased),
        total_limit: limit,
        max_unspent_lease: leased.into(),
    };
    let half = limit.div_ceil(2);
    [
        of(quota(), "fixed", limit, 0),
        of(quota().sliding(), "sliding", limit, 0),
        // Where one comes back every 2592 s / limit at most: none within a test.
        of(quota().burst(half), "paced", half, 0),
        of(quota(), "leased", limit, 7),
        // So much that more is fetched before it is spent.
        of(quota(), "ahead", limit, 64),
    ]
}

/// For each policy: says `ready`, waits for a line, spends what is there, and says how many it was let in.
///
/// # Panics
///
/// If the URL is wrong, or the store does not answer for ten seconds.
pub async fn run_quota_spender(url: &str, limit: u64) {
    // A loaded machine is no outage here: what is decided locally would be another quota.
    let store = connect_with_long_timeout(url).await;
    for SpenderQuota { policy, .. } in spender_quotas(limit) {
        // The connection is there when it begins.
        store.rate_limiter(policy).peek(SHARED_KEY, 1).await.expect("the store answers");
    }
    for SpenderQuota { policy, .. } in spender_quotas(limit) {
        // Each together with the others, however late one of them comes to it.
        println!("ready");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("it is told to go");
        let limit = store.rate_limiter(policy.clone());
        let tasks = (0..CONCURRENT_TASKS).map(|_| {
            let limit = limit.clone();
            tokio::spawn(async move {
                let (mut passed, mut refused) = (0, 0);
                while refused < REFUSALS_TO_STOP {
                    let decision = limit.check(SHARED_KEY, 1).await.expect("the store answers");
                    assert!(!decision.is_local(), "the store answers");
                    passed += u64::from(decision.is_admitted());
                    refused = if decision.is_admitted() { 0 } else { refused + 1 };
                }
                passed
            })
        });
        let mut passed = 0;
        for task in tasks.collect::<Vec<_>>() {
            passed += task.await.expect("no task panics");
        }
        println!("{} {passed}", policy.name());
    }
    // Gives back what it has leased and not spent.
    store.shutdown(Duration::from_secs(10)).await;
    println!("done");
}
