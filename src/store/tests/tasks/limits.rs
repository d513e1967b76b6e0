//! What binds all workers together: pause, rate, most at once.

use super::{
    Rig,
    desk::{LEASE, SECOND, Worker, task},
    on_every_store,
};
use crate::store::tasks::{EndAs, Limits};

on_every_store!(
    a_paused_queue_starts_nothing,
    no_more_run_at_once_than_may,
    the_dead_count_until_their_lease_is_over,
    starts_are_limited_in_time,
);

async fn fill(rig: &Rig, tasks: usize) {
    for n in 0..tasks {
        rig.push(task(&n.to_string())).await;
    }
}

async fn a_paused_queue_starts_nothing(rig: &Rig) {
    fill(rig, 2).await;
    let worker = Worker::new(rig);
    let run = worker.one().await;
    rig.backend().pause_tasks(super::desk::queue(), true).await.unwrap();
    assert!(rig.numbers().await.paused);
    let turned = worker.take(worker.turn(9, vec![run.ended(EndAs::Done)])).await;
    assert_eq!((turned.stood, turned.runs.len(), turned.wait), (vec![true], 0, None));
    rig.backend().pause_tasks(super::desk::queue(), false).await.unwrap();
    assert_eq!(worker.start(9).await.len(), 1);
}

async fn no_more_run_at_once_than_may(rig: &Rig) {
    fill(rig, 9).await;
    let limits = Limits { running: 3, ..Limits::default() };
    let one = Worker { limits, ..Worker::new(rig) };
    let other = Worker { limits, ..Worker::new(rig) };
    let runs = one.start(2).await;
    assert_eq!((runs.len(), other.start(9).await.len()), (2, 1));
    let turned = other.take(other.turn(9, Vec::new())).await;
    assert!(turned.runs.is_empty() && turned.listed);
    let ends = runs.iter().map(|run| run.ended(EndAs::Done)).collect();
    assert_eq!(one.take(one.turn(9, ends)).await.runs.len(), 2);
}

async fn the_dead_count_until_their_lease_is_over(rig: &Rig) {
    fill(rig, 3).await;
    let limits = Limits { running: 1, ..Limits::default() };
    let worker = Worker { limits, ..Worker::new(rig) };
    worker.one().await;
    assert!(worker.start(9).await.is_empty());
    rig.pass(LEASE).await;
    assert_eq!(worker.start(9).await.len(), 1);
}

async fn starts_are_limited_in_time(rig: &Rig) {
    fill(rig, 20).await;
    let limits = Limits { interval_us: 2_000_000, burst: 5, ..Limits::default() };
    let worker = Worker { limits, ..Worker::new(rig) };
    assert_eq!(worker.start(9).await.len(), 5);
    let turned = worker.take(worker.turn(9, Vec::new())).await;
    assert!(turned.runs.is_empty());
    let wait = turned.wait.expect("the next start is known");
    assert!(wait <= SECOND * 2 && wait > SECOND, "{wait:?}");
    rig.pass(wait).await;
    assert_eq!(worker.start(9).await.len(), 1);
    rig.pass(SECOND * 100).await;
    assert_eq!(worker.start(9).await.len(), 5);
    assert_eq!(worker.start(9).await.len(), 0);
}
