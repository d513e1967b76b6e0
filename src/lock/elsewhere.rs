//! Locks that another service has for this request.
//!
//! A request under a lock calls another service, whose own `LockLayer` asks for the same lock: without a
//! word about it the second would wait for the first, and the first for the second. The word is a header
//! field that the caller adds to its call and signs with a secret that both services know.
//!
//! It is a hint of how long the caller was sure of its lock when it signed, and no lease: it isn't renewed,
//! and nobody hears of it if the caller loses or gives back the lock before. It names the lock, its fence
//! and its end, and never the token, so whoever reads it can't release anything. Whoever can read it can
//! send it again until it ends: it belongs on connections within the house.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tokio::time::Instant;

use super::held::{Elsewhere, HeldLock};
use crate::{
    gate::{REPLAY_FIELD, View},
    key::{Key, hex},
    store::{Mode, Store},
};

/// The field. Its value is `1;<mode>;<fence>;<end, Unix milliseconds>;<key>;<HMAC-SHA256, hex>`.
const FIELD: &str = "lockgate-held";

/// Most fields of one request that are looked at.
const MOST: usize = 32;

/// Shortest secret, in bytes: as long as the hash it goes into.
const SHORTEST: usize = 32;

/// What two services know, and nobody else, so that one takes the other's word for a lock.
///
/// ```
/// # fn from_the_environment() -> Vec<u8> { vec![7; 32] }
/// use lockgate::SharedSecret;
///
/// let secret = SharedSecret::new(from_the_environment());
/// ```
#[derive(Clone)]
pub struct SharedSecret(Arc<[u8]>);

impl SharedSecret {
    /// At least 32 bytes out of a random source.
    ///
    /// # Panics
    ///
    /// If there are fewer: they could be guessed, and locks walked through.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref();
        assert!(
            secret.len() >= SHORTEST,
            "SharedSecret::new: {} bytes; take {SHORTEST} or more out of a random source",
            secret.len()
        );
        Self(secret.into())
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Over the namespace too, which is not sent: a lock of the same name in another one is another lock.
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    fn mac(&self, store: &Store, text: &str) -> Hmac<Sha256> {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in ["lockgate-held", store.backend().space(), text] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl HeldLock {
    /// Name and value of a header field for calls to a service of ours whose `LockLayer` has this secret
    /// as [`trust`](crate::lock::LockGate::trust): what it does for this request needs no lock of its own.
    /// `None` if the lock is lost, has been given back, was never had, or is not of this store.
    ///
    /// The word is good for as long as the lock is sure now, at most a lease; sign anew for a later
    /// call. Both clocks count, so they should differ by far less than the lease.
    #[must_use]
    pub fn header(&self, store: &Store, secret: &SharedSecret) -> Option<(&'static str, String)> {
        self.header_at(store, secret, SystemTime::now())
    }

    fn header_at(
        &self,
        store: &Store,
        secret: &SharedSecret,
        now: SystemTime,
    ) -> Option<(&'static str, String)> {
        let left = Some(self.remaining()).filter(|left| !left.is_zero())?;
        let (fence, mode) = (self.fence()?, self.mode().filter(|_| self.is_of(store, self.key()))?);
        let end = now.checked_add(left)?.duration_since(UNIX_EPOCH).ok()?.as_millis();
        let text = format!("1;{};{fence};{end};{}", mode.letter(), self.key());
        let mac = secret.mac(store, &text).finalize().into_bytes();
        Some((FIELD, format!("{text};{}", hex(&mac))))
    }
}

/// Fields that were taken out of a request, for layers further in.
#[derive(Clone)]
struct Received {
    /// What it says of locks.
    held: Arc<[String]>,
    /// That it is a run.
    run: Option<Arc<str>>,
    /// The service that says so is one of ours: the run is the handler's to check.
    believed: bool,
}

/// Takes the fields out of the request's header: they are for layers, and a handler that passes on what it
/// gets would pass them on; and who has forged them must not be taken for one of ours further in.
pub(super) fn receive<V: View>(view: &mut V) {
    // Mostly there are none: one look for both.
    if !view.has_any(&[FIELD, REPLAY_FIELD]) {
        return;
    }
    // What a layer further out has received and believed stands.
    let before = view.get::<Received>();
    if before.as_ref().is_some_and(|before| before.believed) && view.header(FIELD).is_empty() {
        return;
    }
    let text = |field: &&[u8]| str::from_utf8(field).ok().map(str::to_owned);
    let held = view.header(FIELD).iter().take(MOST).filter_map(text).collect();
    let run = view.header(REPLAY_FIELD).iter().find_map(text).map(Arc::from);
    view.set_header(FIELD, None);
    view.set_header(REPLAY_FIELD, None);
    view.put(Received { held, run, believed: false });
}

/// Whether somebody says that it is a run who has not been believed yet.
pub(super) fn is_said_to_run<V: View>(view: &V) -> bool {
    view.get::<Received>().is_some_and(|received| received.run.is_some() && !received.believed)
}

/// Whether somebody says so who has been believed.
pub(super) fn is_believed_to_run<V: View>(view: &V) -> bool {
    view.get::<Received>().is_some_and(|received| received.run.is_some() && received.believed)
}

/// Gives the handler back that it is a run, which it has to check: who says so has been believed about a lock.
pub(super) fn give_back<V: View>(view: &mut V) {
    if let Some(mut received) = view.take::<Received>() {
        if let Some(run) = &received.run {
            view.set_header(REPLAY_FIELD, Some(run));
        }
        received.believed = true;
        view.put(received);
    }
}

/// The locks of which one of these secrets says that the caller has them.
pub(super) fn trusted<V: View>(view: &V, store: &Store, secrets: &[SharedSecret]) -> Vec<HeldLock> {
    let now = SystemTime::now();
    let Some(received) = view.get::<Received>() else { return Vec::new() };
    let (mut found, mut forged) = (Vec::new(), false);
    for field in received.held.iter() {
        match of_a_friend(field, store, secrets) {
            Some(text) => found.extend(said(text, store, now)),
            None => forged = true,
        }
    }
    // One line, however many he has sent.
    if forged {
        crate::throttle::throttled!(
            warn,
            node = %store.node(),
            "a word about a lock was not believed: another secret, another namespace, or forged"
        );
    }
    found
}

fn of_a_friend<'a>(field: &'a str, store: &Store, secrets: &[SharedSecret]) -> Option<&'a str> {
    let (text, mac) = field.rsplit_once(';')?;
    let mac = unhex(mac)?;
    // In constant time, each.
    secrets.iter().any(|secret| secret.mac(store, text).verify_slice(&mac).is_ok()).then_some(text)
}

