//! Row 16: a worker gets the shutdown signal.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::ledger::NodeSetup;

use super::{BOTH_FRAMEWORKS, SECOND, long_lease_setup, start_fleet_without_worker};

/// What runs may end; what has not begun is for others, at once.
#[tokio::test]
async fn drain_finishes_active_run_and_starts_no_other() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        // Far longer than the run takes.
        let setup = NodeSetup { drain_timeout: 15 * SECOND, ..long_lease_setup(framework) };
        let worker = fleet.start_node(setup).await;
        let lock = fleet.hold_lock("7").await;
        let long =
            fleet.deferrable_request(web, "7").instruct_handler("ms=6000").send_accepted().await;
        let behind = fleet.deferrable_request(web, "7").send_accepted().await;
        lock.release().await;
        fleet.wait_for_run_start(&long).await;
        let other = fleet.start_node(long_lease_setup(framework.other())).await;
        let told = Instant::now();
        fleet.terminate(worker);
        fleet.wait_for_worker_stop(worker).await;
        let stops = Instant::now();
        let beside = fleet.hold_lock("8").await;
        let elsewhere = fleet.deferrable_request(web, "8").send_accepted().await;
        beside.release().await;
        assert_eq!(fleet.wait_for_outcome(web, &elsewhere).await.state, "done");
        let elsewhere_after = stops.elapsed();
        println!("figure: another runs the next after {} ms", elsewhere_after.as_millis());
        assert!(elsewhere_after < 5 * SECOND, "{elsewhere_after:?}");
        assert_eq!(fleet.wait_for_exit(worker).await, Some(0));
        assert_eq!(fleet.wait_for_outcome(web, &long).await.state, "done");
        let ended = Instant::now();
        assert_eq!(fleet.wait_for_outcome(web, &behind).await.state, "done");
        println!("figure: all done after SIGTERM {} ms", told.elapsed().as_millis());
        let behind_after = ended.elapsed();
        assert!(behind_after < 5 * SECOND, "{behind_after:?} after what it stood behind");
        for (id, process) in [(long, worker), (behind, other), (elsewhere, other)] {
            assert_eq!(fleet.runs_of(&id)[0].incarnation.process, process, "{id}");
        }
        let looked = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((looked.runs, looked.repeated_runs), (3, 0));
    }))
    .await;
}

/// What does not end in time is handed back, and not charged; or dead, where it must not run again.
#[tokio::test]
async fn drain_returns_run_that_exceeds_timeout() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let drain = Duration::from_millis(300);
        let worker = fleet
            .start_node(NodeSetup { drain_timeout: drain, ..long_lease_setup(framework) })
            .await;
        let locks = [fleet.hold_lock("7").await, fleet.hold_lock("8").await];
        let put = fleet
            .deferrable_request(web, "7")
            .put()
            .instruct_handler("ms=6000")
            .send_accepted()
            .await;
        let post =
            fleet.deferrable_request(web, "8").instruct_handler("ms=6000").send_accepted().await;
        for lock in locks {
            lock.release().await;
        }
        fleet.wait_for_run_start(&put).await;
        fleet.wait_for_run_start(&post).await;
        let told = Instant::now();
        fleet.terminate(worker);
        assert_eq!(fleet.wait_for_exit(worker).await, Some(0));
        println!("figure: exit with a run too long after {} ms", told.elapsed().as_millis());
        let _other = fleet.start_node(long_lease_setup(framework.other())).await;
        assert_eq!(fleet.wait_for_outcome(web, &put).await.state, "done");
        let attempts: Vec<_> = fleet.runs_of(&put).iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 1], "handed back without a charge");
        let dead = fleet.wait_for_outcome(web, &post).await;
        assert_eq!((&*dead.state, &*dead.reason), ("dead", "drained, may have run"));
        let looked = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((looked.runs, looked.repeated_runs), (3, 1));
    }))
    .await;
}

/// What fails while its worker ends is retried by another one, and charged: it is no reason to bury anything.
#[tokio::test]
async fn run_that_fails_during_drain_is_retried() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let worker = fleet
            .start_node(NodeSetup { drain_timeout: 15 * SECOND, ..long_lease_setup(framework) })
            .await;
        let locks = [fleet.hold_lock("7").await, fleet.hold_lock("8").await];
        let fails = fleet
            .deferrable_request(web, "7")
            .put()
            .instruct_handler("ms=4000&fail=1")
            .send_accepted()
            .await;
        let send_panicking = fleet
            .deferrable_request(web, "8")
            .put()
            .instruct_handler("ms=4000&panic=1")
            .send_accepted()
            .await;
        for lock in locks {
            lock.release().await;
        }
        for id in [&fails, &send_panicking] {
            fleet.wait_for_run_start(id).await;
        }
        fleet.terminate(worker);
        fleet.wait_for_worker_stop(worker).await;
        let ended = |id| fleet.runs_of(id).iter().any(|run| run.end.is_some());
        assert!(!ended(&fails) && !ended(&send_panicking), "it was told to stop while they ran");
        let other = fleet.start_node(long_lease_setup(framework.other())).await;
        for id in [&fails, &send_panicking] {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
            let runs: Vec<_> = fleet
                .runs_of(id)
                .iter()
                .map(|run| (run.incarnation.process, run.attempt))
                .collect();
            assert_eq!(runs, [(worker, 1), (other, 2)], "{id}");
        }
        assert_eq!(fleet.wait_for_exit(worker).await, Some(0));
        let looked = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((looked.runs, looked.repeated_runs), (4, 2));
    }))
    .await;
}
