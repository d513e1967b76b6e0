//! Row 15: requests that this version can't read.

use futures_util::future::join_all;
use lockgate_tests::{Framework, ledger::Fleet};

use super::{SECOND, steady, with_web};

async fn request(fleet: &Fleet, id: &str) -> (String, Vec<u8>) {
    let keys = fleet.command(&["KEYS", &format!("*:b:{id}")]).await.expect("the server answers");
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of keys");
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let stored = fleet.command(&["GET", key]).await.expect("the server answers");
    (key.clone(), redis::from_redis_value(stored).expect("bytes"))
}

async fn store(fleet: &Fleet, key: &str, bytes: &[u8]) {
    let _ = fleet.command(&[b"SET", key.as_bytes(), bytes]).await.expect("the server answers");
}

/// It is left to a newer worker, is not charged, and keeps its place; live requests pass it.
#[tokio::test]
async fn a_newer_version_waits_for_a_newer_worker() {
    join_all([Framework::Axum, Framework::Actix].map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        let _worker = fleet.join(steady(framework)).await;
        let lock = fleet.hold("7").await;
        let newer = fleet.later(web, "7").accepted().await;
        let behind = fleet.later(web, "7").accepted().await;
        let (key, bytes) = request(&fleet, &newer).await;
        let mut changed = bytes.clone();
        changed[0] += 1;
        store(&fleet, &key, &changed).await;
        lock.release().await;
        let looked = async {
            loop {
                let seen = fleet.see(web, &newer).await;
                if seen.reason == "newer version" {
                    break seen;
                }
                tokio::time::sleep(SECOND / 50).await;
            }
        };
        let seen = lockgate_tests::within("a worker to look at it", looked).await;
        assert_eq!(seen.state, "queued");
        // A worker that looks at it again has the lock for a moment.
        let ship = fleet.later(web, "7").ship().send().await;
        assert!(matches!(ship, lockgate_tests::ledger::Told::Ran(200, _)), "{ship:?}");
        assert!(fleet.runs_of(&newer).is_empty() && fleet.runs_of(&behind).is_empty());
        // What a newer worker would have read. It is left alone for a while.
        store(&fleet, &key, &bytes).await;
        for id in [&newer, &behind] {
            assert_eq!(fleet.outcome(web, id).await.state, "done");
            assert_eq!(fleet.runs_of(id)[0].attempt, 1, "not charged");
        }
        fleet.settle(web).await.is_good();
    }))
    .await;
}

/// Bytes that no version has written, and a request that was cut short, are dead, and hold up nobody.
#[tokio::test]
async fn a_request_that_is_broken_is_dead() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let _worker = fleet.join(steady(Framework::Actix)).await;
    let lock = fleet.hold("7").await;
    let mut broken = Vec::new();
    let no_version: [&[u8]; 3] =
        [b"", &[1; 3], &[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]];
    for bytes in no_version.into_iter().map(Some).chain([None]) {
        let id = fleet.later(web, "7").accepted().await;
        let (key, whole) = request(&fleet, &id).await;
        // The last one is cut short.
        store(&fleet, &key, bytes.unwrap_or(&whole[..whole.len() - 5])).await;
        broken.push(id);
    }
    let behind = fleet.later(web, "7").accepted().await;
    lock.release().await;
    for id in &broken {
        let seen = fleet.outcome(web, id).await;
        assert_eq!((&*seen.state, &*seen.reason), ("dead", "unreadable"), "{seen:?}");
    }
    assert_eq!(fleet.outcome(web, &behind).await.state, "done");
    assert_eq!(fleet.settle(web).await.is_good().runs, 1);
}
