//! Grant refresh: the current contenders and spare fences of a held lock.

use super::{
    lock_mode_steps::granted_fence,
    on_every_store,
    store_harness::{StoreHarness, new_token, test_key, try_acquire_command},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, Contenders, GrantRefresh, LockMode, ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    refresh_returns_fence_above_all_before,
    refresh_returns_first_waiter,
    refresh_returns_first_job_beside_first_waiter,
    refresh_requires_exclusive_hold,
);

async fn refresh_returns_fence_above_all_before(rig: &StoreHarness) {
    let (key, token) = (test_key(), new_token());
    let mut last = rig.acquire_exclusive(&key, &token).await;
    for _ in 0..3 {
        let GrantRefresh { fence, contenders, server_us: now } =
            rig.refresh_grant(&key, &token).await.unwrap();
        assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
        assert!(contenders == Contenders::NONE && now > 0);
        last = fence;
    }
    assert_eq!(rig.release(&key, &token).await, ReleaseOutcome::Released);
    assert!(rig.acquire_exclusive(&key, &new_token()).await > last + SPARE_FENCES);
}

async fn refresh_returns_first_waiter(rig: &StoreHarness) {
    let (key, token, [first, second]) = (test_key(), new_token(), [(); 2].map(|()| new_token()));
    let fence = rig.acquire_exclusive(&key, &token).await;
    let seq = rig.join_queue(&key, &first).await;
    let later = rig.join_queue(&key, &second).await;
    let refresh = rig.refresh_grant(&key, &token).await.unwrap();
    assert_eq!(refresh.contenders, Contenders::from_waiter(seq));
    assert!(refresh.fence > fence + SPARE_FENCES);
    // The refresh leaves the queue unchanged.
    rig.release(&key, &first).await;
    assert_eq!(
        rig.refresh_grant(&key, &token).await.unwrap().contenders,
        Contenders::from_waiter(later)
    );
    assert_eq!(rig.release(&key, &token).await, ReleaseOutcome::Released);
    rig.expect_busy(&key, &token).await;
    rig.acquire_exclusive(&key, &second).await;
}

/// A job behind a waiter is reported beside it: a handover may overtake the waiter within its
/// limits, but not the job.
async fn refresh_returns_first_job_beside_first_waiter(rig: &StoreHarness) {
    let (key, token, first) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &token).await;
    let seq = rig.join_queue(&key, &first).await;
    rig.enqueue_job(&key).await;
    let refresh = rig.refresh_grant(&key, &token).await.unwrap().contenders;
    assert!(refresh.first == seq && refresh.job > seq, "{refresh:?}");
    assert_eq!(rig.release(&key, &token).await, ReleaseOutcome::Released);
    match rig.acquire(try_acquire_command(&key, &first)).await {
        AcquireReply::Granted { queue_length: 1, contenders, .. } => {
            assert_eq!(contenders, Contenders::from_job(refresh.job));
        }
        other => panic!("{other:?}"),
    }
}

async fn refresh_requires_exclusive_hold(rig: &StoreHarness) {
    let (key, token) = (test_key(), new_token());
    for mode in [LockMode::Shared, LockMode::Permits(2)] {
        granted_fence(
            &rig.acquire(AcquireCommand { mode, ..try_acquire_command(&key, &token) }).await,
        );
        assert_eq!(rig.refresh_grant(&key, &token).await, None);
        rig.release_as(mode, &key, &token).await;
    }
}
