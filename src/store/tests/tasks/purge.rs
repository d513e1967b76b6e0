//! What waits is thrown away, in pages: what was pushed before the first of them, and nothing else.

use super::{
    Rig,
    desk::{KEEP, SECOND, Worker, later, payloads, queue, retry, task},
    on_every_store,
};
use crate::store::{
    TaskState,
    tasks::{MAX_TASKS_PER_STEP, PurgeCursor, PurgePage},
};

on_every_store!(
    what_waits_can_be_thrown_away,
    what_is_pushed_after_it_began_stays,
    it_goes_by_what_stays_to_what_is_due_later,
    of_those_that_are_due_at_once_none_is_passed_over,
    what_is_to_be_tried_again_goes_too,
    where_nothing_waits_it_is_over_at_once,
);

async fn page(rig: &Rig, walk: Option<PurgeCursor>, most: usize) -> PurgePage {
    rig.backend().purge_waiting(queue(), walk, most).await.unwrap()
}

/// All further pages; how many are gone.
async fn rest(rig: &Rig, mut next: Option<PurgeCursor>, most: usize) -> usize {
    let mut gone = 0;
    for _ in 0..1_000 {
        if next.is_none() {
            return gone;
        }
        let walked = page(rig, next, most).await;
        (gone, next) = (gone + walked.purged, walked.next);
    }
    panic!("it does not end: {next:?}");
}

async fn what_waits_can_be_thrown_away(rig: &Rig) {
    for n in 0..120 {
        rig.push(later(&n.to_string(), SECOND)).await;
    }
    let first = page(rig, None, MAX_TASKS_PER_STEP).await;
    assert_eq!((first.purged, rest(rig, first.next, MAX_TASKS_PER_STEP).await), (100, 20));
    let numbers = rig.numbers().await;
    assert_eq!((numbers.cancelled, numbers.bytes, numbers.waiting), (120, 0, 0));
}

async fn what_is_pushed_after_it_began_stays(rig: &Rig) {
    let before = [rig.push(later("a", KEEP)).await, rig.push(later("b", KEEP)).await];
    let first = page(rig, None, 1).await;
    let now = rig.push(task("c")).await;
    let delayed = rig.push(later("d", SECOND)).await;
    let second = page(rig, first.next, 1).await;
    assert_eq!((first.purged, second.purged), (1, 1));
    assert_eq!(rest(rig, second.next, 1).await, 0);
    for id in &before {
        assert_eq!(rig.task(id).await, None);
    }
    for id in [&now, &delayed] {
        assert_eq!(rig.task(id).await.map(|view| view.state), Some(TaskState::Waiting));
    }
    // The next one is after that.
    assert_eq!(rest(rig, page(rig, None, 1).await.next, 1).await, 1);
    assert_eq!(rig.numbers().await.cancelled, 4);
}

async fn it_goes_by_what_stays_to_what_is_due_later(rig: &Rig) {
    rig.push(later("a", SECOND * 10)).await;
    rig.push(later("b", SECOND * 60)).await;
    let first = page(rig, None, 1).await;
    for payload in ["c", "d", "e"] {
        rig.push(later(payload, SECOND * 30)).await;
    }
    rig.push(later("f", SECOND * 90)).await;
    assert_eq!((first.purged, rest(rig, first.next, 1).await), (1, 1));
    rig.pass(SECOND * 90).await;
    let worker = Worker::new(rig);
    assert_eq!(payloads(&worker.start(9).await), ["c", "d", "e", "f"]);
}

/// Pages end among those of one time, on a clock that stands still.
async fn of_those_that_are_due_at_once_none_is_passed_over(rig: &Rig) {
    for _ in 0..5 {
        rig.push(later("old", SECOND * 60)).await;
    }
    let first = page(rig, None, 2).await;
    for _ in 0..7 {
        rig.push(later("new", SECOND * 60)).await;
    }
    assert_eq!((first.purged, rest(rig, first.next, 2).await), (2, 3));
    rig.pass(SECOND * 60).await;
    assert_eq!(payloads(&Worker::new(rig).start(9).await), ["new"; 7]);
}

async fn what_is_to_be_tried_again_goes_too(rig: &Rig) {
    rig.push(task("a")).await;
    let worker = Worker::new(rig);
    assert!(worker.end(&worker.one().await, retry(SECOND)).await);
    rig.push(task("runs")).await;
    worker.one().await;
    let walked = page(rig, None, MAX_TASKS_PER_STEP).await;
    assert_eq!((walked.purged, walked.next), (1, None));
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.running, numbers.cancelled), (0, 1, 1));
}

async fn where_nothing_waits_it_is_over_at_once(rig: &Rig) {
    assert_eq!(page(rig, None, MAX_TASKS_PER_STEP).await, PurgePage::default());
    assert_eq!(rig.numbers().await, crate::store::QueueStats::default());
}
