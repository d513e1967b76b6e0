//! Inspection of a lock, and its forced release.

use super::{
    on_every_store,
    store_harness::{StoreHarness, new_token, test_key},
};
use crate::store::{
    HolderKind,
    backend::{LockMode::Exclusive, LockMode::Shared, ReleaseOutcome},
};

on_every_store!(
    snapshot_shows_holder_and_waiters,
    forced_release_offers_the_lock_with_a_higher_fence,
    forced_release_removes_all_readers,
    forced_release_of_many_holders_offers_the_lock_to_its_queue,
);

async fn snapshot_shows_holder_and_waiters(rig: &StoreHarness) {
    let (key, holder, waiter) = (test_key(), new_token(), new_token());
    let free = rig.backend().inspect_lock(key.clone()).await.unwrap();
    assert!(free.holders.is_empty() && free.waiters.is_empty());
    rig.acquire_as(Exclusive, &key, &holder).await;
    rig.join_queue_as(Exclusive, &key, &waiter).await;
    let snapshot = rig.backend().inspect_lock(key).await.unwrap();
    assert_eq!(snapshot.holders.len(), 1);
    assert_eq!(snapshot.holders[0].kind, HolderKind::Holder(holder));
    assert_eq!((snapshot.waiters.len(), snapshot.waiter_count), (1, 1));
    assert_eq!((&snapshot.waiters[0].token, snapshot.waiters[0].mode), (&waiter, "exclusive"));
}

async fn forced_release_offers_the_lock_with_a_higher_fence(rig: &StoreHarness) {
    let (key, holder, waiter) = (test_key(), new_token(), new_token());
    assert_eq!(rig.backend().force_release(key.clone()).await.unwrap(), 0);
    let fence = rig.acquire_as(Exclusive, &key, &holder).await;
    rig.join_queue_as(Exclusive, &key, &waiter).await;
    assert_eq!(rig.backend().force_release(key.clone()).await.unwrap(), 1);
    let snapshot = rig.backend().inspect_lock(key.clone()).await.unwrap();
    let kinds: Vec<_> = snapshot.holders.into_iter().map(|holder| holder.kind).collect();
    assert_eq!(kinds, [HolderKind::OfferToWaiter(waiter.clone())]);
    // Above the fences that are reserved for handovers of the old holder, too.
    assert!(rig.acquire_as(Exclusive, &key, &waiter).await > fence + 32);
    assert_eq!(rig.release_as(Exclusive, &key, &holder).await, ReleaseOutcome::NotFound);
    assert_eq!(rig.release_as(Exclusive, &key, &waiter).await, ReleaseOutcome::Released);
}

async fn forced_release_removes_all_readers(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    for token in [&a, &b] {
        rig.acquire_as(Shared, &key, token).await;
    }
    assert_eq!(rig.backend().force_release(key.clone()).await.unwrap(), 2);
    rig.acquire_as(Exclusive, &key, &new_token()).await;
}

async fn forced_release_of_many_holders_offers_the_lock_to_its_queue(rig: &StoreHarness) {
    let (key, waiter) = (test_key(), new_token());
    for _ in 0..250 {
        rig.acquire_as(Shared, &key, &new_token()).await;
    }
    rig.join_queue_as(Exclusive, &key, &waiter).await;
    assert_eq!(rig.backend().force_release(key.clone()).await.unwrap(), 250);
    let snapshot = rig.backend().inspect_lock(key.clone()).await.unwrap();
    let kinds: Vec<_> = snapshot.holders.into_iter().map(|holder| holder.kind).collect();
    assert_eq!(kinds, [HolderKind::OfferToWaiter(waiter)]);
    // An offer is no holder.
    assert_eq!(rig.backend().force_release(key).await.unwrap(), 0);
}
