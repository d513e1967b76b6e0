//! A fleet of both frameworks, and one without any worker.

use futures_util::future::join_all;
use lockgate_tests::{
    Framework,
    ledger::{Fleet, Told},
};

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
        while fleet.runs().iter().filter(|run| run.job.is_some()).count() < 64 {
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
    assert!(looked.runs >= 64 && looked.ordered >= 56 && looked.repeated == 0, "{looked:?}");
}

/// The nodes of the one and of the other take turns.
fn has_run_a_job(fleet: &Fleet, framework: usize) -> bool {
    let runs = fleet.runs();
    runs.iter().any(|run| run.job.is_some() && run.life.process % 2 == framework)
}

/// Nobody takes jobs: what does not defer goes on, what was deferred stays, and runs when somebody comes.
#[tokio::test]
async fn without_a_worker_everything_else_goes_on() {
    let mut fleet = fleet().await;
    for framework in BOTH {
        fleet.join(steady(framework).web_only()).await;
    }
    let lock = fleet.hold("7").await;
    let mut ids = Vec::new();
    for node in [0, 1, 0] {
        ids.push(fleet.later(node, "7").accepted().await);
    }
    lock.release().await;
    for node in [0, 1, 1, 0] {
        let pay = fleet.later(node, "7").pay().send().await;
        assert!(matches!(pay, Told::Ran(200, _)), "{pay:?}");
        let ship = fleet.later(node, "7").ship().send().await;
        assert!(matches!(ship, Told::Ran(200, _)), "{ship:?}");
    }
    // What is deferred while others wait stands behind them.
    let lock = fleet.hold("7").await;
    ids.push(fleet.later(1, "7").accepted().await);
    lock.release().await;
    for id in &ids {
        assert_eq!(fleet.see(0, id).await.state, "queued");
    }
    let worker = fleet.join(steady(Framework::Actix)).await;
    for id in &ids {
        assert_eq!(fleet.outcome(worker, id).await.state, "done");
    }
    let looked = fleet.settle(worker).await.is_good();
    assert_eq!((looked.runs, looked.direct, looked.ordered), (4, 8, 3));
}
