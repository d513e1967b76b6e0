//! The ends of runs: done, tried again, dead, handed back, lost; turns that come twice.

use super::{
    Rig,
    desk::{LEASE, SECOND, Worker, back, dead, payloads, queue, retry, task, unique},
    on_every_store,
};
use crate::store::{
    QueueStats, TaskFault, TaskState,
    tasks::{MAX_HISTORY, TaskOutcome, TaskPollOutcome, TaskPushCommand},
};

on_every_store!(
    the_history_is_kept_and_bounded,
    a_turn_that_comes_twice_happens_once,
    a_turn_that_comes_after_its_successor_does_nothing,
    a_run_ends_once,
    a_lapsed_run_is_tried_again,
    a_run_that_was_taken_back_can_end_nothing,
    what_may_not_run_again_is_dead_after_a_crash,
    a_task_that_crashes_again_and_again_is_dead,
    two_workers_share_what_is_due,
);

async fn the_history_is_kept_and_bounded(rig: &Rig) {
    let id = rig.push(TaskPushCommand { max_attempts: 100, ..task("a") }).await;
    let worker = Worker::new(rig);
    for attempt in 1..=10 {
        let run = worker.one().await;
        assert_eq!(run.attempt, attempt);
        let reason = format!("number {attempt} of ten");
        let verdict = TaskOutcome::Retry { delay: SECOND, fault: TaskFault::Panicked, reason };
        assert!(worker.end(&run, verdict).await);
        rig.pass(SECOND).await;
    }
    let run = worker.one().await;
    assert!(worker.end(&run, dead("enough")).await);
    let view = rig.task(&id).await.unwrap();
    assert_eq!((view.state, view.history.attempts, view.history.crashes), (TaskState::Dead, 11, 0));
    let history = &view.history.failures;
    assert_eq!(history.len(), MAX_HISTORY);
    assert_eq!(history[0].reason, "number 4 of ten");
    assert_eq!(history[MAX_HISTORY - 1].reason, "enough");
    assert_eq!(history[MAX_HISTORY - 1].fault, TaskFault::Failed);
    assert!(history[0].at_us > 0);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.panicked, numbers.failed, numbers.dead), (10, 1, 1));
    assert_eq!((numbers.bytes, numbers.dead_letters), (0, 1));
}

async fn a_turn_that_comes_twice_happens_once(rig: &Rig) {
    for payload in ["a", "b", "c", "d"] {
        rig.push(task(payload)).await;
    }
    let worker = Worker::new(rig);
    let first = worker.one().await;
    let turn = worker.turn(2, vec![first.ended(retry(SECOND * 20))]);
    let once = worker.take(turn.clone()).await;
    let again = worker.take(turn).await;
    assert_eq!((&once.settled, &once.started), (&again.settled, &again.started));
    assert_eq!(again.started.len(), 2);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.running, numbers.waiting, numbers.failed), (2, 2, 1));
}

async fn a_turn_that_comes_after_its_successor_does_nothing(rig: &Rig) {
    rig.push(task("a")).await;
    let worker = Worker::new(rig);
    let (early, late) = (worker.turn(1, Vec::new()), worker.turn(0, Vec::new()));
    worker.take(late).await;
    assert_eq!(worker.take(early).await, TaskPollOutcome::default());
    assert_eq!(rig.numbers().await.running, 0);
}

async fn a_run_ends_once(rig: &Rig) {
    rig.push(task("a")).await;
    let worker = Worker::new(rig);
    let run = worker.one().await;
    assert!(worker.end(&run, TaskOutcome::Done).await);
    for verdict in [TaskOutcome::Done, retry(SECOND), dead("x"), back()] {
        assert!(!worker.end(&run, verdict).await);
    }
    let expected = QueueStats { pushed: 1, done: 1, ..QueueStats::default() };
    assert_eq!(rig.numbers().await, expected);
}

async fn a_lapsed_run_is_tried_again(rig: &Rig) {
    let id = rig.push(task("a")).await;
    let (dead, alive) = (Worker::new(rig), Worker::new(rig));
    dead.one().await;
    assert!(alive.start(1).await.is_empty());
    rig.pass(LEASE).await;
    let run = alive.one().await;
    assert_eq!((run.attempt, run.payload.as_str()), (2, "a"));
    let meta = rig.task(&id).await.unwrap().history;
    assert_eq!((meta.attempts, meta.crashes, meta.failures.len()), (1, 1, 1));
    assert_eq!(meta.failures[0].fault, TaskFault::Crashed);
    assert!(alive.end(&run, TaskOutcome::Done).await);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.crashed, numbers.failed, numbers.done), (1, 0, 1));
    assert_eq!(rig.task(&id).await, None);
}

