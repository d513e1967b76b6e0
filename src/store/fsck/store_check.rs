//! Check of a store: all keys, then the indexes of each shard, then the task queues.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use futures_util::future::BoxFuture;

use super::{CheckFinding, CheckProgress, CheckReport, FsckPart, FsckPartResult, KeyScanCursor};
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
    on_progress: Arc<dyn Fn(CheckProgress) + Send + Sync>,
}

impl Store {
    /// Creates a check of the namespace: each deferred request must be in exactly one state, and
    /// each key must have an owner or an expiry. The check can repair faults.
    ///
    /// The check may run beside live processes. It is made for operators and tests, since it
    /// examines every key of the namespace, at most 100 in one call. Operators have it as the
    /// program `lockgate check`. ([`Store::ping`] is the health check.)
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let store = lockgate::Store::memory();
    /// let report = store.check().repair(true).run().await?;
    /// assert!(report.is_repaired(), "{report}");
    /// # Ok::<(), lockgate::Error>(()) }).unwrap();
    /// ```
    pub fn check(&self) -> StoreCheck {
        StoreCheck { store: self.clone(), repair: false, on_progress: Arc::new(|_| ()) }
    }
}

impl StoreCheck {
    /// Repairs the faults that can be repaired without losing a request. Off by default: examine a
    /// fault before its traces are gone.
    pub fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Calls a function after each step, such as to draw a progress bar. It runs between two calls
    /// to the store, so it must not block. None by default; the last function counts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::Error> {
    /// # let store = lockgate::Store::memory();
    /// let check = store.check().on_progress(|progress| {
    ///     eprintln!("{} examined, {} of 1000", progress.examined, progress.done_per_mille);
    /// });
    /// let report = check.await?;
    /// # assert!(report.is_clean());
    /// # Ok(()) }
    /// ```
    pub fn on_progress(
        mut self,
        on_progress: impl Fn(CheckProgress) + Send + Sync + 'static,
    ) -> Self {
        self.on_progress = Arc::new(on_progress);
        self
    }

    /// Runs the check.
    ///
    /// It makes some calls for each shard, and 65 for each thousand keys, one after the other, so
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
            let examined = progress.report.examined;
            (self.on_progress)(CheckProgress::of_scan(examined, result.scanned_per_mille));
        }
        let are_all_locks = progress.report.is_complete_scan;
        let task_queues = std::mem::take(&mut progress.task_queues);
        let report_part = |examined: u64, done: u64| {
            (self.on_progress)(CheckProgress::of_indexes(examined, done, task_queues.len()));
        };
        for shard in 0..SHARD_COUNT {
            let locks = Vec::from_iter(progress.locks_with_jobs.remove(&shard).unwrap_or_default());
            progress.run_part(&self, FsckPart::Shard { shard, locks, are_all_locks }).await?;
            let stats = self.store.backend().shard_stats(shard).await;
            progress.report.dead_jobs += count_readable(stats.map(|stats| stats.dead))?;
            report_part(progress.report.examined, u64::from(shard) + 1);
        }
        for (queue, done) in task_queues.iter().zip(u64::from(SHARD_COUNT) + 1..) {
            progress.run_part(&self, FsckPart::TaskQueue(queue.clone())).await?;
            let stats = self.store.backend().queue_stats(queue.clone()).await;
            progress.report.dead_letters += count_readable(stats.map(|stats| stats.dead_letters))?;
            report_part(progress.report.examined, done);
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
