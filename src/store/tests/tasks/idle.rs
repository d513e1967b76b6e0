//! Idle workers: who is told of what, and who has the timer.

use std::time::Duration;

use futures_util::FutureExt as _;

use super::{
    Rig,
    desk::{SECOND, Worker, later, task},
    on_every_store,
};
use crate::store::tasks::{Turn, Turned};

on_every_store!(
    a_push_wakes_exactly_one,
    one_of_the_idle_has_the_timer,
    an_earlier_task_is_told_to_the_one_with_the_timer,
    what_one_cannot_take_is_told_to_the_next,
    the_dead_are_passed_over,
    a_full_worker_is_not_woken,
    who_has_been_idle_for_long_is_woken,
);

/// Whether it is told of something before long.
async fn told(worker: &Worker<'_>) -> bool {
    tokio::time::timeout(Duration::from_secs(20), worker.bell.notified()).await.is_ok()
}

/// Whether it has been told by now. (What one worker was sent is there once a later message to another is.)
fn was_told(worker: &Worker<'_>) -> bool {
    worker.bell.notified().now_or_never().is_some()
}

async fn idle(worker: &Worker<'_>) -> Turned {
    let turned = worker.take(worker.turn(1, Vec::new())).await;
    assert!(turned.runs.is_empty() && turned.listed);
    turned
}

async fn a_push_wakes_exactly_one(rig: &Rig) {
    let (one, other) = (Worker::listening(rig).await, Worker::listening(rig).await);
    idle(&one).await;
    rig.advance(SECOND).await;
    idle(&other).await;
    rig.push(task("a")).await;
    assert!(told(&one).await);
    assert_eq!(one.start(1).await.len(), 1);
    assert!(!was_told(&other));
    rig.push(task("b")).await;
    assert!(told(&other).await);
    assert!(!was_told(&one));
}

async fn one_of_the_idle_has_the_timer(rig: &Rig) {
    rig.push(later("a", SECOND * 5)).await;
    let (one, other) = (Worker::listening(rig).await, Worker::listening(rig).await);
    assert!(idle(&one).await.wait.is_some_and(|wait| wait <= SECOND * 5));
    assert_eq!(idle(&other).await.wait, None);
    // Not heard of for too long.
    rig.pass(SECOND * 8).await;
    let turned = other.take(other.turn(1, Vec::new())).await;
    assert_eq!(turned.runs.len(), 1);
}

async fn an_earlier_task_is_told_to_the_one_with_the_timer(rig: &Rig) {
    rig.push(later("a", SECOND * 100)).await;
    let (one, other) = (Worker::listening(rig).await, Worker::listening(rig).await);
    idle(&other).await;
    rig.advance(SECOND).await;
    idle(&one).await;
    rig.push(later("b", SECOND * 50)).await;
    assert!(told(&other).await);
    assert!(!was_told(&one));
    let wait = idle(&other).await.wait.expect("it has the timer");
    assert!(wait <= SECOND * 50, "{wait:?}");
    // One that comes later than what is known is nobody's business.
    rig.push(later("c", SECOND * 60)).await;
    rig.push(task("d")).await;
    assert!(told(&one).await || was_told(&other));
}

async fn what_one_cannot_take_is_told_to_the_next(rig: &Rig) {
    let (one, other) = (Worker::listening(rig).await, Worker::listening(rig).await);
    idle(&one).await;
    rig.advance(SECOND).await;
    idle(&other).await;
    rig.push(task("a")).await;
    rig.push(task("b")).await;
    assert!(told(&one).await);
    assert!(!was_told(&other));
    assert_eq!(one.start(1).await.len(), 1);
    assert!(told(&other).await);
}

async fn the_dead_are_passed_over(rig: &Rig) {
    if !rig.knows_who_listens().await {
        // A node of a cluster before 7.0 does not know who listens on another one: the next turn of another worker
        // finds it.
        return;
    }
    let (dead, alive) = (Worker::new(rig), Worker::listening(rig).await);
    idle(&dead).await;
    rig.advance(SECOND).await;
    idle(&alive).await;
    rig.push(task("a")).await;
    assert!(told(&alive).await);
}

async fn a_full_worker_is_not_woken(rig: &Rig) {
    let (one, other) = (Worker::listening(rig).await, Worker::listening(rig).await);
    idle(&one).await;
    rig.advance(SECOND).await;
    idle(&other).await;
    rig.push(task("a")).await;
    assert!(told(&one).await);
    // It was not woken for this one, so it still stands among the idle.
    let turn = Turn { listed: true, ..other.turn(1, Vec::new()) };
    let turned = other.take(turn).await;
    assert_eq!((turned.runs.len(), turned.listed), (1, false));
    idle(&one).await;
    rig.push(task("b")).await;
    assert!(told(&one).await);
    assert!(!was_told(&other));
}

/// A look prolongs its place among the idle, or a push would find nobody there.
async fn who_has_been_idle_for_long_is_woken(rig: &Rig) {
    let one = Worker::listening(rig).await;
    idle(&one).await;
    for _ in 0..2 {
        rig.pass(SECOND * 5).await;
        let turned = one.take(Turn { listed: true, ..one.turn(1, Vec::new()) }).await;
        assert!(turned.listed);
    }
    rig.push(task("a")).await;
    assert!(told(&one).await);
    assert_eq!(one.start(1).await.len(), 1);
}
