//! The pass: all names, then each shard's indexes, then the queues.

use std::collections::{BTreeSet, HashMap};

use super::{CheckFinding, CheckReport, FsckPart, FsckPartResult, KeyScanCursor};
use crate::{
    error::Error,
    key::{Key, SHARD_COUNT},
    store::Store,
};

/// A pass over a store: [`Store::check`].
#[must_use = "nothing is looked at before `run`"]
#[derive(Clone)]
pub struct StoreCheck {
    store: Store,
    repair: bool,
}

impl Store {
    /// Checks that each deferred request is in exactly one state and that each key has an owner or an end, and repairs
    /// the rest on request.
    ///
    /// It may run while the fleet works, and is made for operators and tests: it looks at every name of the namespace,
    /// 100 at a time. Operators have it as the program `lockgate-fsck`. ([`Store::ping`] is the health check.)
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let store = lockgate::Store::memory();
    /// let report = store.check().repair(true).run().await?;
    /// assert!(report.is_mended(), "{report}");
    /// # Ok::<(), lockgate::Error>(()) }).unwrap();
    /// ```
    pub fn check(&self) -> StoreCheck {
        StoreCheck { store: self.clone(), repair: false }
    }
}

impl StoreCheck {
    /// Mends what can be mended without losing a request. Off unless asked for: a fault is worth a look before its
    /// traces are gone.
    pub fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Makes the pass.
    ///
    /// It takes some calls a shard and one for each hundred names, one after the other, so that a server at work
    /// hardly notices. Dropped, it has mended what it has found so far, and nothing by half.
    ///
    /// # Errors
    ///
    /// As any call to the store. What was found until then is not told: run it again.
    pub async fn run(self) -> Result<CheckReport, Error> {
        let mut pass = FsckPass::default();
        pass.report.is_complete_scan = true;
        // The names go first: they tell of lines that no index has.
        let mut next = Some(KeyScanCursor::default());
        while let Some(from) = next {
            let found = pass.run_part(&self, FsckPart::KeyPage(from)).await?;
            pass.report.is_complete_scan &= found.is_complete_scan;
            next = found.next_page;
        }
        let all = pass.report.is_complete_scan;
        for shard in 0..SHARD_COUNT {
            let lines = Vec::from_iter(pass.locks_with_jobs.remove(&shard).unwrap_or_default());
            pass.run_part(&self, FsckPart::Shard { shard, locks: lines, are_all_locks: all })
                .await?;
        }
        for queue in std::mem::take(&mut pass.task_queues) {
            pass.run_part(&self, FsckPart::TaskQueue(queue)).await?;
        }
        pass.report.findings = pass.findings.into_iter().collect();
        Ok(pass.report)
    }
}

impl std::fmt::Debug for StoreCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreCheck").field("repair", &self.repair).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct FsckPass {
    report: CheckReport,
    /// Some are met twice: by their name, and by what names them.
    findings: BTreeSet<CheckFinding>,
    locks_with_jobs: HashMap<u16, BTreeSet<String>>,
    task_queues: BTreeSet<Key>,
}

impl FsckPass {
    /// What is left of it is about the names.
    async fn run_part(
        &mut self,
        fsck: &StoreCheck,
        part: FsckPart,
    ) -> Result<FsckPartResult, Error> {
        let mut found = fsck.store.backend().fsck(part, fsck.repair).await?;
        self.findings.extend(found.findings.drain(..));
        self.report.examined += found.examined;
        self.report.namespace_keys += found.namespace_keys;
        self.report.unsummed_shards += u64::from(found.sums_skipped);
        for (shard, name) in found.locks_with_jobs.drain(..) {
            self.locks_with_jobs.entry(shard).or_default().insert(name);
        }
        self.task_queues.extend(found.task_queues.drain(..));
        Ok(found)
    }
}
