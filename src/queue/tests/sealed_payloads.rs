//! Payloads of a store with a keyring.

use std::time::Duration;

use super::{
    SECOND, SpawnedQueueWorker, TaskRunLog, push_text, scripted_worker, task_state, text_queue,
    wait_until_idle,
};
use crate::{
    Keyring,
    queue::{TaskFault, TaskId, TaskState},
    store::{Store, TaskPushCommand},
};

fn sealing_keyring() -> Keyring {
    Keyring::new("one", [1; 32]).require_sealed()
}

async fn stored_payload(store: &Store, id: &TaskId) -> Vec<u8> {
    let text = store.backend().task_payload("texts".into(), id.clone()).await;
    text.expect("it is there").expect("it is stored").to_vec()
}

#[tokio::test(start_paused = true)]
async fn worker_without_the_key_returns_the_task() {
    let (store, log) = (Store::memory().with_keyring(sealing_keyring()), TaskRunLog::default());
    let (with_key, without_key) = (text_queue(&store), text_queue(&store.as_another_process()));
    // The only attempt must not be used up by a worker that cannot read the task.
    let id = push_text(&with_key.clone().once(), "a secret").await;
    assert!(!stored_payload(&store, &id).await.windows(6).any(|part| part == b"secret"));
    assert!(without_key.payload(&id).await.is_err());
    assert_eq!(with_key.payload(&id).await.unwrap().as_deref(), Some("a secret"));

    let keyless_worker = SpawnedQueueWorker::start(scripted_worker(&without_key, &log));
    tokio::time::sleep(SECOND * 10).await;
    assert_eq!(log.payloads(), [""; 0]);
    let info = with_key.get(&id).await.unwrap().unwrap();
    assert_eq!((info.attempts, info.history.len()), (0, 0), "uncharged: {info:?}");
    let worker = SpawnedQueueWorker::start(scripted_worker(&with_key, &log));
    tokio::time::sleep(SECOND * 120).await;
    assert_eq!(log.payloads(), ["a secret"]);
    assert_eq!(task_state(&with_key, &id).await, None);
    keyless_worker.stop().await;
    worker.stop().await;
}

/// The backoff counts from the due time and not from the push, since the task is new to workers
/// with the key.
#[tokio::test(start_paused = true)]
async fn unopenable_delayed_task_is_retried_soon_at_first() {
    let (store, log) = (Store::memory().with_keyring(sealing_keyring()), TaskRunLog::default());
    let (with_key, without_key) = (text_queue(&store), text_queue(&store.as_another_process()));
    let delayed = with_key.push(&"a secret".to_owned()).delay(SECOND * 3_600);
    let id = delayed.await.unwrap().into_id();
    let keyless_worker = SpawnedQueueWorker::start(scripted_worker(&without_key, &log));
    let due_in = async || with_key.get(&id).await.unwrap().unwrap().due_in;
    tokio::time::sleep(SECOND * 3_600).await;
    assert!(due_in().await <= SECOND, "{:?}", due_in().await);
    tokio::time::sleep(SECOND * 2).await;
    assert!(due_in().await <= SECOND * 3, "{:?}", due_in().await);
    // The delay doubles, up to a minute.
    tokio::time::sleep(SECOND * 200).await;
    let mut longest = Duration::ZERO;
    for _ in 0..70 {
        longest = longest.max(due_in().await);
        tokio::time::sleep(SECOND).await;
    }
    assert!(longest > SECOND * 55 && longest <= SECOND * 60, "{longest:?}");
    keyless_worker.stop().await;
    assert_eq!(log.payloads(), [""; 0]);
}

/// Payload bytes of another task, and unsealed bytes.
#[tokio::test(start_paused = true)]
async fn moved_or_unsealed_payload_does_not_run() {
    let (store, log) = (Store::memory().with_keyring(sealing_keyring()), TaskRunLog::default());
    let queue = text_queue(&store);
    let paused = push_text(&queue, "a secret").await;
    let text = stored_payload(&store, &paused).await;
    let newline = text.iter().position(|b| *b == b'\n').expect("it has a head");
    let mut forged = Vec::new();
    for payload in [&text[newline + 1..], b"\"plain\""] {
        let call = TaskPushCommand {
            queue: "texts".into(),
            id: TaskId::new(),
            delay: Duration::ZERO,
            unique: None,
            retry_after_crash: true,
            max_attempts: 1,
            trace: None,
            payload: payload.to_vec().into(),
            capacity: (10, 1_000),
        };
        forged.push(call.id.clone());
        store.backend().push_task(call).await.expect("it is there");
    }
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    wait_until_idle().await;
    worker.stop().await;
    assert_eq!(log.payloads(), ["a secret"]);
    for id in forged {
        let info = queue.get(&id).await.unwrap().unwrap();
        assert_eq!((info.state, info.history[0].fault), (TaskState::Dead, TaskFault::Undecodable));
    }
}
