//! Lock sets acquired by one call, on a real server and through a proxy that loses replies.

use futures_util::FutureExt as _;

use super::{RELEASE_LIMIT, SECOND, lossy_proxy::LossyProxy, server_process::ServerProcess};
use crate::{
    key::Key,
    lock::{AcquireError, ReleaseStatus},
    store::{AcquireCommand, AcquireReply, GrantAttempt, LockMode, Store},
};

const LOCK_NAMES: [&str; 3] = ["a", "b", "c"];

fn acquire_commands(store: &Store) -> Vec<AcquireCommand> {
    let call = |key| {
        GrantAttempt::new(store, &Key::custom(key), LockMode::Exclusive)
            .try_acquire_command(10 * SECOND)
    };
    LOCK_NAMES.map(call).into()
}

/// Asserts that the store has released everything, and that each lock is free.
async fn assert_all_are_free(store: &Store) {
    assert!(store.shutdown(10 * SECOND).await, "a lock or a queue entry is left");
    for key in LOCK_NAMES {
        let guard = store.lock(key).acquire().await.unwrap_or_else(|why| panic!("{key}: {why:?}"));
        guard.release().await;
    }
}

#[tokio::test]
async fn free_locks_are_acquired_in_one_call() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    drop(store.locks(LOCK_NAMES).acquire().await.unwrap());
    store.shutdown(RELEASE_LIMIT).await;
    for mode in [LockMode::Exclusive, LockMode::Shared, LockMode::Permits(2)] {
        let before = server.count_script_calls().await;
        let request = match mode {
            LockMode::Exclusive => store.locks(LOCK_NAMES),
            LockMode::Shared => store.locks(LOCK_NAMES).shared(),
            LockMode::Permits(permits) => store.locks(LOCK_NAMES).permits(permits),
        };
        let set = request.acquire().await.unwrap();
        assert_eq!(server.count_script_calls().await - before, 1, "{mode:?}");
        let fences = set.fences();
        assert_eq!(fences.len(), 3);
        assert!(fences.iter().all(|(_, fence)| *fence > 0), "{fences:?}");
        let other = server.store_with_long_timeout().await;
        for key in LOCK_NAMES {
            let busy = other.lock(key).acquire().await;
            assert!(matches!(busy, Err(AcquireError::Busy(_))), "{key} {mode:?}: {busy:?}");
        }
        assert_eq!(set.release().await, ReleaseStatus::Released);
        let (_, later) = other.locks(LOCK_NAMES).acquire().await.unwrap().fences().swap_remove(0);
        assert!(later > fences[0].1);
        other.shutdown(RELEASE_LIMIT).await;
    }
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// The held lock is each one of the set in turn.
#[tokio::test]
async fn one_busy_lock_makes_acquire_all_take_none() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    for busy in LOCK_NAMES {
        let held = other.lock(busy).acquire().await.unwrap();
        let acquired = store.backend().acquire_all(&acquire_commands(&store)).await.unwrap();
        assert_eq!(acquired, None);
        let keys: Vec<String> = server.query(&["KEYS", "*}:h:*"]).await;
        assert_eq!(keys.len(), 1, "{keys:?}");
        let outcome = store.locks(LOCK_NAMES).acquire().await;
        assert!(matches!(outcome, Err(AcquireError::Busy(_))), "{outcome:?}");
        held.release().await;
    }
    assert_all_are_free(&store).await;
}

/// A lock with a queue entry is not free, even while it has no holder.
#[tokio::test]
async fn waiter_of_one_lock_precedes_acquire_all() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let held = other.lock("b").acquire().await.unwrap();
    let command = GrantAttempt::new(&other, &Key::custom("b"), LockMode::Exclusive)
        .try_acquire_command(10 * SECOND);
    let wait_command = AcquireCommand { max_wait: Some(10 * SECOND), ..command };
    let joined = other.backend().acquire(wait_command.clone()).await.unwrap();
    assert!(matches!(joined, AcquireReply::Busy { has_joined: true, .. }), "{joined:?}");
    held.release().await;
    assert_eq!(store.backend().acquire_all(&acquire_commands(&store)).await.unwrap(), None);
    let granted = other.backend().acquire(wait_command.clone()).await.unwrap();
    assert!(matches!(granted, AcquireReply::Granted { .. }), "{granted:?}");
    other.backend().release(wait_command.key, wait_command.token, wait_command.mode).await.unwrap();
    assert_all_are_free(&store).await;
}

