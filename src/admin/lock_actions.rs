//! Actions on locks.

use super::{admin_error::AdminError, admin_handle::Admin};
use crate::key::Key;

impl Admin {
    /// Takes a lock from its holders, and offers it to its queue. Returns the number of holders.
    ///
    /// The next fence is above all fences of the removed holders. These are told, and their
    /// requests and guards see the loss as [`Taken`](crate::LockLoss::Taken), at the next renewal
    /// at the latest. A handler that does not check its fence may still write, beside the next
    /// holder: release a lock by force only if its holder hangs.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it has no holder; others as in [`AdminError`].
    pub async fn force_release(
        &self,
        lock: impl Into<Key>,
        reason: &str,
    ) -> Result<usize, AdminError> {
        let key = lock.into();
        let release = async {
            match self.store.backend().force_release(key.clone()).await? {
                0 => Err(AdminError::NotPossible("this lock has no holder".to_owned())),
                holders => Ok(holders),
            }
        };
        self.act("force-release", &key.operator_name(), reason, release).await
    }
}
