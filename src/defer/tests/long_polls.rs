//! Long polls of one job share their polls of the store.

use std::time::Duration;

use futures_util::{FutureExt as _, future::join_all};
use tokio::task::JoinHandle;

use super::{
    SECOND, enqueue_job, let_tasks_settle,
    status_resource::{get_status, job_state},
};
use crate::{
    reply::Reply,
    store::{BackendFault, FaultSchedule, JobId, JobState, PollFreshness, Store, faulty_store},
};

/// Far more than the store polls that the requests share.
const POLL_COUNT: usize = 256;

/// Long enough for further requests to arrive before the poll ends.
const POLL_DELAY: Duration = Duration::from_millis(100);

fn spawn_long_polls(store: &Store, id: &JobId, number: usize) -> Vec<JoinHandle<Reply>> {
    let headers = [("prefer", "wait=20")];
    let poll = |_| {
        let (store, id) = (store.clone(), id.clone());
        crate::store::spawn(async move { get_status(&store, &id, &headers).await })
    };
    (0..number).map(poll).collect()
}

async fn await_replies(polls: Vec<JoinHandle<Reply>>) -> Vec<Reply> {
    join_all(polls).await.into_iter().map(|reply| reply.expect("no panic")).collect()
}

async fn start_long_polls(number: usize) -> (Store, FaultSchedule, JobId, Vec<JoinHandle<Reply>>) {
    let (store, faults) = faulty_store();
    let id = enqueue_job(&store, "/x").await;
    faults.set("job", BackendFault::SlowReply(POLL_DELAY), usize::MAX);
    let waiting = spawn_long_polls(&store, &id, number);
    let_tasks_settle().await;
    let_tasks_settle().await;
    (store, faults, id, waiting)
}

#[tokio::test(start_paused = true)]
async fn concurrent_long_polls_share_store_polls() {
    let (store, faults, id, waiting) = start_long_polls(POLL_COUNT).await;
    // The first poll, and one for all requests that arrived while it was in flight.
    assert_eq!(faults.call_count("job"), 2);
    let before = faults.call_count("job");
    tokio::time::sleep(5 * SECOND).await;
    let polls = faults.call_count("job") - before;
    assert!(polls <= 10, "{polls} polls to make sure in 5 s");
    let before = faults.call_count("job");
    let cancelled = store.backend().cancel_waiting_job(id, 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it is there"), Some(JobState::Cancelled));
    let answers = await_replies(waiting).await;
    assert_eq!(faults.call_count("job") - before, 1);
    assert_eq!(answers.len(), POLL_COUNT);
    for reply in &answers {
        assert_eq!((reply.status, job_state(reply)), (200, "cancelled".into()));
    }
}

/// The first request polls for the others; when it is dropped, another one takes over.
#[tokio::test(start_paused = true)]
async fn dropped_poll_leader_does_not_block_others() {
    let (store, faults) = faulty_store();
    let id = enqueue_job(&store, "/x").await;
    faults.set("job", BackendFault::NeverReplies, 1);
    let watch = store.wakeups().subscribe_job(&id);
    let mut first = Box::pin(watch.poll_job(&store, &id, PollFreshness::Now));
    assert!(first.as_mut().now_or_never().is_none());
    let mut second = Box::pin(watch.poll_job(&store, &id, PollFreshness::Now));
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(faults.call_count("job"), 1, "the second one waits for the first");
    drop(first);
    assert!(second.await.expect("the store is there").is_some());
    assert_eq!(faults.call_count("job"), 2);
}

/// The leader's runtime may have ended, so the others wait for it only briefly.
#[tokio::test(start_paused = true)]
async fn unpolled_poll_leader_delays_others_briefly() {
    let (store, faults) = faulty_store();
    let id = enqueue_job(&store, "/x").await;
    faults.set("job", BackendFault::NeverReplies, 1);
    let watch = store.wakeups().subscribe_job(&id);
    let mut first = Box::pin(watch.poll_job(&store, &id, PollFreshness::Now));
    assert!(first.as_mut().now_or_never().is_none());
    let second =
        tokio::time::timeout(2 * SECOND, watch.poll_job(&store, &id, PollFreshness::Now)).await;
    assert!(second.expect("it polls itself").expect("the store is there").is_some());
}

/// A client that changed the job sees its change although other requests share a poll.
#[tokio::test(start_paused = true)]
async fn later_poll_does_not_return_an_older_state() {
    let (store, _faults, id, waiting) = start_long_polls(2).await;
    let watch = store.wakeups().subscribe_job(&id);
    let cancelled = store.backend().cancel_waiting_job(id.clone(), 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it is there"), Some(JobState::Cancelled));
    let reply = get_status(&store, &id, &[("prefer", "wait=20")]).await;
    assert_eq!(job_state(&reply), "cancelled");
    drop((watch, await_replies(waiting).await));
}
