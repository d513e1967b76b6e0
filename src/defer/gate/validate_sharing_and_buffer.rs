//! Validation of a `DeferLayer`'s settings, when the layer is put around a service.

use std::sync::{Arc, atomic::Ordering};

use super::defer_layer::{DeferSettings, StorageSettings};
use crate::{
    defer::wiring_registry::{self, WiringRegistry},
    gate::StoreObserver,
    store::{MergeMode, Store},
};

impl<N: ?Sized> DeferSettings<N> {
    /// Validates the layer's settings when it is put around a service, and records its snapshots
    /// and its status path for the checks of workers and servers. Warns about a body limit beyond
    /// the buffer budget.
    ///
    /// # Panics
    ///
    /// Panics if requests of different users could share jobs or responses.
    pub(super) fn validate(&self) {
        self.validate_sharing();
        let status_path = self.status_path.as_deref();
        let has_owners = self.owner.is_some() || !self.snapshot_extractors.identities().is_empty();
        wiring_registry::record_layer(self.snapshot_extractors.names(), status_path, has_owners);
        let StorageSettings { body_limit, head_limit, buffer_budget: budget, .. } = self.storage;
        if body_limit.saturating_add(head_limit) > budget / 2 {
            crate::throttle::throttled!(
                warn,
                layer = "DeferLayer",
                body_limit,
                head_limit,
                budget,
                "body_limit and head_limit together exceed half of buffer_budget, the share of one \
                 client, so requests of that size are never deferred; raise buffer_budget or lower \
                 the limits"
            );
        }
    }

    /// Returns a function that compares the snapshots with the workers of the store of the lock
    /// that a request meets. `None` if that has been done, or if there are no snapshots.
    pub(super) fn store_observer(&self) -> Option<StoreObserver> {
        let carried = self.snapshot_extractors.names();
        if carried.is_empty() || self.is_store_known.load(Ordering::Relaxed) {
            return None;
        }
        let (carried, is_known) = (Arc::clone(carried), Arc::clone(&self.is_store_known));
        Some(Box::new(move |store: &Store| {
            is_known.store(true, Ordering::Relaxed);
            store.extension::<WiringRegistry>().record_layer(&carried);
        }))
    }

    fn validate_sharing(&self) {
        let identity_count = self.snapshot_extractors.identities().len();
        assert!(
            self.owner.is_some() || identity_count < 2,
            "DeferLayer::carry_identity: two snapshots name an identity (.for_user::<U>() does so \
             too), and both may have the same text; name the owner of a request by .owner(..)"
        );
        let is_scoped = self.owner.is_some() || identity_count > 0;
        assert!(
            !(self.shared_by_all && is_scoped),
            "DeferLayer::share_across_owners: contradicts .for_user::<U>(), .owner(..) and \
             .carry_identity::<T>(..), which give requests an owner; remove one or the other"
        );
        let is_safe = is_scoped || self.shared_by_all || self.snapshot_extractors.is_empty();
        let unsafe_setting = self.sharing_setting().filter(|_| !is_safe);
        assert!(
            unsafe_setting.is_none(),
            "DeferLayer::{}: the layer carries a snapshot, and requests have no owner, so users \
             would get each other's jobs and responses; carry the user by .for_user::<U>() or \
             .carry_identity::<T>(..), or name the .owner(..), or set .share_across_owners()",
            unsafe_setting.unwrap_or_default()
        );
    }

    /// Returns the setting by which requests share jobs or responses, if there is one.
    fn sharing_setting(&self) -> Option<&'static str> {
        match self.run.merge_mode {
            Some(MergeMode::Coalesce) => Some("coalesce"),
            Some(MergeMode::Supersede) => Some("supersede"),
            None => self.idempotency.idempotent_direct.then_some("idempotent_direct"),
        }
    }
}
