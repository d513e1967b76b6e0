//! Locks: acquire, renewal, release, fences.

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, enqueue_command, keys_of_one_shard, new_token,
        test_key, try_acquire_command, wait_command,
    },
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, EnqueueOutcome, LeaseRenewal, LockMode, LockToken, NodeId,
    ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    repeated_acquire_by_holder_grants_larger_fence,
    fences_grow_over_all_locks_of_a_shard,
    release_reports_what_it_removed,
    sent_release_runs_before_next_call,
    release_distinguishes_expired_from_unknown,
    release_after_renewed_lease_end_finds_nothing,
    renewal_extends_only_own_leases,
    holder_can_advance_fence,
    late_renewal_or_acquire_shortens_no_lease,
    acquire_with_known_record_takes_no_lock,
    holder_is_granted_again_despite_known_record,
);

async fn repeated_acquire_by_holder_grants_larger_fence(rig: &StoreHarness) {
    let (key, a) = (test_key(), new_token());
    let first = rig.acquire_exclusive(&key, &a).await;
    let second = rig.acquire_exclusive(&key, &a).await;
    assert!(second > first + SPARE_FENCES, "{second} after {first}");
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::Released);
    rig.acquire_exclusive(&key, &new_token()).await;
}

async fn fences_grow_over_all_locks_of_a_shard(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<3>();
    let mut last = 0;
    for round in 0..12 {
        let (key, token) = (&keys[round % 3], new_token());
        let fence = rig.acquire_exclusive(key, &token).await;
        assert!(fence > last, "{fence} after {last}");
        // The spare fences belong to the holder too.
        last = fence + SPARE_FENCES;
        rig.release(key, &token).await;
    }
}

async fn release_reports_what_it_removed(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::NotFound);
    rig.acquire_exclusive(&key, &a).await;
    rig.join_queue(&key, &b).await;
    assert_eq!(rig.release(&key, &c).await, ReleaseOutcome::NotFound);
    assert_eq!(
        rig.release(&key, &b).await,
        ReleaseOutcome::Withdrawn,
        "the queue entry is withdrawn"
    );
    assert_eq!(rig.release(&key, &b).await, ReleaseOutcome::NotFound);
    rig.join_queue(&key, &c).await;
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::Released);
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::NotFound);
    assert_eq!(rig.release(&key, &c).await, ReleaseOutcome::Withdrawn, "an offer");
    rig.acquire_exclusive(&key, &b).await;
}

async fn sent_release_runs_before_next_call(rig: &StoreHarness) {
    let key = test_key();
    for round in 0..20 {
        let (a, b) = (new_token(), new_token());
        rig.acquire_exclusive(&key, &a).await;
        let sent = rig.send_release(&key, &a);
        if round % 2 == 0 {
            drop(sent);
            rig.acquire_exclusive(&key, &b).await;
        } else {
            rig.acquire_exclusive(&key, &b).await;
            assert_eq!(sent.await.unwrap(), ReleaseOutcome::Released);
        }
        assert_eq!(rig.send_release(&key, &b).await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(rig.send_release(&key, &b).await.unwrap(), ReleaseOutcome::NotFound);
    }
}

async fn release_distinguishes_expired_from_unknown(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    let shared = |token, lease| AcquireCommand {
        mode: LockMode::Shared,
        lease,
        ..try_acquire_command(&key, token)
    };
    rig.acquire(shared(&a, SHORT_TIME)).await;
    rig.acquire(shared(&b, LONG_TIME)).await;
    rig.advance_past(SHORT_TIME).await;
    // The other holder's lease keeps the key alive.
    let release =
        |token: &LockToken| rig.backend().release(key.clone(), token.clone(), LockMode::Shared);
    assert_eq!(release(&a).await.unwrap(), ReleaseOutcome::AlreadyExpired);
    assert_eq!(release(&a).await.unwrap(), ReleaseOutcome::NotFound);
    assert_eq!(release(&b).await.unwrap(), ReleaseOutcome::Released);
}

/// The key of a sole holder expires with its lease, so nothing remains that tells an expired hold
/// from a release in time.
async fn release_after_renewed_lease_end_finds_nothing(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    for (token, is_repeated) in [(&a, false), (&b, true)] {
        rig.acquire(AcquireCommand { lease: SHORT_TIME / 2, ..try_acquire_command(&key, token) })
            .await;
        if is_repeated {
            rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, token) })
                .await;
        } else {
            rig.renew(vec![LeaseRenewal { lease: SHORT_TIME, ..renewal(&key, token) }]).await;
        }
        rig.join_queue(&key, &new_token()).await;
        rig.advance_past(SHORT_TIME).await;
        assert_eq!(rig.release(&key, token).await, ReleaseOutcome::NotFound);
        rig.advance_past(LONG_TIME).await;
    }
}

fn renewal(key: &crate::Key, token: &LockToken) -> LeaseRenewal {
    let (key, token) = (key.clone(), token.clone());
    LeaseRenewal { key, token, mode: LockMode::Exclusive, lease: LONG_TIME, job: None }
}

