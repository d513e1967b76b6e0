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

/// It is left to a newer worker, is not charged, and keeps its place; live requests pass it.
#[tokio::test]
async fn request_of_newer_version_waits_for_newer_worker() {
    join_all([WebFramework::Axum, WebFramework::Actix].map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let _worker = fleet.start_node(long_lease_setup(framework)).await;
        let lock = fleet.hold_lock("7").await;
        let newer = fleet.deferrable_request(web, "7").send_accepted().await;
        let behind = fleet.deferrable_request(web, "7").send_accepted().await;
        let (key, bytes) = stored_request(&fleet, &newer).await;
        let mut changed = bytes.clone();
        changed[0] += 1;
        overwrite_request(&fleet, &key, &changed).await;
        lock.release().await;
        let looked = async {
            loop {
                let seen = fleet.query_status(web, &newer).await;
                if seen.reason == "newer version" {
                    break seen;
                }
                tokio::time::sleep(SECOND / 50).await;
            }
        };
        let seen = lockgate_tests::with_timeout("a worker to look at it", looked).await;
        assert_eq!(seen.state, "queued");
        // A worker that looks at it again has the lock for a moment.
        let ship = fleet.deferrable_request(web, "7").waiting_if_busy().send().await;
        assert!(
            matches!(ship, lockgate_tests::ledger::SendOutcome::RanDirectly(200, _)),
            "{ship:?}"
        );
        assert!(fleet.runs_of(&newer).is_empty() && fleet.runs_of(&behind).is_empty());
        // What a newer worker would have read. It is left alone for a while.
        overwrite_request(&fleet, &key, &bytes).await;
        for id in [&newer, &behind] {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
            assert_eq!(fleet.runs_of(id)[0].attempt, 1, "not charged");
        }
        fleet.finish_and_check(web).await.assert_no_violations();
    }))
    .await;
}

/// Bytes that no version has written, and a request that was cut short, are dead, and hold up nobody.
#[tokio::test]
async fn corrupt_request_becomes_dead_letter() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let lock = fleet.hold_lock("7").await;
    let mut broken = Vec::new();
    let no_version: [&[u8]; 3] =
        [b"", &[1; 3], &[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]];
    for bytes in no_version.into_iter().map(Some).chain([None]) {
        let id = fleet.deferrable_request(web, "7").send_accepted().await;
        let (key, whole) = stored_request(&fleet, &id).await;
        // The last one is cut short.
        overwrite_request(&fleet, &key, bytes.unwrap_or(&whole[..whole.len() - 5])).await;
        broken.push(id);
    }
    let behind = fleet.deferrable_request(web, "7").send_accepted().await;
    lock.release().await;
    for id in &broken {
        let seen = fleet.wait_for_outcome(web, id).await;
        assert_eq!((&*seen.state, &*seen.reason), ("dead", "unreadable"), "{seen:?}");
    }
    assert_eq!(fleet.wait_for_outcome(web, &behind).await.state, "done");
    assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, 1);
}
