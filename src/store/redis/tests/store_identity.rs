//! Identity of a store: its server, database and namespace, and not the namespace alone.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{SECOND, server_process::ServerProcess, wait_until};
use crate::{
    AcquireError, SharedSecret,
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, KeySource, ReplayMarker, RunningJob, Verdict,
        fake_request::FakeGateRequest,
    },
    lock::{HeldLock, HeldLocks, LockGuard, LockLayer, LockTicket},
    store::{JobId, Store},
};

async fn connect_store(server: &ServerProcess, database: u32, namespace: &str) -> Store {
    let url = format!("redis://127.0.0.1:{}", server.port());
    let builder = Store::builder(&url).database(database).namespace(namespace);
    builder.call_timeout(10 * SECOND).connect().await.expect("the URL is right")
}

fn lock_gate(store: &Store) -> LockLayer<()> {
    LockLayer::by(KeySource::function(|()| Some("x".to_owned()))).store(store)
}

async fn enter_gate(gate: &LockLayer<()>, request: &mut FakeGateRequest) -> Verdict<LockTicket> {
    match gate.inspect(request) {
        InitialVerdict::Enter(context) => gate.enter(context).await,
        other => panic!("it has a key: {other:?}"),
    }
}

/// Returns a deferred request that a worker replays under this lock.
fn replayed_request(store: &Store, lock: &LockGuard) -> FakeGateRequest {
    let job = RunningJob {
        id: JobId::new(lock.key()),
        attempt: 1,
        accepted_at: SystemTime::UNIX_EPOCH,
        fence: 1,
    };
    let hold_state = lock.hold_state().expect("it is this process's own");
    let mut request = FakeGateRequest::new("POST");
    request.insert_extension(ReplayMarker::new(job, store, Arc::clone(hold_state)));
    request
}

/// A layer on one store does not share the lock of a run on the other. It acquires its own, and
/// meets the holders there.
async fn assert_separate_stores(one: &Store, other: &Store) {
    let run = one.lock("x").acquire().await.expect("it is free");
    let held = other.lock("x").acquire().await.expect("it is another lock");
    let mut request = replayed_request(one, &run);
    let Verdict::Pass(outer) = enter_gate(&lock_gate(one), &mut request).await else {
        panic!("its own")
    };
    lock_gate(one).annotate_request(&outer, &mut request);
    let verdict = enter_gate(&lock_gate(other), &mut request).await;
    assert!(matches!(verdict, Verdict::Busy(..)), "{verdict:?}");
    let scoped = run.scope(other.lock("x").acquire()).await;
    assert!(matches!(scoped, Err(AcquireError::Busy(_))), "{scoped:?}");
    let secret = SharedSecret::new([7; 32]);
    assert!(run.held_lock().delegation_header(other, &secret).is_none());
    let (_, header_value) = run.held_lock().delegation_header(one, &secret).expect("it is held");
    let mut called = FakeGateRequest::new("POST");
    called.headers = vec![("lockgate-held", header_value.leak())];
    let verdict = enter_gate(&lock_gate(other).trust_delegation(&secret), &mut called).await;
    assert!(matches!(verdict, Verdict::Busy(..)), "{verdict:?}");
    held.release().await;
    let verdict = enter_gate(&lock_gate(other), &mut request).await;
    let Verdict::Pass(ticket) = verdict else { panic!("it is free: {verdict:?}") };
    lock_gate(other).annotate_request(&ticket, &mut request);
    assert_eq!(request.extension::<HeldLocks>().expect("they are shown").len(), 2);
    drop((ticket, outer));
    run.release().await;
    assert!(one.shutdown(20 * SECOND).await && other.shutdown(20 * SECOND).await);
}

