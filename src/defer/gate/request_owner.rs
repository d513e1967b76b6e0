//! Owner of a request, which scopes everything that requests of one layer could share.

use super::defer_layer::DeferSettings;
use crate::defer::extension_snapshot::{RequestSnapshots, SavedSnapshots};

impl<N: ?Sized> DeferSettings<N> {
    /// Returns the owner that the application names, otherwise the identity in a carried snapshot.
    /// Empty if there is none.
    pub(super) fn resolve_owner(&self, native: &N, snapshots: &mut RequestSnapshots) -> String {
        let owner = match &self.owner {
            Some(owner) => owner(native),
            None => snapshots.take_identity(),
        };
        owner.unwrap_or_default()
    }

    /// Returns true if a request belongs to an unknown user: it must share neither an idempotency
    /// key nor a merge with others. An `.owner(..)` that returns no owner declares that the request
    /// belongs to no user.
    pub(super) fn lacks_owner(&self, owner: &str, has_user: impl FnOnce() -> bool) -> bool {
        let is_scoped = !owner.is_empty() || self.owner.is_some();
        !is_scoped && !self.shared_by_all && !self.snapshot_extractors.is_empty() && has_user()
    }

    /// Logs that a request to be deferred lacks the user that the layer carries. The request may
    /// have no user; but if none of them has one, the authentication is at the wrong place.
    pub(super) fn warn_missing_user(&self, snapshots: &SavedSnapshots) {
        let identities = self.snapshot_extractors.identities();
        let has_user = |name| snapshots.iter().any(|(saved, _)| saved == name);
        if self.owner.is_some() || identities.iter().any(|identity| has_user(identity.name)) {
            return;
        }
        if let Some(identity) = identities.first() {
            crate::throttle::throttled!(
                warn,
                layer = "DeferLayer",
                "a request to be deferred has no owner: no {} in the request's extensions; put the \
                 authentication outside of the DeferLayer (axum: .layer() after it, actix-web: \
                 .wrap() after it)",
                identity.type_name
            );
        }
    }
}
