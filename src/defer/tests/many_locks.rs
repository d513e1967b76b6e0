//! Many lines with a job or a few each: what their runs cost, and how soon they come.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_delayed, enqueue_job,
    let_tasks_settle, lock_key_of, outcome_with_status, wait_until_ended,
};
use crate::{
    defer::tests::DeferWorker,
    store::{BackendFault, JobId, JobState, Store, faulty_store},
};

/// Several pages of what is due.
const LOCK_COUNT: usize = 300;

async fn enqueue_on_each_lock(store: &Store, each: usize) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for n in 0..each {
        for line in 0..LOCK_COUNT {
            jobs.push(enqueue_job(store, &format!("/{line}/{n}")).await);
        }
    }
    jobs
}

/// A job is a claim and a settlement, a look finds many: and no slot waits for a time while something is due.
#[tokio::test(start_paused = true)]
async fn job_on_its_own_lock_costs_one_claim_and_settlement() {
    for concurrency in [1, 32] {
        let (store, faults) = faulty_store();
        let jobs = enqueue_on_each_lock(&store, 1).await;
        let began = Instant::now();
        let worker = DeferWorker::new(&store, CountingReplayer::default()).concurrency(concurrency);
        let worker = SpawnedWorker::spawn_worker(worker);
        for id in &jobs {
            assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
        }
        assert!(began.elapsed() < SECOND / 10, "{:?} at {concurrency}", began.elapsed());
        assert_eq!(
            (faults.call_count("claim"), faults.call_count("settle")),
            (LOCK_COUNT, LOCK_COUNT)
        );
        assert!(
            faults.call_count("due") <= 3 * LOCK_COUNT / 100,
            "{} looks",
            faults.call_count("due")
        );
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_one_lock_share_its_claim() {
    let (store, faults) = faulty_store();
    let jobs = enqueue_on_each_lock(&store, 4).await;
    let worker = DeferWorker::new(&store, CountingReplayer::default()).concurrency(1);
    let worker = SpawnedWorker::spawn_worker(worker);
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    assert_eq!(faults.call_count("settle"), 4 * LOCK_COUNT);
    assert!(
        faults.call_count("claim") <= LOCK_COUNT + LOCK_COUNT / 10,
        "{} claims",
        faults.call_count("claim")
    );
    worker.stop().await;
}

/// Settling needs no room: the next run begins meanwhile, and never one too many.
#[tokio::test(start_paused = true)]
async fn next_run_does_not_wait_for_the_last_settlement() {
    const SETTLE_DELAY: Duration = Duration::from_millis(50);
    let (store, faults) = faulty_store();
    let running = Arc::new(Mutex::new((0, 0)));
    let count = Arc::clone(&running);
    let routes = FnReplayer::new(move |head, marker| {
        let count = Arc::clone(&count);
        async move {
            marker.pass_own_lock(&lock_key_of(&head.target));
            {
                let (now, most) = &mut *count.lock();
                *now += 1;
                *most = *now.max(most);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            count.lock().0 -= 1;
            outcome_with_status(200)
        }
    });
    let mut jobs = Vec::new();
    for line in 0..20 {
        jobs.push(enqueue_job(&store, &format!("/{line}/x")).await);
    }
    faults.set("settle", BackendFault::SlowReply(SETTLE_DELAY), 20);
    let began = Instant::now();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes).concurrency(2));
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    let took = began.elapsed();
    assert_eq!(running.lock().1, 2, "at once");
    // Two at once, of 10 ms each, would take 100 ms without any settling, and 600 ms if each run waited for it.
    // Four visits may be under way for two runs, so the settlements alone set the pace: 20 / 4 * 60 ms.
    assert!(took <= Duration::from_millis(400), "{took:?}");
    worker.stop().await;
}

/// What comes due is found, however many lines have sent messages and wait.
#[tokio::test(start_paused = true)]
async fn waiting_locks_do_not_hide_a_due_job() {
    let store = Store::memory();
    let routes = FnReplayer::new(|head, marker| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        marker.pass_own_lock(&lock_key_of(&head.target));
        outcome_with_status(200)
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes).concurrency(1));
    let_tasks_settle().await;
    // Each line is a message, and comes back as it is given up: 48 s of work.
    for n in 0..8 {
        for line in 0..300 {
            enqueue_job(&store, &format!("/{line}/{n}")).await;
        }
    }
    let late = enqueue_delayed(&store, "/late", SECOND).await;
    let began = Instant::now();
    assert_eq!(wait_until_ended(&store, &late).await, JobState::Done);
    // Once round all lines, four jobs each, is 24 s.
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    worker.stop().await;
}
