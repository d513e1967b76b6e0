//! `TestQueueWorker`: tasks run only on request, and the clock is manual.

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;

use super::{SECOND, TaskFailure, push_text, task_state, text_queue};
use crate::{
    queue::{Queue, Task, TaskFault, TaskRunReport, TaskState},
    testing::{TestKit, TestQueueWorker},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn run_summaries(ran: &[TaskRunReport]) -> Vec<(u32, Option<TaskFault>, &str)> {
    ran.iter().map(|run| (run.attempt, run.fault, &*run.reason)).collect()
}

#[tokio::test]
async fn due_tasks_run_only_on_run_due() {
    let kit = TestKit::new();
    let queue = text_queue(kit.store());
    let push_queue = queue.clone();
    let mut worker = kit.queue_worker(queue.worker(move |task: Task<String>| {
        let push_queue = push_queue.clone();
        async move {
            match &*task.payload {
                "push" => drop(push_text(&push_queue, "pushed").await),
                "panic" => panic!("requested by the test"),
                "dead" => return Err(TaskFailure::dead_letter("hopeless")),
                "later" if task.attempt() == 1 => {
                    return Err(TaskFailure::new("not now").retry_after(SECOND * 100));
                }
                _ => {}
            }
            Ok(())
        }
    }));
    assert_eq!(worker.run_due().await, []);
    let first = push_text(&queue, "push").await;
    let delayed = queue.push(&"late".to_owned()).delay(SECOND * 60).await.unwrap().into_id();
    let dead = push_text(&queue, "dead").await;
    let retried = push_text(&queue, "later").await;
    assert_eq!(
        task_state(&queue, &first).await,
        Some(TaskState::Waiting),
        "nothing runs by itself"
    );

    let ran = worker.run_due().await;
    let failed = Some(TaskFault::Failed);
    let expected = [(1, None, ""), (1, failed, "hopeless"), (1, failed, "not now"), (1, None, "")];
    assert_eq!(run_summaries(&ran), expected);
    assert_eq!(ran[..3].iter().map(|run| &run.id).collect::<Vec<_>>(), [&first, &dead, &retried]);
    assert_eq!(task_state(&queue, &first).await, None, "it is done");
    assert_eq!(task_state(&queue, &dead).await, Some(TaskState::Dead));
    assert_eq!(worker.run_due().await, [], "no task is due while the clock stops");

    kit.advance(SECOND * 60);
    let ran = worker.run_due().await;
    assert_eq!((ran.len(), &ran[0].id), (1, &delayed));
    kit.advance(SECOND * 40);
    let ran = worker.run_due().await;
    assert_eq!((run_summaries(&ran), &ran[0].id), (vec![(2, None, "")], &retried));
}

#[tokio::test]
async fn test_worker_applies_settings_and_survives_a_panic() {
    let kit = TestKit::new();
    let queue = text_queue(kit.store()).max_attempts(2);
    let handler = |task: Task<String>| async move {
        assert!(task.payload != "panic", "requested by the test");
        Ok::<(), TaskFailure>(())
    };
    let worker = queue.worker(handler).queue_rate(2, SECOND * 10).backoff(SECOND, SECOND);
    let mut worker = kit.queue_worker(worker);
    let id = push_text(&queue, "panic").await;
    push_text(&queue, "x").await;
    push_text(&queue, "y").await;
    assert_eq!(worker.run_due().await.len(), 2, "two at once");
    kit.advance(SECOND * 10);
    let ran = worker.run_due().await;
    assert_eq!(ran.len(), 2, "{ran:?}");
    let panicked: Vec<_> = ran.iter().filter(|run| run.id == id).collect();
    assert_eq!(panicked[0].fault, Some(TaskFault::Panicked));
    assert_eq!((panicked[0].attempt, &*panicked[0].reason), (2, "requested by the test"));
    assert_eq!(task_state(&queue, &id).await, Some(TaskState::Dead));
}

/// Worker that pushes each task again, `interval` after its push.
fn repushing_worker(kit: &TestKit, queue: &Queue<String>, interval: Duration) -> TestQueueWorker {
    let push_queue = queue.clone();
    kit.queue_worker(queue.worker(move |task: Task<String>| {
        let push_queue = push_queue.clone();
        async move {
            let pushed = push_queue.push(&task.payload).run_at(task.pushed_at() + interval).await;
            pushed.map(drop).map_err(TaskFailure::from)
        }
    }))
}

#[tokio::test]
async fn run_at_uses_the_test_kit_clock() {
    let kit = TestKit::new();
    let queue = text_queue(kit.store());
    let offset =
        SystemTime::now().duration_since(kit.now()).expect("the manual clock does not advance");
    assert!(offset < SECOND * 600, "it begins at this time: {offset:?}");
    kit.advance(DAY * 3);
    let mut worker = repushing_worker(&kit, &queue, DAY);
    push_text(&queue, "daily").await;
    assert_eq!(worker.run_due().await.len(), 1);
    kit.advance(DAY - SECOND);
    assert_eq!(worker.run_due().await, [], "on the next day");
    kit.advance(SECOND);
    assert!(!worker.run_due().await.is_empty());
    let moment = kit.now() + SECOND * 100;
    let id = queue.push(&"x".to_owned()).run_at(moment).await.unwrap().into_id();
    assert_eq!(queue.get(&id).await.unwrap().unwrap().due_in, SECOND * 100);
}

/// Without the cap, a later time would be due too early.
#[tokio::test]
async fn run_at_is_capped_at_a_hundred_years() {
    let kit = TestKit::new();
    let queue = text_queue(kit.store());
    let push = |delay| queue.push(&"x".to_owned()).run_at(kit.now() + delay);
    for (delay, due_in) in [(10, 10), (100, 100), (5_000, 100)] {
        let id = push(YEAR * delay).await.unwrap().into_id();
        let info = queue.get(&id).await.unwrap().unwrap();
        assert_eq!(info.due_in, YEAR * due_in);
    }
    let mut worker = kit.queue_worker(queue.worker(async |_| Ok::<(), TaskFailure>(())));
    for (years, runs) in [(9, 0), (1, 1), (89, 0), (1, 2)] {
        kit.advance(YEAR * years);
        assert_eq!(worker.run_due().await.len(), runs);
    }
}

#[tokio::test]
async fn maximum_advance_does_not_overflow_the_clock() {
    let kit = TestKit::new();
    let (queue, before) = (text_queue(kit.store()), kit.now());
    let later = queue.push(&"later".to_owned()).delay(YEAR * 99);
    later.await.unwrap();
    kit.advance(Duration::MAX);
    assert_eq!(kit.now(), before + YEAR * 100);
    let mut worker = kit.queue_worker(queue.worker(async |_| Ok::<(), TaskFailure>(())));
    assert_eq!(worker.run_due().await.len(), 1);
}

#[tokio::test]
async fn endless_pushes_panic_after_500_runs() {
    let kit = TestKit::new();
    let queue = text_queue(kit.store());
    let mut worker = repushing_worker(&kit, &queue, Duration::ZERO);
    push_text(&queue, "endless").await;
    let panic = AssertUnwindSafe(worker.run_due()).catch_unwind().await.expect_err("no end");
    let message = panic.downcast_ref::<String>().expect("a sentence");
    assert!(message.contains("500 runs") && message.contains("without end"), "{message}");
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.running, stats.waiting), (500, 0, 1), "each has ended");
}
