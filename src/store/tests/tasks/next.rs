//! Turns that end one run and begin the next.

use std::time::Duration;

use super::{
    Rig,
    desk::{Run, SECOND, Worker, retry, task},
    on_every_store,
};
use crate::store::tasks::{TaskOutcome, TaskPollCommand, TaskPollOutcome};

on_every_store!(
    a_turn_in_a_row_that_comes_twice_happens_once,
    what_went_wrong_before_is_known_in_a_row,
    a_row_takes_back_what_others_have_lost,
    what_was_lost_ends_no_row,
);

fn next_turn(worker: &Worker<'_>, run: &Run) -> TaskPollCommand {
    worker.turn(1, vec![run.ended(TaskOutcome::Done)])
}

/// Ends it, and what has begun instead.
async fn next(worker: &Worker<'_>, run: &Run) -> Option<Run> {
    let turn = next_turn(worker, run);
    let number = turn.poll_number;
    let TaskPollOutcome { settled: stood, started: runs, is_listed_idle: listed, .. } =
        worker.take(turn).await;
    assert_eq!((stood, listed), (vec![true], runs.is_empty()));
    assert!(runs.len() < 2);
    runs.into_iter().next().map(|started| worker.run(started, number))
}

async fn a_turn_in_a_row_that_comes_twice_happens_once(rig: &Rig) {
    for payload in ["0", "1", "2", "3"] {
        rig.push(task(payload)).await;
    }
    let worker = Worker::new(rig);
    let mut run = worker.one().await;
    let mut before: Option<TaskPollCommand> = None;
    for payload in ["1", "2", "3"] {
        let turn = next_turn(&worker, &run);
        let number = turn.poll_number;
        let once = worker.take(turn.clone()).await;
        let again = worker.take(turn.clone()).await;
        assert_eq!((&once.settled, &once.started), (&again.settled, &again.started));
        // One whose successor has come does nothing.
        if let Some(late) = before.replace(turn) {
            assert_eq!(worker.take(late).await.started, []);
        }
        run = worker.run(once.started.into_iter().next().expect("another one is due"), number);
        assert_eq!(run.payload, payload);
        assert_eq!(rig.numbers().await.running, 1);
    }
    assert!(worker.end(&run, TaskOutcome::Done).await);
    assert_eq!(rig.numbers().await.done, 4);
}

async fn what_went_wrong_before_is_known_in_a_row(rig: &Rig) {
    let id = rig.push(task("a")).await;
    let worker = Worker::new(rig);
    let run = worker.one().await;
    assert!(worker.end(&run, retry(SECOND * 20)).await);
    for payload in ["b", "c"] {
        rig.push(task(payload)).await;
    }
    let mut run = worker.one().await;
    rig.pass(SECOND * 20).await;
    for (payload, attempt) in [("c", 1), ("a", 2)] {
        run = next(&worker, &run).await.expect("another one is due");
        assert_eq!((run.payload.as_str(), run.attempt), (payload, attempt));
    }
    assert!(next(&worker, &run).await.is_none());
    assert_eq!(rig.task(&id).await, None);
}

async fn a_row_takes_back_what_others_have_lost(rig: &Rig) {
    for payload in ["0", "1", "2"] {
        rig.push(task(payload)).await;
    }
    let (dead, worker) = (Worker::new(rig), Worker::new(rig));
    let short = Duration::from_millis(100);
    dead.take(TaskPollCommand { lease: short, ..dead.turn(1, Vec::new()) }).await;
    let run = worker.one().await;
    rig.pass(short).await;
    let run = next(&worker, &run).await.expect("another one is due");
    assert_eq!((run.payload.as_str(), rig.numbers().await.crashed), ("2", 1));
    let run = next(&worker, &run).await.expect("the one that was lost");
    assert_eq!((run.payload.as_str(), run.attempt), ("0", 2));
}

async fn what_was_lost_ends_no_row(rig: &Rig) {
    for payload in ["0", "1"] {
        rig.push(task(payload)).await;
    }
    let (paused, other) = (Worker::new(rig), Worker::new(rig));
    let turn = TaskPollCommand { lease: SECOND, ..paused.turn(1, Vec::new()) };
    let number = turn.poll_number;
    let started = paused.take(turn).await.started.remove(0);
    let run = paused.run(started, number);
    rig.pass(SECOND).await;
    assert_eq!(other.start(9).await.len(), 2);
    let turned = paused.take(next_turn(&paused, &run)).await;
    assert_eq!((turned.settled, turned.started), (vec![false], Vec::new()));
    assert_eq!(rig.numbers().await.done, 0);
}
