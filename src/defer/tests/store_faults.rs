//! Lost and late replies, dropped claims, and panicking replayers.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    CountingReplayer, SECOND, SpawnedWorker, enqueue_job, get_job, let_tasks_settle, lock_key_of,
    wait_until_ended,
};
use crate::{
    defer::tests::DeferWorker,
    store::{
        BackendFault, ClaimCommand, ClaimOutcome, GrantAttempt, JobState, LeaseTerms, LockMode,
        SettleCommand, SettleOutcome, Settlement, Store, faulty_store,
    },
};

#[tokio::test(start_paused = true)]
async fn unanswered_claim_is_not_a_crash() {
    let (store, faults) = faulty_store();
    let routes = CountingReplayer::default();
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    // Longer than one call timeout, and within the lease.
    faults.set("claim", BackendFault::ReplyTimeout, 8);
    let id = enqueue_job(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.run_count("/x"), get_job(&store, &id).await.attempts), (1, 1));
    assert_eq!(faults.remaining("claim"), 0);
    worker.stop().await;
}

/// The run would start without its lock, or lose it at once.
#[tokio::test(start_paused = true)]
async fn job_with_a_late_claim_reply_is_requeued_uncharged() {
    let (store, faults) = faulty_store();
    let routes = CountingReplayer::default();
    let worker =
        SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes.clone()).lease(SECOND));
    let_tasks_settle().await;
    // The lease is still valid in the store, but the worker cannot rely on it.
    faults.set("claim", BackendFault::SlowReply(SECOND - Duration::from_millis(5)), 1);
    let id = enqueue_job(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.run_count("/x"), get_job(&store, &id).await.attempts), (1, 1));
    assert_eq!(faults.remaining("claim"), 0);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn job_with_a_dropped_claim_is_requeued_uncharged() {
    let (store, faults) = faulty_store();
    let routes = CountingReplayer::default();
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    faults.set("claim", BackendFault::NeverReplies, 1);
    let id = enqueue_job(&store, "/x").await;
    while faults.remaining("claim") > 0 {
        let_tasks_settle().await;
    }
    assert_eq!(get_job(&store, &id).await.state, JobState::Running);
    worker.kill().await;
    assert!(store.shutdown(SECOND).await, "the claim is not undone");
    let job = get_job(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0));
    let other = store.as_another_process();
    let worker = SpawnedWorker::spawn_on(&other, &routes);
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.run_count("/x"), get_job(&store, &id).await.attempts), (1, 1));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_settlement_is_applied_once() {
    let (store, faults) = faulty_store();
    let routes = CountingReplayer::default();
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    faults.set("settle", BackendFault::ReplyTimeout, 5);
    let id = enqueue_job(&store, "/x").await;
    while faults.remaining("settle") > 0 {
        let_tasks_settle().await;
    }
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!(routes.run_count("/x"), 1);
    worker.stop().await;
}

/// The pause between two settlement calls ends no later than the hold.
#[tokio::test(start_paused = true)]
async fn settlement_is_retried_until_the_hold_ends() {
    let (store, faults) = faulty_store();
    let routes = CountingReplayer::default();
    let worker =
        SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes.clone()).lease(SECOND));
    let_tasks_settle().await;
    faults.set("renew", BackendFault::Unavailable, 1_000);
    // 10 + 20 + .. + 320 ms: the next pause would exceed the rest of the lease.
    faults.set("settle", BackendFault::Unavailable, 7);
    let id = enqueue_job(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!(routes.run_count("/x"), 1);
    faults.set("renew", BackendFault::Unavailable, 0);
    worker.stop().await;
}

