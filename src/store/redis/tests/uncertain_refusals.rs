//! Refusals of calls that were sent twice, over a connection that was left. A late copy that
//! arrives when there is room is stored and run. So the call is in doubt, and must not be reported
//! as refused.

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    SECOND, cluster::enqueue_command, lossy_proxy::LossyProxy, server_process::ServerProcess,
};
use crate::{
    error::ErrorKind,
    key::Key,
    queue::{PushError, PushedTask, Queue},
    store::{
        Store,
        backend::{EnqueueCommand, EnqueueOutcome, JobPolicy, StorageLimits},
    },
};

fn enqueue_with(fingerprint: &str, max_jobs: u64) -> EnqueueCommand {
    EnqueueCommand {
        idempotency_record: (!fingerprint.is_empty())
            .then(|| ("idem".into(), fingerprint.to_owned(), 60 * SECOND)),
        limits: StorageLimits { resource_jobs: max_jobs, ..StorageLimits::uniform(1 << 20) },
        ..enqueue_command(&Key::custom("x"))
    }
}

/// Asserts that the enqueue is in doubt after its first copy lost its reply.
async fn assert_enqueue_in_doubt(store: &Store, proxy: &LossyProxy, call: EnqueueCommand) {
    proxy.lose_next_replies(1);
    let error = store.backend().enqueue(call).await.expect_err("it may come yet");
    assert_eq!((error.kind(), proxy.pending_cuts()), (ErrorKind::Timeout, 0), "{error}");
}

#[tokio::test]
async fn refused_enqueue_with_unanswered_copy_reports_timeout() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    let first = store.backend().enqueue(enqueue_with("print", 9)).await.expect("it is there");
    assert_eq!(first, EnqueueOutcome::Stored { position: 1 });
    let without_worker = || {
        let call = enqueue_with("", 9);
        EnqueueCommand { policy: JobPolicy { needs_worker: true, ..call.policy }, ..call }
    };
    for (refused, outcome) in [
        (enqueue_with("", 1), EnqueueOutcome::Full),
        (enqueue_with("other", 9), EnqueueOutcome::FingerprintMismatch),
        (without_worker(), EnqueueOutcome::NoWorker),
    ] {
        assert_eq!(store.backend().enqueue(refused.clone()).await.expect("it is there"), outcome);
        assert_enqueue_in_doubt(&store, &proxy, refused).await;
    }
}

/// No copy of a lookup can store anything.
#[tokio::test]
async fn lookup_with_unanswered_copy_reports_its_outcome() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    store.backend().enqueue(enqueue_with("print", 9)).await.expect("it is there");
    for (fingerprint, outcome) in
        [("", EnqueueOutcome::Full), ("other", EnqueueOutcome::FingerprintMismatch)]
    {
        let lookup = EnqueueCommand {
            envelope: Bytes::new(),
            limits: StorageLimits::uniform(0),
            ..enqueue_with(fingerprint, 0)
        };
        proxy.lose_next_replies(1);
        assert_eq!(store.backend().enqueue(lookup).await.expect("it is there"), outcome);
        assert_eq!(proxy.pending_cuts(), 0);
    }
}

fn single_task_queue(store: &Store) -> Queue<u32> {
    store.queue("numbers").capacity(1)
}

#[tokio::test]
async fn refused_push_with_unanswered_copy_reports_timeout() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    let first =
        single_task_queue(&store).push(&1).unique("u").await.expect("it is there").into_id();
    let again = async || store.queue("numbers").push(&2).unique("u").await;
    assert_eq!(again().await.expect("it is there"), PushedTask::Duplicate(first));
    let full = async || single_task_queue(&store).push(&2).await;
    assert!(matches!(full().await, Err(PushError::Full)));
    for refused in [true, false] {
        proxy.lose_next_replies(1);
        match if refused { full().await } else { again().await } {
            Err(PushError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Timeout),
            other => panic!("{other:?}"),
        }
        assert_eq!(proxy.pending_cuts(), 0);
    }
}

/// The store remembers the last 4096 pushes of a process. A refused push has the position of one
/// long before it, of which a copy may still arrive.
#[tokio::test]
async fn refused_push_keeps_push_numbers_of_stored_tasks() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let count_known_pushes = async || -> u64 {
        let keys = server.remaining_keys().await;
        let shard = format!("{{{}}}:zp:", Key::from("numbers").shard());
        let is_own = |key: &&String| key.contains(&shard);
        let key = keys.iter().find(is_own).expect("it is there");
        server.query(&["BITCOUNT", key]).await
    };
    assert_ne!(Key::from("numbers").shard(), Key::from("others").shard(), "one key for both");
    single_task_queue(&store).push(&1).unique("u").await.expect("it is there");
    let before = count_known_pushes().await;
    for unique in [false, true] {
        let others = store.queue::<u32>("others");
        join_all((0..4095).map(|n| others.push(&n).into_future())).await;
        let refused = if unique {
            store.queue("numbers").push(&2).unique("u").await.map(drop)
        } else {
            single_task_queue(&store).push(&2).await.map(drop)
        };
        assert!(unique || matches!(refused, Err(PushError::Full)), "{refused:?}");
        assert_eq!(count_known_pushes().await, before, "a number is gone");
    }
}
