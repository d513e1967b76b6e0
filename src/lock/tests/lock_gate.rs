//! Lock gate with retry layers, deferral, and outages.

use bytes::Bytes;

use super::SECOND;
use crate::{
    defer::DeferLayer,
    gate::{
        Gate, GateRequest as _, HttpRequestHead, InitialVerdict, KeySource, LeaveAction,
        ServiceOutcome, Verdict, fake_request::FakeGateRequest,
    },
    lock::{BusyStatus, HeldLock, HeldLocks, LockLayer, LockTicket, ReleaseStatus},
    outage::LockOutage,
    reply::Reply,
    store::{BackendFault, Store, faulty_store},
};

pub(super) fn new_gate(store: &Store) -> LockLayer<()> {
    let source = KeySource::function(|()| Some("x".to_owned()));
    LockLayer::by(source).store(store)
}

pub(super) async fn enter_gate<G: Gate<()>>(
    gate: &G,
    view: &mut FakeGateRequest,
) -> Verdict<G::Ticket> {
    match gate.inspect(view) {
        InitialVerdict::Enter(context) => gate.enter(context).await,
        InitialVerdict::PassLight(quick) => Verdict::Pass(gate.full_ticket(quick)),
        _ => panic!("it has a key"),
    }
}

/// Enters a `DeferLayer`.
pub(super) async fn enter_defer_gate(
    defer: &DeferLayer<()>,
    view: &mut FakeGateRequest,
) -> <DeferLayer<()> as Gate<()>>::Ticket {
    let Verdict::Pass(ticket) = enter_gate(defer, view).await else {
        panic!("deferral lets everything in")
    };
    defer.annotate_request(&ticket, view);
    ticket
}

/// Enters a gate whose lock is free.
pub(super) async fn pass_gate(gate: &LockLayer<()>, view: &mut FakeGateRequest) -> LockTicket {
    let Verdict::Pass(ticket) = enter_gate(gate, view).await else { panic!("it may pass") };
    gate.annotate_request(&ticket, view);
    ticket
}

/// Returns the reply to a request whose lock was busy.
async fn accept_deferred(
    defer: &DeferLayer<()>,
    ticket: <DeferLayer<()> as Gate<()>>::Ticket,
    view: &mut FakeGateRequest,
) -> Reply {
    let leave_action = defer.leave(ticket, ServiceOutcome::Answered(409)).await;
    let LeaveAction::Accept { accept_ticket: mut parked, body_budget: mut budget, .. } =
        leave_action
    else {
        panic!("it was busy")
    };
    let head = HttpRequestHead::new("POST", "/x", Vec::new(), None);
    let _ = defer.inspect_parked(&mut parked, &head, view, &mut budget);
    defer
        .accept_parked(parked, head, Some(Bytes::new()))
        .await
        .expect("the limits allow another job")
}

fn request_with_idempotency_key(key: &'static str) -> FakeGateRequest {
    let mut view = FakeGateRequest::new("POST");
    view.headers.push(("idempotency-key", key));
    view
}

/// A retry layer stands between `DeferLayer` and `LockLayer`. The second attempt gets the lock, is
/// admitted without it, or is refused with the status of a busy lock.
#[tokio::test(start_paused = true)]
async fn request_busy_only_at_first_attempt_is_not_deferred() {
    for (admits, second) in [(false, 409), (true, 409), (false, 503)] {
        let (store, faults) = faulty_store();
        let defer = DeferLayer::<()>::new();
        let lock = if second == 503 {
            new_gate(&store).busy_status(BusyStatus::Unavailable)
        } else {
            new_gate(&store)
        };
        let lock = if admits { lock.on_outage(LockOutage::Admit) } else { lock };
        let held = store.as_another_process().lock("x").acquire().await.unwrap();
        let mut view = FakeGateRequest::new("POST");
        let deferral = enter_defer_gate(&defer, &mut view).await;
        let mut second_view = view.clone();
        let first = enter_gate(&lock, &mut view).await;
        assert!(matches!(first, Verdict::Busy(reply, _) if reply.status == second));
        if admits || second == 503 {
            faults.set("acquire", BackendFault::Unavailable, 1);
        } else {
            held.release().await;
        }
        match enter_gate(&lock, &mut second_view).await {
            // The handler's own 409 looks like the lock's.
            Verdict::Pass(ticket) => {
                assert_ne!(second, 503);
                let _ = lock.leave(ticket, ServiceOutcome::Answered(409)).await;
            }
            Verdict::Answer(reply) => assert_eq!((reply.status, second), (503, 503)),
            Verdict::Busy(..) => panic!("the lock is free or the store is unavailable"),
        }
        assert_eq!(faults.remaining("acquire"), 0);
        let leave_action = defer.leave(deferral, ServiceOutcome::Answered(second)).await;
        assert!(matches!(leave_action, LeaveAction::AddHeaders(_)), "it would run twice: {second}");
    }
}

