//! Actions on the store as a whole.

use super::{admin_error::AdminError, admin_handle::Admin};
use crate::store::{CheckProgress, CheckReport};

impl Admin {
    /// Checks the store and repairs what has a known repair; see
    /// [`Store::check`](crate::Store::check).
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn repair_store(&self, reason: &str) -> Result<CheckReport, AdminError> {
        self.repair_store_with_progress(|_| (), reason).await
    }

    /// Like [`repair_store`](Self::repair_store), and calls a function after each step; see
    /// [`StoreCheck::on_progress`](crate::StoreCheck::on_progress).
    ///
    /// Cancel safe: the faults found so far are repaired, each completely.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockgate::{Store, admin::{Operator, Permission}};
    ///
    /// let admin = Store::memory().admin(Operator::new("ada", Permission::Act));
    /// let show = |progress: lockgate::CheckProgress| eprintln!("{} examined", progress.examined);
    /// let report = admin.repair_store_with_progress(show, "wrong counts after a crash").await?;
    /// assert!(report.is_repaired(), "{report}");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn repair_store_with_progress(
        &self,
        on_progress: impl Fn(CheckProgress) + Send + Sync + 'static,
        reason: &str,
    ) -> Result<CheckReport, AdminError> {
        let check = self.store.check().repair(true).on_progress(on_progress);
        let repair = async { Ok(check.run().await?) };
        self.act("repair-store", "store", reason, repair).await
    }
}
