//! `PolicyFollower`: the policies that operators have changed, as this process applies them.
//!
//! A task reads them when it starts, whenever another process announces a change or messages may
//! have been missed, and at the latest after [`READ_INTERVAL`]; each second if the store receives
//! no messages. Until the first read the policies of the code apply. While the store is
//! unavailable, or if its document cannot be parsed, the last known changes apply.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{RateLimitEngine, check_request::CheckRequest, refusal_cache::add_capped};
use crate::{
    durations::MAX_DURATION,
    rate_limit::changed_policies::ChangedPolicies,
    store::{Store, StoredPolicyChanges, WeakStore},
};

/// Longest time between two reads.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Time between two reads while the store is unavailable, or if it receives no messages.
const SHORT_INTERVAL: Duration = Duration::from_secs(1);

/// Changes that this process knows.
#[derive(Default)]
pub(super) struct PolicyFollower {
    /// True if any policy is changed: all that a request reads otherwise.
    has_changes: AtomicBool,
    changed: Mutex<Arc<ChangedPolicies>>,
    running: AtomicBool,
}

impl RateLimitEngine {
    /// Replaces the policies of the request by changed ones.
    pub(in crate::rate_limit) fn apply_policy_changes(&self, request: &mut CheckRequest) {
        if !self.follower.has_changes.load(Ordering::Relaxed) {
            return;
        }
        let changed = Arc::clone(&self.follower.changed.lock());
        for check in &mut request.checks {
            if let Some(change) = changed.policies.get(check.policy.name()) {
                check.policy = Arc::new(check.policy.changed_by(change));
                check.quota = check.policy.quota();
            }
        }
    }

    /// Starts the task if it is not running.
    pub(in crate::rate_limit) fn ensure_policy_follower(self: &Arc<Self>, store: &Store) {
        let running = &self.follower.running;
        if running.load(Ordering::Relaxed) || running.swap(true, Ordering::AcqRel) {
            return;
        }
        // The task would do it later: operators see the policy from now on.
        store.ensure_listening();
        let guard = MarkFollowerEndedOnDrop(Arc::downgrade(self));
        store.spawn_long_running(follow_policy_changes(guard, store.downgrade()));
    }

    /// Applies a document that was read. One that cannot be parsed is ignored as a whole.
    async fn follow_document(self: &Arc<Self>, store: &Store, stored: &StoredPolicyChanges) {
        if self.follower.changed.lock().version == stored.version {
            return;
        }
        match ChangedPolicies::from_stored(stored) {
            Ok(changed) => {
                let has_changes = !changed.policies.is_empty();
                store.counters().policies().set_changed(changed.replaced_names());
                *self.follower.changed.lock() = Arc::new(changed);
                self.follower.has_changes.store(has_changes, Ordering::Relaxed);
                // Refusals of the old quota may outlast their reason, and its units are of no
                // use: both are kept by quota.
                self.invalidate_all_refusals();
                self.return_idle_leases(store, add_capped(Instant::now(), MAX_DURATION)).await;
            }
            Err(error) => crate::throttle::throttled!(
                warn,
                version = stored.version, %error,
                "the changed policies cannot be read, so the last known ones apply: was the \
                 document written by a newer version?"
            ),
        }
    }
}

/// Marks the task as ended when dropped, even if the runtime has ended; the next check starts
/// another one.
struct MarkFollowerEndedOnDrop(Weak<RateLimitEngine>);

impl Drop for MarkFollowerEndedOnDrop {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.follower.running.store(false, Ordering::Release);
        }
    }
}

async fn follow_policy_changes(guard: MarkFollowerEndedOnDrop, store: WeakStore) {
    loop {
        let Some((engine, store_handle)) = guard.0.upgrade().zip(store.upgrade()) else { return };
        // Subscribed before the read, so that no change is missed between the two.
        let announced = store_handle.wakeups().policy_changes();
        let wait = match store_handle.backend().read_policy_changes().await {
            Ok(stored) => {
                engine.follow_document(&store_handle, &stored).await;
                match store_handle.backend().receives_messages() {
                    true => READ_INTERVAL,
                    false => SHORT_INTERVAL,
                }
            }
            Err(_) => SHORT_INTERVAL,
        };
        drop((engine, store_handle));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = announced.notified() => {}
        }
    }
}
