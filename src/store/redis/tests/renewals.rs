//! Renewals that go together.

use std::time::Duration;

use super::server::Server;

/// Somebody has overwritten the one by hand.
#[tokio::test]
async fn a_lock_whose_key_is_broken_takes_no_other_with_it() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let lease = Duration::from_secs(5);
    let keys = ["a", "b", "c"];
    let mut held = Vec::new();
    for key in keys {
        held.push(store.lock(key).lease(lease).acquire().await.expect("nobody has it"));
    }
    let names = server.left().await;
    let broken = names.iter().find(|name| name.contains(":h:") && name.ends_with(":b"));
    let broken = broken.unwrap_or_else(|| panic!("none of {names:?}"));
    server.command(&["SET", broken, "by hand"]).await;
    let lost = held.remove(1);
    assert!(tokio::time::timeout(lease * 4, lost.lost()).await.is_ok(), "it is lost");
    for held in &held {
        assert_eq!(held.loss(), None);
    }
}