/// The request was deferred when its caller did not hold the lock or could not prove it; the 202
/// was lost.
#[tokio::test(start_paused = true)]
async fn accepted_request_does_not_run_under_a_lent_lock() {
    let store = Store::memory();
    let (defer, lock) = (DeferLayer::<()>::new(), new_gate(&store));
    let send = async || {
        let mut view = request_with_idempotency_key("k");
        let deferral = enter_defer_gate(&defer, &mut view).await;
        let Verdict::Busy(..) = enter_gate(&lock, &mut view).await else {
            panic!("it is to be put off")
        };
        let reply = accept_deferred(&defer, deferral, &mut view).await;
        assert_eq!(reply.status, 202);
        reply
            .headers
            .into_iter()
            .find(|(name, _)| name == "location")
            .expect("the response has a location")
    };
    let held = store.lock("x").acquire().await.expect("it is free");
    let first = send().await;
    assert_eq!(held.scope(send()).await, first);
    // A request that was not accepted shares the lock, and the release is certain.
    let mut other = request_with_idempotency_key("other");
    held.scope(async {
        let _deferral = enter_defer_gate(&defer, &mut other).await;
        assert!(matches!(enter_gate(&lock, &mut other).await, Verdict::Pass(_)));
    })
    .await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
}

/// In an outage the idempotency record cannot be read, but the lock is still shared.
#[tokio::test(start_paused = true)]
async fn outage_under_a_lent_lock_affects_only_the_record() {
    for (policy, passes) in [(LockOutage::Refuse, false), (LockOutage::Admit, true)] {
        let (store, faults) = faulty_store();
        let (defer, lock) = (DeferLayer::<()>::new(), new_gate(&store).on_outage(policy));
        let held = store.lock("x").acquire().await.expect("it is free");
        faults.set("acquire", BackendFault::Unavailable, 1);
        let mut view = request_with_idempotency_key("k");
        held.scope(async {
            let _deferral = enter_defer_gate(&defer, &mut view).await;
            match enter_gate(&lock, &mut view).await {
                Verdict::Pass(ticket) => {
                    assert!(passes);
                    lock.annotate_request(&ticket, &mut view);
                    let shown = view.extension::<HeldLock>().expect("it is shown");
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
        assert_eq!(faults.remaining("acquire"), 0, "it was asked");
    }
}

/// An inner layer requests one more lock. The outer lock stays visible as it is.
#[tokio::test(start_paused = true)]
async fn outage_hides_no_lock_of_the_request() {
    let (store, faults) = faulty_store();
    let source = KeySource::functions(|()| vec!["x".to_owned(), "y".to_owned()]);
    let lock = LockLayer::by(source).store(&store).on_outage(LockOutage::Admit);
    let held = store.lock("x").acquire().await.expect("it is free");
    faults.set("acquire", BackendFault::Unavailable, 1);
    let mut view = FakeGateRequest::new("POST");
    held.scope(async {
        let _ticket = pass_gate(&lock, &mut view).await;
        let shown = view.extension::<HeldLocks>().expect("they are shown");
        let fence = |name: &str| shown.get(name).expect("it is named").fence();
        assert_eq!((fence("x"), fence("y")), (Some(held.fence()), None));
    })
    .await;
    assert_eq!(faults.remaining("acquire"), 0, "it was asked");
}

/// The record lies beside the first lock in the store's order, whatever the order of the keys. A
/// retry looks for it there.
#[tokio::test(start_paused = true)]
async fn retry_under_a_lent_lock_set_is_found_by_its_key() {
    for named in [["x", "y"], ["y", "x"]] {
        let store = Store::memory();
        let source = KeySource::<()>::functions(move |()| named.map(str::to_owned).to_vec());
        let lock = LockLayer::by(source).store(&store);
        let defer = DeferLayer::<()>::new().idempotent_direct();
        let held = store.locks(["x", "y"]).acquire().await.expect("they are free");
        for retry in [false, true] {
            let mut view = request_with_idempotency_key("k");
            let deferral = enter_defer_gate(&defer, &mut view).await;
            match held.scope(enter_gate(&lock, &mut view)).await {
                Verdict::Pass(ticket) => {
                    assert!(!retry, "{named:?}: it runs twice");
                    let _ = lock.leave(ticket, ServiceOutcome::Answered(200)).await;
                    let _ = defer.leave(deferral, ServiceOutcome::Answered(200)).await;
                }
                Verdict::Busy(..) => {
                    assert!(retry, "{named:?}");
                    let reply = accept_deferred(&defer, deferral, &mut view).await;
                    assert_eq!(reply.status, 202, "{named:?}");
                }
                Verdict::Answer(reply) => panic!("{reply:?}"),
            }
        }
        assert_eq!(held.release().await, ReleaseStatus::Released);
    }
}

/// A slow client also blocks others if a middleware has acquired the lock.
#[tokio::test(start_paused = true)]
async fn only_the_outermost_layer_times_the_body() {
    let store = Store::memory();
    let lock = new_gate(&store).body_read_timeout(SECOND);
    let passes = async || {
        let (mut view, mut counted) = (FakeGateRequest::new("POST"), Vec::new());
        for _ in 0..2 {
            let ticket = pass_gate(&lock, &mut view).await;
            counted.push((Gate::body_read_timeout(&lock, &ticket), ticket));
        }
        counted.into_iter().map(|(deadline, _)| deadline).collect::<Vec<_>>()
    };
    let guard = store.lock("x").acquire().await.unwrap();
    assert_eq!(guard.scope(passes()).await, [Some(SECOND), None]);
    guard.release().await;
    assert_eq!(passes().await, [Some(SECOND), None]);
}
