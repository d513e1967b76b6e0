//! A cluster, where each node has names of its own.

use super::*;
use crate::store::FindingKind::{
    LockNotScheduled, MissingExpiry, UnknownKey, WrongCount, WrongKeyType,
};

async fn two_lines_wait(rig: &Rig) -> [Key; 2] {
    rig.worker().await;
    let keys = neighbours::<2>();
    for key in &keys {
        rig.hold(key, &stranger()).await;
        rig.put_off(key).await;
    }
    keys
}

#[tokio::test]
async fn keys_of_nobody_are_found_on_every_node() {
    let rig = Rig::cluster().await;
    rig.worker().await;
    // More than a third of them: some are on each node.
    let shards = (0..24).map(|n| n * 2 + 1);
    let (mut found, mut left) = (Vec::new(), Vec::new());
    for shard in shards.clone() {
        for name in ["nonsense", "h:name", "c:p:subject"] {
            rig.space().raw::<()>(shard, "SET", name, &["1"]).await;
        }
        found.extend([UnknownKey, WrongKeyType, MissingExpiry]);
        left.extend([UnknownKey, WrongKeyType]);
    }
    // In slots of their own.
    for name in ["else", "{99}:h:x", "{a}"] {
        rig.space().set_odd(name).await;
        found.push(UnknownKey);
        left.push(UnknownKey);
    }
    finds(&rig, &found, &left).await;
    for shard in shards {
        let ends: i64 = rig.space().raw(shard, "PTTL", "c:p:subject", &[]).await;
        assert!(ends > 1000, "{shard}");
    }
}

#[tokio::test]
async fn a_line_that_no_index_names_is_found() {
    let rig = Rig::cluster().await;
    let [key, hidden] = two_lines_wait(&rig).await;
    let report = rig.fsck(false).await;
    assert!(
        report.is_clean() && report.is_complete_scan && report.unsummed_shards == 0,
        "{report}"
    );
    let raw = async |verb, kind, rest: &[&str]| -> i64 {
        rig.space().raw(key.shard(), verb, kind, rest).await
    };
    assert_eq!(raw("ZREM", "due", &[hidden.as_str()]).await, 1);
    finds(&rig, &[LockNotScheduled], &[]).await;
    assert_eq!(raw("HGET", "f", &["jobs"]).await, 2, "it was right");
}

/// And more, of which nothing is left.
#[tokio::test]
async fn more_than_all_names_have_is_wrong() {
    let rig = Rig::cluster().await;
    let [key, _] = two_lines_wait(&rig).await;
    rig.space().raw::<()>(key.shard(), "HSET", "f", &["jobs", "3"]).await;
    finds(&rig, &[WrongCount], &[]).await;
}

#[tokio::test]
async fn less_than_the_indexes_name_is_wrong() {
    let rig = Rig::cluster().await;
    let [key, _] = two_lines_wait(&rig).await;
    let raw = async |verb, kind, rest: &[&str]| -> i64 {
        rig.space().raw(key.shard(), verb, kind, rest).await
    };
    raw("HSET", "f", &["jobs", "1"]).await;
    let report = rig.fsck(true).await;
    assert_eq!((report.count(WrongCount), report.unsummed_shards), (1, 0), "{report}");
    assert_eq!(raw("HGET", "f", &["jobs"]).await, 2);
    assert!(rig.fsck(false).await.is_clean());
}
