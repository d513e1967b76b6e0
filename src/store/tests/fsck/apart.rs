//! A cluster, where nobody has all names.

use super::*;
use crate::store::FindingKind::WrongTally;

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
async fn what_no_index_names_may_be_what_is_counted() {
    let rig = Rig::cluster().await;
    let [key, hidden] = two_lines_wait(&rig).await;
    let report = rig.fsck(false).await;
    assert!(report.is_clean() && !report.scanned && report.uncounted == 0, "{report}");
    let raw = async |verb, kind, rest: &[&str]| -> i64 {
        rig.space().raw(key.shard(), verb, kind, rest).await
    };
    assert_eq!(raw("ZREM", "due", &[hidden.as_str()]).await, 1);
    for repair in [false, true, false] {
        let report = rig.fsck(repair).await;
        assert!(report.is_clean() && report.uncounted == 1, "{report}");
    }
    assert_eq!(raw("HGET", "f", &["jobs"]).await, 2, "it was right");
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
    assert_eq!((report.count(WrongTally), report.uncounted), (1, 0), "{report}");
    assert_eq!(raw("HGET", "f", &["jobs"]).await, 2);
    assert!(rig.fsck(false).await.is_clean());
}
