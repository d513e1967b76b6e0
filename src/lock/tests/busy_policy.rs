//! Busy settings of a layer, at its gate.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    SECOND, expect_busy,
    lock_gate::{enter_defer_gate, enter_gate, new_gate},
};
use crate::{
    defer::DeferLayer,
    gate::{
        Gate as _, InitialVerdict, KeySource, LeaveAction, ServiceOutcome, Verdict,
        fake_request::FakeGateRequest,
    },
    lock::{BusyStatus, LockLayer},
    outage::LockOutage,
    reply::Reply,
    store::{BackendFault, Store, faulty_store},
};

async fn busy_reply(gate: &LockLayer<()>) -> Reply {
    match enter_gate(gate, &mut FakeGateRequest::new("POST")).await {
        Verdict::Busy(reply, _) => reply,
        _ => panic!("it is busy"),
    }
}

#[tokio::test(start_paused = true)]
async fn retry_makes_exactly_the_configured_attempts() {
    let (store, faults) = faulty_store();
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    // This fault changes nothing and counts the calls.
    faults.set("acquire", BackendFault::SlowReply(Duration::ZERO), 1000);
    let calls = || 1000 - faults.remaining("acquire");
    for (times, pauses) in [(0, 0), (1, 1), (3, 3)] {
        let (before, started) = (calls(), Instant::now());
        let busy = expect_busy(store.lock("x").retry(times, SECOND).acquire().await);
        assert_eq!(calls() - before, 1 + times as usize);
        assert_eq!(started.elapsed(), pauses * SECOND);
        assert_eq!(busy.waited, (times > 0).then_some(pauses * SECOND));
        assert_eq!(busy.queue_length, 0, "it has no queue entry");
    }
    let waiter = crate::store::spawn(store.lock("x").retry(3, SECOND).acquire());
    tokio::time::sleep(SECOND / 2).await;
    held.release().await;
    let started = Instant::now();
    drop(waiter.await.unwrap().expect("it came free before the second attempt"));
    assert_eq!(started.elapsed(), SECOND / 2, "it polled without a wake-up");
}

#[tokio::test(start_paused = true)]
async fn retry_is_bounded_for_any_setting() {
    let store = Store::memory();
    let _held = store.lock("x").max_hold(Duration::MAX).acquire().await.unwrap();
    // A pause takes at least 10 ms. Ten minutes of such pauses would take seconds of real time.
    for (times, every, seconds) in [
        (100, Duration::ZERO, 1..=1),
        (u32::MAX, 7 * SECOND, 593..=600),
        (u32::MAX, Duration::MAX, 600..=600),
    ] {
        let started = Instant::now();
        let busy = expect_busy(store.lock("x").retry(times, every).acquire().await);
        assert!(seconds.contains(&started.elapsed().as_secs()), "{every:?}: {busy:?}");
        assert_eq!(busy.waited, Some(started.elapsed()));
    }
}

#[tokio::test(start_paused = true)]
async fn last_busy_strategy_counts() {
    let store = Store::memory();
    let _held = store.lock("x").acquire().await.unwrap();
    let wait = |gate: LockLayer<()>| gate.wait(5 * SECOND);
    for (lock, waits) in [
        (wait(new_gate(&store)).reject(), 0),
        (wait(new_gate(&store)).retry(2, SECOND), 2),
        (wait(new_gate(&store).retry(2, SECOND)), 5),
        (new_gate(&store).retry(2, SECOND).reject(), 0),
    ] {
        let started = Instant::now();
        let reply = busy_reply(&lock).await;
        assert_eq!(started.elapsed(), waits * SECOND);
        let reply: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(reply["waited_ms"].as_u64(), (waits > 0).then(|| u64::from(waits) * 1000));
    }
    let started = Instant::now();
    expect_busy(store.lock("x").retry(2, SECOND).wait(5 * SECOND).acquire().await);
    assert_eq!(started.elapsed(), 5 * SECOND);
    expect_busy(store.lock("x").wait(5 * SECOND).retry(2, SECOND).acquire().await);
    assert_eq!(started.elapsed(), 7 * SECOND);
}

/// The replies differ only in their status. Each is deferred like a 409, without a wait.
#[tokio::test(start_paused = true)]
async fn every_busy_status_can_be_deferred() {
    let store = Store::memory();
    let _held = store.lock("x").acquire().await.unwrap();
    for (status, code) in [
        (BusyStatus::Conflict, 409),
        (BusyStatus::Locked, 423),
        (BusyStatus::TooManyRequests, 429),
        (BusyStatus::Unavailable, 503),
    ] {
        let (defer, lock) = (DeferLayer::<()>::new(), new_gate(&store).busy_status(status));
        let plain = busy_reply(&lock).await;
        assert_eq!(plain.status, code);
        assert!(plain.headers.iter().any(|(name, _)| name == "retry-after"));
        let mut view = FakeGateRequest::new("POST");
        let deferral = enter_defer_gate(&defer, &mut view).await;
        let started = Instant::now();
        let refused = enter_gate(&lock.retry(9, SECOND), &mut view).await;
        assert!(matches!(refused, Verdict::Busy(reply, _) if reply.status == code));
        assert_eq!(started.elapsed(), Duration::ZERO, "an outer layer handles the wait");
        let leave_action = defer.leave(deferral, ServiceOutcome::Answered(code)).await;
        assert!(matches!(leave_action, LeaveAction::Accept { .. }), "{code}");
    }
}

