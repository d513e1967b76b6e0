//! Eight processes that spend one key of one quota as fast as they can. Together they spend the
//! quota, neither more nor less. With quota leases they spend at most the leased units less, and
//! those are refunded.

use std::{path::Path, time::Duration};

use lockgate_tests::{
    RedisServer, connect_with_long_timeout,
    fleet::ChildProcess,
    quota::{self, SHARED_KEY, SpenderQuota},
};

use super::FAULTS_BINARY;

const PROCESS_COUNT: usize = 8;
const QUOTA_LIMIT: u64 = 2_000;

/// A run takes some seconds on an idle machine.
const SPEND_TIMEOUT: Duration = Duration::from_secs(120);

async fn next_line(process: &mut ChildProcess) -> String {
    let line = tokio::time::timeout(SPEND_TIMEOUT, process.next_line()).await;
    line.expect("it comes to an end").expect("it lives")
}

#[tokio::test]
async fn eight_processes_together_spend_exactly_the_quota() {
    let server = RedisServer::start().await;
    let (url, limit) = (server.url("x"), QUOTA_LIMIT.to_string());
    let start = |_| ChildProcess::start(Path::new(FAULTS_BINARY), &["spender", &url, &limit]);
    let mut processes: Vec<_> = (0..PROCESS_COUNT).map(start).collect();
    let mut spent = Vec::new();
    for SpenderQuota { policy, total_limit: limit, max_unspent_lease: leased } in
        quota::spender_quotas(QUOTA_LIMIT)
    {
        for process in &mut processes {
            assert_eq!(next_line(process).await, "ready");
        }
        for process in &mut processes {
            process.send_line("go").await;
        }
        let (name, mut shares) = (policy.name(), Vec::new());
        for process in &mut processes {
            let line = next_line(process).await;
            let share = line.strip_prefix(name).and_then(|share| share.trim().parse::<u64>().ok());
            shares.push(share.unwrap_or_else(|| panic!("{line}, not of {name}")));
        }
        let admitted: u64 = shares.iter().sum();
        println!("figure: {name}: let in beyond the quota {}", admitted.saturating_sub(limit));
        println!("{name}: {admitted} of {limit}, {shares:?}");
        assert!(admitted <= limit, "{name}: {admitted} of {limit}: {shares:?}");
        // Other processes cannot spend leased units before they are refunded.
        let max_unspent = leased * PROCESS_COUNT as u64;
        assert!(admitted + max_unspent >= limit, "{name}: {admitted} of {limit}: {shares:?}");
        // Several processes took part.
        assert!(shares.iter().filter(|share| **share > 0).count() > 1, "{name}: {shares:?}");
        spent.push((policy, limit - admitted));
    }
    for process in &mut processes {
        assert_eq!(next_line(process).await, "done");
    }
    let store = connect_with_long_timeout(&url).await;
    for (policy, remaining) in spent {
        let decision =
            store.rate_limiter(policy.clone()).peek(SHARED_KEY, 1).await.expect("an answer");
        assert_eq!(
            decision.remaining(),
            remaining,
            "{}: nothing is lost, or there twice",
            policy.name()
        );
    }
}
