//! Many lines with a job or a few each: what their runs cost, and how soon they come.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Function, Routes, SECOND, Working, answered, ended, key_of, put_late, put_off, settled,
};
use crate::{
    defer::DeferWorker,
    store::{Fault, JobId, JobState, Store, faulty},
};

/// Several pages of what is due.
const LINES: usize = 300;

async fn everywhere(store: &Store, each: usize) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for n in 0..each {
        for line in 0..LINES {
            jobs.push(put_off(store, &format!("/{line}/{n}")).await);
        }
    }
    jobs
}

/// A job is a claim and a settlement, a look finds many: and no slot waits for a time while something is due.
#[tokio::test(start_paused = true)]
async fn a_job_of_its_own_line_costs_a_claim_a_settlement_and_a_part_of_a_look() {
    for concurrency in [1, 32] {
        let (store, faults) = faulty();
        let jobs = everywhere(&store, 1).await;
        let began = Instant::now();
        let worker = DeferWorker::new(&store, Routes::default()).concurrency(concurrency);
        let worker = Working::with(worker);
        for id in &jobs {
            assert_eq!(ended(&store, id).await, JobState::Done);
        }
        assert!(began.elapsed() < SECOND / 10, "{:?} at {concurrency}", began.elapsed());
        assert_eq!((faults.seen("claim"), faults.seen("settle")), (LINES, LINES));
        assert!(faults.seen("due") <= 3 * LINES / 100, "{} looks", faults.seen("due"));
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_few_jobs_a_line_share_its_claim() {
    let (store, faults) = faulty();
    let jobs = everywhere(&store, 4).await;
    let worker = DeferWorker::new(&store, Routes::default()).concurrency(1);
    let worker = Working::with(worker);
    for id in &jobs {
        assert_eq!(ended(&store, id).await, JobState::Done);
    }
    assert_eq!(faults.seen("settle"), 4 * LINES);
    assert!(faults.seen("claim") <= LINES + LINES / 10, "{} claims", faults.seen("claim"));
    worker.stop().await;
}

/// Settling needs no room: the next run begins meanwhile, and never one too many.
#[tokio::test(start_paused = true)]
async fn the_next_run_does_not_wait_for_the_settlement_of_the_last() {
    const SLOW: Duration = Duration::from_millis(50);
    let (store, faults) = faulty();
    let running = Arc::new(Mutex::new((0, 0)));
    let count = Arc::clone(&running);
    let routes = Function::new(move |head, marker| {
        let count = Arc::clone(&count);
        async move {
            marker.pass(&key_of(&head.target));
            {
                let (now, most) = &mut *count.lock();
                *now += 1;
                *most = *now.max(most);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            count.lock().0 -= 1;
            answered(200)
        }
    });
    let mut jobs = Vec::new();
    for line in 0..20 {
        jobs.push(put_off(&store, &format!("/{line}/x")).await);
    }
    faults.set("settle", Fault::Slow(SLOW), 20);
    let began = Instant::now();
    let worker = Working::with(DeferWorker::new(&store, routes).concurrency(2));
    for id in &jobs {
        assert_eq!(ended(&store, id).await, JobState::Done);
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
async fn lines_that_wait_do_not_hide_what_comes_due() {
    let store = Store::memory();
    let routes = Function::new(|head, marker| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        marker.pass(&key_of(&head.target));
        answered(200)
    });
    let worker = Working::with(DeferWorker::new(&store, routes).concurrency(1));
    settled().await;
    // Each line is a message, and comes back as it is given up: 48 s of work.
    for n in 0..8 {
        for line in 0..300 {
            put_off(&store, &format!("/{line}/{n}")).await;
        }
    }
    let late = put_late(&store, "/late", SECOND).await;
    let began = Instant::now();
    assert_eq!(ended(&store, &late).await, JobState::Done);
    // Once round all lines, four jobs each, is 24 s.
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    worker.stop().await;
}