async fn renewal_extends_only_own_leases(rig: &StoreHarness) {
    let [one, two, three] = keys_of_one_shard::<3>();
    let (a, b) = (new_token(), new_token());
    for key in [&one, &two] {
        rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(key, &a) }).await;
    }
    rig.join_queue(&one, &b).await;
    let items = vec![renewal(&one, &b), renewal(&one, &a), renewal(&three, &a), renewal(&two, &b)];
    assert_eq!(rig.renew(items).await, [false, true, false, false]);
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.renew(vec![renewal(&two, &a)]).await, [false], "its lease had ended");
    assert!(rig.expect_busy(&one, &new_token()).await > SHORT_TIME);
    rig.acquire_exclusive(&two, &b).await;
    assert_eq!(rig.renew(Vec::new()).await, [false; 0]);
}

async fn holder_can_advance_fence(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    let distant = rig.acquire_exclusive(&key, &a).await + 50_000_000;
    let advance = async |token: &LockToken, fence| {
        rig.backend().advance_fence(key.clone(), token.clone(), fence).await
    };
    assert!(!advance(&b, distant * 2).await.unwrap(), "nothing is its own");
    for _ in 0..2 {
        assert!(advance(&a, distant).await.unwrap());
    }
    assert!(advance(&a, 7).await.unwrap(), "a mark never goes back");
    rig.release(&key, &a).await;
    assert!(!advance(&a, distant * 2).await.unwrap(), "not its own any more");
    let next = rig.acquire_exclusive(&key, &b).await;
    assert!((distant + 1..distant + 50_000_000).contains(&next), "{next} after {distant}");
    rig.advance_past(LONG_TIME).await;
    assert!(!advance(&b, distant * 2).await.unwrap(), "its lease has ended");
}

/// A renewal, or a copy of the acquire, may be delayed in a silent connection while the holder
/// extends its lease on another one.
async fn late_renewal_or_acquire_shortens_no_lease(rig: &StoreHarness) {
    for (key, mode) in keys_of_one_shard::<3>().iter().zip([
        LockMode::Exclusive,
        LockMode::Shared,
        LockMode::Permits(2),
    ]) {
        let (a, long) = (new_token(), LONG_TIME - SHORT_TIME);
        let command = || AcquireCommand { mode, lease: SHORT_TIME, ..try_acquire_command(key, &a) };
        let renew = |lease| rig.renew(vec![LeaseRenewal { mode, lease, ..renewal(key, &a) }]);
        assert!(matches!(rig.acquire(command()).await, AcquireReply::Granted { .. }));
        assert_eq!(renew(LONG_TIME).await, [true]);
        assert_eq!(renew(SHORT_TIME).await, [true]);
        assert!(rig.expect_busy(key, &new_token()).await > long, "{mode:?}, renewed");
        assert!(matches!(rig.acquire(command()).await, AcquireReply::Granted { .. }));
        assert!(rig.expect_busy(key, &new_token()).await > long, "{mode:?}, asked again");
        rig.advance_past(SHORT_TIME).await;
        assert_eq!(renew(SHORT_TIME).await, [true], "{mode:?}");
        rig.advance_past(LONG_TIME - SHORT_TIME).await;
        rig.acquire_exclusive(key, &new_token()).await;
    }
}

async fn acquire_with_known_record_takes_no_lock(rig: &StoreHarness) {
    let (key, a) = (test_key(), new_token());
    let mut call = enqueue_command(&key);
    call.idempotency_record = Some(("idem".into(), "print".into(), SHORT_TIME));
    assert_eq!(rig.enqueue(call).await, EnqueueOutcome::Stored { position: 1 });
    let command = |token: &LockToken| AcquireCommand {
        record_name: Some("idem".into()),
        ..wait_command(&key, token)
    };
    // The lock is free and no worker watches: without the record, the acquire would succeed.
    assert_eq!(rig.acquire(command(&a)).await, AcquireReply::AlreadyAccepted);
    let other = AcquireCommand {
        record_name: Some("other".into()),
        ..try_acquire_command(&key, &new_token())
    };
    let AcquireReply::Granted { queue_length, .. } = rig.acquire(other).await else {
        panic!("the lock is free for a new request")
    };
    assert_eq!(queue_length, 1, "the queue has the job alone");
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(
        rig.acquire(command(&a)).await,
        AcquireReply::AlreadyAccepted,
        "however short its life: the job waits"
    );
}

async fn holder_is_granted_again_despite_known_record(rig: &StoreHarness) {
    let (key, a) = (test_key(), LockToken::new(&NodeId::new()));
    rig.acquire_exclusive(&key, &a).await;
    let mut call = enqueue_command(&key);
    call.idempotency_record = Some(("idem".into(), "print".into(), LONG_TIME));
    rig.enqueue(call).await;
    let command =
        AcquireCommand { record_name: Some("idem".into()), ..try_acquire_command(&key, &a) };
    assert!(matches!(rig.acquire(command).await, AcquireReply::Granted { queue_length: 1, .. }));
}
