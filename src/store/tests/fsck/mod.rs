//! What is broken by hand is found, and nothing else; it is mended, and what should run does.

mod apart;
mod busy;
mod jobs;
mod keys;
mod tombs;

use super::{
    redis_only::lasting,
    rig::{self, LONG, Rig, deferred, done, key, neighbours, settled, stranger, visit},
};
use crate::{
    Key,
    store::{CheckReport, FindingKind},
};

/// Looks, and expects exactly these; mends them, all but those in `left`; and then nothing else is wrong.
pub(super) async fn finds(
    rig: &Rig,
    expected: &[FindingKind],
    left: &[FindingKind],
) -> CheckReport {
    let sorted = |kinds: &mut Vec<FindingKind>| {
        kinds.sort_unstable();
        kinds.clone()
    };
    let kinds = |report: &CheckReport| {
        let faults = report.faults().map(|finding| finding.kind);
        sorted(&mut faults.collect())
    };
    let report = rig.fsck(false).await;
    assert_eq!(kinds(&report), sorted(&mut expected.to_vec()), "{report}");
    assert!(report.is_complete_scan && report.faults().all(|finding| !finding.repaired));
    let mended = rig.fsck(true).await;
    let again = rig.fsck(false).await;
    assert_eq!(kinds(&again), sorted(&mut left.to_vec()), "{mended}\nand then\n{again}");
    report
}

fn of_shard(key: &Key, kind: &str) -> String {
    format!("{{{}}}:{kind}", key.shard())
}

fn of_line(key: &Key, kind: &str) -> String {
    format!("{{{}}}:{kind}:{key}", key.shard())
}

/// Runs the jobs of a lock one after the other, as a worker does when it is due; how many there were.
async fn all_run(rig: &Rig, key: &Key) -> usize {
    let mut runs = 0;
    for _ in 0..20 {
        rig.miss_the_window().await;
        let due = rig.due(key.shard(), 10).await.names;
        if !due.contains(key) {
            break;
        }
        let Some(id) = rig.heads(std::slice::from_ref(key)).await.remove(0) else { break };
        let run = stranger();
        if let crate::store::backend::ClaimOutcome::Claimed(_) =
            rig.claim(visit(key, &id, &run)).await
        {
            runs += 1;
            assert!(rig.finish(key, &id, &run).await);
        }
    }
    assert_eq!(rig.heads(std::slice::from_ref(key)).await, [None], "some do not run");
    runs
}
