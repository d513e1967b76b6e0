//! The gate of a lock, with what stands around it: retry layers, deferral, an outage.

use bytes::Bytes;

use super::SECOND;
use crate::{
    defer::DeferGate,
    gate::{Asked, Gate, Head, KeySource, Outcome, Parting, Verdict, View as _, fake::FakeView},
    lock::{HeldLock, HeldLocks, LockGate, Released},
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
    let head = Head::new("POST", "/orders/7", Vec::new(), None);
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

/// It was put off when its caller did not have the lock, or could not show that he had it; the 202 was lost.
#[tokio::test(start_paused = true)]
async fn what_was_accepted_does_not_run_under_a_lock_that_is_lent() {
    let store = Store::memory();
    let (defer, lock) = (DeferGate::<()>::new(), gate(&store));
    let view = || {
        let mut view = FakeView::new("POST");
        view.headers.push(("idempotency-key", "k"));
        view
    };
    let come = async || {
        let mut view = view();
        let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
            panic!("deferral lets everything in");
        };
        defer.show(&deferral, &mut view);
        let Verdict::Busy(..) = enter(&lock, &mut view).await else {
            panic!("it is to be put off")
        };
        let parting = defer.leave(deferral, Outcome::Answered(409)).await;
        let Parting::Accept { mut parked, mut room, .. } = parting else { panic!("it was busy") };
        let head = Head::new("POST", "/x", Vec::new(), None);
        let _ = defer.pick_up(&mut parked, &head, &mut view, &mut room);
        let reply = defer.accept(parked, head, Some(Bytes::new())).await.expect("it is known");
        assert_eq!(reply.status, 202);
        reply.fields.into_iter().find(|(name, _)| name == "location").expect("it says where")
    };
    let held = store.lock("x").acquire().await.expect("it is free");
    let first = come().await;
    assert_eq!(held.scope(come()).await, first);
    // Of what nobody has accepted the lock is lent as ever, and its end is known.
    let mut other = FakeView::new("POST");
    other.headers.push(("idempotency-key", "other"));
    held.scope(async {
        let Verdict::Pass(deferral) = enter(&defer, &mut other).await else { panic!("as above") };
        defer.show(&deferral, &mut other);
        assert!(matches!(enter(&lock, &mut other).await, Verdict::Pass(_)));
    })
    .await;
    assert_eq!(held.release().await, Released::Released);
}

/// Whether it was accepted cannot be known then; the lock is there all the same.
#[tokio::test(start_paused = true)]
async fn under_a_lock_that_is_lent_an_outage_is_one_for_keys_alone() {
    for (policy, passes) in [(LockOutage::Refuse, false), (LockOutage::Admit, true)] {
        let (store, faults) = faulty();
        let (defer, lock) = (DeferGate::<()>::new(), gate(&store).on_outage(policy));
        let held = store.lock("x").acquire().await.expect("it is free");
        faults.set("acquire", Fault::Away, 1);
        let mut view = FakeView::new("POST");
        view.headers.push(("idempotency-key", "k"));
        held.scope(async {
            let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
                panic!("as above")
            };
            defer.show(&deferral, &mut view);
            match enter(&lock, &mut view).await {
                Verdict::Pass(ticket) => {
                    assert!(passes);
                    lock.show(&ticket, &mut view);
                    let shown = view.get::<HeldLock>().expect("it is shown");
                    assert_eq!(
                        shown.fence(),
                        Some(held.fence()),
                        "it is not one that was admitted"
                    );
                }
                Verdict::Answer(reply) => assert_eq!((passes, reply.status), (false, 503)),
                Verdict::Busy(..) => panic!("it is its own"),
            }
        })
        .await;
        assert_eq!(faults.left("acquire"), 0, "it was asked");
    }
}

/// An inner layer that asks for one lock more: what a layer further out has stays what it is.
#[tokio::test(start_paused = true)]
async fn an_outage_hides_no_lock_that_the_request_has() {
    let (store, faults) = faulty();
    let source = KeySource::functions(|()| vec!["x".to_owned(), "y".to_owned()]);
    let lock = LockGate::new(source).store(&store).on_outage(LockOutage::Admit);
    let held = store.lock("x").acquire().await.expect("it is free");
    faults.set("acquire", Fault::Away, 1);
    let mut view = FakeView::new("POST");
    held.scope(async {
        let Verdict::Pass(ticket) = enter(&lock, &mut view).await else {
            panic!("it is admitted");
        };
        lock.show(&ticket, &mut view);
        let shown = view.get::<HeldLocks>().expect("they are shown");
        let fence = |name: &str| shown.get(name).expect("it is named").fence();
        assert_eq!((fence("x"), fence("y")), (Some(held.fence()), None));
    })
    .await;
    assert_eq!(faults.left("acquire"), 0, "it was asked");
}