/// A layer on one handle shares the lock of a run on the other.
async fn assert_same_store(one: &Store, other: &Store) {
    let run = one.lock("x").acquire().await.expect("it is free");
    let verdict = enter_gate(&lock_gate(other), &mut replayed_request(one, &run)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    let scoped = run.scope(other.lock("x").acquire()).await.expect("it is there");
    assert_eq!(scoped.fence(), run.fence());
    let secret = SharedSecret::new([7; 32]);
    let (_, header_value) = run.held_lock().delegation_header(one, &secret).expect("it is held");
    let mut called = FakeGateRequest::new("POST");
    called.headers = vec![("lockgate-held", header_value.leak())];
    let verdict = enter_gate(&lock_gate(other).trust_delegation(&secret), &mut called).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    drop((verdict, scoped));
    run.release().await;
}

#[tokio::test]
async fn other_server_database_or_namespace_is_another_store() {
    let (server, other) = (ServerProcess::start().await, ServerProcess::start().await);
    let here = connect_store(&server, 0, "test").await;
    assert_separate_stores(&here, &connect_store(&other, 0, "test").await).await;
    assert_separate_stores(&here, &connect_store(&server, 1, "test").await).await;
    assert_separate_stores(&here, &connect_store(&server, 0, "test2").await).await;
    assert_separate_stores(&here, &Store::memory()).await;
    assert_separate_stores(&Store::memory(), &here).await;
}

#[tokio::test]
async fn two_handles_of_one_namespace_share_locks() {
    let server = ServerProcess::start().await;
    for database in [0, 3] {
        let (one, other) = (
            connect_store(&server, database, "test").await,
            connect_store(&server, database, "test").await,
        );
        assert_same_store(&one, &other).await;
        assert_same_store(&other, &one).await;
    }
    #[cfg(feature = "quorum")]
    {
        let one = connect_store(&server, 0, "test").await;
        let twice = Store::quorum([one, connect_store(&server, 0, "test").await, Store::memory()]);
        assert!(twice.is_err(), "one server would vote twice");
    }
}

/// Handles that could not connect when they were made.
#[tokio::test]
async fn unconnected_handle_connects_to_compare_identity() {
    let mut server = ServerProcess::start().await;
    let mut unconnected = Vec::new();
    server.kill();
    for _ in 0..3 {
        let builder = Store::builder(&server.url()).call_timeout(Duration::from_secs(1));
        unconnected.push(builder.connect().await.expect("an outage is no config error"));
    }
    let [first, second, third] = &unconnected[..] else { panic!("three were made") };
    let request = &mut FakeGateRequest::new("POST");
    let memory_store = Store::memory();
    let guard = memory_store.lock("x").acquire().await.expect("it is free");
    let verdict = guard.scope(enter_gate(&lock_gate(first), request)).await;
    assert!(matches!(verdict, Verdict::Answer(ref reply) if reply.status == 503), "{verdict:?}");
    server.restart().await;
    let one = server.store_with_long_timeout().await;
    let run = one.lock("x").acquire().await.expect("it is free");
    for other in [first, second, third] {
        assert!(one.is_same_as(other).is_none(), "it has not connected");
    }
    let verdict = enter_gate(&lock_gate(first), &mut replayed_request(&one, &run)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    let scoped = run.scope(second.lock("x").acquire()).await.expect("it is there");
    assert_eq!(scoped.fence(), run.fence());
    let both = run.scope(third.locks(["x", "y"]).acquire()).await.expect("one is there");
    assert_eq!(both.held_locks().get("x").and_then(HeldLock::fence), Some(run.fence()));
}

/// The server was flushed, and another process has connected since. The lock is shared with the run
/// until its loss is detected.
#[tokio::test]
async fn run_shares_its_lock_after_flush() {
    let server = ServerProcess::start().await;
    let one = connect_store(&server, 0, "test").await;
    let other = connect_store(&server, 0, "test").await;
    // The lease is not renewed meanwhile, so its loss is not detected.
    let request = one.lock("x").lease(60 * SECOND).max_hold(600 * SECOND);
    let run = request.acquire().await.expect("it is free");
    server.command(&["FLUSHALL"]).await;
    let before = other.backend().identities();
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    wait_until("the other handle to have met the new data", async || {
        let _ = other.ping().await;
        other.backend().identities().len() > before.len()
    })
    .await;
    assert_eq!(one.is_same_as(&other), Some(true));
    let new_handle = connect_store(&server, 0, "test").await;
    assert_eq!(other.is_same_as(&new_handle), Some(true), "which has met the new data alone");
    let verdict = enter_gate(&lock_gate(&other), &mut replayed_request(&one, &run)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    assert_eq!(run.scope(other.lock("x").acquire()).await.expect("its own").fence(), run.fence());
}
