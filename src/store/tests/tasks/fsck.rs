//! Queues that somebody has broken by hand.

use super::desk::{SECOND, Worker, payloads, queue, retry, task, unique};
use crate::store::{
    FindingKind::{
        IndexEntryWithoutTask, TaskIndexedTwice, TaskNotIndexed, WrongCount, WrongKeyType,
    },
    tasks::{TaskOutcome, TaskPushCommand},
    tests::{fsck::finds, rig::Rig},
};

fn name(kind: &str) -> String {
    format!("{{{}}}:{kind}:{}", queue().shard(), queue())
}

async fn raw<T: redis::FromRedisValue>(rig: &Rig, verb: &str, kind: &str, rest: &[&str]) -> T {
    rig.server().raw(verb, &name(kind), rest).await
}

#[tokio::test]
async fn a_queue_at_work_has_no_findings() {
    let rig = Rig::redis().await;
    let worker = Worker::new(&rig);
    for payload in ["a", "b", "c", "d"] {
        rig.push(task(payload)).await;
    }
    finds(&rig, &[], &[]).await;
    let runs = worker.start(3).await;
    finds(&rig, &[], &[]).await;
    worker.end(&runs[0], TaskOutcome::Done).await;
    worker.end(&runs[1], retry(SECOND)).await;
    worker.end(&runs[2], super::desk::dead("no")).await;
    finds(&rig, &[], &[]).await;
}

#[tokio::test]
async fn tasks_that_lost_their_place_run_or_are_dead_letters() {
    let rig = Rig::redis().await;
    let worker = Worker::new(&rig);
    let again = rig.push(task("again")).await;
    let once = rig.push(TaskPushCommand { retry_after_crash: false, ..task("once") }).await;
    assert_eq!(raw::<i64>(&rig, "DEL", "z", &[]).await, 1);
    finds(&rig, &[TaskNotIndexed, TaskNotIndexed, WrongCount], &[]).await;
    assert_eq!(payloads(&worker.start(5).await), ["again"]);
    assert_eq!(rig.task(&again).await.unwrap().state, crate::store::TaskState::Running);
    assert_eq!(rig.task(&once).await.unwrap().state, crate::store::TaskState::Dead);
}

#[tokio::test]
async fn a_queue_on_a_cluster_is_looked_at_too() {
    let rig = Rig::cluster().await;
    let worker = Worker::new(&rig);
    rig.push(task("again")).await;
    finds(&rig, &[], &[]).await;
    let place = format!("z:{}", queue());
    assert_eq!(rig.space().raw::<i64>(queue().shard(), "DEL", &place, &[]).await, 1);
    finds(&rig, &[TaskNotIndexed, WrongCount], &[]).await;
    assert_eq!(payloads(&worker.start(5).await), ["again"]);
}

/// A page of letters ends at a moment, and the next one begins behind it.
#[tokio::test]
async fn those_that_are_made_dead_letters_together_are_all_listed() {
    let rig = Rig::redis().await;
    let mut ids = Vec::new();
    for _ in 0..25 {
        ids.push(rig.push(TaskPushCommand { retry_after_crash: false, ..task("once") }).await);
    }
    assert_eq!(raw::<i64>(&rig, "DEL", "z", &[]).await, 1);
    rig.fsck(true).await;
    let (mut after, mut found) = (Some(0), Vec::new());
    while let Some(from) = after {
        let page = rig.backend().list_dead_letters(queue(), from, 10).await.unwrap();
        found.extend(page.letters.into_iter().map(|view| view.id));
        after = page.next;
    }
    assert_eq!(found.len(), 25);
    found.sort_unstable();
    ids.sort_unstable();
    assert_eq!(found, ids);
}

/// More than are summed up in one look: what the mending does not count stays wrong.
#[tokio::test]
async fn a_task_that_is_made_a_dead_letter_leaves_nothing_behind() {
    let rig = Rig::redis().await;
    for _ in 0..101 {
        rig.push(task("other")).await;
    }
    let once = rig
        .push(TaskPushCommand { retry_after_crash: false, ..unique("once", "its own", None) })
        .await;
    assert_eq!(raw::<i64>(&rig, "ZREM", "z", &[once.as_str()]).await, 1);
    let bytes = async || raw::<i64>(&rig, "HGET", "zf", &["bytes"]).await;
    let (before, its) = (bytes().await, raw::<i64>(&rig, "HSTRLEN", "zt", &[once.as_str()]).await);
    finds(&rig, &[TaskNotIndexed], &[]).await;
    assert_eq!(rig.task(&once).await.unwrap().state, crate::store::TaskState::Dead);
    assert_eq!(bytes().await, before - its);
    assert_eq!(rig.numbers().await.dead_bytes, its.cast_unsigned());
    let next = rig.push(unique("next", "its own", None)).await;
    assert_eq!(rig.task(&next).await.unwrap().state, crate::store::TaskState::Waiting);
}

