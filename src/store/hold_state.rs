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

use super::lock_lease::LockLease;
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
    /// Hold that continues this one on a lease of another mode, after a downgrade, with its owner.
    /// This module does not know the owner's type.
    successor: OnceLock<(Arc<Self>, Weak<dyn Any + Send + Sync>)>,
}

impl HoldState {
    pub(super) fn new(lease: Arc<LockLease>, fence: u64) -> Arc<Self> {
        let since = Instant::now();
        let end = since + lease.terms.max_hold;
        Self::with_times(lease, fence, since, end)
    }

    pub(super) fn with_end(lease: Arc<LockLease>, fence: u64, end: Instant) -> Arc<Self> {
        Self::with_times(lease, fence, Instant::now(), end)
    }

    fn with_times(lease: Arc<LockLease>, fence: u64, since: Instant, end: Instant) -> Arc<Self> {
        let (lost, told) = (OnceLock::new(), Notify::new());
        let (over, lapses) = (AtomicBool::new(false), AtomicBool::new(false));
        let (after, fetched) = (OnceLock::new(), AtomicU8::new(RECEIVED));
        Arc::new(Self {
            lease,
            fence,
            held_since: since,
            ends_at: end,
            loss: lost,
            changed: told,
            closed: over,
            receipt: fetched,
            expires_on_drop: lapses,
            successor: after,
        })
    }

    /// Sets the hold that continues this one, and its owner. References to this state follow it.
    pub(crate) fn set_successor(&self, next: &Arc<Self>, owner: Weak<dyn Any + Send + Sync>) {
        if self.successor.set((Arc::clone(next), owner)).is_ok() {
            self.changed.notify_waiters();
        }
    }

    /// Returns the hold that continues this one, and its owner.
    pub(crate) fn successor(&self) -> Option<&(Arc<Self>, Weak<dyn Any + Send + Sync>)> {
        self.successor.get()
    }

    /// Returns the last hold in the chain of successors.
    pub(crate) fn current(&self) -> &Self {
        let mut facts = self;
        while let Some((next, _)) = facts.successor() {
            facts = next;
        }
        facts
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
            let last = self.lease.is_final.load(Ordering::Acquire);
            self.lease.mark_lost(if last { LockLoss::HeldTooLong } else { LockLoss::Lapsed });
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
        let mut facts = self;
        loop {
            let mut told = pin!(facts.changed.notified());
            // Registered before the checks, so that no later report is missed.
            told.as_mut().enable();
            if let Some((next, _)) = facts.successor() {
                facts = next;
                continue;
            }
            if let Some(loss) = facts.loss() {
                return loss;
            }
            let until = facts.valid_until();
            if facts.is_closed() {
                // The hold was released or handed over, so its deadline is void. A loss can still
                // be reported: by the release, or by a thread that has just closed the hold.
                told.await;
            } else {
                tokio::select! {
                    () = told => {}
                    () = tokio::time::sleep_until(until + LOSS_DETECTION_DELAY) => {}
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
        let (was, order) = (RECEIVED, Ordering::AcqRel);
        let _ = self.receipt.compare_exchange(was, UNRECEIVED, order, Ordering::Acquire);
    }

    /// Marks the grant as received by its waiter. Returns true if a renewal was skipped before.
    pub(crate) fn mark_received(&self) -> bool {
        self.receipt.swap(RECEIVED, Ordering::AcqRel) == RENEWAL_SKIPPED
    }

    /// Skips a renewal if the grant was not received. Returns false if it was.
    pub(super) fn skip_renewal_if_unreceived(&self) -> bool {
        let left = |state| (state != RECEIVED).then_some(RENEWAL_SKIPPED);
        self.receipt.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).is_ok()
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
        let (key, me) = (Key::custom("x"), LockToken::new(&NodeId::new()));
        let facts =
            HoldState::new(LockLease::new(&key, &me, Instant::now() + LEASE, terms, 0, None), 1);
        assert!(facts.lease.begin_hold(&facts));
        facts
    }

    #[tokio::test(start_paused = true)]
    async fn loss_found_on_release_resolves_pending_wait() {
        let facts = new_hold_state();
        facts.close();
        let mut lost = pin!(facts.wait_for_loss());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(lost.as_mut().poll(&mut cx).is_pending(), "it is being given back");
        facts.report_loss_on_release();
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
        for turn in 0..3000 {
            let _timers = runtime.enter();
            let (facts, barrier) = (new_hold_state(), Barrier::new(2));
            let woken = Arc::new(WakeFlag::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut lost = pin!(facts.wait_for_loss());
            let first = thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    // Somewhere in the other's one poll.
                    (0..turn % 300).for_each(|_| std::hint::spin_loop());
                    facts.lease.mark_lost(LockLoss::Taken);
                });
                barrier.wait();
                lost.as_mut().poll(&mut Context::from_waker(&waker))
            });
            if first.is_pending() {
                assert!(woken.0.load(Ordering::Acquire), "turn {turn}: told, and nobody woken");
                let again = lost.as_mut().poll(&mut Context::from_waker(&waker));
                assert_eq!(again, Poll::Ready(LockLoss::Taken), "turn {turn}");
            }
        }
    }
}
