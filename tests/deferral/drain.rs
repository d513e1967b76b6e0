//! Row 16: a worker is told to stop.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::ledger::Setup;

use super::{BOTH, SECOND, steady, with_web};

/// What runs may end; what has not begun is for others, at once.
#[tokio::test]
async fn a_run_may_end_and_no_other_begins() {
    join_all(BOTH.map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        // Far longer than the run takes.
        let setup = Setup { drain: 15 * SECOND, ..steady(framework) };
        let worker = fleet.join(setup).await;
        let lock = fleet.hold("7").await;
        let long = fleet.later(web, "7").wish("ms=6000").accepted().await;
        let behind = fleet.later(web, "7").accepted().await;
        lock.release().await;
        fleet.started(&long).await;
        let other = fleet.join(steady(framework.other())).await;
        let told = Instant::now();
        fleet.terminate(worker);
        fleet.stops(worker).await;
        let stops = Instant::now();
        let beside = fleet.hold("8").await;
        let elsewhere = fleet.later(web, "8").accepted().await;
        beside.release().await;
        assert_eq!(fleet.outcome(web, &elsewhere).await.state, "done");
        let elsewhere_after = stops.elapsed();
        println!("figure: another runs the next after {} ms", elsewhere_after.as_millis());
        assert!(elsewhere_after < 5 * SECOND, "{elsewhere_after:?}");
        assert_eq!(fleet.ended(worker).await, Some(0));
        assert_eq!(fleet.outcome(web, &long).await.state, "done");
        let ended = Instant::now();
        assert_eq!(fleet.outcome(web, &behind).await.state, "done");
        println!("figure: all done after SIGTERM {} ms", told.elapsed().as_millis());
        let behind_after = ended.elapsed();
        assert!(behind_after < 5 * SECOND, "{behind_after:?} after what it stood behind");
        for (id, process) in [(long, worker), (behind, other), (elsewhere, other)] {
            assert_eq!(fleet.runs_of(&id)[0].incarnation.process, process, "{id}");
        }
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.repeated_runs), (3, 0));
    }))
    .await;
}

/// What does not end in time is handed back, and not charged; or dead, where it must not run again.
#[tokio::test]
async fn a_run_that_takes_too_long_is_handed_back() {
    join_all(BOTH.map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        let drain = Duration::from_millis(300);
        let worker = fleet.join(Setup { drain, ..steady(framework) }).await;
        let locks = [fleet.hold("7").await, fleet.hold("8").await];
        let put = fleet.later(web, "7").put().wish("ms=6000").accepted().await;
        let post = fleet.later(web, "8").wish("ms=6000").accepted().await;
        for lock in locks {
            lock.release().await;
        }
        fleet.started(&put).await;
        fleet.started(&post).await;
        let told = Instant::now();
        fleet.terminate(worker);
        assert_eq!(fleet.ended(worker).await, Some(0));
        println!("figure: exit with a run too long after {} ms", told.elapsed().as_millis());
        let _other = fleet.join(steady(framework.other())).await;
        assert_eq!(fleet.outcome(web, &put).await.state, "done");
        let attempts: Vec<_> = fleet.runs_of(&put).iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 1], "handed back without a charge");
        let dead = fleet.outcome(web, &post).await;
        assert_eq!((&*dead.state, &*dead.reason), ("dead", "drained, may have run"));
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.repeated_runs), (3, 1));
    }))
    .await;
}

/// What fails while its worker ends is retried by another one, and charged: it is no reason to bury anything.
#[tokio::test]
async fn a_run_that_fails_meanwhile_is_retried() {
    join_all(BOTH.map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        let worker = fleet.join(Setup { drain: 15 * SECOND, ..steady(framework) }).await;
        let locks = [fleet.hold("7").await, fleet.hold("8").await];
        let fails = fleet.later(web, "7").put().wish("ms=4000&fail=1").accepted().await;
        let panics = fleet.later(web, "8").put().wish("ms=4000&panic=1").accepted().await;
        for lock in locks {
            lock.release().await;
        }
        for id in [&fails, &panics] {
            fleet.started(id).await;
        }
        fleet.terminate(worker);
        fleet.stops(worker).await;
        let ended = |id| fleet.runs_of(id).iter().any(|run| run.end.is_some());
        assert!(!ended(&fails) && !ended(&panics), "it was told to stop while they ran");
        let other = fleet.join(steady(framework.other())).await;
        for id in [&fails, &panics] {
            assert_eq!(fleet.outcome(web, id).await.state, "done");
            let runs: Vec<_> = fleet
                .runs_of(id)
                .iter()
                .map(|run| (run.incarnation.process, run.attempt))
                .collect();
            assert_eq!(runs, [(worker, 1), (other, 2)], "{id}");
        }
        assert_eq!(fleet.ended(worker).await, Some(0));
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.repeated_runs), (4, 2));
    }))
    .await;
}
