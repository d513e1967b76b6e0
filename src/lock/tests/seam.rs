//! The gate of a lock, with what stands around it: retry layers, deferral, an outage.

use bytes::Bytes;

use super::SECOND;
use crate::{
    defer::DeferGate,
    gate::{Asked, Gate, KeySource, Outcome, Parting, Verdict, fake::FakeView},
    lock::LockGate,
    outage::LockOutage,
    store::{Fault, Store, faulty},
};

pub(super) fn gate(store: &Store) -> LockGate<()> {
    let source = KeySource::function(|()| Some("x".to_owned()));
    LockGate::new(source).store(store)
}

pub(super) async fn enter<G: Gate<()>>(gate: &G, view: &mut FakeView) -> Verdict<G::Ticket> {
    match gate.ask(view) {
        Asked::Enter(facts) => gate.enter(facts).await,
        Asked::Pass(quick) => Verdict::Pass(gate.ticket(quick)),
        _ => panic!("it has a key"),
    }
}

/// Under a deferring layer, with a retry layer in between: busy at first, let in the second time.
#[tokio::test(start_paused = true)]
async fn what_has_run_at_last_is_not_deferred_for_its_first_try() {
    let store = Store::memory();
    let (defer, lock) = (DeferGate::<()>::new(), gate(&store));
    let held = store.lock("x").acquire().await.unwrap();
    let mut view = FakeView::new("POST");
    let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
        panic!("deferral lets everything in");
    };
    defer.show(&deferral, &mut view);
    let mut again = view.clone();
    let first = enter(&lock, &mut view).await;
    assert!(matches!(first, Verdict::Busy(reply, _) if reply.status == 409));
    held.release().await;
    let Verdict::Pass(ticket) = enter(&lock, &mut again).await else {
        panic!("it is free");
    };
    // The handler's own 409 looks like the lock's.
    lock.leave(ticket, Outcome::Answered(409)).await;
    let parting = defer.leave(deferral, Outcome::Answered(409)).await;
    assert!(matches!(parting, Parting::Fields(_)), "it would run twice");
}

/// The same, and the second try is let in because the store is away, or because it is a lock it has.
#[tokio::test(start_paused = true)]
async fn what_was_let_through_an_outage_is_not_deferred_for_its_first_try() {
    let (store, faults) = faulty();
    let (defer, lock) = (DeferGate::<()>::new(), gate(&store).on_outage(LockOutage::Admit));
    let _held = store.lock("x").acquire().await.unwrap();
    let mut view = FakeView::new("POST");
    let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
        panic!("deferral lets everything in");
    };
    defer.show(&deferral, &mut view);
    let mut again = view.clone();
    assert!(matches!(enter(&lock, &mut view).await, Verdict::Busy(..)));
    faults.set("acquire", Fault::Away, 1);
    let Verdict::Pass(ticket) = enter(&lock, &mut again).await else {
        panic!("the store is away");
    };
    lock.leave(ticket, Outcome::Answered(409)).await;
    let parting = defer.leave(deferral, Outcome::Answered(409)).await;
    assert!(matches!(parting, Parting::Fields(_)), "it would run twice");
}

/// The counterpart, so that the test above means something: without the second try it is deferred.
#[tokio::test(start_paused = true)]
async fn what_was_busy_is_deferred() {
    let store = Store::memory();
    let (defer, lock) = (DeferGate::<()>::new(), gate(&store));
    let _held = store.lock("x").acquire().await.unwrap();
    let mut view = FakeView::new("POST");
    let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
        panic!("deferral lets everything in");
    };
    defer.show(&deferral, &mut view);
    let refused = enter(&lock, &mut view).await;
    assert!(matches!(refused, Verdict::Busy(..)));
    let Parting::Accept { parked, .. } = defer.leave(deferral, Outcome::Answered(409)).await else {
        panic!("it was busy");
    };
    let head = crate::gate::Head::new("POST", "/orders/7", Vec::new(), None);
    let reply = defer.accept(parked, head, Some(Bytes::new())).await;
    assert_eq!(reply.map(|reply| reply.status), Some(202));
}

#[tokio::test(start_paused = true)]
async fn endless_terms_of_a_layer_are_terms() {
    let store = Store::memory();
    let endless = std::time::Duration::MAX;
    let lock = gate(&store).lease(endless).max_hold(endless).wait(endless);
    let mut view = FakeView::new("POST");
    let ticket = enter(&lock, &mut view).await;
    tokio::time::sleep(100 * SECOND).await;
    assert!(matches!(ticket, Verdict::Pass(_)));
}
