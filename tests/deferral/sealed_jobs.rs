//! Rows 15 and 17: rotated keys, missing keys, and sealed data under another job's name.

use futures_util::future::join;
use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, NodeSetup},
};

use super::{SECOND, long_lease_setup, start_fleet};

fn sealing_setup(framework: WebFramework, keys: &[u8]) -> NodeSetup {
    NodeSetup { sealing_key_numbers: keys.to_vec(), ..long_lease_setup(framework) }
}

async fn read_value(fleet: &JobFleet, key: &str) -> Vec<u8> {
    let stored = fleet.send_server_command(&["GET", key]).await.expect("the server answers");
    redis::from_redis_value(stored).expect("bytes")
}

async fn find_keys(fleet: &JobFleet, pattern: &str) -> Vec<String> {
    let keys = fleet.send_server_command(&["KEYS", pattern]).await.expect("the server answers");
    redis::from_redis_value(keys).expect("a list of keys")
}

async fn swap_stored_values(fleet: &JobFleet, kind: &str) {
    let keys = find_keys(fleet, &format!("*:{kind}:*")).await;
    let [first_key, second_key] = &keys[..] else { panic!("two of {kind}: {keys:?}") };
    let (first, second) = (read_value(fleet, first_key).await, read_value(fleet, second_key).await);
    for (key, bytes) in [(first_key, second), (second_key, first)] {
        let command = [b"SET", key.as_bytes(), &bytes, b"KEEPTTL"];
        let _ = fleet.send_server_command(&command).await.expect("the server answers");
    }
}

/// During a rotation, each node reads data that the others sealed.
#[tokio::test]
async fn sealing_key_rotation_loses_no_job() {
    let mut fleet = start_fleet().await;
    let old = fleet.start_node(sealing_setup(WebFramework::Axum, &[1, 2]).without_worker()).await;
    let new = fleet.start_node(sealing_setup(WebFramework::Actix, &[2, 1])).await;
    let lock = fleet.hold_lock("7").await;
    for n in 0..6 {
        fleet.deferrable_request([old, new][n % 2], "7").send_accepted().await;
    }
    lock.release().await;
    assert_eq!(fleet.finish_and_check(old).await.assert_no_violations().runs, 6);
}

/// A worker without the key returns the job uncharged.
#[tokio::test]
async fn sealing_key_missing_at_worker_leaves_job_queued() {
    let mut fleet = start_fleet().await;
    let web = fleet.start_node(sealing_setup(WebFramework::Axum, &[1, 2]).without_worker()).await;
    let worker_without_key = fleet.start_node(sealing_setup(WebFramework::Actix, &[2])).await;
    let lock = fleet.hold_lock("7").await;
    let ids = [
        fleet.deferrable_request(web, "7").send_accepted().await,
        fleet.deferrable_request(web, "7").send_accepted().await,
    ];
    lock.release().await;
    let no_key_status = async {
        while fleet.query_status(web, &ids[0]).await.reason != "no key" {
            tokio::time::sleep(SECOND / 50).await;
        }
    };
    lockgate_tests::with_timeout("a worker to claim the job", no_key_status).await;
    assert_eq!(fleet.query_status(web, &ids[0]).await.state, "queued");
    let worker_with_key = fleet.start_node(sealing_setup(WebFramework::Axum, &[2, 1])).await;
    fleet.terminate(worker_without_key);
    fleet.wait_for_exit(worker_without_key).await;
    for id in &ids {
        assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
        let [run] = &fleet.runs_of(id)[..] else { panic!("{:?}", fleet.runs_of(id)) };
        assert_eq!((run.attempt, run.incarnation.process), (1, worker_with_key));
    }
    fleet.finish_and_check(web).await.assert_no_violations();
}

/// Write access to the store is not enough to turn one request into another or to show one response
/// as another's.
#[tokio::test]
async fn swapped_sealed_values_are_not_opened() {
    join(check_swapped_requests(&[1]), check_swapped_responses()).await;
}

/// Without sealing, the checksum of a stored request covers its job id. That detects accidental
/// swaps, not attacks.
#[tokio::test]
async fn swapped_unsealed_requests_do_not_run() {
    check_swapped_requests(&[]).await;
}

async fn check_swapped_requests(key_numbers: &[u8]) {
    let mut fleet = start_fleet().await;
    let node = fleet.start_node(sealing_setup(WebFramework::Axum, key_numbers)).await;
    let lock = fleet.hold_lock("7").await;
    let ids = [
        fleet.deferrable_request(node, "7").send_accepted().await,
        fleet.deferrable_request(node, "7").send_accepted().await,
    ];
    swap_stored_values(&fleet, "b").await;
    lock.release().await;
    for id in &ids {
        let outcome = fleet.wait_for_outcome(node, id).await;
        assert_eq!((&*outcome.state, &*outcome.reason), ("dead", "unreadable"));
    }
    assert_eq!(fleet.finish_and_check(node).await.assert_no_violations().runs, 0);
}

async fn check_swapped_responses() {
    let mut fleet = start_fleet().await;
    let node = fleet.start_node(sealing_setup(WebFramework::Actix, &[1])).await;
    let lock = fleet.hold_lock("7").await;
    let ids = [
        fleet.deferrable_request(node, "7").send_accepted().await,
        fleet.deferrable_request(node, "7").send_accepted().await,
    ];
    lock.release().await;
    for id in &ids {
        assert_eq!(fleet.wait_for_outcome(node, id).await.state, "done");
    }
    let response = async |id: &str| {
        let target = format!("/deferred/{id}/response");
        lockgate_tests::request(fleet.node_addr(node), "GET", &target).send().await
    };
    for id in &ids {
        let text = response(id).await.expect_status(200).text();
        assert!(text.contains(&**id), "the monitor records plain text: {text}");
    }
    swap_stored_values(&fleet, "r").await;
    for (id, other) in [(&ids[0], &ids[1]), (&ids[1], &ids[0])] {
        let document = format!("/deferred/{id}");
        let document =
            lockgate_tests::request(fleet.node_addr(node), "GET", &document).send().await;
        for answer in [document.expect_status(200), response(id).await.expect_status(410)] {
            assert!(!answer.text().contains(&**other), "{answer:?}");
        }
    }
    fleet.close_unchecked();
}