/// Beside the lock that stands first in the store, in whichever order the layer names them: there a retry looks for it.
#[tokio::test(start_paused = true)]
async fn under_several_locks_that_are_lent_a_retry_is_known_by_its_key() {
    for named in [["x", "y"], ["y", "x"]] {
        let store = Store::memory();
        let source = KeySource::functions(move |()| named.map(str::to_owned).to_vec());
        let lock = LockGate::new(source).store(&store);
        let defer = DeferGate::<()>::new().remember_direct();
        let held = store.locks(["x", "y"]).acquire().await.expect("they are free");
        for retry in [false, true] {
            let mut view = FakeView::new("POST");
            view.headers.push(("idempotency-key", "k"));
            let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
                panic!("as above")
            };
            defer.show(&deferral, &mut view);
            match held.scope(enter(&lock, &mut view)).await {
                Verdict::Pass(ticket) => {
                    assert!(!retry, "{named:?}: it runs twice");
                    let _ = lock.leave(ticket, Outcome::Answered(200)).await;
                    let _ = defer.leave(deferral, Outcome::Answered(200)).await;
                }
                Verdict::Busy(..) => {
                    assert!(retry, "{named:?}");
                    let parting = defer.leave(deferral, Outcome::Answered(409)).await;
                    let Parting::Accept { mut parked, mut room, .. } = parting else {
                        panic!("it was busy")
                    };
                    let head = Head::new("POST", "/x", Vec::new(), None);
                    let _ = defer.pick_up(&mut parked, &head, &mut view, &mut room);
                    let reply = defer.accept(parked, head, Some(Bytes::new())).await;
                    assert_eq!(reply.expect("it is known").status, 202, "{named:?}");
                }
                Verdict::Answer(reply) => panic!("{reply:?}"),
            }
        }
        assert_eq!(held.release().await, Released::Released);
    }
}

/// By what was written down beside the first of them; and it keeps none.
#[tokio::test(start_paused = true)]
async fn under_several_locks_a_request_is_known_and_keeps_none() {
    let store = Store::memory();
    let source = KeySource::functions(|()| vec!["x".to_owned(), "y".to_owned()]);
    let lock = LockGate::new(source).store(&store);
    let defer = DeferGate::<()>::new().remember_direct();
    for known in [false, true] {
        let mut view = FakeView::new("POST");
        view.headers.push(("idempotency-key", "k"));
        let Verdict::Pass(deferral) = enter(&defer, &mut view).await else { panic!("as above") };
        defer.show(&deferral, &mut view);
        match enter(&lock, &mut view).await {
            Verdict::Pass(ticket) => {
                assert!(!known);
                let _ = lock.leave(ticket, Outcome::Answered(200)).await;
                let _ = defer.leave(deferral, Outcome::Answered(200)).await;
            }
            Verdict::Busy(_, slot) => assert!(known && slot.is_some()),
            Verdict::Answer(reply) => panic!("{reply:?}"),
        }
        let other = store.as_another_process();
        let both = other.locks(["x", "y"]).acquire().await.expect("they are free");
        assert_eq!(both.release().await, Released::Released);
    }
}

/// Whoever dribbles holds up others under a lock that a middleware has taken, too.
#[tokio::test(start_paused = true)]
async fn a_layer_counts_the_body_unless_one_further_out_does() {
    let store = Store::memory();
    let lock = gate(&store).body_deadline(SECOND);
    let passes = async || {
        let (mut view, mut counted) = (FakeView::new("POST"), Vec::new());
        for _ in 0..2 {
            let Verdict::Pass(ticket) = enter(&lock, &mut view).await else {
                panic!("it is free, or its own")
            };
            lock.show(&ticket, &mut view);
            counted.push((Gate::body_deadline(&lock, &ticket), ticket));
        }
        counted.into_iter().map(|(deadline, _)| deadline).collect::<Vec<_>>()
    };
    let guard = store.lock("x").acquire().await.unwrap();
    assert_eq!(guard.scope(passes()).await, [Some(SECOND), None]);
    guard.release().await;
    assert_eq!(passes().await, [Some(SECOND), None]);
}
