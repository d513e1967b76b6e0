//! Locks that a request has already: nested layers, and calls within a handler.

use futures_util::FutureExt as _;

use super::{
    SECOND, busy, free,
    seam::{enter, gate},
};
use crate::{
    gate::{Gate as _, KeySource, Outcome, Verdict, View as _, fake::FakeView},
    lock::{HeldLocks, LockGate, LockTicket, NotAcquired, Released},
    outage::LockOutage,
    store::{Fault, Store, faulty},
};

async fn pass(gate: &LockGate<()>, view: &mut FakeView) -> LockTicket {
    match enter(gate, view).await {
        Verdict::Pass(ticket) => {
            gate.show(&ticket, view);
            ticket
        }
        _ => panic!("it may pass"),
    }
}

async fn refused(gate: &LockGate<()>, view: &mut FakeView) -> u16 {
    match gate.ask(view) {
        crate::gate::Asked::Answer(reply) => reply.status,
        crate::gate::Asked::Enter(facts) => match gate.enter(facts).await {
            Verdict::Busy(reply, _) | Verdict::Answer(reply) => reply.status,
            Verdict::Pass(_) => panic!("it may not pass"),
        },
        other => panic!("it is asked: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_within_the_handler_has_the_lock_already() {
    let (store, faults) = faulty();
    let lock = gate(&store);
    let mut view = FakeView::new("POST");
    let ticket = pass(&lock, &mut view).await;
    let fence = view.get::<HeldLocks>().unwrap().get("x").unwrap().fence();
    faults.set("acquire", Fault::Away, usize::MAX);
    faults.set("release", Fault::Away, usize::MAX);
    lock.within(&ticket)
        .run(async {
            let inner = store.lock("x").acquire().await.expect("no call is made");
            let again = store.lock("x").wait(SECOND).acquire().await.expect("as often as it likes");
            assert_eq!(Some(inner.fence()), fence);
            assert!(inner.remaining() > SECOND);
            assert_eq!(inner.release().await, Released::StillHeld);
            drop(again);
            let set = store.locks(["x"]).acquire().await.expect("no call is made");
            assert_eq!(set.release().await, Released::StillHeld);
        })
        .await;
    faults.set("acquire", Fault::Away, 0);
    faults.set("release", Fault::Away, 0);
    busy(store.lock("x").acquire().await);
    lock.leave(ticket, Outcome::Answered(200)).await;
    free(&store).await.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_outlives_the_request_keeps_the_lock() {
    let store = Store::memory();
    let lock = gate(&store);
    let ticket = pass(&lock, &mut FakeView::new("POST")).await;
    let inner = lock.within(&ticket).run(store.lock("x").acquire()).await.unwrap();
    lock.leave(ticket, Outcome::Answered(200)).await;
    assert!(!inner.remaining().is_zero());
    busy(store.lock("x").acquire().await);
    tokio::time::sleep(20 * SECOND).await;
    busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(inner.release().await, Released::Released, "it was the last");
    free(&store).await.release().await;
    // Dropped with the request, in either order.
    for first in [true, false] {
        let ticket = pass(&lock, &mut FakeView::new("POST")).await;
        let inner = lock.within(&ticket).run(store.lock("x").acquire()).await.unwrap();
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
    lock.within(&ticket)
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
        crate::lock::ticket::Ticket::Own { guard, .. } => guard.lease().clone(),
        _ => panic!("it is its own"),
    };
    lease.lose(crate::store::Loss::Taken);
    let inner = lock.within(&ticket).run(store.lock("x").acquire()).await;
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
    lock.leave(inner, Outcome::Answered(200)).await;
    // In the same task, and the request was rebuilt.
    let rebuilt = async {
        let mut view = FakeView::new("POST");
        let inner = pass(&lock, &mut view).await;
        // And within that one, too.
        let most = lock.within(&inner).run(store.lock("x").acquire()).await.unwrap();
        assert_eq!(most.release().await, Released::StillHeld);
        lock.leave(inner, Outcome::Answered(200)).await;
        view
    };
    let mut rebuilt = lock.within(&ticket).run(rebuilt).await;
    let inner = pass(&lock, &mut rebuilt).await;
    drop(inner);
    faults.set("acquire", Fault::Away, 0);
    busy(store.lock("x").acquire().await);
    lock.leave(ticket, Outcome::Answered(200)).await;
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
    assert_eq!(view.get::<HeldLocks>().unwrap().fences().count(), 2);
    busy(store.lock("y").acquire().await);
    several.leave(inner, Outcome::Answered(200)).await;
    drop(store.lock("y").acquire().await.expect("it was given back"));
    busy(store.lock("x").acquire().await);
    lock.leave(ticket, Outcome::Answered(200)).await;
    free(&store).await.release().await;
}

#[tokio::test(start_paused = true)]
async fn who_shares_a_lock_does_not_get_it_alone() {
    let store = Store::memory();
    for outer in [gate(&store).read_write(), gate(&store).permits(3)] {
        let mut view = FakeView::new("GET");
        let Verdict::Pass(ticket) = enter(&outer.all_methods(), &mut view).await else {
            panic!("it is free");
        };
        let lock = gate(&store);
        lock.show(&ticket, &mut view);
        lock.within(&ticket)
            .run(async {
                let upgrade = store.lock("x").wait(60 * SECOND).acquire().now_or_never();
                assert!(matches!(upgrade, Some(Err(NotAcquired::WouldDeadlock))), "{upgrade:?}");
                let upgrade = store.locks(["w", "x"]).acquire().await;
                assert!(matches!(upgrade, Err(NotAcquired::WouldDeadlock)), "{upgrade:?}");
            })
            .await;
        view.method = "POST";
        assert_eq!(refused(&lock, &mut view).await, 500);
        assert!(store.lock("w").acquire().await.is_ok(), "nothing was taken for it");
        drop(ticket);
        free(&store).await.release().await;
    }
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
        let inner = guard.scope(ways(wants).acquire()).await;
        assert!(matches!(inner, Err(NotAcquired::WouldDeadlock)), "{inner:?}");
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
    assert_eq!(guard.release().await, Released::StillHeld);
    assert_eq!(deeper.release().await, Released::StillHeld);
    assert_eq!(inner.release().await, Released::Released);
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
    let inner = outer.within(&ticket).run(store.lock("x").acquire()).await;
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
    gate.show(&outer, &mut view);
    let Verdict::Pass(inner) = enter(&gate, &mut view).await else { panic!("it is its own") };
    drop(outer);
    assert!(store.shutdown(SECOND).await);
    busy(store.as_another_process().lock("x").acquire().await);
    gate.leave(inner, Outcome::Answered(200)).await;
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
    outer.show(&ticket, &mut view);
    let mine = store.lock("y").acquire().await.unwrap();
    let verdict = mine.scope(enter(&inner, &mut view)).await;
    assert!(matches!(verdict, Verdict::Pass(_)), "it waits for itself: {verdict:?}");
}

/// Otherwise ten of them would be in a section that one may be in.
#[tokio::test(start_paused = true)]
async fn a_permit_of_many_is_none_of_few() {
    let store = Store::memory();
    let outer = gate(&store).permits(10);
    let mut view = FakeView::new("POST");
    let ticket = pass(&outer, &mut view).await;
    assert_eq!(refused(&gate(&store).permits(1), &mut view).await, 500);
    let upgrade = outer.within(&ticket).run(store.lock("x").permits(1).acquire()).await;
    assert!(matches!(upgrade, Err(NotAcquired::WouldDeadlock)), "{upgrade:?}");
    let inner = pass(&gate(&store).permits(20), &mut view).await;
    drop((inner, ticket));
    free(&store).await.release().await;
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

/// Two handles on one server, say of two libraries.
#[tokio::test(start_paused = true)]
async fn another_handle_has_the_locks_of_its_request() {
    let store = Store::memory();
    let other = store.as_another_process();
    let lock = gate(&store);
    let mut view = FakeView::new("POST");
    let ticket = pass(&lock, &mut view).await;
    let inner = pass(&gate(&other), &mut view).await;
    assert_eq!(view.get::<HeldLocks>().unwrap().len(), 1, "it is one lock");
    let again = lock.within(&ticket).run(other.lock("x").acquire()).await.expect("it is there");
    drop((again, inner, ticket));
    free(&store).await.release().await;
}

/// An inner layer that wants replicas to have the grant gets that of the outer one confirmed, once.
#[tokio::test(start_paused = true)]
async fn what_is_held_counts_when_replicas_have_it() {
    let (store, faults) = faulty();
    let (outer, inner) = (gate(&store), gate(&store).replicas(1));
    let mut view = FakeView::new("POST");
    let ticket = pass(&outer, &mut view).await;
    faults.set("replicated", Fault::Away, 3);
    assert_eq!(refused(&inner, &mut view).await, 503);
    let within = async {
        let one = store.lock("x").replicas(1).acquire().await;
        assert!(matches!(one, Err(NotAcquired::Fault(_))), "{one:?}");
        let all = store.locks(["x", "y"]).replicas(1).acquire().await;
        assert!(matches!(all, Err(NotAcquired::Fault(_))), "{all:?}");
    };
    outer.within(&ticket).run(within).await;
    assert_eq!(faults.left("replicated"), 0);
    drop(pass(&inner, &mut view).await);
    faults.set("replicated", Fault::Away, 1);
    let again = pass(&inner, &mut view).await;
    assert_eq!(faults.left("replicated"), 1, "it is known to be there");
    drop((again, ticket));
    free(&store).await.release().await;
}
