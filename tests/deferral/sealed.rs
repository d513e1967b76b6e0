//! Rows 15 and 17: keys that change, keys that are missing, and what was put where it does not belong.

use futures_util::future::join;
use lockgate_tests::{
    Framework,
    ledger::{Fleet, Setup},
};

use super::{SECOND, fleet, steady};

fn with_keys(framework: Framework, keys: &[u8]) -> Setup {
    Setup { keys: keys.to_vec(), ..steady(framework) }
}

async fn bytes(fleet: &Fleet, key: &str) -> Vec<u8> {
    let stored = fleet.command(&["GET", key]).await.expect("the server answers");
    redis::from_redis_value(stored).expect("bytes")
}

async fn keys(fleet: &Fleet, pattern: &str) -> Vec<String> {
    let keys = fleet.command(&["KEYS", pattern]).await.expect("the server answers");
    redis::from_redis_value(keys).expect("a list of keys")
}

async fn swap(fleet: &Fleet, kind: &str) {
    let keys = keys(fleet, &format!("*:{kind}:*")).await;
    let [one, other] = &keys[..] else { panic!("two of {kind}: {keys:?}") };
    let (first, second) = (bytes(fleet, one).await, bytes(fleet, other).await);
    for (key, bytes) in [(one, second), (other, first)] {
        let words = [b"SET", key.as_bytes(), &bytes, b"KEEPTTL"];
        let _ = fleet.command(&words).await.expect("the server answers");
    }
}

/// In the middle of a change of keys each reads what the others have written.
#[tokio::test]
async fn a_change_of_keys_loses_nothing() {
    let mut fleet = fleet().await;
    let old = fleet.join(with_keys(Framework::Axum, &[1, 2]).web_only()).await;
    let new = fleet.join(with_keys(Framework::Actix, &[2, 1])).await;
    let lock = fleet.hold("7").await;
    for n in 0..6 {
        fleet.later([old, new][n % 2], "7").accepted().await;
    }
    lock.release().await;
    assert_eq!(fleet.settle(old).await.is_good().runs, 6);
}

/// Who does not have the key leaves it to others, uncharged.
#[tokio::test]
async fn a_missing_key_is_waited_for() {
    let mut fleet = fleet().await;
    let web = fleet.join(with_keys(Framework::Axum, &[1, 2]).web_only()).await;
    let without = fleet.join(with_keys(Framework::Actix, &[2])).await;
    let lock = fleet.hold("7").await;
    let ids = [fleet.later(web, "7").accepted().await, fleet.later(web, "7").accepted().await];
    lock.release().await;
    let waits = async {
        while fleet.see(web, &ids[0]).await.reason != "no key" {
            tokio::time::sleep(SECOND / 50).await;
        }
    };
    lockgate_tests::within("a worker to look at it", waits).await;
    assert_eq!(fleet.see(web, &ids[0]).await.state, "queued");
    let with = fleet.join(with_keys(Framework::Axum, &[2, 1])).await;
    fleet.terminate(without);
    fleet.ended(without).await;
    for id in &ids {
        assert_eq!(fleet.outcome(web, id).await.state, "done");
        let [run] = &fleet.runs_of(id)[..] else { panic!("{:?}", fleet.runs_of(id)) };
        assert_eq!((run.attempt, run.incarnation.process), (1, with));
    }
    fleet.settle(web).await.is_good();
}

/// Who can write to the store can't make one request out of another, nor show one's response as another's.
#[tokio::test]
async fn what_was_swapped_is_not_opened() {
    join(requests(&[1]), responses()).await;
}

/// Nor without a key: a stored request names the job that it is of. A slip is found, not who means it.
#[tokio::test]
async fn what_was_swapped_unsealed_does_not_run() {
    requests(&[]).await;
}

async fn requests(under: &[u8]) {
    let mut fleet = fleet().await;
    let node = fleet.join(with_keys(Framework::Axum, under)).await;
    let lock = fleet.hold("7").await;
    let ids = [fleet.later(node, "7").accepted().await, fleet.later(node, "7").accepted().await];
    swap(&fleet, "b").await;
    lock.release().await;
    for id in &ids {
        let seen = fleet.outcome(node, id).await;
        assert_eq!((&*seen.state, &*seen.reason), ("dead", "unreadable"));
    }
    assert_eq!(fleet.settle(node).await.is_good().runs, 0);
}

async fn responses() {
    let mut fleet = fleet().await;
    let node = fleet.join(with_keys(Framework::Actix, &[1])).await;
    let lock = fleet.hold("7").await;
    let ids = [fleet.later(node, "7").accepted().await, fleet.later(node, "7").accepted().await];
    lock.release().await;
    for id in &ids {
        assert_eq!(fleet.outcome(node, id).await.state, "done");
    }
    let response = async |id: &str| {
        let target = format!("/deferred/{id}/response");
        lockgate_tests::request(fleet.addr(node), "GET", &target).send().await
    };
    for id in &ids {
        let text = response(id).await.expect(200).text();
        assert!(text.contains(&**id), "what is looked for below would be seen: {text}");
    }
    swap(&fleet, "r").await;
    for (id, other) in [(&ids[0], &ids[1]), (&ids[1], &ids[0])] {
        let document = format!("/deferred/{id}");
        let document = lockgate_tests::request(fleet.addr(node), "GET", &document).send().await;
        for answer in [document.expect(200), response(id).await.expect(410)] {
            assert!(!answer.text().contains(&**other), "{answer:?}");
        }
    }
    fleet.leave();
}
