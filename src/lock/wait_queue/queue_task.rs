//! The keeper: one task per line that has nobody else to ask for it. It keeps the process's place in
//! the store's line, looks again when it is told to or when a timer says so, and gives what it is
//! granted to the first who still waits.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    local_queue::LocalQueueId,
    local_queues::{LocalQueues, QueueHead},
    queue_entry::{AcquireOutcome, QueueEntry},
    queue_snapshot::QueueSnapshot,
};
use crate::{
    error::{Error, ErrorKind},
    lock::{acquire_options::AcquireOptions, guard::ReleaseStatus, shared_grant::release_status},
    store::{HoldState, LockHold, LockMode, OFFER_TIMEOUT, ReleaseOutcome, Store},
};

/// Longest time between two looks at the store, whatever the lease says: bounds a lost message, and
/// what a dead process before this one costs beyond its accept window.
const MAX_POLL_INTERVAL: Duration = OFFER_TIMEOUT;

/// So long before its end a place is kept for longer, if somebody wants it: a call and what may delay it.
const ENTRY_RENEWAL_MARGIN: Duration = Duration::from_millis(10);

/// How long the line keeps trying while the store is away. Requests get an answer soon, not late.
const OUTAGE_TOLERANCE: Duration = Duration::from_millis(500);

/// Readers let in at once behind the first of them: bounded as what is sent together is.
const MAX_READER_BATCH: usize = 32;

/// How a keeper begins.
pub(in crate::lock) enum QueueTaskStart {
    /// Where the first of this process came.
    NewEntry,
    /// At a place that has been taken, to be looked at after this pause.
    ExistingEntry(QueueEntry, Duration),
    /// With a lease that is given back in the same call; who gave it back may want to know.
    ReleaseAndReacquire(LockHold, Option<oneshot::Sender<ReleaseStatus>>),
}

pub(in crate::lock) struct QueueTask {
    local_queues: Arc<LocalQueues>,
    store: Store,
    queue_id: LocalQueueId,
    notify: Arc<Notify>,
    unavailable_since: Option<Instant>,
    /// The line has been told that nobody keeps it.
    is_deregistered: bool,
}

/// What comes next.
enum QueueTaskStep {
    Poll(QueueEntry),
    Sleep(QueueEntry, Duration),
    Stop,
}

impl QueueTask {
    pub(in crate::lock) fn spawn(
        lines: &Arc<LocalQueues>,
        store: &Store,
        name: &LocalQueueId,
        bell: Arc<Notify>,
        start: QueueTaskStart,
    ) {
        tracing::debug!(node = %store.node(), lock = %name.0.log_hash(), "waiting in line");
        let keeper = Self {
            local_queues: Arc::clone(lines),
            store: store.clone(),
            queue_id: name.clone(),
            notify: bell,
            unavailable_since: None,
            is_deregistered: false,
        };
        store.spawn_background(keeper.run(start));
    }

    async fn run(mut self, start: QueueTaskStart) {
        let mut next = match start {
            QueueTaskStart::NewEntry => QueueTaskStep::Poll(self.new_entry()),
            QueueTaskStart::ExistingEntry(place, pause) => {
                QueueTaskStep::Sleep(place, pause.min(MAX_POLL_INTERVAL))
            }
            QueueTaskStart::ReleaseAndReacquire(hold, tell) => {
                self.release_and_reacquire(hold, tell).await
            }
        };
        loop {
            next = match next {
                QueueTaskStep::Poll(place) => self.poll_store(place).await,
                QueueTaskStep::Sleep(place, pause) => {
                    self.sleep_until_poll(&place, pause).await;
                    QueueTaskStep::Poll(place)
                }
                QueueTaskStep::Stop => return,
            };
        }
    }

    /// Until it is told something, or it is time to look again.
    async fn sleep_until_poll(&self, place: &QueueEntry, pause: Duration) {
        let (bell, offered) = (Arc::clone(&self.notify), Arc::clone(&place.offer_notify));
        let look = async {
            let at = Instant::now() + pause + self.jitter();
            // The place was taken for those who waited then. Who has come since may wait for longer: for them
            // it is kept before it ends, or those who came later to other processes would be served first.
            let before =
                place.expires_at.checked_sub(ENTRY_RENEWAL_MARGIN).unwrap_or(place.expires_at);
            if before < at && Instant::now() < before {
                tokio::time::sleep_until(before).await;
                if self.local_queues.has_waiter_beyond(&self.queue_id, place.expires_at) {
                    return;
                }
            }
            tokio::time::sleep_until(
                at.min(place.expires_at.max(Instant::now() + ENTRY_RENEWAL_MARGIN)),
            )
            .await;
        };
        tokio::select! {
            () = offered.notified() => {}
            () = bell.notified() => {}
            () = look => {}
        }
    }

    /// Gives back what this process has, and asks for the next of it, in one call.
    async fn release_and_reacquire(
        &mut self,
        hold: LockHold,
        tell: Option<oneshot::Sender<ReleaseStatus>>,
    ) -> QueueTaskStep {
        let facts = Arc::clone(hold.state());
        let Some(front) = self.local_queues.head(&self.queue_id) else {
            // All have left. The agent gives it back, for which a shutdown waits; and until it has that in hand, the
            // line has a keeper, for which a shutdown waits too.
            let given_back = hold.send_release();
            if tell.is_some()
                && let Ok(gave_back) = given_back.await
            {
                self.report_release(tell, &facts, &gave_back);
            }
            return QueueTaskStep::Poll(self.new_entry());
        };
        let QueueHead { options: asking, .. } = &front;
        let mut place = self.new_entry();
        let (lease, call) = (asking.terms.initial_lease(), place.acquire_call(&front));
        let answer = place.attempt.send(lease, || hold.release_and_reacquire(call)).await;
        let (gave_back, answer) = match answer {
            Ok((gave_back, acquired)) => (Ok(gave_back), Ok(acquired)),
            Err(error) => (Err(Error::new(error.kind(), "release")), Err(error)),
        };
        self.report_release(tell, &facts, &gave_back);
        let looked = place.into_outcome(asking, answer);
        self.handle_outcome(looked, asking).await
    }

