//! Bounds on what may be stored, and what counts towards them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, deferred, key, neighbours, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{Caps, Claim, Claimed, Enqueue, Enqueued, Verdict},
};

on_every_store!(
    jobs_of_a_resource_are_bounded,
    bytes_of_a_resource_are_bounded,
    jobs_of_a_shard_are_bounded,
    bytes_of_a_shard_are_bounded,
    a_refused_job_leaves_nothing,
    every_end_gives_its_room_back,
);

const OPEN: Caps =
    Caps { resource_jobs: 100, resource_bytes: 1000, shard_jobs: 100, shard_bytes: 1000 };

/// Stores a request of ten bytes.
async fn store(rig: &Rig, key: &Key, caps: Caps) -> Enqueued {
    let envelope = Bytes::from_static(b"0123456789");
    rig.enqueue(Enqueue { caps, envelope, ..deferred(key) }).await
}

async fn jobs_of_a_resource_are_bounded(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = Caps { resource_jobs: 2, ..OPEN };
    assert_eq!(store(rig, &one, caps).await, Enqueued::Stored { position: 1 });
    assert_eq!(store(rig, &one, caps).await, Enqueued::Stored { position: 2 });
    assert_eq!(store(rig, &one, caps).await, Enqueued::Full);
    assert_eq!(store(rig, &two, caps).await, Enqueued::Stored { position: 1 });
}

async fn bytes_of_a_resource_are_bounded(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = Caps { resource_bytes: 20, ..OPEN };
    assert_eq!(store(rig, &one, caps).await, Enqueued::Stored { position: 1 });
    assert_eq!(store(rig, &one, caps).await, Enqueued::Stored { position: 2 }, "exactly full");
    assert_eq!(store(rig, &one, caps).await, Enqueued::Full);
    assert_eq!(store(rig, &two, caps).await, Enqueued::Stored { position: 1 });
}

async fn jobs_of_a_shard_are_bounded(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = Caps { shard_jobs: 2, ..OPEN };
    assert_eq!(store(rig, &one, caps).await, Enqueued::Stored { position: 1 });
    assert_eq!(store(rig, &two, caps).await, Enqueued::Stored { position: 1 });
    assert_eq!(store(rig, &two, caps).await, Enqueued::Full);
    let elsewhere = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let other = elsewhere.into_iter().find(|key| key.shard() != one.shard()).unwrap();
    assert_eq!(store(rig, &other, caps).await, Enqueued::Stored { position: 1 });
}

async fn bytes_of_a_shard_are_bounded(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = Caps { shard_bytes: 20, ..OPEN };
    assert_eq!(store(rig, &one, caps).await, Enqueued::Stored { position: 1 });
    assert_eq!(store(rig, &two, caps).await, Enqueued::Stored { position: 1 });
    assert_eq!(store(rig, &two, caps).await, Enqueued::Full);
}

async fn a_refused_job_leaves_nothing(rig: &Rig) {
    let key = key();
    let call = Enqueue {
        caps: Caps { resource_bytes: 3, ..OPEN },
        record: Some(("idem".into(), "print".into(), LONG)),
        ..deferred(&key)
    };
    assert_eq!(rig.enqueue(call.clone()).await, Enqueued::Full);
    assert_eq!(rig.job(&call.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert_eq!(rig.due(key.shard(), 10).await.names, []);
    let other = Enqueue { record: call.record, ..deferred(&key) };
    assert_eq!(rig.enqueue(other).await, Enqueued::Stored { position: 1 }, "no record either");
}

async fn every_end_gives_its_room_back(rig: &Rig) {
    let key = key();
    let caps = Caps { resource_jobs: 2, resource_bytes: 20, shard_jobs: 2, shard_bytes: 20 };
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        assert!(matches!(store(rig, &key, caps).await, Enqueued::Stored { .. }));
    }
    for end in ["done", "dead", "crashed", "cancelled", "done"] {
        assert_eq!(store(rig, &key, caps).await, Enqueued::Full, "before {end}");
        let id = rig.heads(std::slice::from_ref(&key)).await[0].clone().unwrap();
        let run = stranger();
        if end == "cancelled" {
            rig.cancel(&id).await;
        } else {
            rig.claim(Claim { lease: SHORT, ..visit(&key, &id, &run) }).await;
        }
        match end {
            "done" => assert!(rig.finish(&key, &id, &run).await),
            "dead" => {
                let verdict = Verdict::Dead { reason: "auth", retention: LONG };
                assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
            }
            "crashed" => {
                rig.pass(SHORT).await;
                let visited = rig.claim(visit(&key, &id, &stranger())).await;
                assert_eq!(visited, Claimed::Dead(id.clone()));
            }
            _ => {}
        }
        ids.insert(id);
        let stored = store(rig, &key, caps).await;
        assert_eq!(stored, Enqueued::Stored { position: 2 }, "after {end}");
    }
    assert_eq!(ids.len(), 5);
}
