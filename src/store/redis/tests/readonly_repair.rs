//! A repair of a store that refuses writes reports an outage, and no finding that cannot be
//! repaired.

use super::{SECOND, cluster::enqueue_command, server_process::ServerProcess};
use crate::{error::ErrorKind, key::Key, store::key_names::KeyNames};

async fn assert_repair_reports_outage(server: &ServerProcess) {
    if !server.applies_min_replicas_to_scripts().await {
        return;
    }
    let store = server.store_with_long_timeout().await;
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
async fn repair_of_jobs_without_writes_is_outage() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("x");
    let held = store.lock(key.clone()).lease(60 * SECOND).acquire().await.expect("it is free");
    store.backend().enqueue(enqueue_command(&key)).await.expect("it is there");
    server.command(&["DEL", &KeyNames::new("test").shard_key(key.shard(), "due")]).await;
    assert_repair_reports_outage(&server).await;
    held.release().await;
}

#[tokio::test]
async fn repair_of_tasks_without_writes_is_outage() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    store.queue("numbers").push(&1).await.expect("it is there");
    let queue_key = server.remaining_keys().await.into_iter().find(|key| key.contains("}:z:"));
    server.command(&["DEL", &queue_key.expect("it has one")]).await;
    assert_repair_reports_outage(&server).await;
}
