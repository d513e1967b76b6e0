//! Several locks by one call, on a real server and through a proxy that loses replies.

use futures_util::FutureExt as _;

use super::{GIVEN_BACK, SECOND, proxy::Proxy, server::Server};
use crate::{
    key::Key,
    lock::{AcquireError, ReleaseStatus},
    store::{AcquireCommand, AcquireReply, GrantAttempt, LockMode, Store},
};

const KEYS: [&str; 3] = ["a", "b", "c"];

fn calls(store: &Store) -> Vec<AcquireCommand> {
    let call = |key| {
        GrantAttempt::new(store, &Key::custom(key), LockMode::Exclusive)
            .try_acquire_command(10 * SECOND)
    };
    KEYS.map(call).into()
}

/// As another process of the same namespace.
async fn all_are_free(store: &Store) {
    assert!(store.shutdown(10 * SECOND).await, "something was not given back");
    for key in KEYS {
        let guard = store.lock(key).acquire().await.unwrap_or_else(|why| panic!("{key}: {why:?}"));
        guard.release().await;
    }
}

#[tokio::test]
async fn those_that_are_free_are_taken_by_one_call() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    drop(store.locks(KEYS).acquire().await.unwrap());
    store.shutdown(GIVEN_BACK).await;
    for mode in [LockMode::Exclusive, LockMode::Shared, LockMode::Permits(2)] {
        let before = server.calls().await;
        let request = match mode {
            LockMode::Exclusive => store.locks(KEYS),
            LockMode::Shared => store.locks(KEYS).shared(),
            LockMode::Permits(most) => store.locks(KEYS).permits(most),
        };
        let set = request.acquire().await.unwrap();
        assert_eq!(server.calls().await - before, 1, "{mode:?}");
        let fences = set.fences();
        assert_eq!(fences.len(), 3);
        assert!(fences.iter().all(|(_, fence)| *fence > 0), "{fences:?}");
        let other = server.patient_store().await;
        for key in KEYS {
            let busy = other.lock(key).acquire().await;
            assert!(matches!(busy, Err(AcquireError::Busy(_))), "{key} {mode:?}: {busy:?}");
        }
        assert_eq!(set.release().await, ReleaseStatus::Released);
        let (_, later) = other.locks(KEYS).acquire().await.unwrap().fences().swap_remove(0);
        assert!(later > fences[0].1);
        other.shutdown(GIVEN_BACK).await;
    }
    assert_eq!(server.left().await, [""; 0]);
}

/// Whichever of them it is that somebody has, or waits for.
#[tokio::test]
async fn where_one_is_not_free_the_call_takes_none() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    for busy in KEYS {
        let held = other.lock(busy).acquire().await.unwrap();
        let taken = store.backend().acquire_all(&calls(&store)).await.unwrap();
        assert_eq!(taken, None);
        let keys: Vec<String> = server.ask(&["KEYS", "*}:h:*"]).await;
        assert_eq!(keys.len(), 1, "{keys:?}");
        let outcome = store.locks(KEYS).acquire().await;
        assert!(matches!(outcome, Err(AcquireError::Busy(_))), "{outcome:?}");
        held.release().await;
    }
    all_are_free(&store).await;
}

/// What stands in a line is not passed.
#[tokio::test]
async fn who_waits_for_one_of_them_comes_first() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    let held = other.lock("b").acquire().await.unwrap();
    let asked = GrantAttempt::new(&other, &Key::custom("b"), LockMode::Exclusive)
        .try_acquire_command(10 * SECOND);
    let waits = AcquireCommand { max_wait: Some(10 * SECOND), ..asked };
    let joined = other.backend().acquire(waits.clone()).await.unwrap();
    assert!(matches!(joined, AcquireReply::Busy { has_joined: true, .. }), "{joined:?}");
    held.release().await;
    assert_eq!(store.backend().acquire_all(&calls(&store)).await.unwrap(), None);
    let granted = other.backend().acquire(waits.clone()).await.unwrap();
    assert!(matches!(granted, AcquireReply::Granted { .. }), "{granted:?}");
    other.backend().release(waits.key, waits.token, waits.mode).await.unwrap();
    all_are_free(&store).await;
}

