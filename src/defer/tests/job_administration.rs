//! Administration of deferred jobs: peek, cancel, redrive, purge, pause, and lists.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_command, enqueue_delayed,
    enqueue_job, enqueue_request, enqueue_with_attempts, envelope_command, get_job,
    let_tasks_settle, lock_key_of, outcome_with_status, send_enqueue, wait_until_ended,
};
use crate::{
    defer::{
        JobCursor, JobPage, ReplayBody, ReplayOutcome, ReplayResponse, RetainedRequest,
        tests::DeferWorker,
    },
    gate::HttpRequestHead,
    store::{BackendFault, EnqueueCommand, JobId, JobPolicy, JobState, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn peek_shows_no_values() {
    let store = Store::memory();
    let headers = vec![("x-secret".to_owned(), b"hush".to_vec())];
    let head = HttpRequestHead::new("POST", "/x?token=hush", headers, None);
    let id = enqueue_request(&store, head, b"hush hush").await;
    let jobs = store.deferred_jobs();
    let head = jobs.peek(&id).await.expect("it is there").expect("it is stored");
    assert_eq!((&*head.method, &*head.path, head.body_len), ("POST", "/x", 9));
    assert_eq!(head.header_names, ["x-secret"]);
    assert!(!format!("{head:?}").contains("hush"), "{head:?}");
    let unknown = JobId::new(&lock_key_of("/x"));
    assert_eq!(jobs.peek(&unknown).await.expect("it is there"), None);
    assert_eq!(jobs.get(&unknown).await.expect("it is there"), None);
}

/// An unreadable request (newer version, missing key, corrupted) differs from one that is not
/// retained.
#[tokio::test(start_paused = true)]
async fn unreadable_request_reports_its_cause() {
    let store = Store::memory();
    let jobs = store.deferred_jobs();
    let whole = enqueue_job(&store, "/x?a=b").await;
    let request =
        jobs.request(&whole).await.expect("it is there").into_request().expect("it is whole");
    assert_eq!((&*request.method, &*request.target), ("POST", "/x?a=b"));
    assert_eq!(&request.body[..], b"body");
    for (stored, expected) in [
        (&b"\x03??"[..], RetainedRequest::NewerVersion),
        (b"\0\x02??", RetainedRequest::NewerVersion),
        (b"\0\x01??", RetainedRequest::MissingKey),
        (b"\x01??", RetainedRequest::Corrupted),
    ] {
        let key = lock_key_of("/x");
        let envelope = Bytes::from_static(stored);
        let id = send_enqueue(&store, envelope_command(key.clone(), JobId::new(&key), 1, envelope))
            .await;
        assert_eq!(jobs.request(&id).await.expect("it is there"), expected);
    }
    assert!(jobs.cancel(&whole).await.is_ok());
    assert_eq!(jobs.request(&whole).await.expect("it is there"), RetainedRequest::NotRetained);
}

/// The cancel call reaches the store after a run of the job, so its precondition no longer holds.
#[tokio::test(start_paused = true)]
async fn job_that_ran_during_cancel_is_checked_again() {
    let retry_after = || vec![("retry-after".to_owned(), b"600".to_vec())];
    for (status, attempts, state, calls) in
        [(503, 2, JobState::Cancelled, 2), (503, 1, JobState::Dead, 1), (200, 2, JobState::Done, 1)]
    {
        let (store, faults) = faulty_store();
        let worker = SpawnedWorker::spawn_worker(DeferWorker::new(
            &store,
            FnReplayer::new(move |head, marker| {
                marker.pass_own_lock(&lock_key_of(&head.target));
                let body = ReplayBody::Full(Bytes::new());
                std::future::ready(ReplayOutcome::Answered(ReplayResponse {
                    status,
                    headers: retry_after(),
                    body,
                }))
            }),
        ));
        let held = store.lock("x").acquire().await.expect("it is free");
        let id = enqueue_with_attempts(&store, "/x", attempts, Vec::new()).await;
        faults.set("cancel", BackendFault::SlowCall(10 * SECOND), 1);
        let (jobs, job_id) = (store.deferred_jobs(), id.clone());
        let cancelled = crate::store::spawn(async move { jobs.cancel(&job_id).await });
        let_tasks_settle().await;
        held.release().await;
        let_tasks_settle().await;
        assert_eq!((get_job(&store, &id).await.attempts, cancelled.is_finished()), (1, false));
        let outcome = cancelled.await.expect("it ends").expect("it is there");
        assert_eq!((outcome, get_job(&store, &id).await.state), (Some(state), state));
        assert_eq!(faults.call_count("cancel"), calls);
        worker.stop().await;
    }
}

/// Makes `number` dead letters, each on its own lock.
pub(crate) async fn make_dead_letters(store: &Store, number: usize) -> Vec<JobId> {
    let worker = SpawnedWorker::spawn_on(store, &CountingReplayer::default());
    let mut ids = Vec::new();
    for number in 0..number {
        let id = enqueue_job(store, &format!("/{number}/panic")).await;
        assert_eq!(wait_until_ended(store, &id).await, JobState::Dead);
        ids.push(id);
    }
    worker.stop().await;
    ids.sort_unstable();
    ids
}

/// The interval would only delay a second dead letter.
#[tokio::test(start_paused = true)]
async fn redrive_all_accepts_an_unbounded_interval() {
    let store = Store::memory();
    make_dead_letters(&store, 1).await;
    let jobs = store.deferred_jobs();
    assert_eq!(jobs.redrive_all(Duration::MAX).await.expect("it is there"), 1);
}

#[tokio::test(start_paused = true)]
async fn redrive_all_spaces_the_dead_letters() {
    let store = Store::memory();
    let ids = make_dead_letters(&store, 5).await;
    let jobs = store.deferred_jobs();
    let started = Instant::now();
    // The redriven jobs die again meanwhile and are not redriven twice.
    let worker = SpawnedWorker::spawn_on(&store, &CountingReplayer::default());
    assert_eq!(jobs.redrive_all(SECOND).await.expect("it is there"), 5);
    assert_eq!(started.elapsed(), 4 * SECOND, "the first at once");
    for id in &ids {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Dead);
    }
    worker.stop().await;
    assert_eq!(jobs.redrive(&ids[0]).await.expect("it is there"), Some(JobState::Queued));
    assert_eq!(jobs.redrive(&ids[0]).await.expect("it is there"), Some(JobState::Queued));
    assert_eq!(jobs.stats().await.expect("it is there").dead, 4);
    let unknown = JobId::new(&lock_key_of("/x"));
    assert_eq!(jobs.redrive(&unknown).await.expect("it is there"), None);
}

/// The worker is woken at once, whether the job has not started or has failed.
#[tokio::test(start_paused = true)]
async fn delayed_and_failed_jobs_run_now() {
    let store = Store::memory();
    let routes = FnReplayer::new(|head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        let headers = vec![("retry-after".to_owned(), b"300".to_vec())];
        let body = ReplayBody::Full(Bytes::new());
        std::future::ready(ReplayOutcome::Answered(ReplayResponse { status: 503, headers, body }))
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let started = Instant::now();
    let delayed = enqueue_delayed(&store, "/x", 300 * SECOND).await;
    let failed = enqueue_with_attempts(&store, "/y", 2, Vec::new()).await;
    let_tasks_settle().await;
    let jobs = store.deferred_jobs();
    for (id, attempts) in [(&delayed, 0), (&failed, 1)] {
        assert_eq!(get_job(&store, id).await.attempts, attempts);
        assert_eq!(jobs.run_now(id).await.expect("it is there"), Some(JobState::Queued));
        assert_eq!(wait_until_ended(&store, id).await, JobState::Dead);
        assert_eq!(jobs.run_now(id).await.expect("it is there"), Some(JobState::Dead));
    }
    assert!(started.elapsed() < 60 * SECOND, "{:?}", started.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn purged_job_leaves_a_tombstone() {
    let store = Store::memory();
    let ids = make_dead_letters(&store, 2).await;
    let jobs = store.deferred_jobs();
    let pending = enqueue_job(&store, "/x").await;
    assert!(!jobs.purge(&pending).await.expect("it is there"), "it has not ended");
    assert!(jobs.purge(&ids[0]).await.expect("it is there"));
    assert!(!jobs.purge(&ids[0]).await.expect("it is there"), "once");
    let tomb = jobs.get(&ids[0]).await.expect("it is there").expect("its tombstone");
    assert_eq!((tomb.tombstone, tomb.state, tomb.attempts), (true, JobState::Dead, 0));
    assert_eq!(jobs.peek(&ids[0]).await.expect("it is there"), None);
    assert_eq!(jobs.cancel(&ids[0]).await.expect("it is there"), Some(JobState::Dead));
    assert_eq!(jobs.redrive(&ids[0]).await.expect("it is there"), Some(JobState::Dead));
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(jobs.purge_dead(60 * SECOND).await.expect("it is there"), 0, "too young");
    assert_eq!(jobs.purge_dead(5 * SECOND).await.expect("it is there"), 1);
    assert!(jobs.get(&pending).await.expect("it is there").is_some());
}

#[tokio::test(start_paused = true)]
async fn paused_queue_starts_no_job() {
    let store = Store::memory();
    let jobs = store.deferred_jobs();
    let routes = CountingReplayer::default();
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    assert_eq!(jobs.is_paused().await.ok(), Some(false));
    jobs.pause().await.expect("it is there");
    assert_eq!(jobs.is_paused().await.ok(), Some(true));
    let id = enqueue_job(&store, "/x").await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(routes.run_count("/x"), 0);
    // A paused queue does not block live requests.
    drop(store.lock(lock_key_of("/x")).acquire().await.expect("it is free"));
    jobs.resume().await.expect("it is there");
    let started = Instant::now();
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn job_waiting_for_a_slot_does_not_start_while_paused() {
    let store = Store::memory();
    let (jobs, starts) = (store.deferred_jobs(), Arc::new(AtomicU32::new(0)));
    let counter = Arc::clone(&starts);
    let routes = FnReplayer::new(move |head, marker| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move {
            marker.pass_own_lock(&lock_key_of(&head.target));
            tokio::time::sleep(SECOND).await;
            outcome_with_status(200)
        }
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes).concurrency(1));
    let_tasks_settle().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(enqueue_job(&store, &format!("/{n}")).await);
    }
    let_tasks_settle().await;
    jobs.pause().await.expect("it is there");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(starts.load(Ordering::Relaxed), 1);
    jobs.resume().await.expect("it is there");
    for id in ids {
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    }
    worker.stop().await;
}

/// Jobs that never ran are in no index, which bounds its size. They are found by id and counted.
#[tokio::test(start_paused = true)]
async fn jobs_that_ran_are_listed_and_others_only_counted() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let cancelled = enqueue_job(&store, "/x").await;
    let jobs = store.deferred_jobs();
    assert_eq!(jobs.cancel(&cancelled).await.expect("it is there"), Some(JobState::Cancelled));
    let call = enqueue_command(&store, HttpRequestHead::new("POST", "/y", Vec::new(), None), b"");
    let policy = JobPolicy { deadline: Some(SECOND), delay: 2 * SECOND, ..call.policy };
    let expired = send_enqueue(&store, EnqueueCommand { policy, ..call }).await;
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    assert_eq!(wait_until_ended(&store, &expired).await, JobState::Expired);
    let (done, dead) = (enqueue_job(&store, "/z").await, enqueue_job(&store, "/z/panic").await);
    assert_eq!(wait_until_ended(&store, &dead).await, JobState::Dead);
    assert_eq!(wait_until_ended(&store, &done).await, JobState::Done);
    let listed = |page: JobPage| page.jobs.into_iter().map(|job| job.id).collect::<Vec<_>>();
    let from = JobCursor::default;
    assert_eq!(listed(jobs.done(from(), 100).await.expect("it is there")), [done]);
    assert_eq!(listed(jobs.dead(from(), 100).await.expect("it is there")), [dead]);
    for (id, state) in [(&cancelled, JobState::Cancelled), (&expired, JobState::Expired)] {
        let job = jobs.get(id).await.expect("it is there").expect("it is stored");
        assert_eq!(job.state, state);
    }
    let stats = jobs.stats().await.expect("it is there");
    assert_eq!((stats.cancelled, stats.expired, stats.done, stats.dead), (1, 1, 1, 1));
    worker.stop().await;
}
