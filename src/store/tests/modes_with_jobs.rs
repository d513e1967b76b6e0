//! Shared holds and permits beside waiting jobs, and with damaged data.

use super::{
    lock_mode_steps::wait_command_as,
    on_every_store,
    store_harness::{LONG_TIME, SHORT_TIME, StoreHarness, claim_command, new_token, test_key},
};
use crate::store::backend::{
    AcquireReply, ClaimOutcome,
    LockMode::{Exclusive, Permits, Shared},
    OFFER_TIMEOUT,
};

on_every_store!(
    busy_claim_stops_readers_passing_the_job,
    moving_queue_does_not_delay_passed_job,
    job_claimed_behind_waiter_is_not_due_at_once,
    permits_pass_unclaimed_job_like_readers,
);

async fn busy_claim_stops_readers_passing_the_job(rig: &StoreHarness) {
    let (key, a, run) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire_as(Shared, &key, &a).await;
    let id = rig.enqueue_job(&key).await;
    rig.release_as(Shared, &key, &a).await;
    rig.let_offer_expire().await;
    let mut last = new_token();
    rig.acquire_as(Shared, &key, &last).await;
    for _ in 0..3 {
        let next = new_token();
        rig.acquire_as(Shared, &key, &next).await;
        rig.release_as(Shared, &key, &last).await;
        let due = rig.poll_due(key.shard(), 10).await.locks;
        assert_eq!(due, std::slice::from_ref(&key), "readers that overlap put it off");
        last = next;
    }
    let outcome = rig.claim(claim_command(&key, &id, &run)).await;
    assert!(matches!(outcome, ClaimOutcome::Busy(_)), "{outcome:?}");
    rig.expect_busy_as(Shared, &key, &new_token()).await;
    rig.release_as(Shared, &key, &last).await;
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
}

/// Like `live_acquires_do_not_delay_skipped_job`, with waiters in the queue. Each offer adds a time
/// at which a worker must poll, but must not postpone the due time of the job.
async fn moving_queue_does_not_delay_passed_job(rig: &StoreHarness) {
    let (key, mut holder, run) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &holder).await;
    let id = rig.enqueue_job(&key).await;
    rig.release(&key, &holder).await;
    rig.let_offer_expire().await;
    holder = new_token();
    rig.acquire_exclusive(&key, &holder).await;
    for round in 0..5 {
        let next = new_token();
        rig.join_queue(&key, &next).await;
        rig.release(&key, &holder).await;
        let due = rig.poll_due(key.shard(), 10).await.locks;
        assert_eq!(due, std::slice::from_ref(&key), "put off by offer {round}");
        rig.acquire_exclusive(&key, &next).await;
        holder = next;
    }
    let outcome = rig.claim(claim_command(&key, &id, &run)).await;
    assert!(matches!(outcome, ClaimOutcome::Busy(_)), "{outcome:?}");
    rig.release(&key, &holder).await;
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
}