/// As after a lost answer, or when it is sent twice: what it took the first time is not in its own way.
#[tokio::test]
async fn it_may_run_twice() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let calls = calls(&store);
    let mut last = [0; KEYS.len()];
    for _ in 0..3 {
        let taken = store.backend().acquire_all(&calls).await.unwrap().expect("they are free");
        for (held, last) in taken.into_iter().zip(&mut last) {
            let AcquireReply::Granted { fence, .. } = held else { panic!("{held:?}") };
            assert!(fence > *last, "{fence} after {last}");
            *last = fence;
        }
    }
    // Not where one of them went to somebody else meanwhile: then it takes none, and touches none. It may be a copy that
    // comes late, when what is left of the first one has holders of its own.
    let [first, ..] = &calls[..] else { panic!("three") };
    store.backend().release(first.key.clone(), first.token.clone(), first.mode).await.unwrap();
    let other = server.patient_store().await;
    let held = other.lock("a").acquire().await.unwrap();
    assert_eq!(store.backend().acquire_all(&calls).await.unwrap(), None);
    for call in &calls[1..] {
        let taken = other.lock(call.key.clone()).acquire().await;
        assert!(matches!(taken, Err(AcquireError::Busy(_))), "{taken:?}");
        store.backend().release(call.key.clone(), call.token.clone(), call.mode).await.unwrap();
    }
    held.release().await;
    all_are_free(&store).await;
}

/// The copy that is answered finds that one of them has gone to somebody else since the first one took it: what that has
/// of the others nobody was told of, and so it is undone.
#[tokio::test]
async fn what_a_copy_has_left_is_undone_by_whoever_sent_it() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (store, other) = (proxy.patient_store().await, server.patient_store().await);
    let lease = 60 * SECOND;
    let mut attempts =
        KEYS.map(|key| GrantAttempt::new(&store, &Key::custom(key), LockMode::Exclusive));
    let calls: Vec<_> = attempts.iter().map(|attempt| attempt.try_acquire_command(lease)).collect();
    let held = std::sync::Mutex::new(None);
    let both = async || {
        let backend = store.backend();
        assert!(backend.acquire_all(&calls).await?.is_some());
        let AcquireCommand { key, token: me, mode, .. } = calls[0].clone();
        backend.release(key, me, mode).await?;
        *held.lock().unwrap() = Some(other.lock("a").acquire().await.expect("it is free"));
        // As where the first of two copies was not answered.
        proxy.cut(1);
        store.lock("elsewhere").acquire().await.expect("it is sent again").release().await;
        backend.acquire_all(&calls).await
    };
    let granted = GrantAttempt::send_all(&mut attempts, lease, both).await.unwrap();
    assert_eq!(granted, None);
    attempts.into_iter().for_each(GrantAttempt::mark_refused);
    let waits = other.locks(["b", "c"]).wait(20 * SECOND).acquire().await;
    waits.expect("given back long before the lease of a minute ends").release().await;
}

/// The call is sent again, and finds what it has taken itself.
#[tokio::test]
async fn a_lost_reply_neither_blocks_nor_leaves_anything() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    for cuts in [1, 2, 3] {
        drop(store.locks(KEYS).acquire().await.unwrap());
        assert!(store.shutdown(10 * SECOND).await);
        proxy.cut(cuts);
        let set = store.locks(KEYS).acquire().await.expect("no self-block");
        assert_eq!(set.release().await, ReleaseStatus::Released);
    }
    all_are_free(&store).await;
}

/// What was taken by a call that nobody hears the answer of is given back long before its lease ends: the
/// undo is said until it must have come behind it.
#[tokio::test]
async fn a_call_that_arrives_after_its_undo_leaves_nothing_beyond_its_lease() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    drop(store.locks(KEYS).acquire().await.unwrap());
    assert!(store.shutdown(10 * SECOND).await);
    proxy.hole(true);
    let mut future = Box::pin(store.locks(KEYS).lease(60 * SECOND).acquire());
    assert!((&mut future).now_or_never().is_none());
    drop(future);
    proxy.hole(false);
    let other = server.patient_store().await;
    let set = other.locks(KEYS).wait(20 * SECOND).acquire().await;
    set.expect("given back before the lease of a minute ends").release().await;
}
