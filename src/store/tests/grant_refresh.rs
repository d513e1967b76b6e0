//! What a holder is told again of its lock: who stands in line, and more fences.

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
    let (key, me) = (test_key(), new_token());
    let mut last = rig.acquire_exclusive(&key, &me).await;
    for _ in 0..3 {
        let GrantRefresh { fence, contenders: others, server_us: now } =
            rig.refresh_grant(&key, &me).await.unwrap();
        assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
        assert!(others == Contenders::NONE && now > 0);
        last = fence;
    }
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    assert!(rig.acquire_exclusive(&key, &new_token()).await > last + SPARE_FENCES);
}

async fn refresh_returns_first_waiter(rig: &StoreHarness) {
    let (key, me, [first, second]) = (test_key(), new_token(), [(); 2].map(|()| new_token()));
    let fence = rig.acquire_exclusive(&key, &me).await;
    let seq = rig.join_queue(&key, &first).await;
    let later = rig.join_queue(&key, &second).await;
    let told = rig.refresh_grant(&key, &me).await.unwrap();
    assert_eq!(told.contenders, Contenders::from_waiter(seq));
    assert!(told.fence > fence + SPARE_FENCES);
    // They stand as before.
    rig.release(&key, &first).await;
    assert_eq!(
        rig.refresh_grant(&key, &me).await.unwrap().contenders,
        Contenders::from_waiter(later)
    );
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    rig.expect_busy(&key, &me).await;
    rig.acquire_exclusive(&key, &second).await;
}

/// A job that stands behind a place, and is told of beside it: it is not to be passed, and the place may be.
async fn refresh_returns_first_job_beside_first_waiter(rig: &StoreHarness) {
    let (key, me, first) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &me).await;
    let seq = rig.join_queue(&key, &first).await;
    rig.enqueue_job(&key).await;
    let told = rig.refresh_grant(&key, &me).await.unwrap().contenders;
    assert!(told.first == seq && told.job > seq, "{told:?}");
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    match rig.acquire(try_acquire_command(&key, &first)).await {
        AcquireReply::Granted { queue_length: 1, contenders: others, .. } => {
            assert_eq!(others, Contenders::from_job(told.job));
        }
        other => panic!("{other:?}"),
    }
}

async fn refresh_requires_exclusive_hold(rig: &StoreHarness) {
    let (key, me) = (test_key(), new_token());
    for mode in [LockMode::Shared, LockMode::Permits(2)] {
        granted_fence(
            &rig.acquire(AcquireCommand { mode, ..try_acquire_command(&key, &me) }).await,
        );
        assert_eq!(rig.refresh_grant(&key, &me).await, None);
        rig.release_as(mode, &key, &me).await;
    }
}
