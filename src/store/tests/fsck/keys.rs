//! Store check of keys with the wrong type, and of unknown keys.

use super::*;
use crate::store::FindingKind::{MissingExpiry, UnknownKey, WrongKeyType};

#[tokio::test]
async fn keys_of_wrong_type_are_reported_and_kept() {
    let rig = StoreHarness::redis().await;
    let (key, other) = (test_key(), Key::custom("other"));
    rig.register_worker().await;
    let id = rig.enqueue_job(&other).await;
    let mut expected = Vec::new();
    for kind in ["h", "l", "q", "g"] {
        let name = lock_key_name(&key, kind);
        rig.server().key_command::<()>("SET", &name, &["by hand"]).await;
        expected.push(WrongKeyType);
    }
    let done_index = shard_key_name(&Key::custom("third"), "done");
    rig.server().key_command::<()>("SET", &done_index, &["by hand"]).await;
    expected.push(WrongKeyType);
    assert_findings_and_repair(&rig, &expected, &expected).await;
    let text: String = rig.server().key_command("GET", &lock_key_name(&key, "h"), &[]).await;
    assert_eq!(text, "by hand");
    let run = new_token();
    rig.start_run(&other, &id, &run).await;
    assert!(rig.finish_run(&other, &id, &run).await);
}

#[tokio::test]
async fn unknown_keys_are_reported_and_kept() {
    let rig = StoreHarness::redis().await;
    let unknown = ["{3}:nonsense", "{3}:y:name", "{3}:due:name", "{99}:h:x", "else"];
    for name in unknown {
        rig.server().key_command::<()>("SET", name, &["x"]).await;
    }
    let expected = [UnknownKey; 5];
    assert_findings_and_repair(&rig, &expected, &expected).await;
    for name in unknown {
        let exists: i64 = rig.server().key_command("EXISTS", name, &[]).await;
        assert_eq!(exists, 1, "{name}");
    }
}

#[tokio::test]
async fn missing_key_expiry_is_set() {
    let rig = StoreHarness::redis().await;
    rig.register_worker().await;
    let names = ["{3}:c:p:subject", "{3}:k:group:lock", "{3}:zp:node", "{3}:zu:queue@unique"];
    for name in names {
        rig.server().key_command::<()>("SET", name, &["1"]).await;
    }
    let added: i64 =
        rig.server().key_command("ZADD", "{0}:limiters", &["9999999999999", "ab"]).await;
    assert_eq!(added, 1);
    assert_findings_and_repair(&rig, &[MissingExpiry; 5], &[]).await;
    for name in names {
        let ttl: i64 = rig.server().key_command("PTTL", name, &[]).await;
        assert!(ttl > 1000, "{name}");
    }
}

/// An empty namespace has no faults, but that proves nothing: its name may be mistyped.
#[tokio::test]
async fn empty_namespace_is_reported() {
    let rig = StoreHarness::redis().await;
    rig.ping().await;
    let report = rig.run_check(false).await;
    assert!(report.is_clean() && report.is_namespace_empty(), "{report}");
    assert!(report.to_string().ends_with("the namespace is empty"), "{report}");
    rig.acquire_exclusive(&test_key(), &new_token()).await;
    let report = rig.run_check(false).await;
    assert!(!report.is_namespace_empty() && report.namespace_keys > 0, "{report}");
}

/// Every kind of key has an owner or an expiry. A new kind in the layout must be known to the
/// check.
#[tokio::test]
async fn every_key_kind_passes_the_check() {
    let rig = StoreHarness::redis().await;
    rig.register_worker().await;
    let key = test_key();
    let call = store_harness::grouped_charge(vec![store_harness::fixed_window_item(
        "p",
        &key,
        (5, LONG_TIME),
        1,
    )]);
    rig.charge(call).await;
    rig.acquire_exclusive(&key, &new_token()).await;
    rig.join_queue(&key, &new_token()).await;
    rig.enqueue_job(&key).await;
    rig.set_jobs_paused(true).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    assert!(rig.server().key_names().await.iter().any(|name| !is_permanent_key(name)));
}
