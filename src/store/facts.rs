//! What is known of one guard's turn on a lease, and how its loss is told.

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

use super::lease::Lease;
use crate::key::Key;

/// How a hold ended before it was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The store says that it is somebody else's, or nobody's.
    Taken,
    /// It could not be renewed while it was sure to be valid.
    Lapsed,
    /// It was held for longer than `max_hold`, or its fixed lease ended.
    TooLong,
}

/// The shared facts of a turn; what handlers see of it.
pub(crate) struct Facts {
    pub(crate) lease: Arc<Lease>,
    pub(crate) fence: u64,
    pub(crate) since: Instant,
    /// When the turn is over, renewed or not.
    pub(super) end: Instant,
    lost: OnceLock<Loss>,
    told: Notify,
    over: AtomicBool,
    /// Whether who waited for it has it.
    fetched: AtomicU8,
    /// What it is held for goes on, where nobody can end it: it is not given back before its time.
    lapses: AtomicBool,
    /// The same turn on a lease of another mode, once its holder has stepped down; and whoever ends that one now, which
    /// is no business of this room.
    after: OnceLock<(Arc<Self>, Weak<dyn Any + Send + Sync>)>,
}

impl Facts {
    pub(super) fn new(lease: Arc<Lease>, fence: u64) -> Arc<Self> {
        let since = Instant::now();
        let end = since + lease.terms.max_hold;
        Self::of(lease, fence, since, end)
    }

    pub(super) fn until(lease: Arc<Lease>, fence: u64, end: Instant) -> Arc<Self> {
        Self::of(lease, fence, Instant::now(), end)
    }

    fn of(lease: Arc<Lease>, fence: u64, since: Instant, end: Instant) -> Arc<Self> {
        let (lost, told) = (OnceLock::new(), Notify::new());
        let (over, lapses) = (AtomicBool::new(false), AtomicBool::new(false));
        let (after, fetched) = (OnceLock::new(), AtomicU8::new(FETCHED));
        Arc::new(Self { lease, fence, since, end, lost, told, over, fetched, lapses, after })
    }

    /// It goes on as these, with this owner. Who has a copy follows.
    pub(crate) fn go_on_as(&self, next: &Arc<Self>, owner: Weak<dyn Any + Send + Sync>) {
        if self.after.set((Arc::clone(next), owner)).is_ok() {
            self.told.notify_waiters();
        }
    }

    /// As what it goes on, and who owns that.
    pub(crate) fn after(&self) -> Option<&(Arc<Self>, Weak<dyn Any + Send + Sync>)> {
        self.after.get()
    }

