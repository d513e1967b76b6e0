//! Long polls of one job share their polls of the store.

use std::time::Duration;

use futures_util::{FutureExt as _, future::join_all};
use tokio::task::JoinHandle;

use super::{
    SECOND, put_off, settled,
    status::{get, state},
};
use crate::{
    reply::Reply,
    store::{Fault, Faults, JobId, JobState, PollFreshness, Store, faulty},
};

/// Far more than polls of the store that they share.
const MANY: usize = 256;

/// A poll takes so long that those that come meanwhile are there before it ends.
const SLOW: Duration = Duration::from_millis(100);

fn polls(store: &Store, id: &JobId, number: usize) -> Vec<JoinHandle<Reply>> {
    let fields = [("prefer", "wait=20")];
    let poll = |_| {
        let (store, id) = (store.clone(), id.clone());
        crate::store::spawn(async move { get(&store, &id, &fields).await })
    };
    (0..number).map(poll).collect()
}

async fn answers(polls: Vec<JoinHandle<Reply>>) -> Vec<Reply> {
    join_all(polls).await.into_iter().map(|reply| reply.expect("no panic")).collect()
}

async fn waiting(number: usize) -> (Store, Faults, JobId, Vec<JoinHandle<Reply>>) {
    let (store, faults) = faulty();
    let id = put_off(&store, "/x").await;
    faults.set("job", Fault::Slow(SLOW), usize::MAX);
    let waiting = polls(&store, &id, number);
    settled().await;
    settled().await;
    (store, faults, id, waiting)
}

#[tokio::test(start_paused = true)]
async fn those_that_begin_together_and_those_that_wait_for_one_change_share() {
    let (store, faults, id, waiting) = waiting(MANY).await;
    // The first, and one for all that came while it was under way.
    assert_eq!(faults.seen("job"), 2);
    let before = faults.seen("job");
    tokio::time::sleep(5 * SECOND).await;
    let sure = faults.seen("job") - before;
    assert!(sure <= 10, "{sure} polls to make sure in 5 s");
    let before = faults.seen("job");
    let cancelled = store.backend().cancel_waiting_job(id, 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it is there"), Some(JobState::Cancelled));
    let answers = answers(waiting).await;
    assert_eq!(faults.seen("job") - before, 1);
    assert_eq!(answers.len(), MANY);
    for reply in &answers {
        assert_eq!((reply.status, state(reply)), (200, "cancelled".into()));
    }
}

/// One of them polls for the others.
#[tokio::test(start_paused = true)]
async fn one_that_leaves_while_it_polls_keeps_no_other_waiting() {
    let (store, faults) = faulty();
    let id = put_off(&store, "/x").await;
    faults.set("job", Fault::Silence, 1);
    let watch = store.wakeups().subscribe_job(&id);
    let mut first = Box::pin(watch.poll_job(&store, &id, PollFreshness::Now));
    assert!(first.as_mut().now_or_never().is_none());
    let mut second = Box::pin(watch.poll_job(&store, &id, PollFreshness::Now));
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(faults.seen("job"), 1, "the second one waits for the first");
    drop(first);
    assert!(second.await.expect("the store is there").is_some());
    assert_eq!(faults.seen("job"), 2);
}

/// Its runtime may have ended.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_driven_keeps_others_waiting_for_a_moment() {
    let (store, faults) = faulty();
    let id = put_off(&store, "/x").await;
    faults.set("job", Fault::Silence, 1);
    let watch = store.wakeups().subscribe_job(&id);
    let mut first = Box::pin(watch.poll_job(&store, &id, PollFreshness::Now));
    assert!(first.as_mut().now_or_never().is_none());
    let second =
        tokio::time::timeout(2 * SECOND, watch.poll_job(&store, &id, PollFreshness::Now)).await;
    assert!(second.expect("it polls itself").expect("the store is there").is_some());
}

/// A client that has changed the job sees that, also beside others that wait.
#[tokio::test(start_paused = true)]
async fn one_that_comes_later_is_not_told_what_was_before() {
    let (store, _faults, id, waiting) = waiting(2).await;
    let watch = store.wakeups().subscribe_job(&id);
    let cancelled = store.backend().cancel_waiting_job(id.clone(), 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it is there"), Some(JobState::Cancelled));
    let reply = get(&store, &id, &[("prefer", "wait=20")]).await;
    assert_eq!(state(&reply), "cancelled");
    drop((watch, answers(waiting).await));
}
