//! Limits of stored jobs and bytes, and what counts towards them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command, keys_of_one_shard,
        new_token, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        Settlement, StorageLimits, WebhookJobSpec,
    },
};

on_every_store!(
    pending_jobs_and_bytes_are_limited,
    refused_enqueue_stores_nothing,
    every_job_end_frees_its_storage,
    jobs_per_owner_are_limited,
    bytes_per_owner_are_limited,
    repeated_enqueue_counts_once_for_owner,
    redriven_job_counts_for_owner,
    webhook_counts_for_owner_of_its_job,
);

const LARGE_LIMITS: StorageLimits = StorageLimits {
    resource_jobs: 100,
    resource_bytes: 1000,
    shard_jobs: 100,
    shard_bytes: 1000,
    ..StorageLimits::NONE
};

/// Enqueues a job of ten bytes.
async fn enqueue_ten_bytes(rig: &StoreHarness, key: &Key, caps: StorageLimits) -> EnqueueOutcome {
    rig.enqueue(ten_byte_job(key, caps, "")).await
}

fn ten_byte_job(key: &Key, caps: StorageLimits, owner: &str) -> EnqueueCommand {
    let envelope = Bytes::from_static(b"0123456789");
    EnqueueCommand { limits: caps, envelope, owner: owner.into(), ..enqueue_command(key) }
}

async fn enqueue_ten_bytes_for(
    rig: &StoreHarness,
    key: &Key,
    caps: StorageLimits,
    owner: &str,
) -> EnqueueOutcome {
    rig.enqueue(ten_byte_job(key, caps, owner)).await
}

async fn pending_jobs_and_bytes_are_limited(rig: &StoreHarness) {
    let bounds = [
        ("jobs of a resource", StorageLimits { resource_jobs: 2, ..LARGE_LIMITS }),
        ("bytes of a resource", StorageLimits { resource_bytes: 20, ..LARGE_LIMITS }),
        ("jobs of a shard", StorageLimits { shard_jobs: 2, ..LARGE_LIMITS }),
        ("bytes of a shard", StorageLimits { shard_bytes: 20, ..LARGE_LIMITS }),
    ];
    let [one, two] = keys_of_one_shard::<2>();
    let other_keys = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let other = other_keys.into_iter().find(|key| key.shard() != one.shard()).unwrap();
    for (bound, caps) in bounds {
        let of_shard = bound.ends_with("shard");
        assert_eq!(
            enqueue_ten_bytes(rig, &one, caps).await,
            EnqueueOutcome::Stored { position: 1 },
            "{bound}"
        );
        let (second, position) = if of_shard { (&two, 1) } else { (&one, 2) };
        assert_eq!(
            enqueue_ten_bytes(rig, second, caps).await,
            EnqueueOutcome::Stored { position },
            "{bound}"
        );
        assert_eq!(enqueue_ten_bytes(rig, &one, caps).await, EnqueueOutcome::Full, "{bound}");
        assert_eq!(enqueue_ten_bytes(rig, second, caps).await, EnqueueOutcome::Full, "{bound}");
        let free = if of_shard { &other } else { &two };
        assert_eq!(
            enqueue_ten_bytes(rig, free, caps).await,
            EnqueueOutcome::Stored { position: 1 },
            "{bound}"
        );
        for key in [&one, &two, &other] {
            while let Some(id) = rig.heads(std::slice::from_ref(key)).await[0].clone() {
                rig.cancel(&id).await;
            }
        }
    }
}

async fn refused_enqueue_stores_nothing(rig: &StoreHarness) {
    let key = test_key();
    let call = EnqueueCommand {
        limits: StorageLimits { resource_bytes: 3, ..LARGE_LIMITS },
        idempotency_record: Some(("idem".into(), "print".into(), LONG_TIME)),
        ..enqueue_command(&key)
    };
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Full);
    assert_eq!(rig.job_view(&call.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, []);
    let other =
        EnqueueCommand { idempotency_record: call.idempotency_record, ..enqueue_command(&key) };
    assert_eq!(
        rig.enqueue(other).await,
        EnqueueOutcome::Stored { position: 1 },
        "no record either"
    );
}

