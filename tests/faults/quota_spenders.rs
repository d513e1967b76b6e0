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

/// Some seconds where the machine has nothing else to do.
const SPEND_TIMEOUT: Duration = Duration::from_secs(120);

async fn next_line(process: &mut ChildProcess) -> String {
    let said = tokio::time::timeout(SPEND_TIMEOUT, process.next_line()).await;
    said.expect("it comes to an end").expect("it lives")
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
            let said = next_line(process).await;
            let share = said.strip_prefix(name).and_then(|share| share.trim().parse::<u64>().ok());
            shares.push(share.unwrap_or_else(|| panic!("{said}, not of {name}")));
        }
        let passed: u64 = shares.iter().sum();
        println!("figure: {name}: let in beyond the quota {}", passed.saturating_sub(limit));
        println!("{name}: {passed} of {limit}, {shares:?}");
        assert!(passed <= limit, "{name}: {passed} of {limit}: {shares:?}");
        // What one has leased another can't spend, until it is given back.
        let early = leased * PROCESS_COUNT as u64;
        assert!(passed + early >= limit, "{name}: {passed} of {limit}: {shares:?}");
        // They did it together.
        assert!(shares.iter().filter(|share| **share > 0).count() > 1, "{name}: {shares:?}");
        spent.push((policy, limit - passed));
    }
    for process in &mut processes {
        assert_eq!(next_line(process).await, "done");
    }
    let store = connect_with_long_timeout(&url).await;
    for (policy, left) in spent {
        let told = store.rate_limiter(policy.clone()).peek(SHARED_KEY, 1).await.expect("an answer");
        assert_eq!(told.remaining(), left, "{}: nothing is lost, or there twice", policy.name());
    }
}