    /// The facts that count now.
    pub(crate) fn now(&self) -> &Self {
        let mut facts = self;
        while let Some((next, _)) = facts.after() {
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

    pub(crate) fn loss(&self) -> Option<Loss> {
        // Not only when the agent says so: its runtime may stand still.
        if !self.is_over() && Instant::now() >= self.valid_until() + BEHIND {
            let last = self.lease.last.load(Ordering::Acquire);
            self.lease.lose(if last { Loss::TooLong } else { Loss::Lapsed });
        }
        self.lost.get().copied()
    }

    /// As [`Facts::loss`], as far as it has been told: it wakes nobody.
    pub(crate) fn told_loss(&self) -> Option<Loss> {
        self.lost.get().copied()
    }

    /// Resolves when the hold is lost, also if only its release finds that; never if it is given back before.
    pub(crate) async fn lost(&self) -> Loss {
        let mut facts = self;
        loop {
            let mut told = pin!(facts.told.notified());
            // Before the look: what is told from here on is not missed.
            told.as_mut().enable();
            if let Some((next, _)) = facts.after() {
                facts = next;
                continue;
            }
            if let Some(loss) = facts.loss() {
                return loss;
            }
            let until = facts.valid_until();
            if facts.is_over() {
                // Given back or handed on, and nothing ends by time any more. But what the release finds is told
                // yet, and so is a loss that another thread is in the middle of telling.
                told.await;
            } else {
                tokio::select! {
                    () = told => {}
                    () = tokio::time::sleep_until(until + BEHIND) => {}
                }
            }
        }
    }

    /// True once it was given back, handed on or lost.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// It is given back, or its lease passes on.
    pub(super) fn close(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// From now on it lies there for somebody whose future may not be polled. Until he fetches it, it is not renewed: nobody
    /// runs under it.
    pub(crate) fn await_fetch(&self) {
        // Told to another one, it may not have been renewed since the first.
        let (was, order) = (FETCHED, Ordering::AcqRel);
        let _ = self.fetched.compare_exchange(was, WAITS, order, Ordering::Acquire);
    }

    /// Who waited for it has it. True if it was not renewed because of that.
    pub(crate) fn fetch(&self) -> bool {
        self.fetched.swap(FETCHED, Ordering::AcqRel) == NOT_RENEWED
    }

    /// Leaves it unrenewed if it lies there; false if whoever it is for has it.
    pub(super) fn skip_renewal(&self) -> bool {
        let left = |state| (state != FETCHED).then_some(NOT_RENEWED);
        self.fetched.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).is_ok()
    }

    /// Dropped, it is renewed no more, and ends when its lease does: as if this process had died.
    pub(crate) fn leave_to_lapse(&self) {
        self.lapses.store(true, Ordering::Release);
    }

    pub(super) fn lapses(&self) -> bool {
        self.lapses.load(Ordering::Acquire)
    }

    /// Found when it was given back: whoever has a copy may want to know.
    pub(crate) fn had_been_lost(&self) {
        self.tell(Loss::Taken);
    }

    pub(super) fn lose(&self, loss: Loss) {
        if !self.over.swap(true, Ordering::AcqRel) {
            self.tell(loss);
        }
    }

    /// The first reason stands.
    fn tell(&self, loss: Loss) {
        if self.lost.set(loss).is_ok() {
            self.told.notify_waiters();
        }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, fence) = (self.key(), self.fence);
        f.debug_struct("Hold").field("key", key).field("fence", &fence).finish_non_exhaustive()
    }
}

const FETCHED: u8 = 0;
const WAITS: u8 = 1;
const NOT_RENEWED: u8 = 2;

/// How much later than the agent a hold notices its own end: the agent knows the reason.
const BEHIND: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::{
        sync::Barrier,
        task::{Context, Poll, Wake, Waker},
        thread,
    };

    use super::*;
    use crate::store::{
        backend::{Mode, Node, Token},
        lease::Terms,
    };

    const LEASE: Duration = Duration::from_secs(10);

    fn facts() -> Arc<Facts> {
        let terms =
            Terms { lease: LEASE, renew: true, max_hold: LEASE, job: None, mode: Mode::Exclusive };
        let (key, me) = (Key::custom("x"), Token::new(&Node::new()));
        let facts = Facts::new(Lease::new(&key, &me, Instant::now() + LEASE, terms, 0, None), 1);
        assert!(facts.lease.begin(&facts));
        facts
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_release_finds_is_told_to_who_asked_meanwhile() {
        let facts = facts();
        facts.close();
        let mut lost = pin!(facts.lost());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(lost.as_mut().poll(&mut cx).is_pending(), "it is being given back");
        facts.had_been_lost();
        assert_eq!(lost.as_mut().poll(&mut cx), Poll::Ready(Loss::Taken));
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn a_loss_is_told_whenever_it_comes_while_somebody_asks() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for turn in 0..3000 {
            let _timers = runtime.enter();
            let (facts, barrier) = (facts(), Barrier::new(2));
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut lost = pin!(facts.lost());
            let first = thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    // Somewhere in the other's one poll.
                    (0..turn % 300).for_each(|_| std::hint::spin_loop());
                    facts.lease.lose(Loss::Taken);
                });
                barrier.wait();
                lost.as_mut().poll(&mut Context::from_waker(&waker))
            });
            if first.is_pending() {
                assert!(woken.0.load(Ordering::Acquire), "turn {turn}: told, and nobody woken");
                let again = lost.as_mut().poll(&mut Context::from_waker(&waker));
                assert_eq!(again, Poll::Ready(Loss::Taken), "turn {turn}");
            }
        }
    }
}
