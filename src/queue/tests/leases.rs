//! Runs of which this process learns late, and leases that are hard to renew.

use std::time::Duration;

use super::{Log, SECOND, Working, obedient, push, queue, settled};
use crate::store::{Fault, faulty};

/// It ends once and well, whatever its worker's turns run into before one is answered.
async fn runs_once(faults_of_turns: (Fault, usize), faults_of_renewals: usize) {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store).once(), Log::default());
    push(&queue, "sleep 5000").await;
    faults.set("turn", faults_of_turns.0, faults_of_turns.1);
    faults.set("renew_runs", Fault::Away, faults_of_renewals);
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!((log.attempts(), faults.left("turn")), (vec![1], 0));
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed, stats.dead_letters), (1, 0, 0));
    worker.stop().await;
}

/// A turn that the store has refused so far has begun nothing: the lease of what it begins in the end is a whole one.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_run_begins_with_the_first_call_that_may_have_begun_it() {
    runs_once((Fault::Away, 13), 2).await;
}

/// The first copy of its turn has begun it, and the answer to the eleventh tells of it.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_learnt_of_late_is_renewed_in_time() {
    runs_once((Fault::NoReply, 10), 0).await;
}

/// What else runs was renewed at 10 s and has time until 13.3 s; this one is another worker's from 12.7 s on.
#[tokio::test(start_paused = true)]
async fn one_that_is_learnt_of_late_does_not_wait_for_the_others_renewal() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    push(&queue, "sleep 60000").await;
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(Duration::from_millis(2_700)).await;
    faults.set("turn", Fault::NoReply, 10);
    push(&queue, "sleep 20000").await;
    tokio::time::sleep(SECOND * 8).await;
    assert_eq!((log.attempts(), faults.left("turn")), (vec![1, 1], 0));
    let own = self::queue(&store.as_another_process());
    let other = Working::start(obedient(&own, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(log.attempts(), [1, 1], "nobody else has run it");
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed), (2, 0));
    worker.stop().await;
    other.stop().await;
}

/// It is asked for again while there is time, and not all the time.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_while_the_lease_lasts() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store).once(), Log::default());
    push(&queue, "sleep 15000").await;
    let worker = Working::start(obedient(&queue, &log));
    settled().await;
    faults.set("renew_runs", Fault::Away, 1_000);
    tokio::time::sleep(SECOND * 9 + SECOND / 2).await;
    let asked = faults.seen("renew_runs");
    assert!((8..=16).contains(&asked), "{asked}");
    faults.set("renew_runs", Fault::Away, 0);
    tokio::time::sleep(SECOND * 20).await;
    assert_eq!(log.attempts(), [1]);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed), (1, 0));
    worker.stop().await;
}

/// A lease below the way to the store and back: each claim comes too late, and somebody should know why nothing runs.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_before_its_answer_is_there_is_told_of_once() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    let (told, _guard) = crate::store::Log::begin();
    push(&queue, "x").await;
    faults.set("turn", Fault::Slow(Duration::from_millis(150)), 20);
    let worker = Working::start(obedient(&queue, &log).lease(Duration::from_millis(100)));
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(log.attempts(), [0; 0], "each came too late");
    assert_eq!(told.text().matches("give the worker a longer lease").count(), 1, "{}", told.text());
    tokio::time::sleep(SECOND * 10).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1]);
}
