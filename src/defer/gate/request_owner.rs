//! Owner of a request, which scopes everything that requests of one layer could share.

use super::defer_layer::DeferSettings;
use crate::defer::extension_snapshot::RequestSnapshots;

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
}
