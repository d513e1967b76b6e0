//! Refusals of what was sent twice, by ways of which one was left: a copy that comes when there is room is stored, and
//! runs. Nobody may have been told that nothing was.

use bytes::Bytes;
use futures_util::future::join_all;

use super::{SECOND, cluster::deferred, proxy::Proxy, server::Server};
use crate::{
    error::ErrorKind,
    key::Key,
    queue::{PushError, PushedTask, Queue},
    store::{
        Store,
        backend::{EnqueueCommand, EnqueueOutcome, JobPolicy, StorageLimits},
    },
};

fn call(print: &str, most: u64) -> EnqueueCommand {
    EnqueueCommand {
        idempotency_record: (!print.is_empty())
            .then(|| ("idem".into(), print.to_owned(), 60 * SECOND)),
        limits: StorageLimits { resource_jobs: most, ..StorageLimits::uniform(1 << 20) },
        ..deferred(&Key::custom("x"))
    }
}

/// Its first copy loses its answer.
async fn in_doubt(store: &Store, proxy: &Proxy, call: EnqueueCommand) {
    proxy.cut(1);
    let error = store.backend().enqueue(call).await.expect_err("it may come yet");
    assert_eq!((error.kind(), proxy.cuts_left()), (ErrorKind::Timeout, 0), "{error}");
}

#[tokio::test]
async fn a_request_of_which_a_copy_may_come_is_not_told_that_it_was_refused() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    let first = store.backend().enqueue(call("print", 9)).await.expect("it is there");
    assert_eq!(first, EnqueueOutcome::Stored { position: 1 });
    let unmanned = || {
        let call = call("", 9);
        EnqueueCommand { policy: JobPolicy { needs_worker: true, ..call.policy }, ..call }
    };
    for (refused, answer) in [
        (call("", 1), EnqueueOutcome::Full),
        (call("other", 9), EnqueueOutcome::FingerprintMismatch),
        (unmanned(), EnqueueOutcome::NoWorker),
    ] {
        assert_eq!(store.backend().enqueue(refused.clone()).await.expect("it is there"), answer);
        in_doubt(&store, &proxy, refused).await;
    }
}

/// What is only looked up can't be stored by any copy.
#[tokio::test]
async fn a_look_is_answered_whatever_may_come() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    store.backend().enqueue(call("print", 9)).await.expect("it is there");
    for (print, answer) in
        [("", EnqueueOutcome::Full), ("other", EnqueueOutcome::FingerprintMismatch)]
    {
        let look = EnqueueCommand {
            envelope: Bytes::new(),
            limits: StorageLimits::uniform(0),
            ..call(print, 0)
        };
        proxy.cut(1);
        assert_eq!(store.backend().enqueue(look).await.expect("it is there"), answer);
        assert_eq!(proxy.cuts_left(), 0);
    }
}

fn queue(store: &Store) -> Queue<u32> {
    store.queue("numbers").capacity(1)
}

#[tokio::test]
async fn a_push_of_which_a_copy_may_come_is_not_told_that_it_was_refused() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    let first = queue(&store).push(&1).unique("u").await.expect("it is there").into_id();
    let again = async || store.queue("numbers").push(&2).unique("u").await;
    assert_eq!(again().await.expect("it is there"), PushedTask::Duplicate(first));
    let full = async || queue(&store).push(&2).await;
    assert!(matches!(full().await, Err(PushError::Full)));
    for refused in [true, false] {
        proxy.cut(1);
        match if refused { full().await } else { again().await } {
            Err(PushError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Timeout),
            other => panic!("{other:?}"),
        }
        assert_eq!(proxy.cuts_left(), 0);
    }
}

/// The store knows a process's last 4096 pushes. One that is refused is in the place of one long before it, whose copy
/// may come yet.
#[tokio::test]
async fn a_push_that_is_refused_makes_nobody_forget_one_that_was_stored() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let known = async || -> u64 {
        let keys = server.left().await;
        let shard = format!("{{{}}}:zp:", Key::from("numbers").shard());
        let own = |key: &&String| key.contains(&shard);
        let key = keys.iter().find(own).expect("it is there");
        server.ask(&["BITCOUNT", key]).await
    };
    assert_ne!(Key::from("numbers").shard(), Key::from("others").shard(), "one key for both");
    queue(&store).push(&1).unique("u").await.expect("it is there");
    let before = known().await;
    for unique in [false, true] {
        let others = store.queue::<u32>("others");
        join_all((0..4095).map(|n| others.push(&n).into_future())).await;
        let refused = if unique {
            store.queue("numbers").push(&2).unique("u").await.map(drop)
        } else {
            queue(&store).push(&2).await.map(drop)
        };
        assert!(unique || matches!(refused, Err(PushError::Full)), "{refused:?}");
        assert_eq!(known().await, before, "a number is gone");
    }
}