/// The panic is in `replay` itself and not in its future, like one in a destructor or in a clone of
/// the service.
#[tokio::test(start_paused = true)]
async fn panicking_replayer_fails_only_its_own_job() {
    let store = Store::memory();
    let routes = CountingReplayer::default();
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    let first = enqueue_job(&store, "/x/panic").await;
    let second = enqueue_job(&store, "/x/fine").await;
    let other_lock_job = enqueue_job(&store, "/y/fine").await;
    let started = Instant::now();
    assert_eq!(wait_until_ended(&store, &other_lock_job).await, JobState::Done);
    assert_eq!(wait_until_ended(&store, &first).await, JobState::Dead);
    assert_eq!(wait_until_ended(&store, &second).await, JobState::Done);
    assert!(started.elapsed() < 30 * SECOND, "{:?}", started.elapsed());
    assert_eq!((routes.run_count("/x/panic"), routes.run_count("/x/fine")), (1, 1));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn idle_worker_stops_soon_without_the_store() {
    let (store, faults) = faulty_store();
    let worker = DeferWorker::new(&store, CountingReplayer::default()).drain_timeout(Duration::MAX);
    let worker = SpawnedWorker::spawn_worker(worker);
    let_tasks_settle().await;
    faults.set("beat", BackendFault::Unavailable, usize::MAX);
    let started = Instant::now();
    worker.stop().await;
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    assert!(faults.call_count("beat") > 2, "it was asked again");
}

#[tokio::test(start_paused = true)]
async fn unbounded_worker_durations_are_accepted() {
    let store = Store::memory();
    let routes = CountingReplayer::default();
    let endless = Duration::MAX;
    let worker = DeferWorker::new(&store, routes.clone());
    let worker = worker.lease(endless).max_run_time(endless).drain_timeout(endless);
    let worker = worker.done_retention(endless).dead_retention(endless).concurrency(usize::MAX);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = crate::store::spawn(worker.run(async { drop(stopped.await) }));
    let id = enqueue_job(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    stop.send(()).expect("it runs");
    task.await.expect("it ends well");
}

/// The late copy would start a run that no worker executes, and a job with one attempt would be
/// dead.
#[tokio::test(start_paused = true)]
async fn claim_copy_arriving_after_a_redrive_is_undone() {
    let (store, faults) = faulty_store();
    let (id, key, lease) = (enqueue_job(&store, "/x").await, lock_key_of("/x"), 10 * SECOND);
    let mut attempt = GrantAttempt::for_claim(&store, &key, &id);
    let me = attempt.token.clone();
    let call = ClaimCommand {
        key: key.clone(),
        id: id.clone(),
        token: me.clone(),
        lease,
        retention: lease,
    };
    // It is unknown whether the first copy arrived.
    faults.set("claim", BackendFault::ReplyTimeout, 1);
    let lost = attempt.send(lease, || store.backend().claim(call.clone())).await;
    assert!(lost.is_err(), "{lost:?}");
    let claimed = attempt.send(lease, || store.backend().claim(call.clone())).await;
    let Ok(ClaimOutcome::Claimed(run)) = claimed else { panic!("{claimed:?}") };
    let (job, mode) = (Some(id.clone()), LockMode::Exclusive);
    let terms = LeaseTerms { lease, renews: true, max_hold: lease, job, mode };
    let mut hold = attempt.accept_grant(run.fence, terms).expect("it is sure");
    let verdict = Settlement::Dead { reason: "failed", retention: lease };
    let settle =
        SettleCommand { key, id: id.clone(), token: me, settlement: verdict, next_claim: None };
    let settled = store.backend().settle(settle).await;
    assert!(matches!(settled, Ok(SettleOutcome::Settled(None))), "{settled:?}");
    hold.mark_run_settled(id.clone());
    drop(hold);
    // The undo repeats until the copy can no longer arrive. Finding the run settled does not end
    // it.
    tokio::time::sleep(SECOND / 2).await;
    let redriven = store.deferred_jobs().redrive(&id).await;
    assert!(matches!(redriven, Ok(Some(JobState::Queued))), "{redriven:?}");
    let copy = store.backend().claim(call).await;
    assert!(matches!(copy, Ok(ClaimOutcome::Claimed(_))), "{copy:?}");
    tokio::time::sleep(3 * SECOND).await;
    let job = get_job(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0));
}
