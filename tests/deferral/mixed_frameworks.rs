//! A fleet with processes of both frameworks.

use futures_util::future::join_all;
use lockgate_tests::ledger::JobFleet;

use super::{BOTH_FRAMEWORKS, long_lease_setup, start_fleet};

#[tokio::test]
async fn workers_of_both_frameworks_share_one_queue() {
    let mut fleet = start_fleet().await;
    for framework in [BOTH_FRAMEWORKS, BOTH_FRAMEWORKS].concat() {
        fleet.start_node(long_lease_setup(framework)).await;
    }
    let mut locks = Vec::new();
    for resource in 0..8 {
        locks.push(fleet.hold_lock(&resource.to_string()).await);
    }
    for n in 0..64 {
        fleet
            .deferrable_request(n % 4, &(n % 8).to_string())
            .instruct_handler("ms=3")
            .send_accepted()
            .await;
    }
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for resource in 0..8 {
        fleet.deferrable_request(0, &resource.to_string()).send().await;
    }
    let runs = async {
        while fleet.runs().iter().filter(|run| run.job_id.is_some()).count() < 64 {
            tokio::time::sleep(super::SECOND / 20).await;
        }
    };
    lockgate_tests::with_timeout("all to run", runs).await;
    // The assignment of shards to workers is random: add resources until each framework has run a
    // job.
    for resource in 8..200 {
        if BOTH_FRAMEWORKS
            .iter()
            .enumerate()
            .all(|(framework, _)| framework_has_run_job(&fleet, framework))
        {
            break;
        }
        let lock = fleet.hold_lock(&resource.to_string()).await;
        let id = fleet.deferrable_request(0, &resource.to_string()).send_accepted().await;
        lock.release().await;
        assert_eq!(fleet.wait_for_outcome(0, &id).await.state, "done");
    }
    for (framework, name) in BOTH_FRAMEWORKS.iter().enumerate() {
        assert!(framework_has_run_job(&fleet, framework), "no worker of {name:?} has run a job");
    }
    let stats = fleet.finish_and_check(0).await.assert_no_violations();
    assert!(stats.runs >= 64 && stats.ordered_pairs >= 56 && stats.repeated_runs == 0, "{stats:?}");
}

/// The nodes alternate between the frameworks.
fn framework_has_run_job(fleet: &JobFleet, framework: usize) -> bool {
    let runs = fleet.runs();
    runs.iter().any(|run| run.job_id.is_some() && run.incarnation.process % 2 == framework)
}
