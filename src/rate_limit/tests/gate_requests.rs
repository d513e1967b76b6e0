//! Rate limit gate with requests of no framework.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{SECOND, named_policy, per_minute};
use crate::{
    Key, Policy, Quota, Reply,
    gate::{
        Gate, InitialVerdict, KeySource, LeaveAction, MissingValue, ServiceOutcome, Verdict,
        fake_request::FakeGateRequest,
    },
    rate_limit::{RateLimitLayer, RateLimitTicket},
    store::{BackendFault, Store, faulty_store},
};

pub(super) type TestRateLimitLayer = RateLimitLayer<()>;

pub(super) fn gate_by_header(header: &str, policy: impl Into<Policy>) -> TestRateLimitLayer {
    RateLimitLayer::by(KeySource::header(header), policy)
}

pub(super) fn new_request() -> FakeGateRequest {
    let mut view = FakeGateRequest::new("GET");
    view.headers = vec![("a", "1"), ("b", "2"), ("cost", "1")];
    view
}

/// Runs a request up to the handler.
pub(super) async fn enter_gate(
    limit: &TestRateLimitLayer,
    view: &mut FakeGateRequest,
) -> Result<RateLimitTicket, Reply> {
    match limit.inspect(view) {
        InitialVerdict::Enter(context) => match limit.enter(context).await {
            Verdict::Pass(ticket) => {
                limit.annotate_request(&ticket, view);
                Ok(ticket)
            }
            Verdict::Answer(reply) | Verdict::Busy(reply, _) => Err(reply),
        },
        InitialVerdict::Answer(reply) => Err(reply),
        InitialVerdict::SharedAnswer(reply) => Err(reply.reply().clone()),
        InitialVerdict::PassLight(status) => Ok(limit.full_ticket(status)),
        InitialVerdict::Skip => panic!("skipped"),
    }
}

pub(super) async fn leave_gate(
    limit: &TestRateLimitLayer,
    ticket: RateLimitTicket,
    status: u16,
) -> String {
    match limit.leave(ticket, ServiceOutcome::Answered(status)).await {
        LeaveAction::AddHeaders(headers) => {
            let named = headers.iter().find(|(name, _)| name == "ratelimit");
            named.map(|(_, value)| value.clone().into_owned()).unwrap_or_default()
        }
        other => panic!("{other:?}"),
    }
}

pub(super) async fn run_request(limit: &TestRateLimitLayer, status: u16) -> u16 {
    match enter_gate(limit, &mut new_request()).await {
        Ok(ticket) => {
            leave_gate(limit, ticket, status).await;
            status
        }
        Err(reply) => reply.status,
    }
}

#[tokio::test(start_paused = true)]
async fn cached_refusal_is_answered_without_a_store_call() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", per_minute(1)).store(&store);
    assert_eq!(run_request(&limit, 200).await, 200);
    match limit.inspect(&mut new_request()) {
        InitialVerdict::SharedAnswer(reply) => assert_eq!(reply.reply().status, 429),
        other => panic!("{other:?}"),
    }
    assert_eq!(faults.call_count("charge"), 1);
}

#[tokio::test(start_paused = true)]
async fn missing_key_is_a_bad_request() {
    let limit = gate_by_header("a", per_minute(1))
        .and(gate_by_header("missing", per_minute(1)))
        .store(&Store::memory());
    assert_eq!(enter_gate(&limit, &mut new_request()).await.unwrap_err().status, 400);
}

/// Waiting does not help, but the units are available to cheaper requests.
#[tokio::test(start_paused = true)]
async fn cost_above_quota_refusal_shows_remaining_units() {
    let store = Store::memory();
    let key = || Key::header("a", b"1");
    let refused = async |policy: &Policy| {
        let limit = gate_by_header("a", policy.clone()).cost_by(|(): &()| 8).store(&store);
        let reply = enter_gate(&limit, &mut new_request()).await.unwrap_err();
        assert_eq!(reply.status, 403);
        let header = reply.headers.iter().find(|(name, _)| name == "ratelimit");
        header.map(|(_, value)| value.clone().into_owned()).unwrap_or_default()
    };
    let policy = named_policy("p", per_minute(7));
    assert_eq!(refused(&policy).await, "\"p\";r=7;t=60", "all of it");
    assert!(store.rate_limiter(policy.clone()).check(key(), 2).await.unwrap().is_admitted());
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(refused(&policy).await, "\"p\";r=5;t=50");
    tokio::time::sleep(50 * SECOND).await;
    assert_eq!(refused(&policy).await, "\"p\";r=7;t=60", "the window is over");
    let leased = named_policy("leased", per_minute(7)).quota_lease(4);
    assert!(store.rate_limiter(leased.clone()).check(key(), 1).await.unwrap().is_admitted());
    assert_eq!(refused(&leased).await, "\"leased\";r=6;t=60");
}

