//! Payloads that can be encoded but not decoded.

use std::{collections::BTreeMap, error::Error as _, time::Duration};

use serde::{Deserialize, Serialize};

use super::{SECOND, SpawnedQueueWorker};
use crate::{
    queue::{PushError, Queue, Task, TaskFailure, TaskId},
    store::{CapturedLog, Store, TaskPushCommand},
};

/// Payload with nested levels.
#[derive(Serialize, Deserialize)]
struct NestedPayload(Option<Box<Self>>, Vec<Self>);

fn nested_payload(levels: usize) -> NestedPayload {
    (1..levels).fold(NestedPayload(None, Vec::new()), |inner, _| NestedPayload(None, vec![inner]))
}

/// Map key that is serialized by one name and deserialized by another.
#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all(serialize = "lowercase"))]
enum AsymmetricKey {
    Left,
}

async fn push_error_cause<T: Serialize + serde::de::DeserializeOwned>(payload: T) -> String {
    let queue: Queue<T> = Store::memory().queue("unreadable");
    let error = queue.push(&payload).await.expect_err("no worker could read it");
    assert!(matches!(error, PushError::NotDecodable(_)), "{error:?}");
    assert_eq!(queue.stats().await.expect("it is there").waiting, 0);
    assert!(error.to_string().contains("the same serde attributes in both directions"), "{error}");
    error.source().expect("the error of serde").to_string()
}

#[tokio::test]
async fn push_refuses_a_payload_that_cannot_be_decoded() {
    assert!(push_error_cause(f64::NAN).await.contains("null"));
    assert!(push_error_cause(BTreeMap::from([(0, f32::INFINITY)])).await.contains("null"));
    assert!(
        push_error_cause(BTreeMap::from([(AsymmetricKey::Left, 1)]))
            .await
            .contains("unknown variant")
    );
    assert!(push_error_cause(nested_payload(128)).await.contains("recursion limit"));
    let queue: Queue<NestedPayload> = Store::memory().queue("nested");
    assert!(queue.push(&nested_payload(60)).await.is_ok());
}

/// The payload comes from another version, or from a producer without debug assertions.
#[tokio::test(start_paused = true)]
async fn decode_error_log_names_the_cause_and_hides_the_payload() {
    for (payload, cause) in [
        ("null", "invalid type: null, expected u8 at line 1 column 4"),
        ("\"secret\"", "invalid type: string, expected u8 at line 1 column 8"),
        ("\"a, expected secret\"", "invalid type: string, expected u8 at line 1 column 20"),
        ("30001", "invalid value: integer, expected u8 at line 1 column 5"),
        ("{\"secret\"", "invalid type: map, expected u8 at line 1 column 0"),
        ("3secret", "trailing characters at line 1 column 2"),
    ] {
        let (log, guard) = CapturedLog::start_capture();
        let store = Store::memory();
        let queue: Queue<u8> = store.queue("numbers");
        let call = TaskPushCommand {
            queue: "numbers".into(),
            id: TaskId::new(),
            delay: Duration::ZERO,
            unique: None,
            retry_after_crash: true,
            max_attempts: 1,
            trace: None,
            payload: payload.into(),
            capacity: (10, 1_000),
        };
        store.backend().push_task(call).await.expect("it is there");
        let worker =
            SpawnedQueueWorker::start(queue.worker(async |_: Task<u8>| Ok::<(), TaskFailure>(())));
        tokio::time::sleep(SECOND).await;
        worker.stop().await;
        drop(guard);
        let text = log.text();
        assert!(
            text.contains(cause) && text.contains("payload cannot be decoded here"),
            "{payload}: {text}"
        );
        assert!(!text.contains("secret") && !text.contains("30001"), "{text}");
    }
}
