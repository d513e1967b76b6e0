//! End of a request's lock: reply of the gate, and state of the lock.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout};

use super::{
    SECOND, acquire_after_shutdown,
    lock_gate::{enter_gate, new_gate},
    revoke_lease,
};
use crate::{
    gate::{
        BodyTicket, Gate as _, GateRequest as _, LeaveAction, NextBodyItem, ReplayMarker,
        RunningJob, ServiceOutcome, Verdict, fake_request::FakeGateRequest,
    },
    lock::{HoldUntil, LockLayer, LockTicket, OnLoss, gate::AdmittedRequestLocks},
    store::{BackendFault, LockLoss, Store, faulty_store},
};

async fn enter_free_gate(gate: &LockLayer<()>) -> LockTicket {
    match enter_gate(gate, &mut FakeGateRequest::new("POST")).await {
        Verdict::Pass(ticket) => ticket,
        _ => panic!("it is free"),
    }
}

/// Time for which `leave` waits for a release that takes one second.
async fn time_to_leave(set: impl FnOnce(LockLayer<()>) -> LockLayer<()>) -> Duration {
    let (store, faults) = faulty_store();
    let gate = set(new_gate(&store));
    let ticket = enter_free_gate(&gate).await;
    faults.set("release", BackendFault::SlowReply(SECOND), 1);
    let started = Instant::now();
    gate.leave(ticket, ServiceOutcome::Answered(200)).await;
    let took = started.elapsed();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(faults.remaining("release"), 0);
    drop(acquire_after_shutdown(&store).await);
    took
}

#[tokio::test(start_paused = true)]
async fn response_waits_for_the_release_unless_in_background() {
    assert_eq!(time_to_leave(|gate| gate).await, SECOND);
    assert_eq!(time_to_leave(LockLayer::release_in_background).await, Duration::ZERO);
}

/// Loses the lock in the given way; returns the value that clients see for it.
async fn lose_lock(store: &Store, ticket: &LockTicket, kind: LockLoss) -> &'static str {
    let AdmittedRequestLocks::Acquired { guards: guard, .. } = &ticket.locks else {
        panic!("it is its own")
    };
    match kind {
        LockLoss::Taken => {
            revoke_lease(store, guard.first_lease()).await;
            "taken"
        }
        LockLoss::Lapsed => "lapsed",
        LockLoss::HeldTooLong => "too-long",
    }
}

/// Gate whose lock is lost in the given way within 20 s.
fn gate_with_loss(policy: OnLoss, kind: LockLoss) -> (Store, LockLayer<()>) {
    let (store, faults) = faulty_store();
    if kind == LockLoss::Lapsed {
        faults.set("renew", BackendFault::Unavailable, usize::MAX);
    }
    let hold = if kind == LockLoss::HeldTooLong { 15 * SECOND } else { 60 * SECOND };
    let gate = new_gate(&store).on_loss(policy).max_hold(hold);
    (store, gate)
}

const LOSS_KINDS: [LockLoss; 3] = [LockLoss::Taken, LockLoss::Lapsed, LockLoss::HeldTooLong];

fn assert_replaced<P: std::fmt::Debug>(
    leave_action: LeaveAction<LockTicket, P>,
    loss: &str,
) -> serde_json::Value {
    let LeaveAction::Replace(reply) = leave_action else { panic!("{leave_action:?}") };
    assert_eq!(reply.status, 503);
    assert!(reply.headers.iter().any(|(name, value)| name == "retry-after" && value == "1"));
    let problem: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(problem["type"], "urn:lockgate:problem:lock-lost");
    assert_eq!(problem["loss"], loss);
    problem
}