    fn new_entry(&self) -> QueueEntry {
        QueueEntry::new(&self.store, &self.queue_id)
    }

    fn report_release(
        &self,
        tell: Option<oneshot::Sender<ReleaseStatus>>,
        facts: &HoldState,
        gave_back: &Result<ReleaseOutcome, Error>,
    ) {
        if let Some(tell) = tell {
            let _ = tell.send(release_status(facts, gave_back));
        }
    }

    async fn poll_store(&mut self, place: QueueEntry) -> QueueTaskStep {
        let Some(front) = self.local_queues.head_or_deregister(&self.queue_id) else {
            self.is_deregistered = true;
            return QueueTaskStep::Stop;
        };
        let looked = place.acquire_or_enqueue(&front).await;
        self.handle_outcome(looked, &front.options).await
    }

    async fn handle_outcome(
        &mut self,
        looked: AcquireOutcome,
        asking: &AcquireOptions,
    ) -> QueueTaskStep {
        match looked {
            AcquireOutcome::Granted(hold, word, seq) => {
                self.unavailable_since = None;
                self.serve_waiters(hold, word, seq, asking).await
            }
            AcquireOutcome::Busy(place, busy) => {
                self.unavailable_since = None;
                let pause = busy.lease_remaining.min(MAX_POLL_INTERVAL);
                self.local_queues.record_busy(&self.queue_id, busy);
                QueueTaskStep::Sleep(place, pause)
            }
            AcquireOutcome::Overdue(place, error) | AcquireOutcome::Failed(place, error) => {
                let since = *self.unavailable_since.get_or_insert_with(Instant::now);
                if error.kind() == ErrorKind::Config || since.elapsed() > OUTAGE_TOLERANCE {
                    self.is_deregistered = true;
                    // The place is given back as it is dropped.
                    self.local_queues.fail_waiters(&self.queue_id, error.kind());
                    return QueueTaskStep::Stop;
                }
                QueueTaskStep::Sleep(place, Duration::from_millis(50))
            }
        }
    }

    /// The first of the line gets it. An exclusive lock comes to the others from guard to guard; of the
    /// other modes there may be more to be had.
    async fn serve_waiters(
        &mut self,
        hold: LockHold,
        word: QueueSnapshot,
        seq: u64,
        asking: &AcquireOptions,
    ) -> QueueTaskStep {
        self.local_queues.record_reader_snapshot(&self.queue_id, word);
        let guard = self.local_queues.register_grant(hold, asking, word);
        let exclusive = asking.terms.mode == LockMode::Exclusive;
        if exclusive {
            self.is_deregistered = true;
            // Before the guard is given away: when it ends, it looks whether somebody asks already.
            self.local_queues.deregister_queue_task(&self.queue_id);
        }
        self.local_queues.deliver_grant(&self.queue_id, asking, guard);
        if exclusive {
            return QueueTaskStep::Stop;
        }
        if asking.terms.mode == LockMode::Shared && !self.admit_readers(seq).await {
            self.is_deregistered = true;
            return QueueTaskStep::Stop;
        }
        QueueTaskStep::Poll(self.new_entry())
    }

    /// Those who stood behind the first reader come in with it: they have its sequence. Where there are more of them than
    /// can be sent together, the others come in by the next look, which asks for the place where the first of them came:
    /// a writer who came after it is not let in between.
    ///
    /// False if nobody waits any more: then the line has no keeper.
    async fn admit_readers(&self, seq: u64) -> bool {
        let Some(front) = self.local_queues.head_or_deregister(&self.queue_id) else {
            return false;
        };
        let reader = || async {
            let mut place = self.new_entry();
            place.resume_sequence = seq;
            match place.try_acquire(&front).await {
                AcquireOutcome::Granted(hold, word, _) => {
                    Some(self.local_queues.register_grant(hold, &front.options, word))
                }
                AcquireOutcome::Busy(place, _) => {
                    place.attempt.mark_refused();
                    None
                }
                AcquireOutcome::Overdue(..) | AcquireOutcome::Failed(..) => None,
            }
        };
        let readers =
            join_all((0..front.waiter_count.min(MAX_READER_BATCH)).map(|_| reader())).await;
        for guard in readers.into_iter().flatten() {
            self.local_queues.deliver_grant(&self.queue_id, &front.options, guard);
        }
        true
    }

    /// Processes whose timers were set by the same lease should not all look at once.
    fn jitter(&self) -> Duration {
        let byte = self.store.node().as_str().bytes().fold(0u8, u8::wrapping_add);
        Duration::from_millis(u64::from(byte % 32))
    }
}

/// If the runtime drops the task, its waiters' channels must not stay in the map for ever.
impl Drop for QueueTask {
    fn drop(&mut self) {
        if !self.is_deregistered {
            self.local_queues.fail_waiters(&self.queue_id, ErrorKind::Unavailable);
        }
    }
}
