//! Store check of damaged indexes of ended jobs, tombstones and records.

use super::*;
use crate::store::{
    FindingKind::{EndedJobInIndex, MissingExpiry, WrongCount},
    backend::{ENDED_JOB_OVERHEAD, EnqueueCommand, JobId, StorageLimits},
};

/// Finishes three jobs of one owner and one without an owner. The first is evicted.
async fn finish_four_jobs(rig: &StoreHarness, key: &Key) -> Vec<JobId> {
    let mut ids = Vec::new();
    for owner in ["ada", "ada", "ada", ""] {
        ids.push(finish_new_job(rig, key, owner).await);
    }
    ids
}

async fn finish_new_job(rig: &StoreHarness, key: &Key, owner: &str) -> JobId {
    let caps = StorageLimits { ended_bytes: 3 * (ENDED_JOB_OVERHEAD + 10), ..StorageLimits::NONE };
    let record = Some((new_token().as_str()[..8].into(), "print".into(), LONG_TIME));
    let (call, run) = (
        EnqueueCommand {
            idempotency_record: record,
            limits: caps,
            owner: owner.into(),
            ..enqueue_command(key)
        },
        new_token(),
    );
    rig.enqueue(call.clone()).await;
    rig.start_run(key, &call.id, &run).await;
    assert!(rig.finish_run(key, &call.id, &run).await);
    call.id
}

async fn delete_shard_key(rig: &StoreHarness, key: &Key, name: &str) {
    assert_eq!(
        rig.server().key_command::<i64>("DEL", &shard_key_name(key, name), &[]).await,
        1,
        "{name}"
    );
}

#[tokio::test]
async fn consistent_ended_indexes_have_no_findings() {
    let (rig, key) = (StoreHarness::redis().await, test_key());
    let ids = finish_four_jobs(&rig, &key).await;
    assert!(rig.is_tombstone(&ids[0]).await);
    assert_findings_and_repair(&rig, &[], &[]).await;
}

#[tokio::test]
async fn wrong_ended_indexes_are_rebuilt() {
    // One entry for each of three jobs, or the totals of all.
    for (name, min_findings) in [("doneby", 3), ("doneowners", 1), ("donebytes", 4)] {
        let (rig, key) = (StoreHarness::redis().await, test_key());
        let ids = finish_four_jobs(&rig, &key).await;
        delete_shard_key(&rig, &key, name).await;
        let report = rig.run_check(true).await;
        assert!(report.count(WrongCount) >= min_findings, "{name}: {report}");
        rig.run_check(true).await;
        assert_findings_and_repair(&rig, &[], &[]).await;
        // The rebuilt indexes are right: the oldest job of the largest owner is evicted again.
        let _ = finish_new_job(&rig, &key, "eve").await;
        assert!(rig.is_tombstone(&ids[1]).await, "{name}");
        assert_eq!(rig.job_state(&ids[3]).await, Some(crate::store::JobState::Done), "{name}");
    }
}

/// Without a check, later operations rebuild the indexes too. They stay bounded and expire.
#[tokio::test]
async fn deleted_ended_indexes_leave_no_key_without_expiry() {
    for name in ["doneby", "doneowners", "donebytes", "done", "e:ada", "n:ada", "f"] {
        let (rig, key) = (StoreHarness::redis().await, test_key());
        let mut ids = finish_four_jobs(&rig, &key).await;
        delete_shard_key(&rig, &key, name).await;
        for n in 0..40 {
            ids.push(finish_new_job(&rig, &key, if n % 2 == 0 { "ada" } else { "" }).await);
        }
        let mut kept_count = 0;
        for id in &ids[4..] {
            kept_count += usize::from(!rig.is_tombstone(id).await);
        }
        assert!(kept_count <= 7, "{name}: {kept_count} tombstones are left");
        for name in rig.server().key_names().await.iter().filter(|name| !is_permanent_key(name)) {
            let ttl: i64 = rig.server().key_command("PTTL", name, &[]).await;
            assert!(ttl > 0, "{name} has no end");
        }
        rig.advance_past(LONG_TIME * 3).await;
        let mut leftover = rig.server().key_names().await;
        leftover.retain(|name| !is_permanent_key(name));
        assert_eq!(leftover, [""; 0], "{name}");
    }
}

#[tokio::test]
async fn uncounted_record_is_counted_again() {
    let (rig, key) = (StoreHarness::redis().await, test_key());
    finish_four_jobs(&rig, &key).await;
    delete_shard_key(&rig, &key, "n:ada").await;
    assert_findings_and_repair(&rig, &[WrongCount; 3], &[]).await;
    let counted: i64 = rig.server().key_command("ZCARD", &shard_key_name(&key, "n:ada"), &[]).await;
    assert_eq!(counted, 3);
    for name in ["n:ada", "e:ada"] {
        assert_eq!(
            rig.server().key_command::<i64>("PERSIST", &shard_key_name(&key, name), &[]).await,
            1
        );
    }
    assert_findings_and_repair(&rig, &[MissingExpiry; 2], &[]).await;
}

#[tokio::test]
async fn indexed_tombstone_is_removed_from_index() {
    let (rig, key) = (StoreHarness::redis().await, test_key());
    let ids = finish_four_jobs(&rig, &key).await;
    let row = ["9000000000000000", ids[0].as_str()];
    assert_eq!(
        rig.server().key_command::<i64>("ZADD", &shard_key_name(&key, "done"), &row).await,
        1
    );
    assert_findings_and_repair(&rig, &[EndedJobInIndex], &[]).await;
    assert!(rig.is_tombstone(&ids[0]).await);
}

/// The tombstone that expires first is evicted; jobs with a record are not.
#[tokio::test]
async fn tombstones_per_owner_are_limited() {
    let (rig, key) = (StoreHarness::redis().await, test_key());
    let ids = finish_four_jobs(&rig, &key).await;
    let tombstone_index = shard_key_name(&key, "e:ada");
    let end: f64 = rig.server().key_command("ZSCORE", &tombstone_index, &[ids[0].as_str()]).await;
    let earlier = |ms: f64| format!("{:.0}", end - ms);
    // A row of a job with a record, ahead of all tombstones.
    let row = [earlier(100_000.0), ids[3].as_str().to_owned()];
    assert_eq!(add_to_index(&rig, &tombstone_index, &row).await, 1);
    for start in (0..16_382).step_by(2_000) {
        let ids = start..(start + 2_000).min(16_382);
        let rows =
            ids.flat_map(|n| [earlier(f64::from(n) + 1.0), format!("{:02x}{n:032x}", key.shard())]);
        let _ = add_to_index(&rig, &tombstone_index, &Vec::from_iter(rows)).await;
    }
    let count = async || rig.server().key_command::<i64>("ZCARD", &tombstone_index, &[]).await;
    assert_eq!(count().await, 16_384);
    for evicted in [&ids[1], &ids[2]] {
        let _ = finish_new_job(&rig, &key, "ada").await;
        assert!(rig.is_tombstone(evicted).await && rig.is_tombstone(&ids[0]).await);
        assert_eq!(count().await, 16_384);
    }
    assert_eq!(rig.job_state(&ids[3]).await, Some(crate::store::JobState::Done));
}

async fn add_to_index(rig: &StoreHarness, index: &str, rows: &[String]) -> i64 {
    let rows: Vec<_> = rows.iter().map(String::as_str).collect();
    rig.server().key_command("ZADD", index, &rows).await
}