#[tokio::test(start_paused = true)]
async fn quota_lookup_is_cached_for_the_quota_ttl() {
    let store = Store::memory();
    let lookups = Arc::new(AtomicUsize::new(0));
    let plan_quota = {
        let lookups = Arc::clone(&lookups);
        move |(): &()| {
            let lookups = Arc::clone(&lookups);
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                match lookups.fetch_add(1, Ordering::Relaxed) {
                    0 => per_minute(2),
                    1 => per_minute(4),
                    _ => Quota::unlimited(),
                }
            }
        }
    };
    let limit =
        gate_by_header("a", per_minute(1)).quota_by(plan_quota).quota_ttl(5 * SECOND).store(&store);
    for _ in 0..2 {
        assert_eq!(run_request(&limit, 200).await, 200);
    }
    for _ in 0..10 {
        assert_eq!(run_request(&limit, 200).await, 429);
    }
    assert_eq!(lookups.load(Ordering::Relaxed), 1);
    tokio::time::sleep(5 * SECOND).await;
    // Spent units stay spent.
    for _ in 0..2 {
        assert_eq!(run_request(&limit, 200).await, 200);
    }
    assert_eq!(run_request(&limit, 200).await, 429);
    tokio::time::sleep(5 * SECOND).await;
    for _ in 0..20 {
        assert_eq!(run_request(&limit, 200).await, 200);
    }
    assert_eq!(lookups.load(Ordering::Relaxed), 3);
}

/// The TTL exceeds the range of the clock.
#[tokio::test(start_paused = true)]
async fn quota_with_unlimited_ttl_is_looked_up_once() {
    let store = Store::memory();
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lookups);
    let plan_quota = move |(): &()| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(per_minute(2))
    };
    let limit = gate_by_header("a", per_minute(1))
        .quota_by(plan_quota)
        .quota_ttl(Duration::MAX)
        .store(&store);
    for status in [200, 200, 429] {
        assert_eq!(run_request(&limit, 200).await, status);
    }
    assert_eq!(lookups.load(Ordering::Relaxed), 1);
}

/// A request dropped before its handler costs at most the charge of the call in flight.
#[tokio::test(start_paused = true)]
async fn request_dropped_before_the_handler_is_refunded() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", named_policy("one", per_minute(9)))
        .and(gate_by_header("b", named_policy("two", per_minute(9))))
        .store(&store);
    faults.set("charge", BackendFault::SlowReply(SECOND), 100);
    let mut view = new_request();
    let InitialVerdict::Enter(context) = limit.inspect(&mut view) else {
        panic!("no refusal is cached yet")
    };
    let entering = tokio::time::timeout(3 * SECOND / 2, limit.enter(context));
    assert!(entering.await.is_err(), "the second call is under way");
    assert!(store.shutdown(5 * SECOND).await);
    faults.set("charge", BackendFault::Unavailable, 0);
    let limit = store.rate_limiter(named_policy("one", per_minute(9)));
    let peek = limit.peek(Key::header("a", b"1"), 1).await;
    assert_eq!(peek.unwrap().remaining(), 9);
}

/// For the message of an extractor that finds no status: the layer is there.
#[tokio::test(start_paused = true)]
async fn request_that_is_not_charged_is_marked() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", per_minute(9)).store(&store);
    let is_marked = |view: &FakeGateRequest| {
        MissingValue::of_charge(view).to_string().contains("take Option<CurrentRate>")
    };
    let mut preflight = FakeGateRequest::new("OPTIONS");
    preflight.headers =
        vec![("origin", "https://shop.example"), ("access-control-request-method", "GET")];
    assert!(!is_marked(&preflight));
    assert!(matches!(limit.inspect(&mut preflight), InitialVerdict::Skip));
    assert!(is_marked(&preflight));

    let mut charged = new_request();
    let _ticket = enter_gate(&limit, &mut charged).await.expect("it is within the quota");
    assert!(!is_marked(&charged));

    faults.set("charge", BackendFault::Unavailable, 1_000);
    let mut local = new_request();
    let _ticket = enter_gate(&limit, &mut local).await.expect("this process has a share");
    assert!(is_marked(&local));
}
