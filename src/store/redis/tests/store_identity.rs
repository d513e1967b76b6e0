//! Which locks are in one store: by its server, database and namespace, and not by the namespace alone.

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

async fn enter_gate(gate: &LockLayer<()>, view: &mut FakeGateRequest) -> Verdict<LockTicket> {
    match gate.inspect(view) {
        InitialVerdict::Enter(facts) => gate.enter(facts).await,
        other => panic!("it has a key: {other:?}"),
    }
}

/// A deferred request that its worker sends again under this lock.
fn replayed_request(store: &Store, lock: &LockGuard) -> FakeGateRequest {
    let deferred = RunningJob {
        id: JobId::new(lock.key()),
        attempt: 1,
        accepted_at: SystemTime::UNIX_EPOCH,
        fence: 1,
    };
    let facts = lock.hold_state().expect("it is this process's own");
    let mut view = FakeGateRequest::new("POST");
    view.insert_extension(ReplayMarker::new(deferred, store, Arc::clone(facts)));
    view
}

/// What a run on one store has, a layer on the other takes for itself: it meets what others have there.
async fn assert_separate_stores(one: &Store, other: &Store) {
    let run = one.lock("x").acquire().await.expect("it is free");
    let held = other.lock("x").acquire().await.expect("it is another lock");
    let mut view = replayed_request(one, &run);
    let Verdict::Pass(outer) = enter_gate(&lock_gate(one), &mut view).await else {
        panic!("its own")
    };
    lock_gate(one).annotate_request(&outer, &mut view);
    let verdict = enter_gate(&lock_gate(other), &mut view).await;
    assert!(matches!(verdict, Verdict::Busy(..)), "{verdict:?}");
    let within = run.scope(other.lock("x").acquire()).await;
    assert!(matches!(within, Err(AcquireError::Busy(_))), "{within:?}");
    let secret = SharedSecret::new([7; 32]);
    assert!(run.held_lock().delegation_header(other, &secret).is_none());
    let (_, word) = run.held_lock().delegation_header(one, &secret).expect("it is held");
    let mut called = FakeGateRequest::new("POST");
    called.headers = vec![("lockgate-held", word.leak())];
    let verdict = enter_gate(&lock_gate(other).trust_delegation(&secret), &mut called).await;
    assert!(matches!(verdict, Verdict::Busy(..)), "{verdict:?}");
    held.release().await;
    let verdict = enter_gate(&lock_gate(other), &mut view).await;
    let Verdict::Pass(ticket) = verdict else { panic!("it is free: {verdict:?}") };
    lock_gate(other).annotate_request(&ticket, &mut view);
    assert_eq!(view.extension::<HeldLocks>().expect("they are shown").len(), 2);
    drop((ticket, outer));
    run.release().await;
    assert!(one.shutdown(20 * SECOND).await && other.shutdown(20 * SECOND).await);
}

/// What a request on one handle has, a layer on the other has as well.
async fn assert_same_store(one: &Store, other: &Store) {
    let run = one.lock("x").acquire().await.expect("it is free");
    let verdict = enter_gate(&lock_gate(other), &mut replayed_request(one, &run)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    let within = run.scope(other.lock("x").acquire()).await.expect("it is there");
    assert_eq!(within.fence(), run.fence());
    let secret = SharedSecret::new([7; 32]);
    let (_, word) = run.held_lock().delegation_header(one, &secret).expect("it is held");
    let mut called = FakeGateRequest::new("POST");
    called.headers = vec![("lockgate-held", word.leak())];
    let verdict = enter_gate(&lock_gate(other).trust_delegation(&secret), &mut called).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    drop((verdict, within));
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

/// A handle that could not connect when it was made.
#[tokio::test]
async fn unconnected_handle_connects_to_compare_identity() {
    let mut server = ServerProcess::start().await;
    let mut lazy = Vec::new();
    server.kill();
    for _ in 0..3 {
        let builder = Store::builder(&server.url()).call_timeout(Duration::from_secs(1));
        lazy.push(builder.connect().await.expect("that it is away is no mistake"));
    }
    let [first, second, third] = &lazy[..] else { panic!("three were made") };
    let view = &mut FakeGateRequest::new("POST");
    let away = Store::memory();
    let guard = away.lock("x").acquire().await.expect("it is free");
    let verdict = guard.scope(enter_gate(&lock_gate(first), view)).await;
    assert!(matches!(verdict, Verdict::Answer(ref reply) if reply.status == 503), "{verdict:?}");
    server.restart().await;
    let one = server.store_with_long_timeout().await;
    let run = one.lock("x").acquire().await.expect("it is free");
    for other in [first, second, third] {
        assert!(one.is_same_as(other).is_none(), "it has not connected");
    }
    let verdict = enter_gate(&lock_gate(first), &mut replayed_request(&one, &run)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    let within = run.scope(second.lock("x").acquire()).await.expect("it is there");
    assert_eq!(within.fence(), run.fence());
    let both = run.scope(third.locks(["x", "y"]).acquire()).await.expect("one is there");
    assert_eq!(both.held_locks().get("x").and_then(HeldLock::fence), Some(run.fence()));
}

/// It was flushed, and another process has connected since. Its own lock is lent to a run until it is found lost.
#[tokio::test]
async fn run_shares_its_lock_after_flush() {
    let server = ServerProcess::start().await;
    let one = connect_store(&server, 0, "test").await;
    let other = connect_store(&server, 0, "test").await;
    // Not renewed meanwhile, and so not found lost.
    let asked = one.lock("x").lease(60 * SECOND).max_hold(600 * SECOND);
    let run = asked.acquire().await.expect("it is free");
    server.command(&["FLUSHALL"]).await;
    let before = other.backend().identities();
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    wait_until("the other handle to have met the new data", async || {
        let _ = other.ping().await;
        other.backend().identities().len() > before.len()
    })
    .await;
    assert_eq!(one.is_same_as(&other), Some(true));
    let stranger = connect_store(&server, 0, "test").await;
    assert_eq!(other.is_same_as(&stranger), Some(true), "which has met the new data alone");
    let verdict = enter_gate(&lock_gate(&other), &mut replayed_request(&one, &run)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
    assert_eq!(run.scope(other.lock("x").acquire()).await.expect("its own").fence(), run.fence());
}
