//! What a holder is told again of its lock: who stands in line, and more fences.

use super::{
    modes::fence_of,
    on_every_store,
    rig::{Rig, ask, key, stranger},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, Contenders, GrantRefresh, LockMode, ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    a_holder_gets_fences_larger_than_all_before,
    a_holder_is_told_who_stands_first,
    a_job_is_told_of_beside_who_stands_first,
    only_an_exclusive_holder_is_told,
);

async fn a_holder_gets_fences_larger_than_all_before(rig: &Rig) {
    let (key, me) = (key(), stranger());
    let mut last = rig.hold(&key, &me).await;
    for _ in 0..3 {
        let GrantRefresh { fence, contenders: others, server_us: now } =
            rig.still(&key, &me).await.unwrap();
        assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
        assert!(others == Contenders::NONE && now > 0);
        last = fence;
    }
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    assert!(rig.hold(&key, &stranger()).await > last + SPARE_FENCES);
}

async fn a_holder_is_told_who_stands_first(rig: &Rig) {
    let (key, me, [first, second]) = (key(), stranger(), [(); 2].map(|()| stranger()));
    let fence = rig.hold(&key, &me).await;
    let seq = rig.join(&key, &first).await;
    let later = rig.join(&key, &second).await;
    let told = rig.still(&key, &me).await.unwrap();
    assert_eq!(told.contenders, Contenders::from_waiter(seq));
    assert!(told.fence > fence + SPARE_FENCES);
    // They stand as before.
    rig.release(&key, &first).await;
    assert_eq!(rig.still(&key, &me).await.unwrap().contenders, Contenders::from_waiter(later));
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    rig.refused(&key, &me).await;
    rig.hold(&key, &second).await;
}

/// A job that stands behind a place, and is told of beside it: it is not to be passed, and the place may be.
async fn a_job_is_told_of_beside_who_stands_first(rig: &Rig) {
    let (key, me, first) = (key(), stranger(), stranger());
    rig.worker().await;
    rig.hold(&key, &me).await;
    let seq = rig.join(&key, &first).await;
    rig.put_off(&key).await;
    let told = rig.still(&key, &me).await.unwrap().contenders;
    assert!(told.first == seq && told.job > seq, "{told:?}");
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    match rig.acquire(ask(&key, &first)).await {
        AcquireReply::Granted { queue_length: 1, contenders: others, .. } => {
            assert_eq!(others, Contenders::from_job(told.job));
        }
        other => panic!("{other:?}"),
    }
}

async fn only_an_exclusive_holder_is_told(rig: &Rig) {
    let (key, me) = (key(), stranger());
    for mode in [LockMode::Shared, LockMode::Permits(2)] {
        fence_of(&rig.acquire(AcquireCommand { mode, ..ask(&key, &me) }).await);
        assert_eq!(rig.still(&key, &me).await, None);
        rig.release_as(mode, &key, &me).await;
    }
}