/// `OnLoss::Cancel` stops the handler. A response that it still gives is too late.
#[tokio::test(start_paused = true)]
async fn loss_is_handled_by_the_layers_policy() {
    let policies = [OnLoss::Cancel, OnLoss::Finish, OnLoss::Replace];
    for (policy, kind) in
        policies.into_iter().flat_map(|policy| LOSS_KINDS.map(|kind| (policy, kind)))
    {
        for is_stopped in [true, false] {
            let (store, gate) = gate_with_loss(policy, kind);
            let ticket = enter_free_gate(&gate).await;
            let mut watch = pin!(gate.cancellation(&ticket));
            assert!(watch.as_mut().now_or_never().is_none(), "it is held");
            let loss = lose_lock(&store, &ticket, kind).await;
            let stops = timeout(20 * SECOND, watch).await.is_ok();
            assert_eq!(stops, policy == OnLoss::Cancel, "{policy:?} {kind:?}");
            if is_stopped && !stops {
                continue;
            }
            let outcome =
                if is_stopped { ServiceOutcome::Stopped } else { ServiceOutcome::Answered(200) };
            let leave_action = gate.leave(ticket, outcome).await;
            if policy == OnLoss::Finish {
                let LeaveAction::AddHeaders(headers) = leave_action else {
                    panic!("{leave_action:?}")
                };
                assert_eq!(headers, [("lock-lost".into(), loss.into())]);
                continue;
            }
            let detail = assert_replaced(leave_action, loss)["detail"].to_string();
            let sentence = if is_stopped { "a part of it" } else { "carried out" };
            assert!(detail.contains(sentence), "{policy:?} {kind:?}: {detail}");
            drop(acquire_after_shutdown(&store).await);
        }
    }
}

/// The loss is not known yet; the store reports it at the release.
#[tokio::test(start_paused = true)]
async fn loss_found_at_the_release_counts() {
    for policy in [OnLoss::Cancel, OnLoss::Replace] {
        let (store, gate) = gate_with_loss(policy, LockLoss::Taken);
        let ticket = enter_free_gate(&gate).await;
        let loss = lose_lock(&store, &ticket, LockLoss::Taken).await;
        assert_replaced(gate.leave(ticket, ServiceOutcome::Answered(200)).await, loss);
    }
}

/// The same for a lock that is held until the end of the body: the head was sent, so the body is
/// cut unless the policy lets it go on.
#[tokio::test(start_paused = true)]
async fn loss_found_at_the_end_of_the_body_counts() {
    for policy in [OnLoss::Cancel, OnLoss::Finish, OnLoss::Replace] {
        let (store, gate) = gate_with_loss(policy, LockLoss::Taken);
        let gate = gate.hold_until(HoldUntil::BodyEnd);
        let ticket = enter_free_gate(&gate).await;
        let _ = lose_lock(&store, &ticket, LockLoss::Taken).await;
        let LeaveAction::KeepTicket(ticket) =
            gate.leave(ticket, ServiceOutcome::Streaming(200)).await
        else {
            panic!("it streams")
        };
        let mut body_ticket = BodyTicket::new(gate, ticket, None);
        let mut next = async || {
            poll_fn(|cx| body_ticket.poll_next(cx, |_| Poll::Ready(NextBodyItem::Last(Some(1)))))
                .await
        };
        match next().await {
            Ok(last) => assert!(policy != OnLoss::Cancel && last == Some(1), "{policy:?}"),
            Err(_) => assert_eq!(policy, OnLoss::Cancel),
        }
        assert!(matches!(next().await, Ok(None)), "nothing comes after it");
        assert!(body_ticket.has_left_gate());
    }
}

/// The inner layer acts on the loss of the outer layer's lock.
#[tokio::test(start_paused = true)]
async fn nested_layer_handles_the_loss_too() {
    for policy in [OnLoss::Cancel, OnLoss::Finish, OnLoss::Replace] {
        let (store, outer) = gate_with_loss(OnLoss::Finish, LockLoss::HeldTooLong);
        let inner = new_gate(&store).on_loss(policy);
        let mut view = FakeGateRequest::new("POST");
        let Verdict::Pass(outer_ticket) = enter_gate(&outer, &mut view).await else {
            panic!("it is free")
        };
        outer.annotate_request(&outer_ticket, &mut view);
        let Verdict::Pass(inner_ticket) = enter_gate(&inner, &mut view).await else {
            panic!("it is its own")
        };
        let stopped = timeout(20 * SECOND, inner.cancellation(&inner_ticket)).await.is_ok();
        assert_eq!(stopped, policy == OnLoss::Cancel);
        let leave_action = inner.leave(inner_ticket, ServiceOutcome::Answered(200)).await;
        let replaces = matches!(&leave_action, LeaveAction::Replace(_));
        assert_eq!(replaces, policy != OnLoss::Finish, "marked once, by the outer one");
        let leave_action = outer.leave(outer_ticket, ServiceOutcome::Answered(200)).await;
        assert!(
            matches!(&leave_action, LeaveAction::AddHeaders(headers) if headers.len() == 1),
            "{leave_action:?}"
        );
    }
}

