//! Check of a store: all keys, then the indexes of each shard, then the task queues.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::BoxFuture;

use super::{CheckFinding, CheckReport, FsckPart, FsckPartResult, KeyScanCursor};
use crate::{
    error::{Error, ErrorKind},
    key::{Key, SHARD_COUNT},
    store::Store,
};

/// Check of a store, returned by [`Store::check`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockgate::Error> {
/// # let store = lockgate::Store::memory();
/// let report = store.check().await?; // repairs nothing
/// assert!(report.is_clean(), "{report}");
/// # Ok(()) }
/// ```
#[must_use = "nothing is checked until it is awaited"]
#[derive(Clone)]
pub struct StoreCheck {
    store: Store,
    repair: bool,
}

impl Store {
    /// Creates a check of the namespace: each deferred request must be in exactly one state, and
    /// each key must have an owner or an expiry. The check can repair faults.
    ///
    /// The check may run beside live processes. It is made for operators and tests, since it
    /// examines every key of the namespace, 100 at a time. Operators have it as the program
    /// `lockgate check`. ([`Store::ping`] is the health check.)
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let store = lockgate::Store::memory();
    /// let report = store.check().repair(true).run().await?;
    /// assert!(report.is_repaired(), "{report}");
    /// # Ok::<(), lockgate::Error>(()) }).unwrap();
    /// ```
    pub fn check(&self) -> StoreCheck {
        StoreCheck { store: self.clone(), repair: false }
    }
}

impl StoreCheck {
    /// Repairs the faults that can be repaired without losing a request. Off by default: examine a
    /// fault before its traces are gone.
    pub fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Runs the check.
    ///
    /// It makes some calls for each shard and one for each hundred keys, one after the other, so
    /// that the load on the server is low. A dropped check has repaired the faults found so far,
    /// each completely.
    ///
    /// # Errors
    ///
    /// The errors of any call to the store. The findings up to then are lost: run the check again.
    pub async fn run(self) -> Result<CheckReport, Error> {
        let mut progress = FsckProgress::default();
        progress.report.is_complete_scan = true;
        // Keys first: they reveal locks that no index names.
        let mut next_page = Some(KeyScanCursor::default());
        while let Some(page) = next_page {
            let result = progress.run_part(&self, FsckPart::KeyPage(page)).await?;
            progress.report.is_complete_scan &= result.is_complete_scan;
            next_page = result.next_page;
        }
        let are_all_locks = progress.report.is_complete_scan;
        for shard in 0..SHARD_COUNT {
            let locks = Vec::from_iter(progress.locks_with_jobs.remove(&shard).unwrap_or_default());
            progress.run_part(&self, FsckPart::Shard { shard, locks, are_all_locks }).await?;
            let stats = self.store.backend().shard_stats(shard).await;
            progress.report.dead_jobs += count_readable(stats.map(|stats| stats.dead))?;
        }
        for queue in std::mem::take(&mut progress.task_queues) {
            progress.run_part(&self, FsckPart::TaskQueue(queue.clone())).await?;
            let stats = self.store.backend().queue_stats(queue).await;
            progress.report.dead_letters += count_readable(stats.map(|stats| stats.dead_letters))?;
        }
        progress.report.findings = progress.findings.into_iter().collect();
        Ok(progress.report)
    }
}

impl IntoFuture for StoreCheck {
    type Output = Result<CheckReport, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`run`](Self::run).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl std::fmt::Debug for StoreCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreCheck").field("repair", &self.repair).finish_non_exhaustive()
    }
}

/// Returns a count, or 0 if a key has the wrong type: that is a finding of its own.
fn count_readable(count: Result<u64, Error>) -> Result<u64, Error> {
    match count {
        Err(error) if error.kind() == ErrorKind::Protocol => Ok(0),
        count => count,
    }
}

#[derive(Default)]
struct FsckProgress {
    report: CheckReport,
    /// A problem may be found twice: by its key, and by an entry that names it.
    findings: BTreeSet<CheckFinding>,
    locks_with_jobs: HashMap<u16, BTreeSet<String>>,
    task_queues: BTreeSet<Key>,
}

impl FsckProgress {
    /// Runs one part and merges its result. The returned result has the next page, and whether the
    /// scan is complete.
    async fn run_part(
        &mut self,
        fsck: &StoreCheck,
        part: FsckPart,
    ) -> Result<FsckPartResult, Error> {
        let mut result = fsck.store.backend().fsck(part, fsck.repair).await?;
        self.findings.extend(result.findings.drain(..));
        self.report.examined += result.examined;
        self.report.namespace_keys += result.namespace_keys;
        self.report.unsummed_shards += u64::from(result.totals_skipped);
        for (shard, name) in result.locks_with_jobs.drain(..) {
            self.locks_with_jobs.entry(shard).or_default().insert(name);
        }
        self.task_queues.extend(result.task_queues.drain(..));
        Ok(result)
    }
}
