//! `HoldState`: state of one guard's hold on a lease, and the report of its loss.

use std::{
    any::Any,
    fmt,
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{hold_route::HoldRoute, lock_lease::LockLease};
use crate::key::Key;

/// Reason why a lock was lost before its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockLoss {
    /// The store reports that another holder has the lock, or none.
    Taken,
    /// The lease was not renewed within its validity time.
    Lapsed,
    /// The lock was held for longer than `max_hold`, or its fixed lease ended.
    HeldTooLong,
}

/// State of one hold, shared with the handlers that run under it.
pub(crate) struct HoldState {
    pub(crate) lease: Arc<LockLease>,
    pub(crate) fence: u64,
    pub(crate) held_since: Instant,
    /// Time at which the hold ends, renewed or not.
    pub(super) ends_at: Instant,
    loss: OnceLock<LockLoss>,
    changed: Notify,
    closed: AtomicBool,
    /// Receipt of a delivered grant: `RECEIVED`, `UNRECEIVED` or `RENEWAL_SKIPPED`.
    receipt: AtomicU8,
    /// A drop lets the lease expire instead of releasing it, because the work under it cannot be
    /// stopped and continues.
    expires_on_drop: AtomicBool,
    /// Route of the request under the lock, if a layer has taken it.
    route: OnceLock<HoldRoute>,
    /// Hold that continues this one on a lease of another mode, after a downgrade, with its owner.
    /// This module does not know the owner's type.
    successor: OnceLock<(Arc<Self>, Weak<dyn Any + Send + Sync>)>,
}

impl HoldState {
    pub(super) fn new(lease: Arc<LockLease>, fence: u64) -> Arc<Self> {
        let held_since = Instant::now();
        let ends_at = held_since + lease.terms.max_hold;
        Self::with_times(lease, fence, held_since, ends_at)
    }

    pub(super) fn with_end(lease: Arc<LockLease>, fence: u64, ends_at: Instant) -> Arc<Self> {
        Self::with_times(lease, fence, Instant::now(), ends_at)
    }

    fn with_times(
        lease: Arc<LockLease>,
        fence: u64,
        held_since: Instant,
        ends_at: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            lease,
            fence,
            held_since,
            ends_at,
            loss: OnceLock::new(),
            changed: Notify::new(),
            closed: AtomicBool::new(false),
            receipt: AtomicU8::new(RECEIVED),
            expires_on_drop: AtomicBool::new(false),
            route: OnceLock::new(),
            successor: OnceLock::new(),
        })
    }

    /// Records the route of the request under the lock. The first one stands.
    pub(crate) fn record_route(&self, route: &HoldRoute) {
        let _ = self.route.set(route.clone());
    }

    pub(crate) fn route(&self) -> Option<&HoldRoute> {
        self.route.get()
    }

    /// Sets the hold that continues this one, and its owner. References to this state follow it.
    pub(crate) fn set_successor(&self, successor: &Arc<Self>, owner: Weak<dyn Any + Send + Sync>) {
        if self.successor.set((Arc::clone(successor), owner)).is_ok() {
            self.changed.notify_waiters();
        }
    }

    /// Returns the hold that continues this one, and its owner.
    pub(crate) fn successor(&self) -> Option<&(Arc<Self>, Weak<dyn Any + Send + Sync>)> {
        self.successor.get()
    }

    /// Returns the last hold in the chain of successors.
    pub(crate) fn current(&self) -> &Self {
        let mut hold = self;
        while let Some((successor, _)) = hold.successor() {
            hold = successor;
        }
        hold
    }

    pub(crate) fn key(&self) -> &Key {
        &self.lease.key
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.lease.valid_until()
    }

    pub(crate) fn loss(&self) -> Option<LockLoss> {
        // The agent alone is not relied upon: its runtime may have stalled.
        if !self.is_closed() && Instant::now() >= self.valid_until() + LOSS_DETECTION_DELAY {
            let is_final = self.lease.is_final.load(Ordering::Acquire);
            self.lease.mark_lost(if is_final { LockLoss::HeldTooLong } else { LockLoss::Lapsed });
        }
        self.loss.get().copied()
    }

    /// Like [`HoldState::loss`], but returns only a loss that was reported. It wakes no task.
    pub(crate) fn reported_loss(&self) -> Option<LockLoss> {
        self.loss.get().copied()
    }

    /// Resolves when the hold is lost, even if only its release finds this. Never resolves if it is
    /// released without a loss.
    pub(crate) async fn wait_for_loss(&self) -> LockLoss {
        let mut hold = self;
        loop {
            let mut changed = pin!(hold.changed.notified());
            // Registered before the checks, so that no later report is missed.
            changed.as_mut().enable();
            if let Some((successor, _)) = hold.successor() {
                hold = successor;
                continue;
            }
            if let Some(loss) = hold.loss() {
                return loss;
            }
            let valid_until = hold.valid_until();
            if hold.is_closed() {
                // The hold was released or handed over, so its deadline is void. A loss can still
                // be reported: by the release, or by a thread that has just closed the hold.
                changed.await;
            } else {
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(valid_until + LOSS_DETECTION_DELAY) => {}
                }
            }
        }
    }

    /// Returns true once the hold was released, handed over or lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the hold when it is released or its lease is handed over.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Marks the grant as delivered to a waiter that may not be polled again. It is not renewed
    /// until it is received, since nothing runs under it.
    pub(crate) fn mark_unreceived(&self) {
        // `RENEWAL_SKIPPED` stays: a grant that goes to a second waiter may not have been renewed
        // since it went to the first.
        let _ = self.receipt.compare_exchange(
            RECEIVED,
            UNRECEIVED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }

    /// Marks the grant as received by its waiter. Returns true if a renewal was skipped before.
    pub(crate) fn mark_received(&self) -> bool {
        self.receipt.swap(RECEIVED, Ordering::AcqRel) == RENEWAL_SKIPPED
    }

    /// Skips a renewal if the grant was not received. Returns false if it was.
    pub(super) fn skip_renewal_if_unreceived(&self) -> bool {
        let skip_renewal = |receipt| (receipt != RECEIVED).then_some(RENEWAL_SKIPPED);
        self.receipt.fetch_update(Ordering::AcqRel, Ordering::Acquire, skip_renewal).is_ok()
    }

    /// Makes a drop stop the renewal instead of releasing the lock. The lease then expires as if
    /// this process had died.
    pub(crate) fn let_expire_on_drop(&self) {
        self.expires_on_drop.store(true, Ordering::Release);
    }

    pub(super) fn expires_on_drop(&self) -> bool {
        self.expires_on_drop.load(Ordering::Acquire)
    }

    /// Reports a loss that the release found. Other tasks may be waiting for it.
    pub(crate) fn report_loss_on_release(&self) {
        self.report(LockLoss::Taken);
    }

    pub(super) fn mark_lost(&self, loss: LockLoss) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.report(loss);
        }
    }

    /// Reports a loss. The first report stands.
    fn report(&self, loss: LockLoss) {
        if self.loss.set(loss).is_ok() {
            self.changed.notify_waiters();
        }
    }
}

