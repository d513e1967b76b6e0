//! Waiting tasks that become due before their time.

use super::{
    StoreHarness, on_every_store,
    polling_worker::{
        PollingWorker, SECOND, dead_outcome, delayed_push_command, push_command, run_payloads,
        test_queue,
    },
};
use crate::store::{TaskId, TaskState};

on_every_store!(
    delayed_task_runs_now_at_the_tail,
    early_task_wakes_the_timer_worker,
    task_that_does_not_wait_is_left_alone,
);

async fn run_now(rig: &StoreHarness, id: &TaskId) -> Option<TaskState> {
    rig.backend().run_task_now(test_queue(), id.clone()).await.expect("the store is there")
}

async fn delayed_task_runs_now_at_the_tail(rig: &StoreHarness) {
    let delayed = rig.push_task(delayed_push_command("delayed", SECOND * 300)).await;
    rig.push_task(push_command("due")).await;
    for _ in 0..2 {
        assert_eq!(run_now(rig, &delayed).await, Some(TaskState::Waiting));
    }
    rig.push_task(push_command("pushed later")).await;
    let worker = PollingWorker::new(rig);
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["due", "delayed", "pushed later"]);
}

async fn early_task_wakes_the_timer_worker(rig: &StoreHarness) {
    let id = rig.push_task(delayed_push_command("delayed", SECOND * 300)).await;
    let worker = PollingWorker::subscribed(rig).await;
    let outcome = worker.poll_tasks(worker.poll_command(1, Vec::new())).await;
    assert!(outcome.started.is_empty() && outcome.is_listed_idle);
    run_now(rig, &id).await;
    worker.task_wakeup.notified().await;
    assert_eq!(worker.start_one().await.token.id, id);
}

async fn task_that_does_not_wait_is_left_alone(rig: &StoreHarness) {
    assert_eq!(run_now(rig, &TaskId::new()).await, None);
    let id = rig.push_task(push_command("a")).await;
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert_eq!(run_now(rig, &id).await, Some(TaskState::Running));
    assert!(worker.settle_run(&run, dead_outcome("hopeless")).await);
    assert_eq!(run_now(rig, &id).await, Some(TaskState::Dead));
    assert_eq!(rig.task_view(&id).await.map(|view| view.state), Some(TaskState::Dead));
}
