//! Store check of damaged task queues.

use super::polling_worker::{
    PollingWorker, SECOND, push_command, retry_outcome, run_payloads, test_queue,
    unique_push_command,
};
use crate::store::{
    FindingKind::{
        IndexEntryWithoutTask, TaskIndexedTwice, TaskNotIndexed, WrongCount, WrongKeyType,
    },
    tasks::{TaskOutcome, TaskPushCommand},
    tests::{fsck::assert_findings_and_repair, store_harness::StoreHarness},
};

fn queue_key_name(kind: &str) -> String {
    format!("{{{}}}:{kind}:{}", test_queue().shard(), test_queue())
}

async fn queue_command<T: redis::FromRedisValue>(
    rig: &StoreHarness,
    verb: &str,
    kind: &str,
    args: &[&str],
) -> T {
    rig.server().key_command(verb, &queue_key_name(kind), args).await
}

#[tokio::test]
async fn active_queue_has_no_findings() {
    let rig = StoreHarness::redis().await;
    let worker = PollingWorker::new(&rig);
    for payload in ["a", "b", "c", "d"] {
        rig.push_task(push_command(payload)).await;
    }
    assert_findings_and_repair(&rig, &[], &[]).await;
    let runs = worker.start_runs(3).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    worker.settle_run(&runs[0], TaskOutcome::Done).await;
    worker.settle_run(&runs[1], retry_outcome(SECOND)).await;
    worker.settle_run(&runs[2], super::polling_worker::dead_outcome("no")).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
}

#[tokio::test]
async fn unindexed_tasks_are_requeued_or_become_dead() {
    let rig = StoreHarness::redis().await;
    let worker = PollingWorker::new(&rig);
    let retryable = rig.push_task(push_command("again")).await;
    let unretryable =
        rig.push_task(TaskPushCommand { retry_after_crash: false, ..push_command("once") }).await;
    assert_eq!(queue_command::<i64>(&rig, "DEL", "z", &[]).await, 1);
    assert_findings_and_repair(&rig, &[TaskNotIndexed, TaskNotIndexed, WrongCount], &[]).await;
    assert_eq!(run_payloads(&worker.start_runs(5).await), ["again"]);
    assert_eq!(rig.task_view(&retryable).await.unwrap().state, crate::store::TaskState::Running);
    assert_eq!(rig.task_view(&unretryable).await.unwrap().state, crate::store::TaskState::Dead);
}

#[tokio::test]
async fn queue_on_cluster_is_checked_and_repaired() {
    let rig = StoreHarness::cluster().await;
    let worker = PollingWorker::new(&rig);
    rig.push_task(push_command("again")).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    let index_key = format!("z:{}", test_queue());
    assert_eq!(
        rig.cluster_namespace()
            .shard_command::<i64>(test_queue().shard(), "DEL", &index_key, &[])
            .await,
        1
    );
    assert_findings_and_repair(&rig, &[TaskNotIndexed, WrongCount], &[]).await;
    assert_eq!(run_payloads(&worker.start_runs(5).await), ["again"]);
}

/// A page of dead letters ends at a time, and the next one begins after it.
#[tokio::test]
async fn dead_letters_made_by_repair_are_all_listed() {
    let rig = StoreHarness::redis().await;
    let mut ids = Vec::new();
    for _ in 0..25 {
        ids.push(
            rig.push_task(TaskPushCommand { retry_after_crash: false, ..push_command("once") })
                .await,
        );
    }
    assert_eq!(queue_command::<i64>(&rig, "DEL", "z", &[]).await, 1);
    rig.run_check(true).await;
    let (mut after, mut listed) = (Some(0), Vec::new());
    while let Some(cursor) = after {
        let page = rig.backend().list_dead_letters(test_queue(), cursor, 10).await.unwrap();
        listed.extend(page.dead_letters.into_iter().map(|view| view.id));
        after = page.next;
    }
    assert_eq!(listed.len(), 25);
    listed.sort_unstable();
    ids.sort_unstable();
    assert_eq!(listed, ids);
}

/// More tasks than one operation sums up. Bytes that the repair does not subtract would stay wrong.
#[tokio::test]
async fn dead_letter_made_by_repair_frees_bytes_and_key() {
    let rig = StoreHarness::redis().await;
    for _ in 0..101 {
        rig.push_task(push_command("other")).await;
    }
    let unretryable = rig
        .push_task(TaskPushCommand {
            retry_after_crash: false,
            ..unique_push_command("once", "its own", None)
        })
        .await;
    assert_eq!(queue_command::<i64>(&rig, "ZREM", "z", &[unretryable.as_str()]).await, 1);
    let bytes = async || queue_command::<i64>(&rig, "HGET", "zf", &["bytes"]).await;
    let (before, record_bytes) =
        (bytes().await, queue_command::<i64>(&rig, "HSTRLEN", "zt", &[unretryable.as_str()]).await);
    assert_findings_and_repair(&rig, &[TaskNotIndexed], &[]).await;
    assert_eq!(rig.task_view(&unretryable).await.unwrap().state, crate::store::TaskState::Dead);
    assert_eq!(bytes().await, before - record_bytes);
    assert_eq!(rig.queue_stats().await.dead_bytes, record_bytes.cast_unsigned());
    let next = rig.push_task(unique_push_command("next", "its own", None)).await;
    assert_eq!(rig.task_view(&next).await.unwrap().state, crate::store::TaskState::Waiting);
}

