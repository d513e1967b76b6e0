//! `TestLockGuard`: a lock that a test holds.

use std::{ops::Deref, sync::Arc};

use crate::{
    lock::LockGuard,
    store::{MemoryBackend, layer_request_count},
};

/// Lock that a test holds until this guard is dropped. Made by
/// [`TestKit::hold_lock`](super::TestKit::hold_lock); it dereferences to the [`LockGuard`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct TestLockGuard {
    guard: LockGuard,
    memory: Arc<MemoryBackend>,
    /// Requests of this thread that had met a layer before.
    earlier_requests: u64,
}

impl TestLockGuard {
    pub(super) fn new(guard: LockGuard, memory: Arc<MemoryBackend>) -> Self {
        Self { guard, memory, earlier_requests: layer_request_count() }
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
    ///
    /// Warns also if requests of this thread have met layers meanwhile, and none with this store.
    fn drop(&mut self) {
        if !self.memory.has_met_layer() && layer_request_count() != self.earlier_requests {
            tracing::warn!(
                held = %self.guard.key(),
                "TestKit::hold_lock has held a lock of the kit's store, and the layers have another \
                 one; give the application the store of the kit, `kit.store()`"
            );
        }
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
        store::{CapturedLog, Store},
        testing::TestKit,
    };

    #[tokio::test]
    async fn lock_of_another_store_is_warned_of() {
        const WARNING: &str = "give the application the store of the kit";
        let (log, _guard) = CapturedLog::start_capture();
        let kit = TestKit::new();
        let send = |store: &Store| {
            let layer = LockLayer::<()>::by_header("order").store(store);
            let mut request = FakeGateRequest::new("POST");
            request.headers.push(("order", "7"));
            drop(layer.inspect(&mut request));
        };
        let other = Store::memory();
        let hold = || kit.hold_lock(Key::header("order", b"7"));
        send(&other);
        drop(hold().await.expect("it is free"));
        assert!(!log.text().contains(WARNING), "no request while it was held: {}", log.text());

        let held = hold().await.expect("it is free");
        send(&other);
        drop(held);
        assert_eq!(log.text().matches(WARNING).count(), 1, "{}", log.text());

        let held = hold().await.expect("it is free");
        send(&other);
        send(kit.store());
        drop(held);
        assert_eq!(log.text().matches(WARNING).count(), 1, "{}", log.text());
    }

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