async fn job_claimed_behind_waiter_is_not_due_at_once(rig: &StoreHarness) {
    let (key, dead, waiter, run) = (test_key(), new_token(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire_with_lease(Exclusive, &key, &dead, SHORT_TIME).await;
    rig.join_queue(&key, &waiter).await;
    let id = rig.enqueue_job(&key).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    let outcome = rig.claim(claim_command(&key, &id, &run)).await;
    assert_eq!(outcome, ClaimOutcome::Busy(OFFER_TIMEOUT));
    let due = rig.poll_due(key.shard(), 10).await;
    assert!(due.locks.is_empty(), "a worker would spin");
    assert!(due.next_due_in.is_some_and(|next| next <= OFFER_TIMEOUT), "{due:?}");
    rig.acquire_exclusive(&key, &waiter).await;
}

async fn permits_pass_unclaimed_job_like_readers(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let [a, b, c] = [new_token(), new_token(), new_token()];
    rig.register_worker().await;
    for token in [&a, &b] {
        rig.acquire_as(Permits(3), &key, token).await;
    }
    let id = rig.enqueue_job(&key).await;
    rig.expect_busy_as(Permits(3), &key, &c).await;
    for token in [&a, &b] {
        rig.release_as(Permits(3), &key, token).await;
    }
    rig.let_offer_expire().await;
    // No worker has taken the offer: live requests continue, the first one at once.
    rig.acquire_as(Permits(3), &key, &c).await;
    rig.acquire_as(Permits(3), &key, &a).await;
    rig.advance_past(LONG_TIME).await;
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
}

#[cfg(feature = "redis")]
mod deleted_keys {
    use super::*;
    use crate::{
        Key,
        store::{
            backend::{AcquireCommand, ReleaseOutcome},
            tests::{lock_mode_steps::renewal_command_as, on_redis, redis_only::is_permanent_key},
        },
    };

    on_redis!(
        renewal_of_deleted_shared_holds_fails,
        deleted_wait_queue_is_rebuilt,
        queue_entries_without_fields_are_served,
    );

    fn lock_key_name(key: &Key, kind: &str) -> String {
        format!("{{{}}}:{kind}:{key}", key.shard())
    }

    async fn delete_key(rig: &StoreHarness, name: &str) {
        assert_eq!(rig.server().key_command::<i64>("DEL", name, &[]).await, 1);
    }

    async fn renewal_of_deleted_shared_holds_fails(rig: &StoreHarness) {
        let (key, a, b, writer) = (test_key(), new_token(), new_token(), new_token());
        rig.acquire_as(Shared, &key, &a).await;
        let fence = rig.acquire_as(Shared, &key, &b).await;
        rig.join_queue(&key, &writer).await;
        delete_key(rig, &lock_key_name(&key, "h")).await;
        let items = [&a, &b].map(|token| renewal_command_as(Shared, &key, token, LONG_TIME));
        assert_eq!(rig.renew(items.into()).await, [false, false]);
        rig.expect_busy_as(Shared, &key, &a).await;
        assert!(rig.acquire_exclusive(&key, &writer).await > fence);
        assert_eq!(rig.release_as(Shared, &key, &b).await, ReleaseOutcome::NotFound);
    }

    async fn deleted_wait_queue_is_rebuilt(rig: &StoreHarness) {
        let (key, reader, writer, late) = (test_key(), new_token(), new_token(), new_token());
        rig.acquire_as(Shared, &key, &reader).await;
        let seq = rig.join_queue(&key, &writer).await;
        delete_key(rig, &lock_key_name(&key, "q")).await;
        // The writer resumes its old sequence; otherwise a reader would be admitted before it.
        let rejoin =
            AcquireCommand { resume_seq: seq, ..wait_command_as(Exclusive, &key, &writer) };
        match rig.acquire(rejoin).await {
            AcquireReply::Busy { seq: entry_seq, has_joined: true, queue_length: 1, .. } => {
                assert_eq!(entry_seq, seq);
            }
            other => panic!("{other:?}"),
        }
        rig.expect_busy_as(Shared, &key, &late).await;
        rig.release_as(Shared, &key, &reader).await;
        rig.acquire_exclusive(&key, &writer).await;
    }

    async fn queue_entries_without_fields_are_served(rig: &StoreHarness) {
        let (key, holder, writer) = (test_key(), new_token(), new_token());
        let readers = [new_token(), new_token()];
        rig.acquire_exclusive(&key, &holder).await;
        for token in &readers {
            rig.join_queue_as(Shared, &key, token).await;
        }
        rig.join_queue(&key, &writer).await;
        delete_key(rig, &lock_key_name(&key, "l")).await;
        rig.release(&key, &holder).await;
        for token in &readers {
            rig.acquire_as(Shared, &key, token).await;
        }
        // A reader with an old sequence overtakes the writer. The store notes that in a key with an
        // expiry.
        let slow = new_token();
        let overtake = AcquireCommand { resume_seq: 1, ..wait_command_as(Shared, &key, &slow) };
        assert!(matches!(rig.acquire(overtake).await, AcquireReply::Granted { .. }));
        for token in readers.iter().chain([&slow]) {
            rig.release_as(Shared, &key, token).await;
        }
        rig.acquire_exclusive(&key, &writer).await;
        rig.release(&key, &writer).await;
        rig.advance_past(LONG_TIME).await;
        let leftover = rig.server().key_names().await;
        let leftover: Vec<_> = leftover.iter().filter(|name| !is_permanent_key(name)).collect();
        assert!(leftover.is_empty(), "{leftover:?}");
    }
}
