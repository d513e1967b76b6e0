//! Verification of delegations from other services.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn secret(byte: u8) -> SharedSecret {
    SharedSecret::new([byte; 32])
}

fn read_delegation(
    header: &str,
    store: &Store,
    secrets: &[SharedSecret],
    now: SystemTime,
) -> Option<HeldLock> {
    let held = parse_claims(verify_signature(header, secrets)?, now)?;
    (held.is_in_store(store) == Some(true)).then_some(held)
}

/// Acquires a lock. Returns its guard, a store handle of another service, and the signed header.
async fn sign_held_lock(now: SystemTime) -> (crate::LockGuard, Store, String) {
    let store = Store::memory();
    let guard = store.lock("a").acquire().await.expect("it is free");
    let (name, header) =
        guard.held_lock().delegation_header_at(&store, &secret(1), now).expect("it is held");
    assert_eq!(name, DELEGATION_HEADER);
    assert!(!header.contains(guard.lease().unwrap().token.as_str()));
    (guard, store.as_another_process(), header)
}

#[tokio::test(start_paused = true)]
async fn delegation_is_valid_for_the_callers_validity_time() {
    let now = SystemTime::now();
    let (guard, other, header) = sign_held_lock(now).await;
    let delegation_at = |at| read_delegation(&header, &other, &[secret(2), secret(1)], at);
    let held = delegation_at(now).expect("it is signed");
    assert_eq!((held.key(), held.fence()), (guard.key(), Some(guard.fence())));
    assert!(held.remaining() <= guard.remaining() && held.remaining() > 9 * SECOND);
    let later = delegation_at(now + 9 * SECOND).expect("it has not ended");
    assert!(later.remaining() <= SECOND && later.loss().is_none());
    assert!(delegation_at(now + 10 * SECOND).is_none());
    tokio::time::sleep(SECOND).await;
    assert!(later.loss().is_some() && later.remaining().is_zero());
    let _ = later.lost().await;
}

#[tokio::test(start_paused = true)]
async fn forged_or_unrelated_delegation_is_rejected() {
    let now = SystemTime::now();
    let (_guard, other, header) = sign_held_lock(now).await;
    assert!(read_delegation(&header, &other, &[secret(1)], now).is_some());
    assert!(read_delegation(&header, &other, &[secret(2)], now).is_none(), "another secret");
    assert!(read_delegation(&header, &other, &[], now).is_none());
    assert!(read_delegation(&header, &Store::memory(), &[secret(1)], now).is_none(), "other locks");
    for n in 0..header.len() {
        let mut forged = header.clone().into_bytes();
        forged[n] ^= 1;
        let forged = String::from_utf8(forged).expect("it is ASCII still");
        assert!(read_delegation(&forged, &other, &[secret(1)], now).is_none(), "{forged}");
    }
    for n in 0..header.len() {
        assert!(read_delegation(&header[..n], &other, &[secret(1)], now).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_held_lock_is_delegated() {
    let store = Store::memory();
    let guard = store.lock("a").acquire().await.expect("it is free");
    let held = guard.held_lock();
    assert!(held.delegation_header(&Store::memory(), &secret(1)).is_none());
    let other = store.as_another_process();
    assert!(held.delegation_header(&other, &secret(1)).is_some(), "another handle on the store");
    assert!(held.delegation_header(&store, &secret(1)).is_some());
    guard.release().await;
    assert!(held.delegation_header(&store, &secret(1)).is_none());
    let admitted = HeldLock::admitted(Key::custom("a"));
    assert!(admitted.delegation_header(&store, &secret(1)).is_none());
}

/// The mode decides which nested acquires the delegation covers.
#[tokio::test(start_paused = true)]
async fn delegation_carries_the_mode_and_its_permits() {
    let store = Store::memory();
    for (request, mode) in [
        (store.lock("x"), LockMode::Exclusive),
        (store.lock("s").shared(), LockMode::Shared),
        (store.lock("p").permits(10), LockMode::Permits(10)),
    ] {
        let guard = request.acquire().await.expect("it is free");
        let (_, header) =
            guard.held_lock().delegation_header(&store, &secret(1)).expect("it is held");
        let held = read_delegation(&header, &store, &[secret(1)], SystemTime::now())
            .expect("it is signed");
        assert_eq!(held.mode(), Some(mode));
    }
    for malformed in ["", "p", "p0", "p-1", "px", "x1", "z"] {
        assert_eq!(parse_mode(malformed), None, "{malformed}");
    }
}

#[test]
fn short_secret_is_refused() {
    assert!(std::panic::catch_unwind(|| SharedSecret::new([1; 31])).is_err());
    assert_eq!(format!("{:?}", secret(7)), "SharedSecret(..)");
}

#[test]
fn short_secret_is_a_config_error() {
    let error = SharedSecret::try_new([7; 31]).expect_err("too short");
    assert_eq!(error.kind(), crate::ErrorKind::Config);
    assert!(error.to_string().starts_with("SharedSecret::new: needs at least 32"), "{error}");
    assert!(SharedSecret::try_new([7; 32]).is_ok());
}
