//! What idle workers do, and don't.

use std::time::Duration;

use futures_util::FutureExt as _;

use super::{Log, SECOND, Working, obedient, push, queue, settled};
use crate::{
    queue::queue_worker_loop::QueueWorkerLoop,
    store::{Fault, Store, faulty},
};

#[tokio::test(start_paused = true)]
async fn a_delayed_task_is_never_early_and_hardly_late() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    let workers =
        [(); 3].map(|()| Working::start(obedient(&self::queue(&store.as_another_process()), &log)));
    settled().await;
    let began = tokio::time::Instant::now();
    for (payload, ms) in [("c", 61_500), ("a", 1_000), ("b", 7_250)] {
        queue.push(&payload.to_owned()).delay(Duration::from_millis(ms)).await.unwrap();
    }
    tokio::time::sleep(SECOND * 70).await;
    assert_eq!(log.payloads(), ["a", "b", "c"]);
    for (at, ms) in log.times().into_iter().zip([1_000, 7_250, 61_500]) {
        let (late, due) = (at - began, Duration::from_millis(ms));
        assert!(late >= due && late <= due + Duration::from_millis(3), "{late:?} for {due:?}");
    }
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_asks_once_in_five_seconds_and_hardly_ever_by_a_turn() {
    let (store, faults) = faulty();
    let queue = queue(&store);
    let worker = Working::start(obedient(&queue, &Log::default()));
    settled().await;
    let seen = || ["turn", "still_idle"].map(|step| faults.seen(step));
    let before = seen();
    tokio::time::sleep(SECOND * 1201).await;
    let [turns, looks] = [0, 1].map(|which| seen()[which] - before[which]);
    assert_eq!((turns, looks), (10, 230), "in twenty minutes");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_not_answered_is_followed_by_a_turn() {
    let (store, faults) = faulty();
    let worker = Working::start(obedient(&queue(&store), &Log::default()));
    tokio::time::sleep(SECOND * 12).await;
    let before = faults.seen("turn");
    for fault in [Fault::Away, Fault::NoReply] {
        faults.set("still_idle", fault, 1);
        // The turn is a first one: the look behind it is none.
        tokio::time::sleep(SECOND * 10).await;
    }
    assert_eq!((faults.left("still_idle"), faults.seen("turn") - before), (0, 2));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_message_is_lost_waits_for_one_look() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    let mut worker = QueueWorkerLoop::new(obedient(&queue, &log));
    let works = async |worker: &mut QueueWorkerLoop, time| {
        let works = async {
            while log.payloads().is_empty() {
                worker.step().await;
            }
        };
        let _ = tokio::time::timeout(time, works).await;
    };
    works(&mut worker, SECOND * 101).await;
    push(&queue, "x").await;
    assert!(worker.wakeup.notified().now_or_never().is_some(), "it was told; here that is lost");
    works(&mut worker, SECOND * 5).await;
    assert_eq!(log.payloads(), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_been_idle_for_long_starts_a_task_at_once() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(SECOND * 101).await;
    let began = tokio::time::Instant::now();
    push(&queue, "x").await;
    settled().await;
    assert_eq!(log.payloads(), ["x"]);
    assert!(began.elapsed() < SECOND / 10, "after {:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_takes_one_turn_for_each_task() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    for _ in 0..50 {
        push(&queue, "x").await;
    }
    let worker = Working::start(obedient(&queue, &log).concurrency(1));
    settled().await;
    assert_eq!(log.payloads().len(), 50);
    // The first one, and the last one that finds nothing.
    assert_eq!(faults.seen("turn"), 51);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_one_worker_cannot_take_the_next_one_does() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    let workers = [(); 3].map(|()| {
        let own = self::queue(&store.as_another_process());
        Working::start(obedient(&own, &log).concurrency(2))
    });
    settled().await;
    for _ in 0..6 {
        push(&queue, "sleep 1000").await;
    }
    settled().await;
    assert_eq!(log.payloads().len(), 6, "all at once");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn starts_keep_to_the_rate() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    let workers = [(); 2].map(|()| {
        let own = self::queue(&store.as_another_process());
        Working::start(obedient(&own, &log).queue_rate(10, SECOND * 10))
    });
    settled().await;
    for _ in 0..40 {
        push(&queue, "x").await;
    }
    tokio::time::sleep(SECOND * 40).await;
    let times = log.times();
    assert_eq!(times.len(), 40);
    for (first, later) in times.iter().zip(&times[10..]) {
        // Ten at once, and then one in every second.
        assert!(*later - *first >= SECOND - Duration::from_millis(1), "{times:?}");
    }
    let took = times[39] - times[0];
    assert!(took >= SECOND * 30 && took < SECOND * 31, "{took:?}");
    for worker in workers {
        worker.stop().await;
    }
}

/// Of what is too large for one answer it gets the rest by the next ones, at once.
#[tokio::test(start_paused = true)]
async fn room_that_is_left_for_the_bytes_of_tasks_is_filled_at_once() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store).payload_limit(2 << 20);
    for n in 0..9 {
        push(&queue, &format!("{n}{}", "x".repeat(1 << 20))).await;
    }
    let noted = log.clone();
    let worker = queue.worker(move |task| {
        noted.note(&task);
        async {
            tokio::time::sleep(SECOND * 60).await;
            Ok::<(), super::TaskFailure>(())
        }
    });
    let worker = Working::start(worker.concurrency(100).drain_timeout(SECOND));
    settled().await;
    assert_eq!(log.payloads().len(), 9);
    worker.stop().await;
}
