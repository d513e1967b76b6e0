//! Refusals of what was sent twice, by ways of which one was left: a copy that comes when there is room is stored, and
//! runs. Nobody may have been told that nothing was.

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

fn enqueue_with(print: &str, most: u64) -> EnqueueCommand {
    EnqueueCommand {
        idempotency_record: (!print.is_empty())
            .then(|| ("idem".into(), print.to_owned(), 60 * SECOND)),
        limits: StorageLimits { resource_jobs: most, ..StorageLimits::uniform(1 << 20) },
        ..enqueue_command(&Key::custom("x"))
    }
}

/// Its first copy loses its answer.
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
    let unmanned = || {
        let call = enqueue_with("", 9);
        EnqueueCommand { policy: JobPolicy { needs_worker: true, ..call.policy }, ..call }
    };
    for (refused, answer) in [
        (enqueue_with("", 1), EnqueueOutcome::Full),
        (enqueue_with("other", 9), EnqueueOutcome::FingerprintMismatch),
        (unmanned(), EnqueueOutcome::NoWorker),
    ] {
        assert_eq!(store.backend().enqueue(refused.clone()).await.expect("it is there"), answer);
        assert_enqueue_in_doubt(&store, &proxy, refused).await;
    }
}

/// What is only looked up can't be stored by any copy.
#[tokio::test]
async fn lookup_with_unanswered_copy_reports_its_outcome() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    store.backend().enqueue(enqueue_with("print", 9)).await.expect("it is there");
    for (print, answer) in
        [("", EnqueueOutcome::Full), ("other", EnqueueOutcome::FingerprintMismatch)]
    {
        let look = EnqueueCommand {
            envelope: Bytes::new(),
            limits: StorageLimits::uniform(0),
            ..enqueue_with(print, 0)
        };
        proxy.lose_next_replies(1);
        assert_eq!(store.backend().enqueue(look).await.expect("it is there"), answer);
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

/// The store knows a process's last 4096 pushes. One that is refused is in the place of one long before it, whose copy
/// may come yet.
#[tokio::test]
async fn refused_push_keeps_push_numbers_of_stored_tasks() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let known = async || -> u64 {
        let keys = server.remaining_keys().await;
        let shard = format!("{{{}}}:zp:", Key::from("numbers").shard());
        let own = |key: &&String| key.contains(&shard);
        let key = keys.iter().find(own).expect("it is there");
        server.query(&["BITCOUNT", key]).await
    };
    assert_ne!(Key::from("numbers").shard(), Key::from("others").shard(), "one key for both");
    single_task_queue(&store).push(&1).unique("u").await.expect("it is there");
    let before = known().await;
    for unique in [false, true] {
        let others = store.queue::<u32>("others");
        join_all((0..4095).map(|n| others.push(&n).into_future())).await;
        let refused = if unique {
            store.queue("numbers").push(&2).unique("u").await.map(drop)
        } else {
            single_task_queue(&store).push(&2).await.map(drop)
        };
        assert!(unique || matches!(refused, Err(PushError::Full)), "{refused:?}");
        assert_eq!(known().await, before, "a number is gone");
    }
}
