//! Requests that run at once under an `Idempotency-Key`, while the server stands still.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{SECOND, cluster::insist, server::Server, usable};
use crate::{
    error::ErrorKind,
    gate::{Begin, Begun, RunLimits},
    key::Key,
    store::{
        JobState, Store,
        backend::{Acquire, Acquired, Caps, Direct, JobId, Mode, Token},
    },
};

const LEASE: Duration = Duration::from_secs(60);

const LIMITS: RunLimits = RunLimits { most: 8, time: LEASE };

fn ask(store: &Store) -> Acquire {
    let (key, me, record) = (Key::custom("x"), Token::new(store.node()), Some("idem".into()));
    Acquire { key, me, mode: Mode::Exclusive, lease: LEASE, wait: None, old_seq: 0, record }
}

/// A request that has its lock, and is about to begin.
pub(super) async fn locked(store: &Store) -> Direct {
    let call = ask(store);
    let answer = insist(async || store.backend().acquire(call.clone()).await).await;
    assert!(matches!(answer, Acquired::Held { .. }), "{answer:?}");
    let Acquire { key, me, .. } = call;
    let (id, record, life) = (JobId::new(&key), "idem".into(), 600 * SECOND);
    let (mode, owner, print) = (Mode::Exclusive, String::new(), None);
    Direct {
        key,
        me,
        mode,
        record,
        id,
        owner,
        life,
        lease: LEASE,
        again: false,
        caps: Caps::NONE,
        print,
    }
}

async fn begun(store: &Store, call: &Direct) -> Begun {
    match Begun::begin(store, call.clone(), LIMITS).await.expect("it is there") {
        Begin::Begun(begun) => begun,
        Begin::Taken | Begin::Lost | Begin::Full | Begin::TooManyKeys(_) => {
            panic!("it is the first, and has its lock")
        }
    }
}

/// So many calls without an answer that nothing is sent any more.
async fn opens_the_breaker(store: &Store) {
    let locks = (0..8).map(|n| store.lock(format!("{n}")).acquire());
    for outcome in join_all(locks.map(IntoFuture::into_future)).await {
        assert!(outcome.is_err(), "the server stands still");
    }
}

/// It answers again, and what became of a request whose lock is given back is told to its retry.
async fn retried(
    server: &Server,
    store: &Store,
    call: &Direct,
    wanted: impl Fn(&Acquired) -> bool,
) {
    server.thaw();
    usable(store).await;
    let other = server.patient_store().await;
    let (key, me) = (call.key.clone(), call.me.clone());
    other.backend().release(key, me, Mode::Exclusive).await.expect("it is there");
    let since = Instant::now();
    loop {
        let told = other.backend().acquire(ask(&other)).await.expect("it is there");
        if wanted(&told) {
            return;
        }
        assert!(since.elapsed() < 20 * SECOND, "{told:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn runs(told: &Acquired) -> bool {
    matches!(told, Acquired::Held { .. })
}

/// The call lies in a connection that is left, and is run when the server wakes.
#[tokio::test]
async fn one_that_got_no_answer_is_forgotten_when_it_has_run() {
    let server = Server::start().await;
    let store = server.store().await;
    let call = locked(&store).await;
    server.freeze();
    let begin = Begun::begin(&store, call.clone(), LIMITS);
    let (begin, ()) = tokio::join!(begin, opens_the_breaker(&store));
    let error = begin.err().expect("the server stands still");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    retried(&server, &store, &call, runs).await;
}

#[tokio::test]
async fn one_that_failed_meanwhile_is_forgotten() {
    let server = Server::start().await;
    let store = server.store().await;
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    server.freeze();
    opens_the_breaker(&store).await;
    begun.forget().await;
    retried(&server, &store, &call, runs).await;
}

#[tokio::test]
async fn what_one_was_answered_meanwhile_is_kept() {
    let server = Server::start().await;
    let store = server.store().await;
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    server.freeze();
    opens_the_breaker(&store).await;
    begun.keep(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    retried(&server, &store, &call, |told| *told == Acquired::Known).await;
    assert!(store.shutdown(20 * SECOND).await, "it waits for that");
    let job = store.backend().job(call.id.clone()).await.expect("it is there").expect("it is kept");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}
