//! Search for dead letters by the reason of their last failure.

use super::{SpawnedQueueWorker, push_text, text_queue, wait_until_idle};
use crate::{
    queue::{Task, TaskFailure},
    store::Store,
};

#[tokio::test(start_paused = true)]
async fn dead_letters_are_found_by_reason_page_by_page() {
    let queue = text_queue(&Store::memory());
    for number in 0..250 {
        push_text(&queue, if number % 5 == 0 { "status 503" } else { "timeout" }).await;
    }
    let worker =
        queue.worker(|task: Task<String>| async { Err(TaskFailure::dead_letter(task.payload)) });
    let worker = SpawnedQueueWorker::start(worker);
    while queue.stats().await.expect("the store answers").dead_letters < 250 {
        wait_until_idle().await;
    }
    worker.stop().await;

    let all = queue.find_dead_letters("503", None, 100).await.expect("the store answers");
    assert_eq!((all.tasks.len(), all.examined, all.next), (50, 250, None));
    let (mut found, mut cursor, mut examined) = (Vec::new(), None, 0);
    loop {
        let page = queue.find_dead_letters("503", cursor, 1).await.expect("the store answers");
        (examined, cursor) = (examined + page.examined, page.next);
        found.extend(page.tasks);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((found, examined), (all.tasks, 250));
    let none = queue.find_dead_letters("Timeout", None, 10).await.expect("the store answers");
    assert_eq!((none.tasks.len(), none.examined), (0, 250));
}
