//! Bounds on what may be stored, and what counts towards them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, deferred, key, neighbours, settled, stranger, visit},
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        Settlement, StorageLimits, WebhookJobSpec,
    },
};

on_every_store!(
    what_waits_is_bounded,
    a_refused_job_leaves_nothing,
    every_end_gives_its_room_back,
    jobs_of_an_owner_are_bounded,
    bytes_of_an_owner_are_bounded,
    a_repeated_call_counts_once_for_its_owner,
    what_is_put_back_counts_for_its_owner,
    a_call_counts_for_the_owner_of_its_request,
);

const OPEN: StorageLimits = StorageLimits {
    resource_jobs: 100,
    resource_bytes: 1000,
    shard_jobs: 100,
    shard_bytes: 1000,
    ..StorageLimits::NONE
};

/// Stores a request of ten bytes.
async fn store(rig: &Rig, key: &Key, caps: StorageLimits) -> EnqueueOutcome {
    rig.enqueue(ten_bytes(key, caps, "")).await
}

fn ten_bytes(key: &Key, caps: StorageLimits, owner: &str) -> EnqueueCommand {
    let envelope = Bytes::from_static(b"0123456789");
    EnqueueCommand { limits: caps, envelope, owner: owner.into(), ..deferred(key) }
}

async fn store_for(rig: &Rig, key: &Key, caps: StorageLimits, owner: &str) -> EnqueueOutcome {
    rig.enqueue(ten_bytes(key, caps, owner)).await
}

async fn what_waits_is_bounded(rig: &Rig) {
    let bounds = [
        ("jobs of a resource", StorageLimits { resource_jobs: 2, ..OPEN }),
        ("bytes of a resource", StorageLimits { resource_bytes: 20, ..OPEN }),
        ("jobs of a shard", StorageLimits { shard_jobs: 2, ..OPEN }),
        ("bytes of a shard", StorageLimits { shard_bytes: 20, ..OPEN }),
    ];
    let [one, two] = neighbours::<2>();
    let elsewhere = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let other = elsewhere.into_iter().find(|key| key.shard() != one.shard()).unwrap();
    for (bound, caps) in bounds {
        let of_shard = bound.ends_with("shard");
        assert_eq!(store(rig, &one, caps).await, EnqueueOutcome::Stored { position: 1 }, "{bound}");
        let (second, position) = if of_shard { (&two, 1) } else { (&one, 2) };
        assert_eq!(store(rig, second, caps).await, EnqueueOutcome::Stored { position }, "{bound}");
        assert_eq!(store(rig, &one, caps).await, EnqueueOutcome::Full, "{bound}");
        assert_eq!(store(rig, second, caps).await, EnqueueOutcome::Full, "{bound}");
        let free = if of_shard { &other } else { &two };
        assert_eq!(store(rig, free, caps).await, EnqueueOutcome::Stored { position: 1 }, "{bound}");
        for key in [&one, &two, &other] {
            while let Some(id) = rig.heads(std::slice::from_ref(key)).await[0].clone() {
                rig.cancel(&id).await;
            }
        }
    }
}

async fn a_refused_job_leaves_nothing(rig: &Rig) {
    let key = key();
    let call = EnqueueCommand {
        limits: StorageLimits { resource_bytes: 3, ..OPEN },
        idempotency_record: Some(("idem".into(), "print".into(), LONG)),
        ..deferred(&key)
    };
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Full);
    assert_eq!(rig.job(&call.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert_eq!(rig.due(key.shard(), 10).await.names, []);
    let other = EnqueueCommand { idempotency_record: call.idempotency_record, ..deferred(&key) };
    assert_eq!(
        rig.enqueue(other).await,
        EnqueueOutcome::Stored { position: 1 },
        "no record either"
    );
}

async fn every_end_gives_its_room_back(rig: &Rig) {
    let key = key();
    let all = StorageLimits {
        resource_jobs: 2,
        resource_bytes: 20,
        shard_jobs: 2,
        shard_bytes: 20,
        ..StorageLimits::NONE
    };
    for caps in [
        all,
        StorageLimits { owner_jobs: 2, ..StorageLimits::NONE },
        StorageLimits { owner_bytes: 20, ..StorageLimits::NONE },
    ] {
        every_end(rig, &key, caps).await;
        while let Some(id) = rig.heads(std::slice::from_ref(&key)).await[0].clone() {
            rig.cancel(&id).await;
        }
    }
}

/// Or whoever says whom to call could fill the queue for all others.
async fn a_call_counts_for_the_owner_of_its_request(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = StorageLimits { owner_jobs: 1, ..StorageLimits::NONE };
    let job = ten_bytes(&one, caps, "ada");
    let (id, key) = (job.id.clone(), Key::for_webhook(job.id.as_str(), one.shard()));
    let (call, envelope) = (JobId::new(&key), Bytes::from_static(b"call"));
    let told = WebhookJobSpec { id: call.clone(), key: key.clone(), envelope, max_attempts: 3 };
    let stored = rig.enqueue(EnqueueCommand { webhook: Some(told), ..job }).await;
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 });
    rig.worker().await;
    rig.cancel(&id).await;
    assert_eq!(rig.state(&call).await, Some(JobState::Queued));
    assert_eq!(store_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(store_for(rig, &two, caps, "eve").await, EnqueueOutcome::Stored { position: 1 });
    let run = stranger();
    rig.start(&key, &call, &run).await;
    assert_eq!(store_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert!(rig.finish(&key, &call, &run).await);
    assert_eq!(store_for(rig, &two, caps, "ada").await, EnqueueOutcome::Stored { position: 2 });
}

async fn every_end(rig: &Rig, key: &Key, caps: StorageLimits) {
    let store = async |_: &Rig, key: &Key, caps| store_for(rig, key, caps, "ada").await;
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        assert!(matches!(store(rig, key, caps).await, EnqueueOutcome::Stored { .. }));
    }
    for end in ["done", "dead", "crashed", "cancelled", "done"] {
        assert_eq!(store(rig, key, caps).await, EnqueueOutcome::Full, "before {end}");
        let id = rig.heads(std::slice::from_ref(key)).await[0].clone().unwrap();
        let run = stranger();
        if end == "cancelled" {
            rig.cancel(&id).await;
        } else {
            rig.claim(ClaimCommand { lease: SHORT, ..visit(key, &id, &run) }).await;
        }
        match end {
            "done" => assert!(rig.finish(key, &id, &run).await),
            "dead" => {
                let verdict = Settlement::Dead { reason: "auth", retention: LONG };
                assert!(rig.settle(settled(key, &id, &run, verdict)).await);
            }
            "crashed" => {
                rig.pass(SHORT).await;
                let visited = rig.claim(visit(key, &id, &stranger())).await;
                assert_eq!(visited, ClaimOutcome::Ended(id.clone()));
            }
            _ => {}
        }
        ids.insert(id);
        let stored = store(rig, key, caps).await;
        assert_eq!(stored, EnqueueOutcome::Stored { position: 2 }, "after {end}");
    }
    assert_eq!(ids.len(), 5);
}

