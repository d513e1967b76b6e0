//! Actions on the store as a whole.

use super::{admin_error::AdminError, admin_handle::Admin};
use crate::store::CheckReport;

impl Admin {
    /// Checks the store and repairs what has a known repair; see
    /// [`Store::check`](crate::Store::check).
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn repair_store(&self, reason: &str) -> Result<CheckReport, AdminError> {
        let repair = async { Ok(self.store.check().repair(true).run().await?) };
        self.act("repair-store", "store", reason, repair).await
    }
}