impl fmt::Debug for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, fence) = (self.key(), self.fence);
        f.debug_struct("HoldState").field("key", key).field("fence", &fence).finish_non_exhaustive()
    }
}

const RECEIVED: u8 = 0;
const UNRECEIVED: u8 = 1;
const RENEWAL_SKIPPED: u8 = 2;

/// Time that the agent has to report a loss before the hold detects it by itself. The agent knows
/// the reason.
const LOSS_DETECTION_DELAY: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::{
        sync::Barrier,
        task::{Context, Poll, Wake, Waker},
        thread,
    };

    use super::*;
    use crate::store::{
        backend::{LockMode, LockToken, NodeId},
        lock_lease::LeaseTerms,
    };

    const LEASE: Duration = Duration::from_secs(10);

    fn new_hold_state() -> Arc<HoldState> {
        let terms = LeaseTerms {
            lease: LEASE,
            renews: true,
            max_hold: LEASE,
            job: None,
            mode: LockMode::Exclusive,
        };
        let (key, token) = (Key::custom("x"), LockToken::new(&NodeId::new()));
        let hold =
            HoldState::new(LockLease::new(&key, &token, Instant::now() + LEASE, terms, 0, None), 1);
        assert!(hold.lease.begin_hold(&hold));
        hold
    }

    #[tokio::test(start_paused = true)]
    async fn loss_found_on_release_resolves_pending_wait() {
        let hold = new_hold_state();
        hold.close();
        let mut lost = pin!(hold.wait_for_loss());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(lost.as_mut().poll(&mut cx).is_pending(), "the hold is being released");
        hold.report_loss_on_release();
        assert_eq!(lost.as_mut().poll(&mut cx), Poll::Ready(LockLoss::Taken));
    }

    #[derive(Default)]
    struct WakeFlag(AtomicBool);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn concurrent_loss_wakes_waiting_task() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for round in 0..3000 {
            let _timers = runtime.enter();
            let (hold, barrier) = (new_hold_state(), Barrier::new(2));
            let woken = Arc::new(WakeFlag::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut lost = pin!(hold.wait_for_loss());
            let first = thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    // Somewhere in the other's one poll.
                    (0..round % 300).for_each(|_| std::hint::spin_loop());
                    hold.lease.mark_lost(LockLoss::Taken);
                });
                barrier.wait();
                lost.as_mut().poll(&mut Context::from_waker(&waker))
            });
            if first.is_pending() {
                assert!(woken.0.load(Ordering::Acquire), "round {round}: lost without a wake-up");
                let again = lost.as_mut().poll(&mut Context::from_waker(&waker));
                assert_eq!(again, Poll::Ready(LockLoss::Taken), "round {round}");
            }
        }
    }
}