/// Their records come along. How large they are is counted, and seen where that is lost.
#[tokio::test]
async fn large_tasks_are_looked_at_a_few_at_a_time() {
    let rig = Rig::redis().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        let payload = "x".repeat(1 << 20);
        ids.push(rig.push(TaskPushCommand { capacity: (100, 1 << 30), ..task(&payload) }).await);
    }
    let looked = async || rig.fsck(false).await.examined;
    let counted = looked().await;
    raw::<i64>(&rig, "HDEL", "zf", &["bytes"]).await;
    let seen = looked().await;
    let place = |id: &crate::store::TaskId| id.as_str().to_owned();
    let few: Vec<_> = ids.iter().skip(1).map(place).collect();
    let few: Vec<_> = few.iter().map(String::as_str).collect();
    raw::<i64>(&rig, "HDEL", "zt", &few).await;
    raw::<i64>(&rig, "ZREM", "z", &few).await;
    let small = looked().await;
    // A call reads about four of them, and at most a bucket more of the server's hash table.
    assert!(counted >= small + 3 && seen >= small + 3, "{counted}, {seen}, {small}");
}

#[tokio::test]
async fn places_of_tasks_that_are_gone_go_too() {
    let rig = Rig::redis().await;
    let worker = Worker::new(&rig);
    let gone = rig.push(task("gone")).await;
    let run = worker.one().await;
    assert_eq!(run.token.id, gone);
    rig.push(task("next")).await;
    assert_eq!(raw::<i64>(&rig, "HDEL", "zt", &[gone.as_str()]).await, 1);
    raw::<i64>(&rig, "HSET", "zm", &["0123456789012345678901", "1 0\n"]).await;
    raw::<i64>(&rig, "HSET", "zu", &["name", "0123456789012345678901"]).await;
    finds(
        &rig,
        &[IndexEntryWithoutTask, IndexEntryWithoutTask, IndexEntryWithoutTask, WrongCount],
        &[],
    )
    .await;
    assert_eq!(payloads(&worker.start(5).await), ["next"]);
}

#[tokio::test]
async fn a_task_that_runs_does_not_wait() {
    let rig = Rig::redis().await;
    let worker = Worker::new(&rig);
    let id = rig.push(task("one")).await;
    let run = worker.one().await;
    raw::<i64>(&rig, "ZADD", "z", &["1", id.as_str()]).await;
    raw::<i64>(&rig, "ZADD", "zd", &["9000000000000000", id.as_str()]).await;
    // Of three places it keeps that of its run, one after the other.
    rig.fsck(true).await;
    finds(&rig, &[], &[]).await;
    assert!(worker.end(&run, TaskOutcome::Done).await);
    assert_eq!(worker.start(1).await.len(), 0);
    let other = rig.push(task("two")).await;
    raw::<i64>(&rig, "ZADD", "zd", &["9000000000000000", other.as_str()]).await;
    finds(&rig, &[TaskIndexedTwice, WrongCount], &[]).await;
    assert_eq!(payloads(&worker.start(5).await), ["two"]);
}

/// Dead letters are added up as those that wait are.
#[tokio::test]
async fn bytes_of_dead_letters_are_added_up() {
    let rig = Rig::redis().await;
    let worker = Worker::new(&rig);
    rig.push(task("one")).await;
    worker.end(&worker.one().await, super::desk::dead("no")).await;
    finds(&rig, &[], &[]).await;
    let there = rig.numbers().await.dead_bytes;
    assert_eq!(raw::<u64>(&rig, "HINCRBY", "zf", &["buried", "7"]).await, there + 7);
    finds(&rig, &[WrongCount], &[]).await;
    assert_eq!(rig.numbers().await.dead_bytes, there);
}

#[tokio::test]
async fn an_index_of_another_type_is_told_of() {
    let rig = Rig::redis().await;
    rig.push(task("one")).await;
    rig.server().raw::<()>("SET", &name("zd"), &["by hand"]).await;
    finds(&rig, &[WrongKeyType], &[WrongKeyType]).await;
}
