//! Row 16: a worker gets the shutdown signal.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::ledger::NodeSetup;

use super::{BOTH_FRAMEWORKS, SECOND, long_lease_setup, start_fleet_without_worker};

/// Active runs finish; queued jobs go to other workers at once.
#[tokio::test]
async fn drain_finishes_active_run_and_starts_no_other() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        // Far longer than the run.
        let setup = NodeSetup { drain_timeout: 15 * SECOND, ..long_lease_setup(framework) };
        let worker = fleet.start_node(setup).await;
        let lock = fleet.hold_lock("7").await;
        let active =
            fleet.deferrable_request(web, "7").instruct_handler("ms=6000").send_accepted().await;
        let queued = fleet.deferrable_request(web, "7").send_accepted().await;
        lock.release().await;
        fleet.wait_for_run_start(&active).await;
        let other = fleet.start_node(long_lease_setup(framework.other())).await;
        let terminated = Instant::now();
        fleet.terminate(worker);
        fleet.wait_for_worker_stop(worker).await;
        let worker_stopped = Instant::now();
        let other_lock = fleet.hold_lock("8").await;
        let other_job = fleet.deferrable_request(web, "8").send_accepted().await;
        other_lock.release().await;
        assert_eq!(fleet.wait_for_outcome(web, &other_job).await.state, "done");
        let other_job_delay = worker_stopped.elapsed();
        println!("figure: another runs the next after {} ms", other_job_delay.as_millis());
        assert!(other_job_delay < 5 * SECOND, "{other_job_delay:?}");
        assert_eq!(fleet.wait_for_exit(worker).await, Some(0));
        assert_eq!(fleet.wait_for_outcome(web, &active).await.state, "done");
        let ended = Instant::now();
        assert_eq!(fleet.wait_for_outcome(web, &queued).await.state, "done");
        println!("figure: all done after SIGTERM {} ms", terminated.elapsed().as_millis());
        let queued_delay = ended.elapsed();
        assert!(queued_delay < 5 * SECOND, "{queued_delay:?} after the job before it");
        for (id, process) in [(active, worker), (queued, other), (other_job, other)] {
            assert_eq!(fleet.runs_of(&id)[0].incarnation.process, process, "{id}");
        }
        let stats = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((stats.runs, stats.repeated_runs), (3, 0));
    }))
    .await;
}

/// A run beyond the drain timeout returns to the queue uncharged, or is dead if it is not
/// repeatable.
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
        let terminated = Instant::now();
        fleet.terminate(worker);
        assert_eq!(fleet.wait_for_exit(worker).await, Some(0));
        println!("figure: exit with a run too long after {} ms", terminated.elapsed().as_millis());
        let _other = fleet.start_node(long_lease_setup(framework.other())).await;
        assert_eq!(fleet.wait_for_outcome(web, &put).await.state, "done");
        let attempts: Vec<_> = fleet.runs_of(&put).iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 1], "handed back without a charge");
        let dead = fleet.wait_for_outcome(web, &post).await;
        assert_eq!((&*dead.state, &*dead.reason), ("dead", "drained, may have run"));
        let stats = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((stats.runs, stats.repeated_runs), (3, 1));
    }))
    .await;
}

/// A run that fails during the drain is charged and retried by another worker. It is not a dead
/// letter.
#[tokio::test]
async fn run_that_fails_during_drain_is_retried() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let worker = fleet
            .start_node(NodeSetup { drain_timeout: 15 * SECOND, ..long_lease_setup(framework) })
            .await;
        let locks = [fleet.hold_lock("7").await, fleet.hold_lock("8").await];
        let failing = fleet
            .deferrable_request(web, "7")
            .put()
            .instruct_handler("ms=4000&fail=1")
            .send_accepted()
            .await;
        let panicking = fleet
            .deferrable_request(web, "8")
            .put()
            .instruct_handler("ms=4000&panic=1")
            .send_accepted()
            .await;
        for lock in locks {
            lock.release().await;
        }
        for id in [&failing, &panicking] {
            fleet.wait_for_run_start(id).await;
        }
        fleet.terminate(worker);
        fleet.wait_for_worker_stop(worker).await;
        let ended = |id| fleet.runs_of(id).iter().any(|run| run.end.is_some());
        assert!(!ended(&failing) && !ended(&panicking), "the worker was stopped during the runs");
        let other = fleet.start_node(long_lease_setup(framework.other())).await;
        for id in [&failing, &panicking] {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
            let runs: Vec<_> = fleet
                .runs_of(id)
                .iter()
                .map(|run| (run.incarnation.process, run.attempt))
                .collect();
            assert_eq!(runs, [(worker, 1), (other, 2)], "{id}");
        }
        assert_eq!(fleet.wait_for_exit(worker).await, Some(0));
        let stats = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((stats.runs, stats.repeated_runs), (4, 2));
    }))
    .await;
}
