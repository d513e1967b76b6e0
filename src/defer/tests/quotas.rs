//! Runs behind a quota within their lock: nobody came to it while that was held.

use super::{SECOND, key_of, outcomes::run_of, settled};
use crate::{
    AccessLists, Key, Policy, Quota,
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, KeySource, ReplayMarker, ServiceOutcome,
        Verdict, fake::FakeView,
    },
    rate_limit::{RateLimitGate, RateLimitTicket},
    store::{LockHold, Store},
};

/// A run that has come past its lock, to a limit of two.
struct Within {
    store: Store,
    limit: RateLimitGate<()>,
    view: FakeView,
    marker: ReplayMarker,
    _hold: LockHold,
}

fn policy() -> Policy {
    Policy::new(Quota::requests(2).per(60 * SECOND)).with_name("p")
}

impl Within {
    fn new(set: impl FnOnce(RateLimitGate<()>) -> RateLimitGate<()>) -> Self {
        let store = Store::memory();
        let limit = set(RateLimitGate::new(KeySource::header("a"), policy()).store(&store));
        let (hold, marker) = run_of(&store);
        let mut view = FakeView::new("POST");
        view.headers.push(("a", "1"));
        view.insert_extension(marker.clone());
        assert!(matches!(limit.inspect(&mut view), InitialVerdict::Skip), "outside of the lock");
        marker.pass(&key_of("/x"));
        Self { store, limit, view, marker, _hold: hold }
    }

    async fn left(&self) -> u64 {
        let peek = self.store.rate_limiter(policy()).peek(Key::header("a", b"1"), 1).await;
        peek.expect("it is there").remaining()
    }

    async fn begin(&mut self) -> RateLimitTicket {
        let InitialVerdict::Enter(facts) = self.limit.inspect(&mut self.view) else {
            panic!("it was not charged yet")
        };
        let Verdict::Pass(ticket) = self.limit.enter(facts).await else {
            panic!("it was accepted")
        };
        let Err(ticket) = self.limit.try_light_ticket(ticket) else {
            panic!("it is charged when it has run")
        };
        ticket
    }

    async fn run(&mut self, status: u16) -> u64 {
        let ticket = self.begin().await;
        let _ = self.limit.leave(ticket, ServiceOutcome::Answered(status)).await;
        self.left().await
    }
}

/// Outside of the lock it was charged with the request.
#[tokio::test(start_paused = true)]
async fn a_quota_within_the_lock_is_charged_with_the_first_run() {
    let mut within = Within::new(|limit| limit);
    assert_eq!(within.run(200).await, 1);
    within.marker.record_busy_status(409);
    assert_eq!(within.run(409).await, 1, "it comes again");
    assert_eq!([within.run(200).await, within.run(200).await], [0, 0], "it is not refused");
    within.view.headers.clear();
    let asked = within.limit.inspect(&mut within.view);
    assert!(matches!(asked, InitialVerdict::Skip), "it has no key any more");
}

/// Its handler has panicked, or a layer further out has answered for it.
#[tokio::test(start_paused = true)]
async fn a_run_that_breaks_off_is_charged_too() {
    let mut within = Within::new(|limit| limit.refund_on(|status| status >= 500));
    let ticket = within.begin().await;
    drop(ticket);
    settled().await;
    assert_eq!(within.left().await, 1);
    let ticket = within.begin().await;
    within.marker.record_busy_status(409);
    drop(ticket);
    settled().await;
    assert_eq!(within.left().await, 1, "it comes again");
}

#[tokio::test(start_paused = true)]
async fn lists_within_the_lock_are_about_runs_too() {
    let lists = |lists: AccessLists| {
        Within::new(|limit| limit.response_options(|facing| facing.access_lists(lists)))
    };
    let own = || Key::header("a", b"1");
    let mut denied = lists(AccessLists::new().deny_key(own()));
    let asked = denied.limit.inspect(&mut denied.view);
    assert!(matches!(asked, InitialVerdict::Answer(reply) if reply.status == 403));
    let mut allowed = lists(AccessLists::new().allow_key(own()));
    assert!(
        matches!(allowed.limit.inspect(&mut allowed.view), InitialVerdict::Skip),
        "it is not counted"
    );
    assert_eq!(allowed.left().await, 2);
}