async fn every_job_end_frees_its_storage(rig: &StoreHarness) {
    let key = test_key();
    let resource_and_shard = StorageLimits {
        resource_jobs: 2,
        resource_bytes: 20,
        shard_jobs: 2,
        shard_bytes: 20,
        ..StorageLimits::NONE
    };
    for caps in [
        resource_and_shard,
        StorageLimits { owner_jobs: 2, ..StorageLimits::NONE },
        StorageLimits { owner_bytes: 20, ..StorageLimits::NONE },
    ] {
        check_storage_after_each_end(rig, &key, caps).await;
        while let Some(id) = rig.heads(std::slice::from_ref(&key)).await[0].clone() {
            rig.cancel(&id).await;
        }
    }
}

/// Otherwise a client with webhooks could fill the queue for all others.
async fn webhook_counts_for_owner_of_its_job(rig: &StoreHarness) {
    let [one, two] = keys_of_one_shard::<2>();
    let caps = StorageLimits { owner_jobs: 1, ..StorageLimits::NONE };
    let job = ten_byte_job(&one, caps, "ada");
    let (id, key) = (job.id.clone(), Key::for_webhook(job.id.as_str(), one.shard()));
    let (webhook_id, envelope) = (JobId::new(&key), Bytes::from_static(b"call"));
    let webhook =
        WebhookJobSpec { id: webhook_id.clone(), key: key.clone(), envelope, max_attempts: 3 };
    let stored = rig.enqueue(EnqueueCommand { webhook: Some(webhook), ..job }).await;
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 });
    rig.register_worker().await;
    rig.cancel(&id).await;
    assert_eq!(rig.job_state(&webhook_id).await, Some(JobState::Queued));
    assert_eq!(enqueue_ten_bytes_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(
        enqueue_ten_bytes_for(rig, &two, caps, "eve").await,
        EnqueueOutcome::Stored { position: 1 }
    );
    let run = new_token();
    rig.start_run(&key, &webhook_id, &run).await;
    assert_eq!(enqueue_ten_bytes_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert!(rig.finish_run(&key, &webhook_id, &run).await);
    assert_eq!(
        enqueue_ten_bytes_for(rig, &two, caps, "ada").await,
        EnqueueOutcome::Stored { position: 2 }
    );
}

async fn check_storage_after_each_end(rig: &StoreHarness, key: &Key, caps: StorageLimits) {
    let store = async |_: &StoreHarness, key: &Key, caps| {
        enqueue_ten_bytes_for(rig, key, caps, "ada").await
    };
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        assert!(matches!(store(rig, key, caps).await, EnqueueOutcome::Stored { .. }));
    }
    for ending in ["done", "dead", "crashed", "cancelled", "done"] {
        assert_eq!(store(rig, key, caps).await, EnqueueOutcome::Full, "before {ending}");
        let id = rig.heads(std::slice::from_ref(key)).await[0].clone().unwrap();
        let run = new_token();
        if ending == "cancelled" {
            rig.cancel(&id).await;
        } else {
            rig.claim(ClaimCommand { lease: SHORT_TIME, ..claim_command(key, &id, &run) }).await;
        }
        match ending {
            "done" => assert!(rig.finish_run(key, &id, &run).await),
            "dead" => {
                let settlement = Settlement::Dead { reason: "auth", retention: LONG_TIME };
                assert!(rig.settle(settle_command(key, &id, &run, settlement)).await);
            }
            "crashed" => {
                rig.advance_past(SHORT_TIME).await;
                let outcome = rig.claim(claim_command(key, &id, &new_token())).await;
                assert_eq!(outcome, ClaimOutcome::Ended(id.clone()));
            }
            _ => {}
        }
        ids.insert(id);
        let stored = store(rig, key, caps).await;
        assert_eq!(stored, EnqueueOutcome::Stored { position: 2 }, "after {ending}");
    }
    assert_eq!(ids.len(), 5);
}

