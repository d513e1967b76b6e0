//! Store check on Redis. A check finds damage made by hand and nothing else; a repair lets the jobs
//! run again.

mod cluster_nodes;
mod concurrent_load;
mod jobs;
mod keys;
mod tombstones;

use super::{
    redis_only::is_permanent_key,
    store_harness::{
        self, LONG_TIME, StoreHarness, claim_command, done_settlement, enqueue_command,
        keys_of_one_shard, new_token, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::{CheckReport, FindingKind},
};

/// Checks, and expects exactly these findings; repairs, and expects only `remaining` afterwards.
pub(super) async fn assert_findings_and_repair(
    rig: &StoreHarness,
    expected: &[FindingKind],
    remaining: &[FindingKind],
) -> CheckReport {
    let sorted = |kinds: &mut Vec<FindingKind>| {
        kinds.sort_unstable();
        kinds.clone()
    };
    let kinds = |report: &CheckReport| {
        let faults = report.faults().map(|finding| finding.kind);
        sorted(&mut faults.collect())
    };
    let report = rig.run_check(false).await;
    assert_eq!(kinds(&report), sorted(&mut expected.to_vec()), "{report}");
    assert!(report.is_complete_scan && report.faults().all(|finding| !finding.repaired));
    let repair = rig.run_check(true).await;
    let recheck = rig.run_check(false).await;
    assert_eq!(kinds(&recheck), sorted(&mut remaining.to_vec()), "{repair}\nand then\n{recheck}");
    report
}

fn shard_key_name(key: &Key, kind: &str) -> String {
    format!("{{{}}}:{kind}", key.shard())
}

fn lock_key_name(key: &Key, kind: &str) -> String {
    format!("{{{}}}:{kind}:{key}", key.shard())
}

/// Runs the jobs of a lock in succession, as a worker does when they are due. Returns their number.
async fn run_all_jobs(rig: &StoreHarness, key: &Key) -> usize {
    let mut run_count = 0;
    for _ in 0..20 {
        rig.let_offer_expire().await;
        let due = rig.poll_due(key.shard(), 10).await.locks;
        if !due.contains(key) {
            break;
        }
        let Some(id) = rig.heads(std::slice::from_ref(key)).await.remove(0) else { break };
        let run = new_token();
        if let crate::store::backend::ClaimOutcome::Claimed(_) =
            rig.claim(claim_command(key, &id, &run)).await
        {
            run_count += 1;
            assert!(rig.finish_run(key, &id, &run).await);
        }
    }
    assert_eq!(rig.heads(std::slice::from_ref(key)).await, [None], "some do not run");
    run_count
}