async fn a_run_that_was_taken_back_can_end_nothing(rig: &Rig) {
    rig.push(task("a")).await;
    let (paused, other) = (Worker::new(rig), Worker::new(rig));
    let old = paused.one().await;
    rig.pass(LEASE).await;
    let new = other.one().await;
    let renewed =
        rig.backend().renew_runs(queue(), vec![old.token.clone(), new.token.clone()], LEASE);
    assert_eq!(renewed.await.unwrap(), [false, true]);
    for verdict in [TaskOutcome::Done, retry(SECOND), dead("x"), back()] {
        assert!(!paused.end(&old, verdict).await);
    }
    assert!(other.end(&new, TaskOutcome::Done).await);
}

async fn what_may_not_run_again_is_dead_after_a_crash(rig: &Rig) {
    let call = TaskPushCommand { retry_after_crash: false, ..unique("a", "k", None) };
    let id = rig.push(call).await;
    let (worker, other) = (Worker::new(rig), Worker::new(rig));
    worker.one().await;
    rig.pass(LEASE).await;
    assert!(other.start(1).await.is_empty());
    let view = rig.task(&id).await.unwrap();
    assert_eq!(view.state, TaskState::Dead);
    assert_eq!(view.history.failures[0].reason, "crashed, may have run");
    // Its key is free.
    rig.push(unique("b", "k", None)).await;
}

async fn a_task_that_crashes_again_and_again_is_dead(rig: &Rig) {
    let id = rig.push(TaskPushCommand { max_attempts: 9, ..task("a") }).await;
    let worker = Worker::new(rig);
    for _ in 0..worker.graves.max_crashes {
        worker.one().await;
        rig.pass(LEASE).await;
    }
    assert!(worker.start(1).await.is_empty());
    assert_eq!(rig.task(&id).await.unwrap().state, TaskState::Dead);
    assert_eq!(rig.numbers().await.crashed, 2);
}

async fn two_workers_share_what_is_due(rig: &Rig) {
    for n in 0..10 {
        rig.push(task(&n.to_string())).await;
    }
    let (one, other) = (Worker::new(rig), Worker::new(rig));
    let (mut all, more) = (one.start(5).await, other.start(9).await);
    assert_eq!((all.len(), more.len()), (5, 5));
    all.extend(more);
    assert_eq!(payloads(&all), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
}

/// Memory loses no record.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_record_that_vanished_is_counted() {
    let rig = &Rig::redis().await;
    rig.push(task("a")).await;
    rig.push(task("b")).await;
    rig.vanish("zt").await;
    let worker = Worker::new(rig);
    assert!(worker.start(9).await.is_empty());
    rig.push(task("c")).await;
    assert_eq!(payloads(&worker.start(9).await), ["c"]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.lost, numbers.waiting, numbers.running), (2, 0, 1));
}

/// However many there are, and whoever comes across them.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_record_that_vanished_leaves_no_history() {
    for tasks in 1..=2 {
        let rig = &Rig::redis().await;
        let worker = Worker::new(rig);
        for _ in 0..tasks {
            rig.push(task("a")).await;
        }
        let runs = worker.start(9).await;
        let ends = runs.iter().map(|run| run.ended(retry(SECOND))).collect();
        worker.take(worker.turn(0, ends)).await;
        for run in &runs {
            let id = run.token.id.as_str();
            assert_eq!(rig.at_queue::<u64>("HDEL", "zt", &[id]).await, 1);
        }
        assert!(rig.has("zm").await, "what went wrong");
        rig.pass(SECOND).await;
        assert!(worker.start(9).await.is_empty());
        assert_eq!(rig.numbers().await.lost, tasks);
        assert!(!rig.has("zm").await);
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_record_that_vanished_while_it_ran_or_was_dead_leaves_no_history() {
    let rig = &Rig::redis().await;
    let worker = Worker::new(rig);
    rig.push(task("a")).await;
    assert!(worker.end(&worker.one().await, retry(SECOND)).await);
    rig.pass(SECOND).await;
    worker.one().await;
    rig.vanish("zt").await;
    rig.pass(LEASE).await;
    assert!(worker.start(1).await.is_empty());
    assert_eq!(rig.numbers().await.lost, 1);
    assert!(!rig.has("zm").await);
    let id = rig.push(task("b")).await;
    assert!(worker.end(&worker.one().await, dead("hopeless")).await);
    rig.vanish("zt").await;
    assert!(!rig.backend().redrive_dead_letter(queue(), id).await.unwrap());
    assert!(!rig.has("zm").await);
}
