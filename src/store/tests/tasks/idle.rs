//! Idle workers: who is told of what, and who has the timer.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{
    Rig,
    desk::{SECOND, Worker, later, queue, task},
    on_every_store,
};
use crate::store::tasks::{TaskOutcome, TaskPollCommand, TaskPollOutcome};

on_every_store!(
    a_push_wakes_exactly_one,
    one_of_the_idle_has_the_timer,
    an_earlier_task_is_told_to_the_one_with_the_timer,
    what_one_cannot_take_is_told_to_the_next,
    the_dead_are_passed_over,
    many_dead_are_passed_over_at_once,
    a_full_worker_is_not_woken,
    who_has_been_idle_for_long_is_woken,
    a_quiet_worker_keeps_its_place_without_a_turn,
    a_worker_is_not_quiet_while_anything_waits_or_runs,
    who_was_woken_is_not_put_back_by_a_look,
);

/// Whether it is told of something before long.
async fn told(worker: &Worker<'_>) -> bool {
    tokio::time::timeout(Duration::from_secs(20), worker.bell.notified()).await.is_ok()
}

/// Whether it has been told by now. (What one worker was sent is there once a later message to another is.)
fn was_told(worker: &Worker<'_>) -> bool {
    worker.bell.notified().now_or_never().is_some()
}

async fn idle(worker: &Worker<'_>) -> TaskPollOutcome {
    let turned = worker.take(worker.turn(1, Vec::new())).await;
    assert!(turned.started.is_empty() && turned.is_listed_idle);
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
    assert!(idle(&one).await.next_poll_in.is_some_and(|wait| wait <= SECOND * 5));
    assert_eq!(idle(&other).await.next_poll_in, None);
    // Not heard of for too long.
    rig.pass(SECOND * 8).await;
    let turned = other.take(other.turn(1, Vec::new())).await;
    assert_eq!(turned.started.len(), 1);
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
    let wait = idle(&other).await.next_poll_in.expect("it has the timer");
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

/// They are the first in line, and a push looks at so many and no more.
async fn many_dead_are_passed_over_at_once(rig: &Rig) {
    for _ in 0..120 {
        idle(&Worker::new(rig)).await;
    }
    rig.pass(SECOND * 8).await;
    let alive = Worker::listening(rig).await;
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
    let turn = TaskPollCommand { can_stay_idle: true, ..other.turn(1, Vec::new()) };
    let turned = other.take(turn).await;
    assert_eq!((turned.started.len(), turned.is_listed_idle), (1, false));
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
        let turned =
            one.take(TaskPollCommand { can_stay_idle: true, ..one.turn(1, Vec::new()) }).await;
        assert!(turned.is_listed_idle);
    }
    rig.push(task("a")).await;
    assert!(told(&one).await);
    assert_eq!(one.start(1).await.len(), 1);
}

async fn still_idle(worker: &Worker<'_>, longer: Duration) -> bool {
    let (node, id) = (worker.node.clone(), Arc::clone(&worker.id));
    worker.rig.backend().poll_idle(queue(), node, id, longer).await.unwrap()
}

async fn a_quiet_worker_keeps_its_place_without_a_turn(rig: &Rig) {
    let one = Worker::listening(rig).await;
    assert!(idle(&one).await.is_queue_idle);
    for _ in 0..3 {
        rig.pass(SECOND * 5).await;
        assert!(still_idle(&one, SECOND * 5).await);
    }
    rig.push(task("a")).await;
    assert!(told(&one).await);
    assert_eq!(one.start(1).await.len(), 1);
}

async fn a_worker_is_not_quiet_while_anything_waits_or_runs(rig: &Rig) {
    let (one, other) = (Worker::listening(rig).await, Worker::listening(rig).await);
    assert!(idle(&one).await.is_queue_idle);
    // It waits, for whoever has the timer.
    let late = later("late", SECOND * 100);
    rig.push(late.clone()).await;
    assert!(!still_idle(&one, Duration::ZERO).await);
    assert!(!idle(&one).await.is_queue_idle);
    assert!(!idle(&other).await.is_queue_idle, "also without the timer");
    assert!(rig.backend().cancel_task(queue(), late.id).await.unwrap().is_some());
    assert!(idle(&one).await.is_queue_idle);

    rig.push(task("a")).await;
    let run = other.one().await;
    assert!(!still_idle(&one, Duration::ZERO).await);
    assert!(!idle(&one).await.is_queue_idle);
    assert!(other.end(&run, TaskOutcome::Done).await);
    assert!(idle(&one).await.is_queue_idle);

    rig.backend().set_tasks_paused(queue(), true).await.unwrap();
    rig.push(task("b")).await;
    assert!(!idle(&one).await.is_queue_idle);
}

/// Nobody hears what it is told; or what it was told, it has not heard.
async fn who_was_woken_is_not_put_back_by_a_look(rig: &Rig) {
    let (one, other) = (Worker::listening(rig).await, Worker::new(rig));
    assert!(!still_idle(&one, SECOND * 8).await, "it never stood there");
    idle(&one).await;
    rig.push(task("a")).await;
    assert!(told(&one).await);
    let run = other.one().await;
    assert!(other.end(&run, TaskOutcome::Done).await);
    assert!(!still_idle(&one, SECOND * 8).await, "nothing waits, and it does not stand there");
    rig.push(task("b")).await;
    // A push that finds nobody tells nobody: this one comes once that would have been heard.
    let run = other.one().await;
    assert!(other.end(&run, TaskOutcome::Done).await);
    idle(&one).await;
    rig.push(task("c")).await;
    assert!(told(&one).await && !was_told(&one), "it was told once");
}
