//! Many locks with few jobs each: number of store calls, and delays.

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

/// Several pages of the due index.
const LOCK_COUNT: usize = 300;

async fn enqueue_on_each_lock(store: &Store, each: usize) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for n in 0..each {
        for lock in 0..LOCK_COUNT {
            jobs.push(enqueue_job(store, &format!("/{lock}/{n}")).await);
        }
    }
    jobs
}

/// A job costs one claim and one settlement; one poll of the due index finds many jobs. No slot is
/// idle while a job is due.
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
            "{} polls",
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

/// A settlement occupies no slot: the next run starts meanwhile, within the concurrency limit.
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
    for lock in 0..20 {
        jobs.push(enqueue_job(&store, &format!("/{lock}/x")).await);
    }
    faults.set("settle", BackendFault::SlowReply(SETTLE_DELAY), 20);
    let began = Instant::now();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes).concurrency(2));
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    let took = began.elapsed();
    assert_eq!(running.lock().1, 2, "at once");
    // 20 runs of 10 ms, two at once, take 100 ms without settlements, and 600 ms if each run waited
    // for its settlement. Four job chains may serve two slots, so the settlements set the pace: 20
    // / 4 * 60 ms.
    assert!(took <= Duration::from_millis(400), "{took:?}");
    worker.stop().await;
}

/// A due job is found although many locks have sent wake-ups and wait for a slot.
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
    // Each lock sends a wake-up and is requeued when its chain ends: 48 s of work.
    for n in 0..8 {
        for lock in 0..300 {
            enqueue_job(&store, &format!("/{lock}/{n}")).await;
        }
    }
    let delayed = enqueue_delayed(&store, "/late", SECOND).await;
    let began = Instant::now();
    assert_eq!(wait_until_ended(&store, &delayed).await, JobState::Done);
    // One round over all locks, with four jobs each, takes 24 s.
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    worker.stop().await;
}
