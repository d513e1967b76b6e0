//! What binds all workers together: pause, rate, most at once. And what binds a turn: its bytes.

use super::{
    Rig,
    desk::{LEASE, SECOND, Worker, later, task},
    on_every_store,
};
use crate::store::tasks::{EndAs, Limits, MOST_BYTES, Push, Turned};

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

fn bytes(turned: &Turned) -> u64 {
    turned.runs.iter().map(|run| run.record.len() as u64).sum()
}

/// Tasks of a megabyte, but for their records' heads.
async fn fill_with_large(rig: &Rig, tasks: usize) {
    for n in 0..tasks {
        let mut payload = n.to_string();
        payload.push_str(&"x".repeat((1 << 20) - 100));
        rig.push(Push { caps: (1000, 1 << 30), ..task(&payload) }).await;
    }
}

/// Each answer is one that can be given again; whoever has room left asks for the others at once, and so may anybody else.
async fn a_turn_starts_no_more_than_comes_in_time(rig: &Rig) {
    fill_with_large(rig, 9).await;
    rig.push(Push { caps: (1000, 1 << 30), ..later("later", SECOND) }).await;
    let worker = Worker::new(rig);
    let mut started = Vec::new();
    for (runs, cut) in [(4, true), (4, true), (1, false)] {
        let turn = worker.turn(100, Vec::new());
        let turned = worker.take(turn.clone()).await;
        assert_eq!(turned.runs.len(), runs);
        assert!(bytes(&turned) <= MOST_BYTES, "{}", bytes(&turned));
        // It has work: it is not to be woken, and looks again at once.
        assert_eq!((turned.listed, turned.wait.is_some_and(|wait| wait.is_zero())), (!cut, cut));
        let repeated = worker.take(turn.clone()).await;
        assert_eq!(repeated.runs, turned.runs);
        started.extend(turned.runs.into_iter().map(|run| worker.run(run, turn.number)));
    }
    let order = Vec::from_iter(started.iter().map(|run| run.payload.chars().next().unwrap()));
    assert_eq!(String::from_iter(order), "012345678");
    assert_eq!(rig.numbers().await.running, 9);
    let ends = started.iter().map(|run| run.ended(EndAs::Done)).collect();
    assert_eq!(worker.take(worker.turn(0, ends)).await.stood, [true; 9]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.running, numbers.lost), (1, 0, 0));
}

/// It stands where it stood, counts for no limit, and what is larger than any answer goes by itself.
async fn what_is_left_for_its_bytes_is_not_lost(rig: &Rig) {
    let huge = "x".repeat(usize::try_from(MOST_BYTES).unwrap());
    for payload in ["a", &huge, &huge, "b", "c"] {
        rig.push(Push { caps: (1000, 1 << 30), ..task(payload) }).await;
    }
    let limits = Limits { running: 9, interval_us: 100_000_000, burst: 5 };
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
