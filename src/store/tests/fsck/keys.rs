//! Keys of other types, and keys of nobody.

use super::*;
use crate::store::FindingKind::{MissingExpiry, UnknownKey, WrongKeyType};

#[tokio::test]
async fn keys_of_another_type_are_told_of_and_left() {
    let rig = Rig::redis().await;
    let (key, other) = (key(), Key::custom("other"));
    rig.worker().await;
    let id = rig.put_off(&other).await;
    let mut left = Vec::new();
    for kind in ["h", "l", "q", "g"] {
        let name = of_line(&key, kind);
        rig.server().raw::<()>("SET", &name, &["by hand"]).await;
        left.push(WrongKeyType);
    }
    let shard = of_shard(&Key::custom("third"), "done");
    rig.server().raw::<()>("SET", &shard, &["by hand"]).await;
    left.push(WrongKeyType);
    finds(&rig, &left, &left).await;
    let text: String = rig.server().raw("GET", &of_line(&key, "h"), &[]).await;
    assert_eq!(text, "by hand");
    let run = stranger();
    rig.start(&other, &id, &run).await;
    assert!(rig.finish(&other, &id, &run).await);
}

#[tokio::test]
async fn keys_of_nobody_are_told_of_and_left() {
    let rig = Rig::redis().await;
    let unknown = ["{3}:nonsense", "{3}:y:name", "{3}:due:name", "{99}:h:x", "else"];
    for name in unknown {
        rig.server().raw::<()>("SET", name, &["x"]).await;
    }
    let left = [UnknownKey; 5];
    finds(&rig, &left, &left).await;
    for name in unknown {
        let there: i64 = rig.server().raw("EXISTS", name, &[]).await;
        assert_eq!(there, 1, "{name}");
    }
}

#[tokio::test]
async fn what_has_to_end_gets_an_end() {
    let rig = Rig::redis().await;
    rig.worker().await;
    let names = ["{3}:c:p:subject", "{3}:k:group:lock", "{3}:zp:node", "{3}:zu:queue@unique"];
    for name in names {
        rig.server().raw::<()>("SET", name, &["1"]).await;
    }
    let new: i64 = rig.server().raw("ZADD", "{0}:limiters", &["9999999999999", "ab"]).await;
    assert_eq!(new, 1);
    finds(&rig, &[MissingExpiry; 5], &[]).await;
    for name in names {
        let left: i64 = rig.server().raw("PTTL", name, &[]).await;
        assert!(left > 1000, "{name}");
    }
}

/// No faults, and no proof that there are none: the name may be mistyped.
#[tokio::test]
async fn a_namespace_that_nobody_uses_is_told_of() {
    let rig = Rig::redis().await;
    rig.ping().await;
    let report = rig.fsck(false).await;
    assert!(report.is_clean() && report.is_namespace_empty(), "{report}");
    assert!(report.to_string().ends_with("nothing of this namespace is there"), "{report}");
    rig.hold(&key(), &stranger()).await;
    let report = rig.fsck(false).await;
    assert!(!report.is_namespace_empty() && report.namespace_keys > 0, "{report}");
}

/// All that is there has an owner or an end, whatever its kind: what is new in the layout has to be known here.
#[tokio::test]
async fn every_kind_of_key_is_known() {
    let rig = Rig::redis().await;
    rig.worker().await;
    let key = key();
    let call = rig::together(vec![rig::fixed("p", &key, (5, LONG), 1)]);
    rig.charge(call).await;
    rig.hold(&key, &stranger()).await;
    rig.join(&key, &stranger()).await;
    rig.put_off(&key).await;
    rig.pause(true).await;
    finds(&rig, &[], &[]).await;
    assert!(rig.server().names().await.iter().any(|name| !lasting(name)));
}
