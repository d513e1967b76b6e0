//! Names in the log records of a store.

use super::Store;
use crate::key::{Key, LogName};

impl Store {
    /// Sets whether log records show the names of locks and quota subjects. Default `false`:
    /// records have the first 12 hex digits of a name's SHA-256 hash, because a name may hold
    /// personal data, such as an account in a path or an address. Names of queues are always shown.
    ///
    /// The setting applies to this handle and all its clones, from now on. Ids of jobs and tasks
    /// stay abbreviated, and tokens are never logged.
    ///
    /// ```
    /// use lockgate::Store;
    ///
    /// // Records about `/orders/7` have `lock=p:id::7` instead of `lock=f7ad593eada9`.
    /// let store = Store::memory().log_names(true);
    /// ```
    #[must_use]
    pub fn log_names(self, shown: bool) -> Self {
        self.agent().set_log_names(shown);
        self
    }

    /// Returns true if log records show names.
    pub(crate) fn shows_log_names(&self) -> bool {
        self.agent().shows_log_names()
    }

    /// Returns the name of a lock or subject for a log record of this store.
    pub(crate) fn log_name<'a>(&self, key: &'a Key) -> LogName<'a> {
        key.log_name(self.shows_log_names())
    }
}