async fn jobs_of_an_owner_are_bounded(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = StorageLimits { owner_jobs: 2, ..OPEN };
    assert_eq!(store_for(rig, &one, caps, "ada").await, EnqueueOutcome::Stored { position: 1 });
    let late = ten_bytes(&two, caps, "ada");
    let policy = JobPolicy { delay: SHORT, ..late.policy };
    assert_eq!(
        rig.enqueue(EnqueueCommand { policy, ..late }).await,
        EnqueueOutcome::Stored { position: 0 }
    );
    assert_eq!(store_for(rig, &one, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(store_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(store_for(rig, &one, caps, "bob").await, EnqueueOutcome::Stored { position: 2 });
    let none = StorageLimits { owner_jobs: 0, ..OPEN };
    assert_eq!(store_for(rig, &one, none, "eve").await, EnqueueOutcome::Full, "none at all");
    for position in 3..6 {
        assert_eq!(
            store_for(rig, &one, caps, "").await,
            EnqueueOutcome::Stored { position },
            "nobody's"
        );
    }
}

async fn bytes_of_an_owner_are_bounded(rig: &Rig) {
    let [one, two] = neighbours::<2>();
    let caps = StorageLimits { owner_bytes: 20, ..OPEN };
    assert_eq!(store_for(rig, &one, caps, "ada").await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(store_for(rig, &two, caps, "ada").await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(store_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(store_for(rig, &two, caps, "bob").await, EnqueueOutcome::Stored { position: 2 });
}

async fn a_repeated_call_counts_once_for_its_owner(rig: &Rig) {
    let key = key();
    let call = ten_bytes(&key, StorageLimits { owner_jobs: 2, ..OPEN }, "ada");
    for _ in 0..3 {
        assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    }
    let other = ten_bytes(&key, call.limits, "ada");
    assert_eq!(rig.enqueue(other.clone()).await, EnqueueOutcome::Stored { position: 2 });
    // Cancelled twice is cancelled once.
    for _ in 0..2 {
        rig.cancel(&call.id).await;
    }
    let third = ten_bytes(&key, call.limits, "ada");
    assert_eq!(rig.enqueue(third).await, EnqueueOutcome::Stored { position: 2 });
    assert_eq!(store_for(rig, &key, call.limits, "ada").await, EnqueueOutcome::Full);
}

async fn what_is_put_back_counts_for_its_owner(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let call = ten_bytes(&key, StorageLimits { owner_jobs: 1, ..OPEN }, "ada");
    rig.worker().await;
    rig.enqueue(call.clone()).await;
    rig.start(&key, &call.id, &run).await;
    let verdict = Settlement::Dead { reason: "auth", retention: LONG };
    assert!(rig.settle(settled(&key, &call.id, &run, verdict)).await);
    assert_eq!(rig.redrive(&call.id).await, Some(JobState::Queued));
    assert_eq!(store_for(rig, &key, call.limits, "ada").await, EnqueueOutcome::Full);
    rig.cancel(&call.id).await;
    assert_eq!(
        store_for(rig, &key, call.limits, "ada").await,
        EnqueueOutcome::Stored { position: 1 }
    );
}
