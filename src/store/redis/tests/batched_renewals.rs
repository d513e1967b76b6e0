//! Renewals sent in one batch.

use std::time::Duration;

use super::server_process::ServerProcess;

/// One of three locks was overwritten by hand.
#[tokio::test]
async fn failing_renewal_does_not_lose_other_locks_of_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let lease = Duration::from_secs(5);
    let keys = ["a", "b", "c"];
    let mut held = Vec::new();
    for key in keys {
        held.push(store.lock(key).lease(lease).acquire().await.expect("the lock is free"));
    }
    let names = server.remaining_keys().await;
    let corrupt_key = names.iter().find(|name| name.contains(":h:") && name.ends_with(":b"));
    let corrupt_key = corrupt_key.unwrap_or_else(|| panic!("none of {names:?}"));
    server.command(&["SET", corrupt_key, "by hand"]).await;
    let lost = held.remove(1);
    assert!(tokio::time::timeout(lease * 4, lost.lost()).await.is_ok(), "it is lost");
    for held in &held {
        assert_eq!(held.loss(), None);
    }
}
