//! Listing of tasks that wait or run, and of the queues themselves.

use super::{
    StoreHarness, on_every_store,
    polling_worker::{PollingWorker, SECOND, delayed_push_command, push_command, test_queue},
};
use crate::store::{TaskFilter, TaskId, TaskState};

on_every_store!(tasks_are_listed_by_state_in_pages, registered_queue_is_listed_once);

/// Returns the ids of all pages, and their states.
async fn list_all(rig: &StoreHarness, filter: TaskFilter) -> (Vec<TaskId>, Vec<TaskState>) {
    let (mut ids, mut states, mut next) = (Vec::new(), Vec::new(), Some(0));
    while let Some(offset) = next {
        let page = rig.backend().list_tasks(test_queue(), filter, offset, 2).await.unwrap();
        ids.extend(page.tasks.iter().map(|task| task.id.clone()));
        states.extend(page.tasks.iter().map(|task| task.state));
        next = page.next;
    }
    (ids, states)
}

async fn tasks_are_listed_by_state_in_pages(rig: &StoreHarness) {
    let worker = PollingWorker::new(rig);
    let mut pushed = Vec::new();
    for payload in ["a", "b", "c", "d"] {
        pushed.push(rig.push_task(push_command(payload)).await);
    }
    let later = rig.push_task(delayed_push_command("e", SECOND * 60)).await;
    let run = worker.start_one().await;
    assert_eq!(run.token.id, pushed[0]);

    let (due, states) = list_all(rig, TaskFilter::Due).await;
    assert_eq!((due.as_slice(), states), (&pushed[1..], vec![TaskState::Waiting; 3]));
    assert_eq!(list_all(rig, TaskFilter::Delayed).await, (vec![later], vec![TaskState::Waiting]));
    let (running, states) = list_all(rig, TaskFilter::Running).await;
    assert_eq!((running.as_slice(), states), (&pushed[..1], vec![TaskState::Running]));

    rig.advance_past(SECOND).await;
    let page = rig.backend().list_tasks(test_queue(), TaskFilter::Due, 0, 1).await.unwrap();
    assert!(page.oldest_due >= SECOND, "{:?}", page.oldest_due);
}

async fn registered_queue_is_listed_once(rig: &StoreHarness) {
    rig.push_task(push_command("a")).await;
    for _ in 0..2 {
        rig.backend().register_queue(test_queue()).await.unwrap();
    }
    assert_eq!(rig.backend().list_queues().await.unwrap(), [test_queue()]);
}
