//! Eight processes that spend one key of one quota as fast as they can: together what the quota has, not one more and
//! not one less; of one that is leased, not less by more than they have leased, which is given back.

use std::{path::Path, time::Duration};

use lockgate_tests::{
    Server,
    fleet::Process,
    patient_store,
    quota::{self, KEY, Quotas},
};

use super::PROGRAM;

const PROCESSES: usize = 8;
const LIMIT: u64 = 2_000;

/// Some seconds where the machine has nothing else to do.
const LONGEST: Duration = Duration::from_secs(120);

async fn says(process: &mut Process) -> String {
    let said = tokio::time::timeout(LONGEST, process.says()).await;
    said.expect("it comes to an end").expect("it lives")
}

#[tokio::test]
async fn eight_processes_on_one_key_are_let_in_as_often_as_the_quota_says() {
    let server = Server::start().await;
    let (url, limit) = (server.url("x"), LIMIT.to_string());
    let start = |_| Process::start(Path::new(PROGRAM), &["spender", &url, &limit]);
    let mut processes: Vec<_> = (0..PROCESSES).map(start).collect();
    let mut spent = Vec::new();
    for Quotas { policy, limit, leased } in quota::quotas(LIMIT) {
        for process in &mut processes {
            assert_eq!(says(process).await, "ready");
        }
        for process in &mut processes {
            process.tell("go").await;
        }
        let (name, mut shares) = (policy.name(), Vec::new());
        for process in &mut processes {
            let said = says(process).await;
            let share = said.strip_prefix(name).and_then(|share| share.trim().parse::<u64>().ok());
            shares.push(share.unwrap_or_else(|| panic!("{said}, not of {name}")));
        }
        let passed: u64 = shares.iter().sum();
        println!("figure: {name}: let in beyond the quota {}", passed.saturating_sub(limit));
        println!("{name}: {passed} of {limit}, {shares:?}");
        assert!(passed <= limit, "{name}: {passed} of {limit}: {shares:?}");
        // What one has leased another can't spend, until it is given back.
        let early = leased * PROCESSES as u64;
        assert!(passed + early >= limit, "{name}: {passed} of {limit}: {shares:?}");
        // They did it together.
        assert!(shares.iter().filter(|share| **share > 0).count() > 1, "{name}: {shares:?}");
        spent.push((policy, limit - passed));
    }
    for process in &mut processes {
        assert_eq!(says(process).await, "done");
    }
    let store = patient_store(&url).await;
    for (policy, left) in spent {
        let told = store.rate_limiter(policy.clone()).peek(KEY, 1).await.expect("an answer");
        assert_eq!(told.remaining(), left, "{}: nothing is lost, or there twice", policy.name());
    }
}
