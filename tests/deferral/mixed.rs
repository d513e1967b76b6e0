//! A fleet of both frameworks.

use futures_util::future::join_all;
use lockgate_tests::ledger::Fleet;

use super::{BOTH, fleet, steady};

#[tokio::test]
async fn workers_of_both_frameworks_share_one_queue() {
    let mut fleet = fleet().await;
    for framework in [BOTH, BOTH].concat() {
        fleet.join(steady(framework)).await;
    }
    let mut locks = Vec::new();
    for resource in 0..8 {
        locks.push(fleet.hold(&resource.to_string()).await);
    }
    for n in 0..64 {
        fleet.later(n % 4, &(n % 8).to_string()).wish("ms=3").accepted().await;
    }
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for accepted in 0..8 {
        fleet.later(0, &accepted.to_string()).send().await;
    }
    let runs = async {
        while fleet.runs().iter().filter(|run| run.job_id.is_some()).count() < 64 {
            tokio::time::sleep(super::SECOND / 20).await;
        }
    };
    lockgate_tests::within("all to run", runs).await;
    // Which worker watches which of a few resources is chance: more of them, until each framework was met.
    for resource in 8..200 {
        if BOTH.iter().enumerate().all(|(framework, _)| has_run_a_job(&fleet, framework)) {
            break;
        }
        let lock = fleet.hold(&resource.to_string()).await;
        let id = fleet.later(0, &resource.to_string()).accepted().await;
        lock.release().await;
        assert_eq!(fleet.outcome(0, &id).await.state, "done");
    }
    for (framework, name) in BOTH.iter().enumerate() {
        assert!(has_run_a_job(&fleet, framework), "no worker of {name:?} has run a job");
    }
    let looked = fleet.settle(0).await.is_good();
    assert!(
        looked.runs >= 64 && looked.ordered_pairs >= 56 && looked.repeated_runs == 0,
        "{looked:?}"
    );
}

/// The nodes of the one and of the other take turns.
fn has_run_a_job(fleet: &Fleet, framework: usize) -> bool {
    let runs = fleet.runs();
    runs.iter().any(|run| run.job_id.is_some() && run.incarnation.process % 2 == framework)
}
