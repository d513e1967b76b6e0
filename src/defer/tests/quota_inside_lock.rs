//! Runs with a quota inside their lock. The original request met a busy lock and was not charged.

use super::{SECOND, let_tasks_settle, lock_key_of, run_outcomes::start_run};
use crate::{
    AccessLists, Key, Policy, Quota,
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, KeySource, ReplayMarker, ServiceOutcome,
        Verdict, fake_request::FakeGateRequest,
    },
    rate_limit::{RateLimitLayer, RateLimitTicket},
    store::{OwnedHold, Store},
};

/// A run that has passed its lock, and a quota of two requests.
struct QuotaInsideLock {
    store: Store,
    rate_gate: RateLimitLayer<()>,
    view: FakeGateRequest,
    marker: ReplayMarker,
    _hold: OwnedHold,
}

fn two_per_minute() -> Policy {
    Policy::new(Quota::requests(2).per(60 * SECOND)).with_name("p")
}

impl QuotaInsideLock {
    fn new(set: impl FnOnce(RateLimitLayer<()>) -> RateLimitLayer<()>) -> Self {
        let store = Store::memory();
        let limit = set(RateLimitLayer::by(KeySource::header("a"), two_per_minute()).store(&store));
        let (hold, marker) = start_run(&store);
        let mut view = FakeGateRequest::new("POST");
        view.headers.push(("a", "1"));
        view.insert_extension(marker.clone());
        assert!(matches!(limit.inspect(&mut view), InitialVerdict::Skip), "outside of the lock");
        marker.pass_own_lock(&lock_key_of("/x"));
        Self { store, rate_gate: limit, view, marker, _hold: hold }
    }

    async fn remaining_quota(&self) -> u64 {
        let peek = self.store.rate_limiter(two_per_minute()).peek(Key::header("a", b"1"), 1).await;
        peek.expect("it is there").remaining()
    }

    async fn enter_run(&mut self) -> RateLimitTicket {
        let InitialVerdict::Enter(context) = self.rate_gate.inspect(&mut self.view) else {
            panic!("it was not charged yet")
        };
        let Verdict::Pass(ticket) = self.rate_gate.enter(context).await else {
            panic!("it was accepted")
        };
        let Err(ticket) = self.rate_gate.try_light_ticket(ticket) else {
            panic!("it is charged when it has run")
        };
        ticket
    }

    async fn run_with_status(&mut self, status: u16) -> u64 {
        let ticket = self.enter_run().await;
        let _ = self.rate_gate.leave(ticket, ServiceOutcome::Answered(status)).await;
        self.remaining_quota().await
    }
}

/// A quota outside of the lock was already charged with the request.
#[tokio::test(start_paused = true)]
async fn quota_inside_the_lock_is_charged_by_the_first_run() {
    let mut scenario = QuotaInsideLock::new(|limit| limit);
    assert_eq!(scenario.run_with_status(200).await, 1);
    scenario.marker.record_busy_status(409);
    assert_eq!(scenario.run_with_status(409).await, 1, "it comes again");
    assert_eq!(
        [scenario.run_with_status(200).await, scenario.run_with_status(200).await],
        [0, 0],
        "it is not refused"
    );
    scenario.view.headers.clear();
    let verdict = scenario.rate_gate.inspect(&mut scenario.view);
    assert!(matches!(verdict, InitialVerdict::Skip), "it has no key any more");
}

/// The handler panicked, or an outer layer answered in its place.
#[tokio::test(start_paused = true)]
async fn aborted_run_is_charged_too() {
    let mut scenario = QuotaInsideLock::new(|limit| limit.refund_on(|status| status >= 500));
    let ticket = scenario.enter_run().await;
    drop(ticket);
    let_tasks_settle().await;
    assert_eq!(scenario.remaining_quota().await, 1);
    let ticket = scenario.enter_run().await;
    scenario.marker.record_busy_status(409);
    drop(ticket);
    let_tasks_settle().await;
    assert_eq!(scenario.remaining_quota().await, 1, "it comes again");
}

#[tokio::test(start_paused = true)]
async fn access_lists_inside_the_lock_apply_to_runs() {
    let lists = |lists: AccessLists| QuotaInsideLock::new(|limit| limit.access_lists(lists));
    let own = || Key::header("a", b"1");
    let mut denied = lists(AccessLists::new().deny_key(own()));
    let verdict = denied.rate_gate.inspect(&mut denied.view);
    assert!(matches!(verdict, InitialVerdict::Answer(reply) if reply.status == 403));
    let mut allowed = lists(AccessLists::new().allow_key(own()));
    assert!(
        matches!(allowed.rate_gate.inspect(&mut allowed.view), InitialVerdict::Skip),
        "it is not counted"
    );
    assert_eq!(allowed.remaining_quota().await, 2);
}