async fn jobs_per_owner_are_limited(rig: &StoreHarness) {
    let [one, two] = keys_of_one_shard::<2>();
    let caps = StorageLimits { owner_jobs: 2, ..LARGE_LIMITS };
    assert_eq!(
        enqueue_ten_bytes_for(rig, &one, caps, "ada").await,
        EnqueueOutcome::Stored { position: 1 }
    );
    let delayed = ten_byte_job(&two, caps, "ada");
    let policy = JobPolicy { delay: SHORT_TIME, ..delayed.policy };
    assert_eq!(
        rig.enqueue(EnqueueCommand { policy, ..delayed }).await,
        EnqueueOutcome::Stored { position: 0 }
    );
    assert_eq!(enqueue_ten_bytes_for(rig, &one, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(enqueue_ten_bytes_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(
        enqueue_ten_bytes_for(rig, &one, caps, "bob").await,
        EnqueueOutcome::Stored { position: 2 }
    );
    let none = StorageLimits { owner_jobs: 0, ..LARGE_LIMITS };
    assert_eq!(
        enqueue_ten_bytes_for(rig, &one, none, "eve").await,
        EnqueueOutcome::Full,
        "none at all"
    );
    for position in 3..6 {
        assert_eq!(
            enqueue_ten_bytes_for(rig, &one, caps, "").await,
            EnqueueOutcome::Stored { position },
            "nobody's"
        );
    }
}

async fn bytes_per_owner_are_limited(rig: &StoreHarness) {
    let [one, two] = keys_of_one_shard::<2>();
    let caps = StorageLimits { owner_bytes: 20, ..LARGE_LIMITS };
    assert_eq!(
        enqueue_ten_bytes_for(rig, &one, caps, "ada").await,
        EnqueueOutcome::Stored { position: 1 }
    );
    assert_eq!(
        enqueue_ten_bytes_for(rig, &two, caps, "ada").await,
        EnqueueOutcome::Stored { position: 1 }
    );
    assert_eq!(enqueue_ten_bytes_for(rig, &two, caps, "ada").await, EnqueueOutcome::Full);
    assert_eq!(
        enqueue_ten_bytes_for(rig, &two, caps, "bob").await,
        EnqueueOutcome::Stored { position: 2 }
    );
}

async fn repeated_enqueue_counts_once_for_owner(rig: &StoreHarness) {
    let key = test_key();
    let call = ten_byte_job(&key, StorageLimits { owner_jobs: 2, ..LARGE_LIMITS }, "ada");
    for _ in 0..3 {
        assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    }
    let other = ten_byte_job(&key, call.limits, "ada");
    assert_eq!(rig.enqueue(other.clone()).await, EnqueueOutcome::Stored { position: 2 });
    // A repeated cancel counts once.
    for _ in 0..2 {
        rig.cancel(&call.id).await;
    }
    let third = ten_byte_job(&key, call.limits, "ada");
    assert_eq!(rig.enqueue(third).await, EnqueueOutcome::Stored { position: 2 });
    assert_eq!(enqueue_ten_bytes_for(rig, &key, call.limits, "ada").await, EnqueueOutcome::Full);
}

async fn redriven_job_counts_for_owner(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let call = ten_byte_job(&key, StorageLimits { owner_jobs: 1, ..LARGE_LIMITS }, "ada");
    rig.register_worker().await;
    rig.enqueue(call.clone()).await;
    rig.start_run(&key, &call.id, &run).await;
    let settlement = Settlement::Dead { reason: "auth", retention: LONG_TIME };
    assert!(rig.settle(settle_command(&key, &call.id, &run, settlement)).await);
    assert_eq!(rig.redrive(&call.id).await, Some(JobState::Queued));
    assert_eq!(enqueue_ten_bytes_for(rig, &key, call.limits, "ada").await, EnqueueOutcome::Full);
    rig.cancel(&call.id).await;
    assert_eq!(
        enqueue_ten_bytes_for(rig, &key, call.limits, "ada").await,
        EnqueueOutcome::Stored { position: 1 }
    );
}
