//! Store check of a cluster, whose keys are spread over the nodes.

use super::*;
use crate::store::FindingKind::{
    LockNotScheduled, MissingExpiry, UnknownKey, WrongCount, WrongKeyType,
};

async fn enqueue_behind_two_holders(rig: &StoreHarness) -> [Key; 2] {
    rig.register_worker().await;
    let keys = keys_of_one_shard::<2>();
    for key in &keys {
        rig.acquire_exclusive(key, &new_token()).await;
        rig.enqueue_job(key).await;
    }
    keys
}

#[tokio::test]
async fn unknown_keys_are_found_on_every_node() {
    let rig = StoreHarness::cluster().await;
    rig.register_worker().await;
    // More than a third of the shards, so that each node has some.
    let shards = (0..24).map(|n| n * 2 + 1);
    let (mut expected, mut remaining) = (Vec::new(), Vec::new());
    for shard in shards.clone() {
        for name in ["nonsense", "h:name", "c:p:subject"] {
            rig.cluster_namespace().shard_command::<()>(shard, "SET", name, &["1"]).await;
        }
        expected.extend([UnknownKey, WrongKeyType, MissingExpiry]);
        remaining.extend([UnknownKey, WrongKeyType]);
    }
    // Keys in other slots than those of the shards.
    for name in ["else", "{99}:h:x", "{a}"] {
        rig.cluster_namespace().set_key_without_shard(name).await;
        expected.push(UnknownKey);
        remaining.push(UnknownKey);
    }
    assert_findings_and_repair(&rig, &expected, &remaining).await;
    for shard in shards {
        let ends: i64 =
            rig.cluster_namespace().shard_command(shard, "PTTL", "c:p:subject", &[]).await;
        assert!(ends > 1000, "{shard}");
    }
}

#[tokio::test]
async fn lock_missing_from_due_index_is_found() {
    let rig = StoreHarness::cluster().await;
    let [key, hidden] = enqueue_behind_two_holders(&rig).await;
    let report = rig.run_check(false).await;
    assert!(
        report.is_clean() && report.is_complete_scan && report.unsummed_shards == 0,
        "{report}"
    );
    let raw = async |verb, kind, rest: &[&str]| -> i64 {
        rig.cluster_namespace().shard_command(key.shard(), verb, kind, rest).await
    };
    assert_eq!(raw("ZREM", "due", &[hidden.as_str()]).await, 1);
    assert_findings_and_repair(&rig, &[LockNotScheduled], &[]).await;
    assert_eq!(raw("HGET", "f", &["jobs"]).await, 2, "it was right");
}

/// Counts of jobs that no longer exist.
#[tokio::test]
async fn job_count_above_actual_is_repaired() {
    let rig = StoreHarness::cluster().await;
    let [key, _] = enqueue_behind_two_holders(&rig).await;
    rig.cluster_namespace().shard_command::<()>(key.shard(), "HSET", "f", &["jobs", "3"]).await;
    assert_findings_and_repair(&rig, &[WrongCount], &[]).await;
}

#[tokio::test]
async fn job_count_below_actual_is_repaired() {
    let rig = StoreHarness::cluster().await;
    let [key, _] = enqueue_behind_two_holders(&rig).await;
    let raw = async |verb, kind, rest: &[&str]| -> i64 {
        rig.cluster_namespace().shard_command(key.shard(), verb, kind, rest).await
    };
    raw("HSET", "f", &["jobs", "1"]).await;
    let report = rig.run_check(true).await;
    assert_eq!((report.count(WrongCount), report.unsummed_shards), (1, 0), "{report}");
    assert_eq!(raw("HGET", "f", &["jobs"]).await, 2);
    assert!(rig.run_check(false).await.is_clean());
}
