//! Actions on tasks.

use std::time::Duration;

use lockgate::{
    admin::{Operator, Permission},
    queue::{Queue, Task, TaskFailure},
};
use lockgate_tests::eventually;

use crate::shop::Shop;

impl Shop {
    async fn count_tasks(&self, state: &str) -> usize {
        let tasks = self.run_json(&["queues", "tasks", "emails", "--state", state]).await;
        tasks.as_array().expect("rows").len()
    }

    async fn expect_done(&self, args: &[&str], result: &str) {
        let options = ["--reason", "a test", "--yes"];
        let (code, text, error) = self.run(&[args, &options].concat()).await;
        assert_eq!((code, text.trim_end()), (Some(0), result), "{args:?}: {error}");
    }
}

/// Pushes tasks that become dead letters.
async fn push_dead_letters(queue: &Queue<String>, count: u64) {
    let worker = queue.worker(async |_: Task<String>| {
        Err::<(), _>(TaskFailure::dead_letter("no such\naddress\u{1b}[2J"))
    });
    let worker = tokio::spawn(worker.run(std::future::pending()));
    for _ in 0..count {
        let _ = queue.push(&"nobody".to_owned()).await.expect("there is room");
    }
    eventually("all to be dead", async || {
        queue.stats().await.is_ok_and(|stats| stats.dead_letters == count)
    })
    .await;
    worker.abort();
}

#[tokio::test]
async fn task_id_with_a_hyphen_at_its_start_is_no_option() {
    let shop = Shop::start().await;
    for action in ["payload", "cancel", "run-now", "redrive", "purge"] {
        let id = "-HdJ2xK0pLmN4vB8cZ1aSw";
        let args = ["queues", action, "emails", id, "--reason", "a test", "--yes"];
        let (code, _, error) = shop.run(&args).await;
        assert_eq!(code, Some(1), "{action}, no such task: {error}");
        let typo = ["queues", action, "emails", "--yess", "--reason", "a test"];
        let (code, _, error) = shop.run(&typo).await;
        assert!(code == Some(2) && error.contains("--yess"), "{action}: {code:?} {error}");
    }
}

#[tokio::test]
async fn task_is_shown_and_run_now_and_its_queue_resumed() {
    let shop = Shop::start().await;
    let queue = shop.store.queue::<String>("emails");
    let payload = "ada\u{9b}2J\u{1b}[2J".to_owned();
    let push = queue.push(&payload).delay(Duration::from_secs(3600));
    let task = push.await.expect("there is room").into_id();
    assert_eq!((shop.count_tasks("delayed").await, shop.count_tasks("due").await), (1, 0));
    shop.expect_done(&["queues", "run-now", "emails", task.as_str()], "done").await;
    assert_eq!((shop.count_tasks("delayed").await, shop.count_tasks("due").await), (0, 1));

    let look = ["queues", "payload", "emails", task.as_str(), "--reason", "a test"];
    let (code, text, error) = shop.run(&look).await;
    assert!(code == Some(0) && text.contains("ada"), "{text}{error}");
    assert!(!text.trim_end().contains(char::is_control), "{text:?}");
    assert_eq!(shop.run_json(&look).await, payload);
    assert_eq!(shop.run_json(&["audit"]).await[0]["action"], "task-payload");

    shop.expect_done(&["queues", "pause", "emails"], "done").await;
    shop.expect_done(&["queues", "resume", "emails"], "done").await;
    assert!(!queue.stats().await.expect("the store answers").paused);
}

#[tokio::test]
async fn dead_letters_of_a_queue_are_redriven_and_purged() {
    let shop = Shop::start().await;
    let queue = shop.store.queue::<String>("emails");
    push_dead_letters(&queue, 4).await;
    let dead = queue.dead_letters(None, 4).await.expect("the store answers").tasks;
    let (code, text, _) = shop.run(&["queues", "tasks", "emails", "--state", "dead"]).await;
    assert!(code == Some(0) && text.contains("no such address [2J"), "{text}");
    shop.expect_done(&["queues", "purge", "emails", dead[0].id.as_str()], "done").await;
    shop.expect_done(&["queues", "redrive", "emails", dead[1].id.as_str()], "done").await;
    assert_eq!((shop.count_tasks("dead").await, shop.count_tasks("due").await), (2, 1));
    let all = ["queues", "redrive", "emails", "--all", "--per-second", "100"];
    shop.expect_done(&all, "2 tasks wait to run again").await;
    assert_eq!(shop.count_tasks("dead").await, 0);
}

#[tokio::test]
async fn limit_of_rows_goes_beyond_a_page() {
    let shop = Shop::start().await;
    let queue = shop.store.queue::<String>("emails");
    push_dead_letters(&queue, 120).await;
    let admin = shop.store.admin(Operator::new("ada", Permission::Act));
    for _ in 0..120 {
        let _ = queue.push(&"ada".to_owned()).await.expect("there is room");
        admin.resume_queue("emails", "a test").await.expect("it may");
    }
    let tasks = ["queues", "tasks", "emails"];
    let lists = [[&tasks[..], &["--state", "dead"]].concat(), tasks.to_vec(), vec!["audit"]];
    for list in lists {
        for limit in [110, 0, 1] {
            let rows = shop.run_json(&[&list[..], &["--limit", &limit.to_string()]].concat()).await;
            assert_eq!(rows.as_array().expect("rows").len(), limit, "{list:?}");
        }
    }
}
