//! Locks that a request already holds: nested layers, and acquires in a handler.

use futures_util::FutureExt as _;

use super::{
    SECOND, acquire_after_shutdown, expect_busy,
    lock_gate::{enter_gate, new_gate, pass_gate},
};
use crate::{
    gate::{
        Gate as _, GateRequest as _, KeySource, ServiceOutcome, Verdict,
        fake_request::FakeGateRequest,
    },
    lock::{AcquireError, HeldLocks, LockLayer, ReleaseStatus},
    outage::LockOutage,
    store::{BackendFault, Store, faulty_store},
};

async fn refusal_status(gate: &LockLayer<()>, view: &mut FakeGateRequest) -> u16 {
    match gate.inspect(view) {
        crate::gate::InitialVerdict::Answer(reply) => reply.status,
        crate::gate::InitialVerdict::Enter(context) => match gate.enter(context).await {
            Verdict::Busy(reply, _) | Verdict::Answer(reply) => reply.status,
            Verdict::Pass(_) => panic!("it may not pass"),
        },
        other => panic!("it is asked: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn guard_outliving_the_request_keeps_the_lock() {
    let store = Store::memory();
    let lock = new_gate(&store);
    let ticket = pass_gate(&lock, &mut FakeGateRequest::new("POST")).await;
    let inner = lock.request_scope(&ticket).run(store.lock("x").acquire()).await.unwrap();
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    assert!(!inner.remaining().is_zero());
    expect_busy(store.lock("x").acquire().await);
    tokio::time::sleep(20 * SECOND).await;
    expect_busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(inner.release().await, ReleaseStatus::Released, "it was the last");
    acquire_after_shutdown(&store).await.release().await;
    // Dropped with the request, in either order.
    for first in [true, false] {
        let ticket = pass_gate(&lock, &mut FakeGateRequest::new("POST")).await;
        let inner = lock.request_scope(&ticket).run(store.lock("x").acquire()).await.unwrap();
        if first {
            drop(ticket);
            drop(inner);
        } else {
            drop(inner);
            drop(ticket);
        }
        acquire_after_shutdown(&store).await.release().await;
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_outside_the_request_is_another_owner() {
    let store = Store::memory();
    let lock = new_gate(&store);
    let ticket = pass_gate(&lock, &mut FakeGateRequest::new("POST")).await;
    expect_busy(store.lock("x").acquire().await);
    lock.request_scope(&ticket)
        .run(async {
            let other_task = crate::store::spawn(store.lock("x").acquire());
            expect_busy(other_task.await.unwrap());
            let other = store.as_another_process();
            expect_busy(crate::store::spawn(other.lock("x").acquire()).await.unwrap());
            drop(store.lock("y").acquire().await.expect("another lock is another lock"));
            let stranger = Store::memory();
            drop(stranger.lock("x").acquire().await.expect("so is that of another store"));
        })
        .await;
    // A lost lock cannot be shared.
    let lease = match &ticket.locks {
        crate::lock::gate::AdmittedRequestLocks::Acquired { guards: guard, .. } => {
            guard.first_lease().clone()
        }
        _ => panic!("it is its own"),
    };
    lease.mark_lost(crate::store::LockLoss::Taken);
    let inner = lock.request_scope(&ticket).run(store.lock("x").acquire()).await;
    expect_busy(inner);
}

#[tokio::test(start_paused = true)]
async fn inner_layer_shares_the_lock_of_the_outer() {
    let (store, faults) = faulty_store();
    let lock = new_gate(&store);
    let mut view = FakeGateRequest::new("POST");
    let ticket = pass_gate(&lock, &mut view).await;
    faults.set("acquire", BackendFault::Unavailable, usize::MAX);
    // In the same request, in another task.
    let inner = pass_gate(&lock, &mut view).await;
    lock.leave(inner, ServiceOutcome::Answered(200)).await;
    // In the same task, with a rebuilt request.
    let rebuilt = async {
        let mut view = FakeGateRequest::new("POST");
        let inner = pass_gate(&lock, &mut view).await;
        // Nested in that one, too.
        let innermost = lock.request_scope(&inner).run(store.lock("x").acquire()).await.unwrap();
        assert_eq!(innermost.release().await, ReleaseStatus::StillHeld);
        lock.leave(inner, ServiceOutcome::Answered(200)).await;
        view
    };
    let mut rebuilt = lock.request_scope(&ticket).run(rebuilt).await;
    let inner = pass_gate(&lock, &mut rebuilt).await;
    drop(inner);
    faults.set("acquire", BackendFault::Unavailable, 0);
    expect_busy(store.lock("x").acquire().await);
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    acquire_after_shutdown(&store).await.release().await;
}

#[tokio::test(start_paused = true)]
async fn lock_set_acquires_only_the_missing_locks() {
    let (store, faults) = faulty_store();
    let both = || ["x", "y"].map(str::to_owned).to_vec();
    let several = LockLayer::by(KeySource::functions(move |()| both())).store(&store);
    let lock = new_gate(&store);
    let mut view = FakeGateRequest::new("POST");
    let ticket = pass_gate(&lock, &mut view).await;
    faults.set("acquire", BackendFault::SlowReply(std::time::Duration::ZERO), 9);
    let inner = pass_gate(&several, &mut view).await;
    assert_eq!(faults.remaining("acquire"), 8, "one call, for y");
    assert_eq!(view.extension::<HeldLocks>().unwrap().fences().count(), 2);
    expect_busy(store.lock("y").acquire().await);
    several.leave(inner, ServiceOutcome::Answered(200)).await;
    drop(store.lock("y").acquire().await.expect("the lock is released"));
    expect_busy(store.lock("x").acquire().await);
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    acquire_after_shutdown(&store).await.release().await;
}

#[tokio::test(start_paused = true)]
async fn held_lock_covers_every_weaker_mode() {
    let (store, faults) = faulty_store();
    let request_for = |n| match n {
        0 => store.lock("x"),
        1 => store.lock("x").shared(),
        _ => store.lock("x").permits(n),
    };
    for (held, wanted) in [(0, 0), (0, 1), (0, 2), (1, 1), (2, 2), (2, 5), (10, 10)] {
        let guard = request_for(held).acquire().await.unwrap();
        faults.set("acquire", BackendFault::Unavailable, usize::MAX);
        let inner = guard.scope(request_for(wanted).acquire()).await.expect("it is there");
        assert_eq!(inner.fence(), guard.fence());
        faults.set("acquire", BackendFault::Unavailable, 0);
        drop((guard, inner));
        acquire_after_shutdown(&store).await.release().await;
    }
    for (held, wanted) in [(1, 0), (2, 0), (1, 2), (2, 1), (10, 9), (10, 2)] {
        let guard = request_for(held).acquire().await.unwrap();
        let inner = guard.scope(request_for(wanted).wait(60 * SECOND).acquire()).now_or_never();
        assert!(matches!(inner, Some(Err(AcquireError::WouldDeadlock))), "{inner:?}");
        if wanted == 0 {
            let both = guard.scope(store.locks(["w", "x"]).acquire()).await;
            assert!(matches!(both, Err(AcquireError::WouldDeadlock)), "{both:?}");
            drop(store.lock("w").acquire().await.expect("the lock is free"));
        }
        drop(guard);
        acquire_after_shutdown(&store).await.release().await;
    }
}

/// A handler's own guard excludes other acquires, also in the same task, unless they run in its
/// scope.
#[tokio::test(start_paused = true)]
async fn own_guard_is_shared_only_within_its_scope() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    expect_busy(store.lock("x").acquire().await);
    let nested = guard.scope(async {
        let inner = store.lock("x").acquire().await.expect("it is there");
        let deeper = inner.scope(store.lock("x").acquire()).await.expect("it is there");
        let other = store.lock("y").acquire().await.expect("it is free");
        let both = other.scope(store.locks(["x", "y"]).acquire()).await.expect("both are there");
        assert_eq!(both.fences().len(), 2);
        (deeper, inner)
    });
    let (deeper, inner) = nested.await;
    assert_eq!(guard.release().await, ReleaseStatus::StillHeld);
    assert_eq!(deeper.release().await, ReleaseStatus::StillHeld);
    assert_eq!(inner.release().await, ReleaseStatus::Released);
    acquire_after_shutdown(&store).await.release().await;
    let set = store.locks(["x", "y"]).acquire().await.unwrap();
    drop(set.scope(store.lock("y").acquire()).await.expect("it is there"));
    drop(set);
    acquire_after_shutdown(&store).await.release().await;
}

/// Admission in an outage is no lock, so an inner layer that refuses in an outage still refuses.
#[tokio::test(start_paused = true)]
async fn request_admitted_in_an_outage_holds_no_lock() {
    let (store, faults) = faulty_store();
    let outer = new_gate(&store).on_outage(LockOutage::Admit);
    faults.set("acquire", BackendFault::Unavailable, 2);
    let mut view = FakeGateRequest::new("POST");
    let ticket = pass_gate(&outer, &mut view).await;
    assert_eq!(refusal_status(&new_gate(&store), &mut view).await, 503);
    let inner = outer.request_scope(&ticket).run(store.lock("x").acquire()).await;
    drop(inner.expect("the store is available and the lock is free"));
    acquire_after_shutdown(&store).await.release().await;
}

/// The call of the inner layer continues in its own task after the outer client disconnected.
#[tokio::test(start_paused = true)]
async fn inner_layer_keeps_a_lent_lock() {
    let store = Store::memory();
    let gate = new_gate(&store);
    let mut view = FakeGateRequest::new("POST");
    let Verdict::Pass(outer) = enter_gate(&gate, &mut view).await else { panic!("it is free") };
    gate.annotate_request(&outer, &mut view);
    let Verdict::Pass(inner) = enter_gate(&gate, &mut view).await else { panic!("it is its own") };
    drop(outer);
    assert!(store.shutdown(SECOND).await);
    expect_busy(store.as_another_process().lock("x").acquire().await);
    gate.leave(inner, ServiceOutcome::Answered(200)).await;
    acquire_after_shutdown(&store).await.release().await;
}

/// A middleware between two layers acquires a lock and scopes the inner layer.
#[tokio::test(start_paused = true)]
async fn scoped_guard_counts_beside_request_extensions() {
    let store = Store::memory();
    let outer = new_gate(&store);
    let inner = LockLayer::by(KeySource::<()>::function(|()| Some("y".to_owned()))).store(&store);
    let mut view = FakeGateRequest::new("POST");
    let Verdict::Pass(ticket) = enter_gate(&outer, &mut view).await else { panic!("it is free") };
    outer.annotate_request(&ticket, &mut view);
    let guard = store.lock("y").acquire().await.unwrap();
    let verdict = guard.scope(enter_gate(&inner, &mut view)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "it waits for itself: {verdict:?}");
}

/// If a request holds a lock twice, the guard that covers the acquire counts, even if it is an
/// outer one.
#[tokio::test(start_paused = true)]
async fn reentrant_acquire_uses_the_covering_guard() {
    let store = Store::memory();
    let few = store.lock("x").permits(2).acquire().await.unwrap();
    let many = store.lock("x").permits(5).acquire().await.unwrap();
    let inner = few.scope(async { many.scope(store.lock("x").permits(2).acquire()).await });
    assert_eq!(inner.await.expect("it is there").fence(), few.fence());
}

/// An inner layer with `min_replicas` has the grant of the outer layer confirmed, once.
#[tokio::test(start_paused = true)]
async fn held_lock_counts_once_replicas_confirm_it() {
    let (store, faults) = faulty_store();
    let (outer, inner) = (new_gate(&store), new_gate(&store).min_replicas(1));
    let mut view = FakeGateRequest::new("POST");
    let ticket = pass_gate(&outer, &mut view).await;
    faults.set("replicated", BackendFault::Unavailable, 3);
    assert_eq!(refusal_status(&inner, &mut view).await, 503);
    let nested = async {
        let one = store.lock("x").min_replicas(1).acquire().await;
        assert!(matches!(one, Err(AcquireError::Fault(_))), "{one:?}");
        let all = store.locks(["x", "y"]).min_replicas(1).acquire().await;
        assert!(matches!(all, Err(AcquireError::Fault(_))), "{all:?}");
    };
    outer.request_scope(&ticket).run(nested).await;
    assert_eq!(faults.remaining("replicated"), 0);
    drop(pass_gate(&inner, &mut view).await);
    faults.set("replicated", BackendFault::Unavailable, 1);
    let second = pass_gate(&inner, &mut view).await;
    assert_eq!(faults.remaining("replicated"), 1, "the replicas were not asked again");
    drop((second, ticket));
    acquire_after_shutdown(&store).await.release().await;
}
