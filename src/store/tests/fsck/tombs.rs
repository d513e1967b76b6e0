//! Books of ended jobs, tombstones and records that somebody has broken by hand.

use super::*;
use crate::store::{
    FindingKind::{EndedJobInIndex, MissingExpiry, WrongCount},
    backend::{ENDED_JOB_OVERHEAD, EnqueueCommand, JobId, StorageLimits},
};

/// Three jobs of one owner, and one of nobody, of which the first was evicted.
async fn four_have_ended(rig: &Rig, key: &Key) -> Vec<JobId> {
    let mut ids = Vec::new();
    for owner in ["ada", "ada", "ada", ""] {
        ids.push(has_ended(rig, key, owner).await);
    }
    ids
}

async fn has_ended(rig: &Rig, key: &Key, owner: &str) -> JobId {
    let caps = StorageLimits { ended_bytes: 3 * (ENDED_JOB_OVERHEAD + 10), ..StorageLimits::NONE };
    let record = Some((stranger().as_str()[..8].into(), "print".into(), LONG));
    let (call, run) = (
        EnqueueCommand {
            idempotency_record: record,
            limits: caps,
            owner: owner.into(),
            ..deferred(key)
        },
        stranger(),
    );
    rig.enqueue(call.clone()).await;
    rig.start(key, &call.id, &run).await;
    assert!(rig.finish(key, &call.id, &run).await);
    call.id
}

async fn del(rig: &Rig, key: &Key, name: &str) {
    assert_eq!(rig.server().raw::<i64>("DEL", &of_shard(key, name), &[]).await, 1, "{name}");
}

#[tokio::test]
async fn sound_books_have_no_findings() {
    let (rig, key) = (Rig::redis().await, key());
    let ids = four_have_ended(&rig, &key).await;
    assert!(rig.is_tombstone(&ids[0]).await);
    finds(&rig, &[], &[]).await;
}

#[tokio::test]
async fn books_that_are_wrong_are_written_anew() {
    // Of each of three jobs an entry, or the sums of all.
    for (name, wrong) in [("doneby", 3), ("doneowners", 1), ("donebytes", 4)] {
        let (rig, key) = (Rig::redis().await, key());
        let ids = four_have_ended(&rig, &key).await;
        del(&rig, &key, name).await;
        let found = rig.fsck(true).await;
        assert!(found.count(WrongCount) >= wrong, "{name}: {found}");
        rig.fsck(true).await;
        finds(&rig, &[], &[]).await;
        // And they are right: again the oldest of the largest goes.
        let _ = has_ended(&rig, &key, "eve").await;
        assert!(rig.is_tombstone(&ids[1]).await, "{name}");
        assert_eq!(rig.state(&ids[3]).await, Some(crate::store::JobState::Done), "{name}");
    }
}

/// Also without a check they are begun anew, bounded, and gone in the end.
#[tokio::test]
async fn books_that_vanished_keep_nothing_for_ever() {
    for name in ["doneby", "doneowners", "donebytes", "done", "e:ada", "n:ada", "f"] {
        let (rig, key) = (Rig::redis().await, key());
        let mut ids = four_have_ended(&rig, &key).await;
        del(&rig, &key, name).await;
        for n in 0..40 {
            ids.push(has_ended(&rig, &key, if n % 2 == 0 { "ada" } else { "" }).await);
        }
        let mut kept = 0;
        for id in &ids[4..] {
            kept += usize::from(!rig.is_tombstone(id).await);
        }
        assert!(kept <= 7, "{name}: {kept} are kept");
        for name in rig.server().names().await.iter().filter(|name| !lasting(name)) {
            let ttl: i64 = rig.server().raw("PTTL", name, &[]).await;
            assert!(ttl > 0, "{name} has no end");
        }
        rig.pass(LONG * 3).await;
        let mut left = rig.server().names().await;
        left.retain(|name| !lasting(name));
        assert_eq!(left, [""; 0], "{name}");
    }
}

#[tokio::test]
async fn a_record_that_counts_for_nobody_is_counted() {
    let (rig, key) = (Rig::redis().await, key());
    four_have_ended(&rig, &key).await;
    del(&rig, &key, "n:ada").await;
    finds(&rig, &[WrongCount; 3], &[]).await;
    let counted: i64 = rig.server().raw("ZCARD", &of_shard(&key, "n:ada"), &[]).await;
    assert_eq!(counted, 3);
    for name in ["n:ada", "e:ada"] {
        assert_eq!(rig.server().raw::<i64>("PERSIST", &of_shard(&key, name), &[]).await, 1);
    }
    finds(&rig, &[MissingExpiry; 2], &[]).await;
}

#[tokio::test]
async fn a_tombstone_is_in_no_index() {
    let (rig, key) = (Rig::redis().await, key());
    let ids = four_have_ended(&rig, &key).await;
    let row = ["9000000000000000", ids[0].as_str()];
    assert_eq!(rig.server().raw::<i64>("ZADD", &of_shard(&key, "done"), &row).await, 1);
    finds(&rig, &[EndedJobInIndex], &[]).await;
    assert!(rig.is_tombstone(&ids[0]).await);
}

/// The one that ends first goes, and nothing but tombstones.
#[tokio::test]
async fn tombstones_of_an_owner_are_bounded() {
    let (rig, key) = (Rig::redis().await, key());
    let ids = four_have_ended(&rig, &key).await;
    let tombs = of_shard(&key, "e:ada");
    let end: f64 = rig.server().raw("ZSCORE", &tombs, &[ids[0].as_str()]).await;
    let sooner = |ms: f64| format!("{:.0}", end - ms);
    // One that is none, before them all.
    let row = [sooner(100_000.0), ids[3].as_str().to_owned()];
    assert_eq!(add(&rig, &tombs, &row).await, 1);
    for from in (0..16_382).step_by(2_000) {
        let ids = from..(from + 2_000).min(16_382);
        let rows =
            ids.flat_map(|n| [sooner(f64::from(n) + 1.0), format!("{:02x}{n:032x}", key.shard())]);
        let _ = add(&rig, &tombs, &Vec::from_iter(rows)).await;
    }
    let count = async || rig.server().raw::<i64>("ZCARD", &tombs, &[]).await;
    assert_eq!(count().await, 16_384);
    for evicted in [&ids[1], &ids[2]] {
        let _ = has_ended(&rig, &key, "ada").await;
        assert!(rig.is_tombstone(evicted).await && rig.is_tombstone(&ids[0]).await);
        assert_eq!(count().await, 16_384);
    }
    assert_eq!(rig.state(&ids[3]).await, Some(crate::store::JobState::Done));
}

async fn add(rig: &Rig, index: &str, rows: &[String]) -> i64 {
    let rows: Vec<_> = rows.iter().map(String::as_str).collect();
    rig.server().raw("ZADD", index, &rows).await
}