/// The lock is held by a scoped guard of a middleware, so no outer layer marks the loss.
#[tokio::test(start_paused = true)]
async fn loss_of_a_scoped_lock_is_marked_by_the_first_layer() {
    let store = Store::memory();
    let gate = new_gate(&store).on_loss(OnLoss::Finish);
    let guard = store.lock("x").max_hold(15 * SECOND).acquire().await.expect("it is free");
    guard
        .scope(async {
            let ticket = enter_free_gate(&gate).await;
            tokio::time::sleep(20 * SECOND).await;
            let leave_action = gate.leave(ticket, ServiceOutcome::Answered(200)).await;
            let LeaveAction::AddHeaders(headers) = leave_action else { panic!("{leave_action:?}") };
            assert_eq!(headers, [("lock-lost".into(), "too-long".into())]);
        })
        .await;
}

/// Both layers lost their locks; the header has a single value and is no list.
#[tokio::test(start_paused = true)]
async fn lock_lost_header_of_an_inner_layer_is_not_repeated() {
    let (_store, gate) = gate_with_loss(OnLoss::Finish, LockLoss::HeldTooLong);
    for name in ["lock-lost", "etag"] {
        let mut ticket = enter_free_gate(&gate).await;
        tokio::time::sleep(20 * SECOND).await;
        gate.observe_headers(&mut ticket, || vec![(name.to_owned(), b"taken".to_vec())]);
        let leave_action = gate.leave(ticket, ServiceOutcome::Answered(200)).await;
        let LeaveAction::AddHeaders(headers) = leave_action else { panic!("{leave_action:?}") };
        assert_eq!(headers.len(), usize::from(name == "etag"), "{headers:?}");
    }
}

/// A run loses its lock: the worker drops the run, the layer stops calls in other tasks, and the
/// response is not replaced.
#[tokio::test(start_paused = true)]
async fn loss_stops_a_run_and_is_left_to_its_worker() {
    let store = Store::memory();
    let guard = store.lock("x").fixed_lease(SECOND).acquire().await.expect("free");
    let id = crate::store::JobId::new(guard.key());
    let deferred = RunningJob { id, attempt: 1, accepted_at: std::time::UNIX_EPOCH, fence: 1 };
    let mut view = FakeGateRequest::new("POST");
    view.insert_extension(ReplayMarker::new(
        deferred,
        &store,
        Arc::clone(guard.hold_state().expect("it is its own")),
    ));
    let gate = new_gate(&store).on_loss(OnLoss::Cancel);
    let Verdict::Pass(run) = enter_gate(&gate, &mut view).await else {
        panic!("it is the job's own")
    };
    assert!(timeout(2 * SECOND, gate.cancellation(&run)).await.is_ok());
    assert!(guard.held_lock().loss().is_some());
    let leave_action = gate.leave(run, ServiceOutcome::Answered(200)).await;
    assert!(
        matches!(&leave_action, LeaveAction::AddHeaders(headers) if headers.is_empty()),
        "{leave_action:?}"
    );
}

/// A streaming body belongs to the request, so it shares the request's lock.
#[tokio::test(start_paused = true)]
async fn streaming_body_can_reacquire_its_lock() {
    let (store, faults) = faulty_store();
    let gate = new_gate(&store).hold_until(HoldUntil::BodyEnd);
    let ticket = enter_free_gate(&gate).await;
    let leave_action = gate.leave(ticket, ServiceOutcome::Streaming(200)).await;
    let LeaveAction::KeepTicket(ticket) = leave_action else { panic!("{leave_action:?}") };
    let mut body_ticket = BodyTicket::new(gate, ticket, None);
    faults.set("acquire", BackendFault::Unavailable, usize::MAX);
    let mut inner = pin!(store.lock("x").acquire());
    let next = poll_fn(|cx| {
        body_ticket.poll_next(cx, |cx| inner.as_mut().poll(cx).map(NextBodyItem::Item))
    });
    let guard = next.await.expect("it goes on").expect("one is to come").expect("it is its own");
    drop(guard);
    assert_eq!(faults.remaining("acquire"), usize::MAX, "no call is made");
    faults.set("acquire", BackendFault::Unavailable, 0);
    let end =
        poll_fn(|cx| body_ticket.poll_next(cx, |_| Poll::Ready(NextBodyItem::Last(None)))).await;
    assert!(matches!(end, Ok(None)) && body_ticket.has_left_gate());
    drop(acquire_after_shutdown(&store).await);
}
