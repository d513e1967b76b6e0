//! Pushing: order, time, unique keys, caps.

use std::time::Duration;

use super::{
    Rig,
    desk::{SECOND, Worker, dead, later, payloads, task, unique},
    on_every_store,
};
use crate::store::{
    QueueStats, TaskState,
    tasks::{TaskOutcome, TaskPushCommand, TaskPushOutcome},
};

on_every_store!(
    a_delayed_task_waits_for_its_time,
    a_task_may_be_due_in_a_hundred_years,
    a_unique_key_is_one_pending_task,
    a_redriven_task_has_its_unique_key_again,
    a_window_outlives_its_task,
    a_full_queue_takes_no_more,
    a_full_queue_knows_what_it_has,
    what_is_told_of_a_task,
    many_at_once_are_all_there,
    a_clock_that_is_put_back_delays_nobody_new,
);

async fn a_delayed_task_waits_for_its_time(rig: &Rig) {
    let id = rig.push(later("late", SECOND * 20)).await;
    rig.push(later("later", SECOND * 30)).await;
    rig.push(task("now")).await;
    let worker = Worker::new(rig);
    assert_eq!(payloads(&worker.start(9).await), ["now"]);
    let due = rig.task(&id).await.unwrap().due_in;
    assert!(due <= SECOND * 20 && due > SECOND * 15, "{due:?}");
    rig.advance(SECOND * 10).await;
    let turned = worker.take(worker.turn(9, Vec::new())).await;
    assert!(turned.started.is_empty());
    let wait = turned.next_poll_in.expect("it has the timer");
    assert!(wait <= SECOND * 10 && wait > SECOND * 5, "{wait:?}");
    rig.pass(SECOND * 10).await;
    assert_eq!(payloads(&worker.start(9).await), ["late"]);
    rig.pass(SECOND * 10).await;
    assert_eq!(payloads(&worker.start(9).await), ["later"]);
}

/// Of none of the numbers that it is counted in that is too far: a walk comes by it, and who has the timer knows of it.
async fn a_task_may_be_due_in_a_hundred_years(rig: &Rig) {
    let far = crate::clock::MAX_DELAY;
    let id = rig.push(later("far", far)).await;
    rig.push(later("later", far)).await;
    let near = |due: Duration| due <= far && due + SECOND * 60 > far;
    let due = rig.task(&id).await.unwrap().due_in;
    assert!(near(due), "{due:?}");
    let worker = Worker::new(rig);
    let turned = worker.take(worker.turn(9, Vec::new())).await;
    assert!(
        turned.started.is_empty() && near(turned.next_poll_in.unwrap()),
        "{:?}",
        turned.next_poll_in
    );
    let first = rig.backend().purge_waiting(super::desk::queue(), None, 1).await.unwrap();
    assert_eq!((first.purged, rig.task(&id).await), (1, None));
    let second = rig.backend().purge_waiting(super::desk::queue(), first.next, 9).await.unwrap();
    assert_eq!((second.purged, second.next), (1, None));
    assert_eq!(rig.numbers().await.bytes, 0);
}

async fn a_unique_key_is_one_pending_task(rig: &Rig) {
    let first = rig.push(unique("a", "k", None)).await;
    assert_eq!(rig.pushed(unique("b", "k", None)).await, TaskPushOutcome::Duplicate(first.clone()));
    rig.push(unique("c", "other", None)).await;
    let worker = Worker::new(rig);
    let run = worker.one().await;
    assert_eq!(run.payload, "a");
    // Also while it runs.
    assert_eq!(rig.pushed(unique("b", "k", None)).await, TaskPushOutcome::Duplicate(first.clone()));
    assert!(worker.end(&run, TaskOutcome::Done).await);
    rig.push(unique("d", "k", None)).await;
    assert_eq!(payloads(&worker.start(9).await), ["c", "d"]);
}

async fn a_redriven_task_has_its_unique_key_again(rig: &Rig) {
    let worker = Worker::new(rig);
    let redrive = |id| rig.backend().redrive_dead_letter(super::desk::queue(), id);
    let first = rig.push(unique("a", "k", None)).await;
    assert!(worker.end(&worker.one().await, dead("hopeless")).await);
    assert!(redrive(first.clone()).await.unwrap());
    assert_eq!(rig.pushed(unique("b", "k", None)).await, TaskPushOutcome::Duplicate(first.clone()));
    assert!(worker.end(&worker.one().await, dead("hopeless")).await);
    // It is another's meanwhile, and stays so.
    let second = rig.push(unique("c", "k", None)).await;
    assert!(redrive(first).await.unwrap());
    assert_eq!(rig.pushed(unique("d", "k", None)).await, TaskPushOutcome::Duplicate(second));
    assert_eq!(payloads(&worker.start(9).await), ["c", "a"]);
}

