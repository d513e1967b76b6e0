//! What is found in a store that takes no writes is not told as what can't be mended.

use super::{SECOND, cluster::deferred, server::Server};
use crate::{error::ErrorKind, key::Key, store::key_names::KeyNames};

async fn is_an_outage(server: &Server) {
    if !server.min_replicas_bind_scripts().await {
        return;
    }
    let store = server.patient_store().await;
    let report = store.check().run().await.expect("it can be read");
    assert!(!report.is_clean(), "{report}");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let error = store.check().repair(true).run().await.expect_err("nothing can be mended");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    let report = store.check().repair(true).run().await.expect("it is there");
    assert!(report.is_repaired(), "{report}");
}

#[tokio::test]
async fn of_requests() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let key = Key::custom("x");
    let held = store.lock(key.clone()).lease(60 * SECOND).acquire().await.expect("it is free");
    store.backend().enqueue(deferred(&key)).await.expect("it is there");
    server.command(&["DEL", &KeyNames::new("test").shard_key(key.shard(), "due")]).await;
    is_an_outage(&server).await;
    held.release().await;
}

#[tokio::test]
async fn of_tasks() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    store.queue("numbers").push(&1).await.expect("it is there");
    let place = server.left().await.into_iter().find(|key| key.contains("}:z:"));
    server.command(&["DEL", &place.expect("it has one")]).await;
    is_an_outage(&server).await;
}
