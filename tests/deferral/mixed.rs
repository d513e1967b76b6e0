//! A fleet of both frameworks, and one without any worker.

use futures_util::future::join_all;
use lockgate_tests::{
    Framework,
    ledger::{Setup, Told},
};

use super::{BOTH, fleet, short};

#[tokio::test]
async fn workers_of_both_frameworks_share_one_queue() {
    let mut fleet = fleet().await;
    for framework in [BOTH, BOTH].concat() {
        fleet.join(short(framework)).await;
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
    let mut processes: Vec<_> = fleet.runs().iter().map(|run| run.life.process % 2).collect();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes, [0, 1], "each framework has run something");
    let looked = fleet.settle(0).await.is_good();
    assert!(looked.runs >= 64 && looked.ordered >= 56 && looked.repeated == 0, "{looked:?}");
}

/// Nobody takes jobs: what does not defer goes on, what was deferred stays, and runs when somebody comes.
#[tokio::test]
async fn without_a_worker_everything_else_goes_on() {
    let mut fleet = fleet().await;
    for framework in BOTH {
        fleet.join(Setup::new(framework).web_only()).await;
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
    let worker = fleet.join(short(Framework::Actix)).await;
    for id in &ids {
        assert_eq!(fleet.outcome(worker, id).await.state, "done");
    }
    let looked = fleet.settle(worker).await.is_good();
    assert_eq!((looked.runs, looked.direct, looked.ordered), (4, 8, 3));
}