async fn a_window_outlives_its_task(rig: &Rig) {
    let window = Some(SECOND * 60);
    let first = rig.push(unique("a", "k", window)).await;
    let worker = Worker::new(rig);
    let run = worker.one().await;
    assert!(worker.end(&run, TaskOutcome::Done).await);
    rig.advance(SECOND * 30).await;
    assert_eq!(rig.pushed(unique("b", "k", window)).await, TaskPushOutcome::Duplicate(first));
    // Another kind of key.
    rig.push(unique("c", "k", None)).await;
    rig.pass(SECOND * 30).await;
    rig.push(unique("d", "k", window)).await;
    assert_eq!(payloads(&worker.start(9).await), ["c", "d"]);
}

async fn a_full_queue_takes_no_more(rig: &Rig) {
    let caps = (2, 1 << 20);
    rig.push(TaskPushCommand { capacity: caps, ..task("a") }).await;
    rig.push(TaskPushCommand { capacity: caps, ..task("b") }).await;
    let third = TaskPushCommand { capacity: caps, ..task("c") };
    assert_eq!(rig.pushed(third.clone()).await, TaskPushOutcome::Full);
    let worker = Worker::new(rig);
    let run = worker.one().await;
    // The same one, once there is room.
    rig.push(third).await;
    assert!(worker.end(&run, TaskOutcome::Done).await);
    let bytes = rig.numbers().await.bytes;
    let large = TaskPushCommand { capacity: (9, bytes + 30), ..task(&"x".repeat(30)) };
    assert_eq!(rig.pushed(large).await, TaskPushOutcome::Full);
    let fits = TaskPushCommand { capacity: (9, bytes + 30), ..task("x") };
    rig.push(fits).await;
    assert_eq!(worker.start(9).await.len(), 3);
}

async fn a_full_queue_knows_what_it_has(rig: &Rig) {
    let worker = Worker::new(rig);
    for window in [None, Some(SECOND * 60)] {
        let (few, small) = ((1, 1 << 20), (9, 1));
        let first = rig.push(unique("a", "k", window)).await;
        for caps in [few, small] {
            let same = TaskPushCommand { capacity: caps, ..unique("b", "k", window) };
            assert_eq!(rig.pushed(same).await, TaskPushOutcome::Duplicate(first.clone()));
            let other = TaskPushCommand { capacity: caps, ..unique("c", "other", window) };
            assert_eq!(rig.pushed(other).await, TaskPushOutcome::Full);
        }
        // Who found no room has left no key.
        rig.push(unique("d", "other", window)).await;
        let runs = worker.start(9).await;
        assert_eq!(payloads(&runs), ["a", "d"]);
        for run in runs {
            assert!(worker.end(&run, TaskOutcome::Done).await);
        }
    }
}

async fn what_is_told_of_a_task(rig: &Rig) {
    let id = rig.push(later("12345", SECOND * 9)).await;
    let view = rig.task(&id).await.unwrap();
    assert_eq!((view.state, view.payload_bytes, view.history.attempts), (TaskState::Waiting, 5, 0));
    assert!(view.due_in > SECOND * 5 && view.due_in <= SECOND * 9 && view.pushed_us > 0);
    rig.pass(SECOND * 9).await;
    assert_eq!(rig.task(&id).await.unwrap().due_in, Duration::ZERO);
    let worker = Worker::new(rig);
    let run = worker.one().await;
    assert_eq!(rig.task(&id).await.unwrap().state, TaskState::Running);
    let payload = rig.backend().task_payload(super::desk::queue(), id.clone()).await.unwrap();
    assert!(payload.unwrap().ends_with(b"\n12345"));
    let numbers = rig.numbers().await;
    let expected = QueueStats { running: 1, bytes: run.bytes, pushed: 1, ..QueueStats::default() };
    assert_eq!(numbers, expected);
    assert!(worker.end(&run, TaskOutcome::Done).await);
    assert_eq!(rig.task(&id).await, None);
    let expected = QueueStats { pushed: 1, done: 1, ..QueueStats::default() };
    assert_eq!(rig.numbers().await, expected);
}

async fn many_at_once_are_all_there(rig: &Rig) {
    let calls: Vec<_> = (0..300).map(|n| task(&n.to_string())).collect();
    let pushes = calls.into_iter().map(|call| rig.pushed(call));
    let stored = futures_util::future::join_all(pushes).await;
    assert!(stored.iter().all(|stored| *stored == TaskPushOutcome::Stored));
    let worker = Worker::new(rig);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let runs = worker.start(100).await;
        seen.extend(runs.iter().map(|run| run.payload.parse::<u32>().unwrap()));
    }
    assert_eq!(seen.len(), 300);
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..300));
}

async fn a_clock_that_is_put_back_delays_nobody_new(rig: &Rig) {
    rig.push(task("old")).await;
    rig.put_back(SECOND * 3600).await;
    rig.push(task("new")).await;
    let worker = Worker::new(rig);
    let runs = worker.start(9).await;
    assert_eq!(payloads(&runs), ["new"]);
    assert!(worker.end(&runs[0], TaskOutcome::Done).await);
    rig.pass(SECOND * 3600).await;
    assert_eq!(payloads(&worker.start(9).await), ["old"]);
}