#[cfg(test)]
fn read(field: &str, store: &Store, secrets: &[SharedSecret], now: SystemTime) -> Option<HeldLock> {
    said(of_a_friend(field, store, secrets)?, store, now)
}

fn said(text: &str, store: &Store, now: SystemTime) -> Option<HeldLock> {
    let mut parts = text.splitn(5, ';');
    let mut part = || parts.next();
    let ("1", mode, fence, end, key) = (part()?, part()?, part()?, part()?, part()?) else {
        return None;
    };
    let mode = match mode {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        // All permits are alike to whoever has one.
        "p" => Mode::Permits(1),
        _ => return None,
    };
    let end = UNIX_EPOCH.checked_add(Duration::from_millis(end.parse().ok()?))?;
    let until = Instant::now().checked_add(end.duration_since(now).ok()?)?;
    let (node, fence) = (store.node().as_str().into(), fence.parse().ok()?);
    Some(HeldLock::elsewhere(Key::from_store(key), Elsewhere { node, fence, mode, until }))
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn secret(byte: u8) -> SharedSecret {
        SharedSecret::new([byte; 32])
    }

    /// A lock, another service's store of the same locks, and the word about it.
    async fn signed(now: SystemTime) -> (crate::LockGuard, Store, String) {
        let store = Store::memory();
        let guard = store.lock("a").acquire().await.expect("it is free");
        let (name, word) = guard.held().header_at(&store, &secret(1), now).expect("it is held");
        assert_eq!(name, FIELD);
        assert!(!word.contains(guard.lease().unwrap().me.as_str()));
        (guard, store.as_another_process(), word)
    }

    #[tokio::test(start_paused = true)]
    async fn a_word_is_believed_until_the_caller_would_no_longer_be_sure() {
        let now = SystemTime::now();
        let (guard, other, word) = signed(now).await;
        let believed = |at| read(&word, &other, &[secret(2), secret(1)], at);
        let held = believed(now).expect("it is signed");
        assert_eq!((held.key(), held.fence()), (guard.key(), Some(guard.fence())));
        assert!(held.remaining() <= guard.remaining() && held.remaining() > 9 * SECOND);
        let later = believed(now + 9 * SECOND).expect("it has not ended");
        assert!(later.remaining() <= SECOND && later.loss().is_none());
        assert!(believed(now + 10 * SECOND).is_none());
        tokio::time::sleep(SECOND).await;
        assert!(later.loss().is_some() && later.remaining().is_zero());
        let _ = later.lost().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_else_is_believed() {
        let now = SystemTime::now();
        let (_guard, other, word) = signed(now).await;
        assert!(read(&word, &other, &[secret(1)], now).is_some());
        assert!(read(&word, &other, &[secret(2)], now).is_none(), "another secret");
        assert!(read(&word, &other, &[], now).is_none());
        assert!(read(&word, &Store::memory(), &[secret(1)], now).is_none(), "other locks");
        for n in 0..word.len() {
            let mut forged = word.clone().into_bytes();
            forged[n] ^= 1;
            let forged = String::from_utf8(forged).expect("it is ASCII still");
            assert!(read(&forged, &other, &[secret(1)], now).is_none(), "{forged}");
        }
        for n in 0..word.len() {
            assert!(read(&word[..n], &other, &[secret(1)], now).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_held_is_not_signed() {
        let store = Store::memory();
        let guard = store.lock("a").acquire().await.expect("it is free");
        let held = guard.held();
        assert!(held.header(&store.as_another_process(), &secret(1)).is_none());
        assert!(held.header(&store, &secret(1)).is_some());
        guard.release().await;
        assert!(held.header(&store, &secret(1)).is_none());
        let admitted = HeldLock::admitted(Key::custom("a"));
        assert!(admitted.header(&store, &secret(1)).is_none());
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert!(std::panic::catch_unwind(|| SharedSecret::new([1; 31])).is_err());
        assert_eq!(format!("{:?}", secret(7)), "SharedSecret(..)");
    }
}