/// A check reads the records of tasks. Their size is counted, and measured if the count is lost.
#[tokio::test]
async fn large_tasks_are_checked_in_small_batches() {
    let rig = StoreHarness::redis().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        let payload = "x".repeat(1 << 20);
        ids.push(
            rig.push_task(TaskPushCommand { capacity: (100, 1 << 30), ..push_command(&payload) })
                .await,
        );
    }
    let examined = async || rig.run_check(false).await.examined;
    let counted = examined().await;
    queue_command::<i64>(&rig, "HDEL", "zf", &["bytes"]).await;
    let uncounted = examined().await;
    let to_text = |id: &crate::store::TaskId| id.as_str().to_owned();
    let other_ids: Vec<_> = ids.iter().skip(1).map(to_text).collect();
    let other_ids: Vec<_> = other_ids.iter().map(String::as_str).collect();
    queue_command::<i64>(&rig, "HDEL", "zt", &other_ids).await;
    queue_command::<i64>(&rig, "ZREM", "z", &other_ids).await;
    let small = examined().await;
    // One call reads about four tasks, and at most one bucket more of the server's hash table.
    assert!(counted >= small + 3 && uncounted >= small + 3, "{counted}, {uncounted}, {small}");
}

#[tokio::test]
async fn index_entries_without_task_are_removed() {
    let rig = StoreHarness::redis().await;
    let worker = PollingWorker::new(&rig);
    let lost = rig.push_task(push_command("gone")).await;
    let run = worker.start_one().await;
    assert_eq!(run.token.id, lost);
    rig.push_task(push_command("next")).await;
    assert_eq!(queue_command::<i64>(&rig, "HDEL", "zt", &[lost.as_str()]).await, 1);
    queue_command::<i64>(&rig, "HSET", "zm", &["0123456789012345678901", "1 0\n"]).await;
    queue_command::<i64>(&rig, "HSET", "zu", &["name", "0123456789012345678901"]).await;
    assert_findings_and_repair(
        &rig,
        &[IndexEntryWithoutTask, IndexEntryWithoutTask, IndexEntryWithoutTask, WrongCount],
        &[],
    )
    .await;
    assert_eq!(run_payloads(&worker.start_runs(5).await), ["next"]);
}

#[tokio::test]
async fn running_task_keeps_only_its_run_index_entry() {
    let rig = StoreHarness::redis().await;
    let worker = PollingWorker::new(&rig);
    let id = rig.push_task(push_command("one")).await;
    let run = worker.start_one().await;
    queue_command::<i64>(&rig, "ZADD", "z", &["1", id.as_str()]).await;
    queue_command::<i64>(&rig, "ZADD", "zd", &["9000000000000000", id.as_str()]).await;
    // Of three indexes, the task stays in that of its run. Each repair removes one entry.
    rig.run_check(true).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    assert_eq!(worker.start_runs(1).await.len(), 0);
    let other = rig.push_task(push_command("two")).await;
    queue_command::<i64>(&rig, "ZADD", "zd", &["9000000000000000", other.as_str()]).await;
    assert_findings_and_repair(&rig, &[TaskIndexedTwice, WrongCount], &[]).await;
    assert_eq!(run_payloads(&worker.start_runs(5).await), ["two"]);
}

/// The bytes of dead letters are counted like those of waiting tasks.
#[tokio::test]
async fn wrong_dead_letter_bytes_are_recounted() {
    let rig = StoreHarness::redis().await;
    let worker = PollingWorker::new(&rig);
    rig.push_task(push_command("one")).await;
    worker.settle_run(&worker.start_one().await, super::polling_worker::dead_outcome("no")).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    let dead_bytes = rig.queue_stats().await.dead_bytes;
    assert_eq!(queue_command::<u64>(&rig, "HINCRBY", "zf", &["buried", "7"]).await, dead_bytes + 7);
    assert_findings_and_repair(&rig, &[WrongCount], &[]).await;
    assert_eq!(rig.queue_stats().await.dead_bytes, dead_bytes);
}

#[tokio::test]
async fn index_of_wrong_type_is_reported() {
    let rig = StoreHarness::redis().await;
    rig.push_task(push_command("one")).await;
    rig.server().key_command::<()>("SET", &queue_key_name("zd"), &["by hand"]).await;
    assert_findings_and_repair(&rig, &[WrongKeyType], &[WrongKeyType]).await;
}
