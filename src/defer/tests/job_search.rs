//! Searches for jobs: groups, owners, reasons, and the bound of one call.

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_command, enqueue_delayed,
    enqueue_job, let_tasks_settle, lock_key_of, outcome_with_status, send_enqueue,
    wait_until_ended,
};
use crate::{
    defer::{JobCursor, JobFilter, JobGroup, tests::DeferWorker},
    gate::HttpRequestHead,
    store::{EnqueueCommand, JobId, JobState, Store},
};

async fn enqueue_for_owner(store: &Store, target: &str, owner: &str) -> JobId {
    let head = HttpRequestHead::new("POST", target, Vec::new(), None);
    let call = enqueue_command(store, head, b"body");
    send_enqueue(store, EnqueueCommand { owner: owner.to_owned(), ..call }).await
}

/// Returns all jobs that match, from all pages.
async fn find_all(store: &Store, filter: &JobFilter, page_size: usize) -> Vec<JobId> {
    let (mut found, mut next) = (Vec::new(), Some(JobCursor::default()));
    while let Some(from) = next {
        let page = store.deferred_jobs().find(filter, from, page_size).await.expect("it is there");
        assert!(page.jobs.len() <= page_size);
        found.extend(page.jobs.into_iter().map(|job| job.id));
        next = page.next;
    }
    found.sort_unstable();
    found
}

#[tokio::test(start_paused = true)]
async fn groups_of_pending_jobs_are_distinguished() {
    let store = Store::memory();
    let routes = FnReplayer::new(|head, marker| async move {
        marker.pass_own_lock(&lock_key_of(&head.target));
        tokio::time::sleep(10 * SECOND).await;
        outcome_with_status(200)
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let running = enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    let waiting = enqueue_job(&store, "/x").await;
    let delayed = enqueue_delayed(&store, "/x", 300 * SECOND).await;
    for (group, id) in [
        (JobGroup::Running, &running),
        (JobGroup::Waiting, &waiting),
        (JobGroup::Delayed, &delayed),
    ] {
        let found = find_all(&store, &JobFilter::new(group), 2).await;
        assert_eq!(found, std::slice::from_ref(id), "{group:?}");
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn jobs_are_found_by_owner_and_reason() {
    let store = Store::memory();
    let worker = SpawnedWorker::spawn_on(&store, &CountingReplayer::default());
    let mut dead = Vec::new();
    for owner in ["ada", "eve", ""] {
        let id = enqueue_for_owner(&store, &format!("/{owner}/panic"), owner).await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Dead);
        dead.push(id);
    }
    worker.stop().await;
    let filter = || JobFilter::new(JobGroup::Dead);
    for (owner, id) in ["ada", "eve", ""].into_iter().zip(&dead) {
        let found = find_all(&store, &filter().owner(owner), 1).await;
        assert_eq!(found, std::slice::from_ref(id), "{owner}");
    }
    let job = store.deferred_jobs().get(&dead[0]).await.expect("it is there").expect("it is dead");
    let reason = job.reason.expect("a reason");
    dead.sort_unstable();
    assert_eq!(find_all(&store, &filter().reason(&reason[1..]), 2).await, dead);
    assert_eq!(find_all(&store, &filter().reason("no such reason"), 2).await, []);
    assert!(!format!("{:?}", filter().owner("ada")).contains("ada"), "owners are accounts");
}

/// One call ends after a bounded number of jobs, though none of them matches.
#[tokio::test(start_paused = true)]
async fn search_reads_a_bounded_number_of_jobs_in_one_call() {
    let store = Store::memory();
    for number in 0..1_100 {
        enqueue_for_owner(&store, &format!("/{number}"), "eve").await;
    }
    let (jobs, filter) = (store.deferred_jobs(), JobFilter::new(JobGroup::Waiting).owner("ada"));
    let first = jobs.find(&filter, JobCursor::default(), 100).await.expect("it is there");
    assert_eq!((first.jobs.len(), first.examined), (0, 1_000));
    let from = first.next.expect("there are more");
    let last = jobs.find(&filter, from, 100).await.expect("it is there");
    assert_eq!((last.jobs.len(), last.examined, last.next), (0, 100, None));
}