#[test]
fn permits_replace_read_write() {
    let store = Store::memory();
    let enters = |lock: LockLayer<()>, method| {
        matches!(lock.inspect(&mut FakeGateRequest::new(method)), InitialVerdict::Enter(_))
    };
    for method in ["GET", "HEAD", "OPTIONS", "POST"] {
        let both = enters(new_gate(&store).read_write().permits(2), method);
        assert_eq!(both, enters(new_gate(&store).permits(2), method), "{method}");
        let both = enters(new_gate(&store).permits(2).read_write(), method);
        assert_eq!(both, enters(new_gate(&store).read_write(), method), "{method}");
        // Methods that were set by name stay.
        assert!(enters(new_gate(&store).read_write().all_methods().permits(2), method));
        assert!(enters(new_gate(&store).methods([method]).read_write().permits(2), method));
    }
    assert!(std::panic::catch_unwind(|| new_gate(&Store::memory()).permits(0)).is_err());
    assert!(std::panic::catch_unwind(|| Store::memory().lock("x").permits(0)).is_err());
}

/// A client is served after all waiters ahead of it.
#[tokio::test(start_paused = true)]
async fn retry_after_counts_the_waiters_ahead() {
    let store = Store::memory();
    let lock = new_gate(&store);
    let entered = enter_gate(&lock, &mut FakeGateRequest::new("POST")).await;
    let Verdict::Pass(ticket) = entered else { panic!("it is free") };
    tokio::time::sleep(Duration::from_millis(1_900)).await;
    lock.leave(ticket, ServiceOutcome::Answered(200)).await;
    let request = || store.as_another_process().lock("x").lease(7 * SECOND).wait(60 * SECOND);
    let _held = request().acquire().await.unwrap();
    let mut waiters = Vec::new();
    // One value for each position in the queue; at most the remaining lease.
    for seconds in ["2", "4", "6", "7", "7"] {
        let header = busy_reply(&lock).await.headers;
        let header = header.into_iter().find(|(name, _)| name == "retry-after");
        assert_eq!(header.expect("it is always there").1, seconds, "behind {}", waiters.len());
        waiters.push(crate::store::spawn(request().acquire()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Short holds under one layer do not affect the `Retry-After` of another layer.
#[tokio::test(start_paused = true)]
async fn typical_hold_time_is_measured_per_layer() {
    let store = Store::memory();
    let slow = LockLayer::<()>::by(KeySource::function(|()| Some("y".to_owned()))).store(&store);
    let fast = new_gate(&store);
    for (lock, times, held) in [(&slow, 1, 30 * SECOND), (&fast, 100, Duration::from_millis(5))] {
        for _ in 0..times {
            // Uses a clone for each request, as a server does.
            let lock = lock.clone();
            let entered = enter_gate(&lock, &mut FakeGateRequest::new("POST")).await;
            let Verdict::Pass(ticket) = entered else { panic!("it is free") };
            tokio::time::sleep(held).await;
            lock.leave(ticket, ServiceOutcome::Answered(200)).await;
        }
    }
    let _held = store.locks(["x", "y"]).acquire().await.unwrap();
    for (lock, seconds) in [(&fast, "1"), (&slow, "10")] {
        let header = busy_reply(lock).await.headers;
        let header = header.into_iter().find(|(name, _)| name == "retry-after");
        assert_eq!(header.expect("it is always there").1, seconds);
    }
}

/// `LockOutage::Admit` must not apply: all requests of the lock would run at once until the error
/// is fixed.
#[tokio::test(start_paused = true)]
async fn unexpected_store_error_is_not_an_outage() {
    let (store, faults) = faulty_store();
    let lock = new_gate(&store).on_outage(LockOutage::Admit);
    for (fault, passes) in [
        (BackendFault::ProtocolError, false),
        (BackendFault::Unavailable, true),
        (BackendFault::ReplyTimeout, true),
    ] {
        faults.set("acquire", fault, 1);
        match enter_gate(&lock, &mut FakeGateRequest::new("POST")).await {
            Verdict::Pass(_) => assert!(passes, "{fault:?}"),
            Verdict::Answer(reply) => assert_eq!((reply.status, passes), (503, false)),
            Verdict::Busy(..) => panic!("it is free"),
        }
        tokio::time::sleep(60 * SECOND).await;
    }
}
