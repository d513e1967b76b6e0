//! Locks that a request has already: nested layers, and calls within a handler.

use futures_util::FutureExt as _;

use super::{
    SECOND, busy, free,
    seam::{enter, gate, pass},
};
use crate::{
    gate::{Gate as _, GateRequest as _, KeySource, ServiceOutcome, Verdict, fake::FakeView},
    lock::{AcquireError, HeldLocks, LockGate, ReleaseStatus},
    outage::LockOutage,
    store::{Fault, Store, faulty},
};

async fn refused(gate: &LockGate<()>, view: &mut FakeView) -> u16 {
    match gate.inspect(view) {
        crate::gate::InitialVerdict::Answer(reply) => reply.status,
        crate::gate::InitialVerdict::Enter(facts) => match gate.enter(facts).await {
            Verdict::Busy(reply, _) | Verdict::Answer(reply) => reply.status,
            Verdict::Pass(_) => panic!("it may not pass"),
        },
        other => panic!("it is asked: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_outlives_the_request_keeps_the_lock() {
    let store = Store::memory();
    let lock = gate(&store);
    let ticket = pass(&lock, &mut FakeView::new("POST")).await;
    let inner = lock.request_scope(&ticket).run(store.lock("x").acquire()).await.unwrap();
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    assert!(!inner.remaining().is_zero());
    busy(store.lock("x").acquire().await);
    tokio::time::sleep(20 * SECOND).await;
    busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(inner.release().await, ReleaseStatus::Released, "it was the last");
    free(&store).await.release().await;
    // Dropped with the request, in either order.
    for first in [true, false] {
        let ticket = pass(&lock, &mut FakeView::new("POST")).await;
        let inner = lock.request_scope(&ticket).run(store.lock("x").acquire()).await.unwrap();
        if first {
            drop(ticket);
            drop(inner);
        } else {
            drop(inner);
            drop(ticket);
        }
        free(&store).await.release().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_outside_the_request_is_another_owner() {
    let store = Store::memory();
    let lock = gate(&store);
    let ticket = pass(&lock, &mut FakeView::new("POST")).await;
    busy(store.lock("x").acquire().await);
    lock.request_scope(&ticket)
        .run(async {
            let elsewhere = crate::store::spawn(store.lock("x").acquire());
            busy(elsewhere.await.unwrap());
            let other = store.as_another_process();
            busy(crate::store::spawn(other.lock("x").acquire()).await.unwrap());
            drop(store.lock("y").acquire().await.expect("another lock is another lock"));
            let stranger = Store::memory();
            drop(stranger.lock("x").acquire().await.expect("so is that of another store"));
        })
        .await;
    // A lock that was lost is nobody's to share.
    let lease = match &ticket.0 {
        crate::lock::ticket::LockTicketKind::Acquired { guards: guard, .. } => {
            guard.lease().clone()
        }
        _ => panic!("it is its own"),
    };
    lease.mark_lost(crate::store::LockLoss::Taken);
    let inner = lock.request_scope(&ticket).run(store.lock("x").acquire()).await;
    busy(inner);
}

#[tokio::test(start_paused = true)]
async fn a_layer_further_in_has_the_lock_already() {
    let (store, faults) = faulty();
    let lock = gate(&store);
    let mut view = FakeView::new("POST");
    let ticket = pass(&lock, &mut view).await;
    faults.set("acquire", Fault::Away, usize::MAX);
    // In the same request, in another task.
    let inner = pass(&lock, &mut view).await;
    lock.leave(inner, ServiceOutcome::Answered(200)).await;
    // In the same task, and the request was rebuilt.
    let rebuilt = async {
        let mut view = FakeView::new("POST");
        let inner = pass(&lock, &mut view).await;
        // And within that one, too.
        let most = lock.request_scope(&inner).run(store.lock("x").acquire()).await.unwrap();
        assert_eq!(most.release().await, ReleaseStatus::StillHeld);
        lock.leave(inner, ServiceOutcome::Answered(200)).await;
        view
    };
    let mut rebuilt = lock.request_scope(&ticket).run(rebuilt).await;
    let inner = pass(&lock, &mut rebuilt).await;
    drop(inner);
    faults.set("acquire", Fault::Away, 0);
    busy(store.lock("x").acquire().await);
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    free(&store).await.release().await;
}

#[tokio::test(start_paused = true)]
async fn of_several_locks_only_those_are_taken_that_are_not_there() {
    let (store, faults) = faulty();
    let both = || ["x", "y"].map(str::to_owned).to_vec();
    let several = LockGate::new(KeySource::functions(move |()| both())).store(&store);
    let lock = gate(&store);
    let mut view = FakeView::new("POST");
    let ticket = pass(&lock, &mut view).await;
    faults.set("acquire", Fault::Slow(std::time::Duration::ZERO), 9);
    let inner = pass(&several, &mut view).await;
    assert_eq!(faults.left("acquire"), 8, "one call, for y");
    assert_eq!(view.extension::<HeldLocks>().unwrap().fences().count(), 2);
    busy(store.lock("y").acquire().await);
    several.leave(inner, ServiceOutcome::Answered(200)).await;
    drop(store.lock("y").acquire().await.expect("it was given back"));
    busy(store.lock("x").acquire().await);
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    free(&store).await.release().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_had_in_every_lesser_way() {
    let (store, faults) = faulty();
    let ways = |n| match n {
        0 => store.lock("x"),
        1 => store.lock("x").shared(),
        _ => store.lock("x").permits(n),
    };
    for (has, wants) in [(0, 0), (0, 1), (0, 2), (1, 1), (2, 2), (2, 5), (10, 10)] {
        let guard = ways(has).acquire().await.unwrap();
        faults.set("acquire", Fault::Away, usize::MAX);
        let inner = guard.scope(ways(wants).acquire()).await.expect("it is there");
        assert_eq!(inner.fence(), guard.fence());
        faults.set("acquire", Fault::Away, 0);
        drop((guard, inner));
        free(&store).await.release().await;
    }
    for (has, wants) in [(1, 0), (2, 0), (1, 2), (2, 1), (10, 9), (10, 2)] {
        let guard = ways(has).acquire().await.unwrap();
        let inner = guard.scope(ways(wants).wait(60 * SECOND).acquire()).now_or_never();
        assert!(matches!(inner, Some(Err(AcquireError::WouldDeadlock))), "{inner:?}");
        if wants == 0 {
            let both = guard.scope(store.locks(["w", "x"]).acquire()).await;
            assert!(matches!(both, Err(AcquireError::WouldDeadlock)), "{both:?}");
            drop(store.lock("w").acquire().await.expect("it was not taken"));
        }
        drop(guard);
        free(&store).await.release().await;
    }
}

/// What a handler takes for itself excludes, also among the futures of one task, unless it says otherwise.
#[tokio::test(start_paused = true)]
async fn a_guard_of_ones_own_is_shared_where_it_is_said() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    busy(store.lock("x").acquire().await);
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
    free(&store).await.release().await;
    let set = store.locks(["x", "y"]).acquire().await.unwrap();
    drop(set.scope(store.lock("y").acquire()).await.expect("it is there"));
    drop(set);
    free(&store).await.release().await;
}

/// To be let in without a lock is no lock: a layer that refuses then is not overruled by one that doesn't.
#[tokio::test(start_paused = true)]
async fn who_was_let_in_without_a_lock_has_none() {
    let (store, faults) = faulty();
    let outer = gate(&store).on_outage(LockOutage::Admit);
    faults.set("acquire", Fault::Away, 2);
    let mut view = FakeView::new("POST");
    let ticket = pass(&outer, &mut view).await;
    assert_eq!(refused(&gate(&store), &mut view).await, 503);
    let inner = outer.request_scope(&ticket).run(store.lock("x").acquire()).await;
    drop(inner.expect("the store is back, and nobody has it"));
    free(&store).await.release().await;
}

/// An inner layer whose call goes on in a task of its own, after the outer one's client has gone.
#[tokio::test(start_paused = true)]
async fn an_inner_layer_keeps_the_lock_that_it_was_lent() {
    let store = Store::memory();
    let gate = gate(&store);
    let mut view = FakeView::new("POST");
    let Verdict::Pass(outer) = enter(&gate, &mut view).await else { panic!("it is free") };
    gate.annotate_request(&outer, &mut view);
    let Verdict::Pass(inner) = enter(&gate, &mut view).await else { panic!("it is its own") };
    drop(outer);
    assert!(store.shutdown(SECOND).await);
    busy(store.as_another_process().lock("x").acquire().await);
    gate.leave(inner, ServiceOutcome::Answered(200)).await;
    free(&store).await.release().await;
}

/// A middleware between two layers takes a lock and scopes what is further in.
#[tokio::test(start_paused = true)]
async fn a_scope_counts_beside_the_extensions_of_a_request() {
    let store = Store::memory();
    let outer = gate(&store);
    let inner = LockGate::new(KeySource::function(|()| Some("y".to_owned()))).store(&store);
    let mut view = FakeView::new("POST");
    let Verdict::Pass(ticket) = enter(&outer, &mut view).await else { panic!("it is free") };
    outer.annotate_request(&ticket, &mut view);
    let mine = store.lock("y").acquire().await.unwrap();
    let verdict = mine.scope(enter(&inner, &mut view)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "it waits for itself: {verdict:?}");
}

/// Of one lock that a request has twice, the one that covers counts, however far out it is.
#[tokio::test(start_paused = true)]
async fn the_narrowest_of_several_covers() {
    let store = Store::memory();
    let few = store.lock("x").permits(2).acquire().await.unwrap();
    let many = store.lock("x").permits(5).acquire().await.unwrap();
    let inner = few.scope(async { many.scope(store.lock("x").permits(2).acquire()).await });
    assert_eq!(inner.await.expect("it is there").fence(), few.fence());
}

/// An inner layer that wants replicas to have the grant gets that of the outer one confirmed, once.
#[tokio::test(start_paused = true)]
async fn what_is_held_counts_when_replicas_have_it() {
    let (store, faults) = faulty();
    let (outer, inner) = (gate(&store), gate(&store).min_replicas(1));
    let mut view = FakeView::new("POST");
    let ticket = pass(&outer, &mut view).await;
    faults.set("replicated", Fault::Away, 3);
    assert_eq!(refused(&inner, &mut view).await, 503);
    let within = async {
        let one = store.lock("x").min_replicas(1).acquire().await;
        assert!(matches!(one, Err(AcquireError::Fault(_))), "{one:?}");
        let all = store.locks(["x", "y"]).min_replicas(1).acquire().await;
        assert!(matches!(all, Err(AcquireError::Fault(_))), "{all:?}");
    };
    outer.request_scope(&ticket).run(within).await;
    assert_eq!(faults.left("replicated"), 0);
    drop(pass(&inner, &mut view).await);
    faults.set("replicated", Fault::Away, 1);
    let again = pass(&inner, &mut view).await;
    assert_eq!(faults.left("replicated"), 1, "it is known to be there");
    drop((again, ticket));
    free(&store).await.release().await;
}
