//! What binds all workers together: pause, rate, most at once. And what binds a turn: its bytes.

use super::{
    Rig,
    desk::{LEASE, SECOND, Worker, later, task},
    on_every_store,
};
use crate::store::tasks::{
    MAX_BYTES_PER_STEP, TaskOutcome, TaskPollOutcome, TaskPushCommand, TaskRunLimits,
};

on_every_store!(
    the_dead_count_until_their_lease_is_over,
    starts_are_limited_in_time,
    a_turn_starts_no_more_than_comes_in_time,
    what_is_left_for_its_bytes_is_not_lost,
);

async fn fill(rig: &Rig, tasks: usize) {
    for n in 0..tasks {
        rig.push(task(&n.to_string())).await;
    }
}

async fn the_dead_count_until_their_lease_is_over(rig: &Rig) {
    fill(rig, 3).await;
    let limits = TaskRunLimits { max_running: 1, ..TaskRunLimits::default() };
    let worker = Worker { limits, ..Worker::new(rig) };
    worker.one().await;
    assert!(worker.start(9).await.is_empty());
    rig.pass(LEASE).await;
    assert_eq!(worker.start(9).await.len(), 1);
}

async fn starts_are_limited_in_time(rig: &Rig) {
    fill(rig, 20).await;
    let limits =
        TaskRunLimits { start_interval_us: 2_000_000, start_burst: 5, ..TaskRunLimits::default() };
    let worker = Worker { limits, ..Worker::new(rig) };
    assert_eq!(worker.start(9).await.len(), 5);
    let turned = worker.take(worker.turn(9, Vec::new())).await;
    assert!(turned.started.is_empty());
    let wait = turned.next_poll_in.expect("the next start is known");
    assert!(wait <= SECOND * 2 && wait > SECOND, "{wait:?}");
    rig.pass(wait).await;
    assert_eq!(worker.start(9).await.len(), 1);
    rig.pass(SECOND * 100).await;
    assert_eq!(worker.start(9).await.len(), 5);
    assert_eq!(worker.start(9).await.len(), 0);
}

fn bytes(turned: &TaskPollOutcome) -> u64 {
    turned.started.iter().map(|run| run.record.len() as u64).sum()
}

/// Tasks of a megabyte, but for their records' heads.
async fn fill_with_large(rig: &Rig, tasks: usize) {
    for n in 0..tasks {
        let mut payload = n.to_string();
        payload.push_str(&"x".repeat((1 << 20) - 100));
        rig.push(TaskPushCommand { capacity: (1000, 1 << 30), ..task(&payload) }).await;
    }
}

/// Each answer is one that can be given again; whoever has room left asks for the others at once, and so may anybody else.
async fn a_turn_starts_no_more_than_comes_in_time(rig: &Rig) {
    fill_with_large(rig, 9).await;
    rig.push(TaskPushCommand { capacity: (1000, 1 << 30), ..later("later", SECOND) }).await;
    let worker = Worker::new(rig);
    let mut started = Vec::new();
    for (runs, cut) in [(4, true), (4, true), (1, false)] {
        let turn = worker.turn(100, Vec::new());
        let turned = worker.take(turn.clone()).await;
        assert_eq!(turned.started.len(), runs);
        assert!(bytes(&turned) <= MAX_BYTES_PER_STEP, "{}", bytes(&turned));
        // It has work: it is not to be woken, and looks again at once.
        assert_eq!(
            (turned.is_listed_idle, turned.next_poll_in.is_some_and(|wait| wait.is_zero())),
            (!cut, cut)
        );
        let repeated = worker.take(turn.clone()).await;
        assert_eq!(repeated.started, turned.started);
        started.extend(turned.started.into_iter().map(|run| worker.run(run, turn.poll_number)));
    }
    let order = Vec::from_iter(started.iter().map(|run| run.payload.chars().next().unwrap()));
    assert_eq!(String::from_iter(order), "012345678");
    assert_eq!(rig.numbers().await.running, 9);
    let ends = started.iter().map(|run| run.ended(TaskOutcome::Done)).collect();
    assert_eq!(worker.take(worker.turn(0, ends)).await.settled, [true; 9]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.running, numbers.lost), (1, 0, 0));
}

/// It stands where it stood, counts for no limit, and what is larger than any answer goes by itself.
async fn what_is_left_for_its_bytes_is_not_lost(rig: &Rig) {
    let huge = "x".repeat(usize::try_from(MAX_BYTES_PER_STEP).unwrap());
    for payload in ["a", &huge, &huge, "b", "c"] {
        rig.push(TaskPushCommand { capacity: (1000, 1 << 30), ..task(payload) }).await;
    }
    let limits = TaskRunLimits { max_running: 9, start_interval_us: 100_000_000, start_burst: 5 };
    let worker = Worker { limits, ..Worker::new(rig) };
    let mut lengths = Vec::new();
    for _ in 0..5 {
        let runs = worker.start(9).await;
        lengths.push(Vec::from_iter(runs.iter().map(|run| run.payload.len())));
    }
    let huge = huge.len();
    assert_eq!(lengths, [vec![1], vec![huge], vec![huge], vec![1, 1], vec![]]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.running, numbers.lost), (0, 5, 0));
}
