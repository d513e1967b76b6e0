//! A store that does not answer, a worker that gives up, routes that panic.

use std::time::Duration;

use tokio::time::Instant;

use super::{Routes, SECOND, Working, ended, key_of, look, put_off, settled};
use crate::{
    defer::DeferWorker,
    store::{
        ClaimCommand, ClaimOutcome, Fault, GrantAttempt, JobState, LeaseTerms, LockMode,
        SettleCommand, SettleOutcome, Settlement, Store, faulty,
    },
};

#[tokio::test(start_paused = true)]
async fn a_claim_without_an_answer_is_no_crash() {
    let (store, faults) = faulty();
    let routes = Routes::default();
    let worker = Working::on(&store, &routes);
    settled().await;
    // Far beyond one deadline, and within the lease.
    faults.set("claim", Fault::NoReply, 8);
    let id = put_off(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.runs("/x"), look(&store, &id).await.attempts), (1, 1));
    assert_eq!(faults.left("claim"), 0);
    worker.stop().await;
}

/// It would begin without its lock, or lose it before it has done anything.
#[tokio::test(start_paused = true)]
async fn a_job_whose_claim_is_answered_too_late_goes_back_uncharged() {
    let (store, faults) = faulty();
    let routes = Routes::default();
    let worker = Working::with(DeferWorker::new(&store, routes.clone()).lease(SECOND));
    settled().await;
    // The store has it still; nobody here can be sure.
    faults.set("claim", Fault::Slow(SECOND - Duration::from_millis(5)), 1);
    let id = put_off(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.runs("/x"), look(&store, &id).await.attempts), (1, 1));
    assert_eq!(faults.left("claim"), 0);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_claim_is_dropped_goes_back_uncharged() {
    let (store, faults) = faulty();
    let routes = Routes::default();
    let worker = Working::on(&store, &routes);
    settled().await;
    faults.set("claim", Fault::Silence, 1);
    let id = put_off(&store, "/x").await;
    while faults.left("claim") > 0 {
        settled().await;
    }
    assert_eq!(look(&store, &id).await.state, JobState::Running);
    worker.die().await;
    assert!(store.shutdown(SECOND).await, "the claim is not undone");
    let job = look(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0));
    let other = store.as_another_process();
    let worker = Working::on(&other, &routes);
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.runs("/x"), look(&store, &id).await.attempts), (1, 1));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_without_an_answer_is_made_once() {
    let (store, faults) = faulty();
    let routes = Routes::default();
    let worker = Working::on(&store, &routes);
    settled().await;
    faults.set("settle", Fault::NoReply, 5);
    let id = put_off(&store, "/x").await;
    while faults.left("settle") > 0 {
        settled().await;
    }
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!(routes.runs("/x"), 1);
    worker.stop().await;
}

/// The pause between two tries ends no later than the hold does.
#[tokio::test(start_paused = true)]
async fn a_settlement_is_tried_until_the_hold_ends() {
    let (store, faults) = faulty();
    let routes = Routes::default();
    let worker = Working::with(DeferWorker::new(&store, routes.clone()).lease(SECOND));
    settled().await;
    faults.set("renew", Fault::Away, 1_000);
    // 10 + 20 + .. + 320 ms: the next pause would be longer than what is left.
    faults.set("settle", Fault::Away, 7);
    let id = put_off(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!(routes.runs("/x"), 1);
    faults.set("renew", Fault::Away, 0);
    worker.stop().await;
}

/// In `replay` itself, not in the future it makes: a destructor, a clone of the service.
#[tokio::test(start_paused = true)]
async fn a_replayer_that_panics_costs_its_job_and_no_other() {
    let store = Store::memory();
    let routes = Routes::default();
    let worker = Working::on(&store, &routes);
    settled().await;
    let first = put_off(&store, "/x/panic").await;
    let second = put_off(&store, "/x/fine").await;
    let elsewhere = put_off(&store, "/y/fine").await;
    let started = Instant::now();
    assert_eq!(ended(&store, &elsewhere).await, JobState::Done);
    assert_eq!(ended(&store, &first).await, JobState::Dead);
    assert_eq!(ended(&store, &second).await, JobState::Done);
    assert!(started.elapsed() < 30 * SECOND, "{:?}", started.elapsed());
    assert_eq!((routes.runs("/x/panic"), routes.runs("/x/fine")), (1, 1));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_runs_stops_soon_whatever_became_of_the_store() {
    let (store, faults) = faulty();
    let worker = DeferWorker::new(&store, Routes::default()).drain_timeout(Duration::MAX);
    let worker = Working::with(worker);
    settled().await;
    faults.set("beat", Fault::Away, usize::MAX);
    let started = Instant::now();
    worker.stop().await;
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    assert!(faults.seen("beat") > 2, "it was asked again");
}

#[tokio::test(start_paused = true)]
async fn endless_terms_of_a_worker_are_terms() {
    let store = Store::memory();
    let routes = Routes::default();
    let endless = Duration::MAX;
    let worker = DeferWorker::new(&store, routes.clone());
    let worker = worker.lease(endless).max_run_time(endless).drain_timeout(endless);
    let worker = worker.done_retention(endless).dead_retention(endless).concurrency(usize::MAX);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = crate::store::spawn(worker.run(async { drop(stopped.await) }));
    let id = put_off(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    stop.send(()).expect("it runs");
    task.await.expect("it ends well");
}

/// Its token is nobody's by then. It would begin a run that nobody executes, and what may run once would be dead.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_claim_that_comes_after_a_redrive_is_undone() {
    let (store, faults) = faulty();
    let (id, key, lease) = (put_off(&store, "/x").await, key_of("/x"), 10 * SECOND);
    let mut attempt = GrantAttempt::for_claim(&store, &key, &id);
    let me = attempt.token.clone();
    let call = ClaimCommand {
        key: key.clone(),
        id: id.clone(),
        token: me.clone(),
        lease,
        retention: lease,
    };
    // Whether the first copy has come is not known.
    faults.set("claim", Fault::NoReply, 1);
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
    // It is looked for until it can't come any more, and not until a look finds that the run is over.
    tokio::time::sleep(SECOND / 2).await;
    let redriven = store.deferred_jobs().redrive(&id).await;
    assert!(matches!(redriven, Ok(Some(JobState::Queued))), "{redriven:?}");
    let copy = store.backend().claim(call).await;
    assert!(matches!(copy, Ok(ClaimOutcome::Claimed(_))), "{copy:?}");
    tokio::time::sleep(3 * SECOND).await;
    let job = look(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0));
}
