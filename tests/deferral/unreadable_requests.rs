//! Row 15: stored requests that this version cannot read.

use futures_util::future::join_all;
use lockgate_tests::{WebFramework, ledger::JobFleet};

use super::{SECOND, long_lease_setup, start_fleet_without_worker};

async fn stored_request(fleet: &JobFleet, id: &str) -> (String, Vec<u8>) {
    let keys = fleet
        .send_server_command(&["KEYS", &format!("*:b:{id}")])
        .await
        .expect("the server answers");
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of keys");
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let stored = fleet.send_server_command(&["GET", key]).await.expect("the server answers");
    (key.clone(), redis::from_redis_value(stored).expect("bytes"))
}

async fn overwrite_request(fleet: &JobFleet, key: &str, bytes: &[u8]) {
    let _ = fleet
        .send_server_command(&[b"SET", key.as_bytes(), bytes])
        .await
        .expect("the server answers");
}

/// The job is left to a newer worker, uncharged and at its queue position. Direct requests overtake
/// it.
#[tokio::test]
async fn request_of_newer_version_waits_for_newer_worker() {
    join_all([WebFramework::Axum, WebFramework::Actix].map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let _worker = fleet.start_node(long_lease_setup(framework)).await;
        let lock = fleet.hold_lock("7").await;
        let newer = fleet.deferrable_request(web, "7").send_accepted().await;
        let next_job = fleet.deferrable_request(web, "7").send_accepted().await;
        let (key, bytes) = stored_request(&fleet, &newer).await;
        let mut changed = bytes.clone();
        changed[0] += 1;
        overwrite_request(&fleet, &key, &changed).await;
        lock.release().await;
        let newer_version_status = async {
            loop {
                let status = fleet.query_status(web, &newer).await;
                if status.reason == "newer version" {
                    break status;
                }
                tokio::time::sleep(SECOND / 50).await;
            }
        };
        let status =
            lockgate_tests::with_timeout("a worker to claim the job", newer_version_status).await;
        assert_eq!(status.state, "queued");
        // A worker that polls the job again holds the lock for a moment.
        let direct_outcome = fleet.deferrable_request(web, "7").waiting_if_busy().send().await;
        assert!(
            matches!(direct_outcome, lockgate_tests::ledger::SendOutcome::RanDirectly(200, _)),
            "{direct_outcome:?}"
        );
        assert!(fleet.runs_of(&newer).is_empty() && fleet.runs_of(&next_job).is_empty());
        // Restore the readable bytes. The job is not polled for a while.
        overwrite_request(&fleet, &key, &bytes).await;
        for id in [&newer, &next_job] {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
            assert_eq!(fleet.runs_of(id)[0].attempt, 1, "not charged");
        }
        fleet.finish_and_check(web).await.assert_no_violations();
    }))
    .await;
}

/// Unknown bytes and a truncated request are dead letters and block no other job.
#[tokio::test]
async fn corrupt_request_becomes_dead_letter() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let lock = fleet.hold_lock("7").await;
    let mut corrupt_jobs = Vec::new();
    let unknown_bytes: [&[u8]; 3] =
        [b"", &[1; 3], &[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]];
    for bytes in unknown_bytes.into_iter().map(Some).chain([None]) {
        let id = fleet.deferrable_request(web, "7").send_accepted().await;
        let (key, request) = stored_request(&fleet, &id).await;
        // The last request is truncated.
        overwrite_request(&fleet, &key, bytes.unwrap_or(&request[..request.len() - 5])).await;
        corrupt_jobs.push(id);
    }
    let next_job = fleet.deferrable_request(web, "7").send_accepted().await;
    lock.release().await;
    for id in &corrupt_jobs {
        let outcome = fleet.wait_for_outcome(web, id).await;
        assert_eq!((&*outcome.state, &*outcome.reason), ("dead", "unreadable"), "{outcome:?}");
    }
    assert_eq!(fleet.wait_for_outcome(web, &next_job).await.state, "done");
    assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, 1);
}