/// After a lost reply or a duplicate, the grants of the first copy do not block the second.
#[tokio::test]
async fn repeated_acquire_all_does_not_block_itself() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let calls = acquire_commands(&store);
    let mut last = [0; LOCK_NAMES.len()];
    for _ in 0..3 {
        let acquired = store.backend().acquire_all(&calls).await.unwrap().expect("they are free");
        for (held, last) in acquired.into_iter().zip(&mut last) {
            let AcquireReply::Granted { fence, .. } = held else { panic!("{held:?}") };
            assert!(fence > *last, "{fence} after {last}");
            *last = fence;
        }
    }
    // If one of the locks has another holder meanwhile, the repeated call takes none and changes
    // none. It may be a late copy, while the other locks of the first copy are in use.
    let [first, ..] = &calls[..] else { panic!("three") };
    store.backend().release(first.key.clone(), first.token.clone(), first.mode).await.unwrap();
    let other = server.store_with_long_timeout().await;
    let held = other.lock("a").acquire().await.unwrap();
    assert_eq!(store.backend().acquire_all(&calls).await.unwrap(), None);
    for call in &calls[1..] {
        let acquired = other.lock(call.key.clone()).acquire().await;
        assert!(matches!(acquired, Err(AcquireError::Busy(_))), "{acquired:?}");
        store.backend().release(call.key.clone(), call.token.clone(), call.mode).await.unwrap();
    }
    held.release().await;
    assert_all_are_free(&store).await;
}

/// The reply to the first copy is lost. The second copy finds one of the locks with another holder.
/// The caller knows of no grant, so the locks of the first copy are undone.
#[tokio::test]
async fn locks_left_by_unanswered_copy_are_undone() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, other) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let lease = 60 * SECOND;
    let mut attempts =
        LOCK_NAMES.map(|key| GrantAttempt::new(&store, &Key::custom(key), LockMode::Exclusive));
    let calls: Vec<_> = attempts.iter().map(|attempt| attempt.try_acquire_command(lease)).collect();
    let held = std::sync::Mutex::new(None);
    let send_copies = async || {
        let backend = store.backend();
        assert!(backend.acquire_all(&calls).await?.is_some());
        let AcquireCommand { key, token, mode, .. } = calls[0].clone();
        backend.release(key, token, mode).await?;
        *held.lock().unwrap() = Some(other.lock("a").acquire().await.expect("it is free"));
        // Stands for the lost reply to the first copy.
        proxy.lose_next_replies(1);
        store.lock("elsewhere").acquire().await.expect("it is sent again").release().await;
        backend.acquire_all(&calls).await
    };
    let granted = GrantAttempt::send_all(&mut attempts, lease, send_copies).await.unwrap();
    assert_eq!(granted, None);
    attempts.into_iter().for_each(GrantAttempt::mark_refused);
    let acquired = other.locks(["b", "c"]).wait(20 * SECOND).acquire().await;
    acquired.expect("released long before the lease of a minute ends").release().await;
}

/// The call is sent again and finds its own grants.
#[tokio::test]
async fn acquire_all_with_lost_reply_does_not_block_itself() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    for cuts in [1, 2, 3] {
        drop(store.locks(LOCK_NAMES).acquire().await.unwrap());
        assert!(store.shutdown(10 * SECOND).await);
        proxy.lose_next_replies(cuts);
        let set = store.locks(LOCK_NAMES).acquire().await.expect("no self-block");
        assert_eq!(set.release().await, ReleaseStatus::Released);
    }
    assert_all_are_free(&store).await;
}

/// A grant whose reply is not received is released long before its lease ends: the undo is repeated
/// until it must have arrived after the call.
#[tokio::test]
async fn acquire_all_arriving_after_its_undo_is_undone() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    drop(store.locks(LOCK_NAMES).acquire().await.unwrap());
    assert!(store.shutdown(10 * SECOND).await);
    proxy.set_partitioned(true);
    let mut future = Box::pin(store.locks(LOCK_NAMES).lease(60 * SECOND).acquire());
    assert!((&mut future).now_or_never().is_none());
    drop(future);
    proxy.set_partitioned(false);
    let other = server.store_with_long_timeout().await;
    let set = other.locks(LOCK_NAMES).wait(20 * SECOND).acquire().await;
    set.expect("released before the lease of a minute ends").release().await;
}
