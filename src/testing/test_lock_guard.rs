//! `TestLockGuard`: a lock that a test holds.

use std::{ops::Deref, sync::Arc};

use crate::{lock::LockGuard, store::MemoryBackend};

/// Lock that a test holds until this guard is dropped. Made by
/// [`TestKit::hold_lock`](super::TestKit::hold_lock); it dereferences to the [`LockGuard`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct TestLockGuard {
    guard: LockGuard,
    memory: Arc<MemoryBackend>,
}

impl TestLockGuard {
    pub(super) fn new(guard: LockGuard, memory: Arc<MemoryBackend>) -> Self {
        Self { guard, memory }
    }
}

impl Deref for TestLockGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl Drop for TestLockGuard {
    /// Warns if the layers have asked for locks of other forms only: with a wrong name or scope,
    /// the test has held a lock that no request takes. The value is not compared, since a test may
    /// show that the lock of another resource is free.
    fn drop(&mut self) {
        let asked_for = self.memory.other_layer_key_forms(self.guard.key());
        if !asked_for.is_empty() {
            tracing::warn!(
                held = %self.guard.key(),
                ?asked_for,
                "TestKit::hold_lock has held a lock that no LockLayer has asked for; build the key \
                 from the kind, name and scope of the layer, such as \
                 Key::path_param(\"id\", \"7\").scope(\"orders\")"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        gate::{Gate as _, fake_request::FakeGateRequest},
        key::Key,
        lock::LockLayer,
        store::CapturedLog,
        testing::TestKit,
    };

    #[tokio::test]
    async fn lock_of_no_layer_is_warned_of() {
        const WARNING: &str = "a lock that no LockLayer has asked for";
        let (log, _guard) = CapturedLog::start_capture();
        let kit = TestKit::new();
        let hold = async |key: Key| drop(kit.hold_lock(key).await.expect("it is free"));
        hold(Key::header("order", b"7")).await;
        let layer = LockLayer::<()>::by_header("order").scope("orders").store(kit.store());
        let mut request = FakeGateRequest::new("POST");
        request.headers.push(("order", "8"));
        drop(layer.inspect(&mut request));
        hold(Key::header("order", b"7").scope("orders")).await;
        assert!(!log.text().contains(WARNING), "{}", log.text());

        hold(Key::header("order", b"7")).await;
        assert_eq!(log.text().matches(WARNING).count(), 1, "{}", log.text());
        log.assert_contains("h:order:orders:");
    }
}
