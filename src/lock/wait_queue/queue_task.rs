//! Queue task: background task of a local queue that has waiters and no other acquirer.
//!
//! It keeps the process's entry in the store's queue, polls when it is notified or a timer ends,
//! and delivers a grant to the first remaining waiter.

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
    store::{HoldState, LockMode, OFFER_TIMEOUT, OwnedHold, ReleaseOutcome, Store},
};

/// Longest time between two polls, whatever the lease. It limits the cost of a lost message, and
/// the cost of a dead process ahead in the queue beyond its offer timeout.
const MAX_POLL_INTERVAL: Duration = OFFER_TIMEOUT;

/// Time before its expiry at which an entry is extended for waiters that need it longer: enough for
/// a call and its delays.
const ENTRY_RENEWAL_MARGIN: Duration = Duration::from_millis(10);

/// Time for which polls are repeated while the store is unavailable; short, so that requests get a
/// timely response.
const OUTAGE_TOLERANCE: Duration = Duration::from_millis(500);

/// Most readers admitted together behind the first one: as many calls as fit into one batch.
const MAX_READER_BATCH: usize = 32;

/// First step of a queue task.
pub(in crate::lock) enum QueueTaskStart {
    /// Asks at the position that the first waiter of this process has by its arrival.
    NewEntry,
    /// Keeps an existing entry, which is polled after this pause.
    ExistingEntry(QueueEntry, Duration),
    /// Releases a hold and reacquires in the same call. The sender reports the release status.
    ReleaseAndReacquire(OwnedHold, Option<oneshot::Sender<ReleaseStatus>>),
}

pub(in crate::lock) struct QueueTask {
    local_queues: Arc<LocalQueues>,
    store: Store,
    queue_id: LocalQueueId,
    notify: Arc<Notify>,
    unavailable_since: Option<Instant>,
    /// True once this task is no longer the queue's acquirer.
    is_deregistered: bool,
}

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
        tracing::debug!(
            node = %store.node(), lock = %name.0.log_hash(), "waiting in the store's queue"
        );
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

    /// Sleeps until a notification arrives or the next poll is due.
    async fn sleep_until_poll(&self, place: &QueueEntry, pause: Duration) {
        let (bell, offered) = (Arc::clone(&self.notify), Arc::clone(&place.offer_notify));
        let look = async {
            let at = Instant::now() + pause + self.jitter();
            // The entry was created for the waiters of that time; later ones may have later
            // deadlines. For those it is extended before it expires, or later arrivals at other
            // processes would be served first.
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

    /// Releases this process's hold and reacquires for the next waiter, in one call.
    async fn release_and_reacquire(
        &mut self,
        hold: OwnedHold,
        tell: Option<oneshot::Sender<ReleaseStatus>>,
    ) -> QueueTaskStep {
        let facts = Arc::clone(hold.state());
        let Some(front) = self.local_queues.head(&self.queue_id) else {
            // All waiters have left. The lease agent releases the hold, and a shutdown waits for
            // the agent. Until the agent has the release, this task is registered, and a shutdown
            // waits for it too.
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
                    // Dropping the entry leaves the store's queue.
                    self.local_queues.fail_waiters(&self.queue_id, error.kind());
                    return QueueTaskStep::Stop;
                }
                QueueTaskStep::Sleep(place, Duration::from_millis(50))
            }
        }
    }

    /// Delivers a grant to the first waiter. Further waiters get an exclusive lock by handover. In
    /// the other modes further grants may be available, so the store is polled again.
    async fn serve_waiters(
        &mut self,
        hold: OwnedHold,
        word: QueueSnapshot,
        seq: u64,
        asking: &AcquireOptions,
    ) -> QueueTaskStep {
        self.local_queues.record_reader_snapshot(&self.queue_id, word);
        let guard = self.local_queues.register_grant(hold, asking, word);
        let exclusive = asking.terms.mode == LockMode::Exclusive;
        if exclusive {
            self.is_deregistered = true;
            // Before the guard is delivered: when it ends, it checks for a registered acquirer.
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

    /// Admits the readers behind the first one, with its sequence number. Returns false if no
    /// waiter is left; the queue task is deregistered then.
    ///
    /// If more than `MAX_READER_BATCH` wait, the next poll admits the others. It asks for the
    /// position of the first of them, so a writer that arrived after that one is not admitted in
    /// between.
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

    /// Spreads the polls of processes with timers that were set by the same lease.
    fn jitter(&self) -> Duration {
        let byte = self.store.node().as_str().bytes().fold(0u8, u8::wrapping_add);
        Duration::from_millis(u64::from(byte % 32))
    }
}

/// Fails the waiters if the runtime drops the task; their channels would stay in the map for ever.
impl Drop for QueueTask {
    fn drop(&mut self) {
        if !self.is_deregistered {
            self.local_queues.fail_waiters(&self.queue_id, ErrorKind::Unavailable);
        }
    }
}
