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
    holder_lease_watch::HolderLeaseWatch,
    local_queue_map::LocalQueueId,
    local_queues::{LocalQueues, QueueHead},
    queue_entry::{AcquireOutcome, QueueEntry},
    queue_snapshot::QueueSnapshot,
};
use crate::{
    error::{Error, ErrorKind},
    lock::{
        acquire_options::AcquireOptions,
        release_status::{ReleaseStatus, release_status},
    },
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
    /// Keeps an existing entry, which is polled after `delay`.
    ExistingEntry { entry: QueueEntry, delay: Duration },
    /// Releases a hold and reacquires in the same call. `status_sender` reports the release status.
    ReleaseAndReacquire { hold: OwnedHold, status_sender: Option<oneshot::Sender<ReleaseStatus>> },
}

pub(in crate::lock) struct QueueTask {
    local_queues: Arc<LocalQueues>,
    store: Store,
    queue_id: LocalQueueId,
    notify: Arc<Notify>,
    unavailable_since: Option<Instant>,
    holder_lease: HolderLeaseWatch,
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
        local_queues: &Arc<LocalQueues>,
        store: &Store,
        queue_id: &LocalQueueId,
        notify: Arc<Notify>,
        start: QueueTaskStart,
    ) {
        tracing::debug!(
            node = %store.node(), lock = %store.log_name(&queue_id.key), "waiting in the store's queue"
        );
        let task = Self {
            local_queues: Arc::clone(local_queues),
            store: store.clone(),
            queue_id: queue_id.clone(),
            notify,
            unavailable_since: None,
            holder_lease: HolderLeaseWatch::default(),
            is_deregistered: false,
        };
        store.spawn_background(task.run(start));
    }

    async fn run(mut self, start: QueueTaskStart) {
        let mut step = match start {
            QueueTaskStart::NewEntry => QueueTaskStep::Poll(self.new_entry()),
            QueueTaskStart::ExistingEntry { entry, delay } => {
                QueueTaskStep::Sleep(entry, delay.min(MAX_POLL_INTERVAL))
            }
            QueueTaskStart::ReleaseAndReacquire { hold, status_sender } => {
                self.release_and_reacquire(hold, status_sender).await
            }
        };
        loop {
            step = match step {
                QueueTaskStep::Poll(entry) => self.poll_store(entry).await,
                QueueTaskStep::Sleep(entry, delay) => {
                    if self.sleep_until_poll(&entry, delay).await {
                        self.holder_lease.forget();
                    }
                    QueueTaskStep::Poll(entry)
                }
                QueueTaskStep::Stop => return,
            };
        }
    }

    /// Sleeps until a notification arrives or the next poll is due. Returns true if the lock was
    /// offered.
    async fn sleep_until_poll(&self, entry: &QueueEntry, delay: Duration) -> bool {
        let (notify, offer_notify) = (Arc::clone(&self.notify), Arc::clone(&entry.offer_notify));
        let poll_due = async {
            let poll_at = Instant::now() + delay + self.jitter();
            // The entry was created for the waiters of that time; later ones may have later
            // deadlines. For those it is extended before it expires, or later arrivals at other
            // processes would be served first.
            let renew_at =
                entry.expires_at.checked_sub(ENTRY_RENEWAL_MARGIN).unwrap_or(entry.expires_at);
            if renew_at < poll_at && Instant::now() < renew_at {
                tokio::time::sleep_until(renew_at).await;
                if self.local_queues.has_waiter_beyond(&self.queue_id, entry.expires_at) {
                    return;
                }
            }
            tokio::time::sleep_until(
                poll_at.min(entry.expires_at.max(Instant::now() + ENTRY_RENEWAL_MARGIN)),
            )
            .await;
        };
        tokio::select! {
            () = offer_notify.notified() => true,
            () = notify.notified() => false,
            () = poll_due => false,
        }
    }

    /// Releases this process's hold and reacquires for the next waiter, in one call.
    async fn release_and_reacquire(
        &mut self,
        hold: OwnedHold,
        status_sender: Option<oneshot::Sender<ReleaseStatus>>,
    ) -> QueueTaskStep {
        let hold_state = Arc::clone(hold.state());
        let Some(head) = self.local_queues.head(&self.queue_id) else {
            // All waiters have left. The lease agent releases the hold, and a shutdown waits for
            // the agent. Until the agent has the release, this task is registered, and a shutdown
            // waits for it too.
            let release = hold.send_release();
            if status_sender.is_some()
                && let Ok(release_result) = release.await
            {
                self.report_release(status_sender, &hold_state, &release_result);
            }
            return QueueTaskStep::Poll(self.new_entry());
        };
        let QueueHead { options, .. } = &head;
        let mut entry = self.new_entry();
        let (lease, command) = (options.terms.initial_lease(), entry.acquire_command(&head));
        let reply = entry.attempt.send(lease, || hold.release_and_reacquire(command)).await;
        let (release_result, reply) = match reply {
            Ok((release_result, acquired)) => (Ok(release_result), Ok(acquired)),
            Err(error) => (Err(Error::new(error.kind(), "release")), Err(error)),
        };
        self.report_release(status_sender, &hold_state, &release_result);
        let outcome = entry.into_outcome(options, reply);
        self.handle_outcome(outcome, options).await
    }

    fn new_entry(&self) -> QueueEntry {
        QueueEntry::new(&self.store, &self.queue_id)
    }

    fn report_release(
        &self,
        status_sender: Option<oneshot::Sender<ReleaseStatus>>,
        hold_state: &HoldState,
        release_result: &Result<ReleaseOutcome, Error>,
    ) {
        if let Some(status_sender) = status_sender {
            let _ = status_sender.send(release_status(hold_state, release_result));
        }
    }

    async fn poll_store(&mut self, entry: QueueEntry) -> QueueTaskStep {
        let Some(head) = self.local_queues.head_or_deregister(&self.queue_id) else {
            self.is_deregistered = true;
            return QueueTaskStep::Stop;
        };
        let outcome = entry.acquire_or_enqueue(&head).await;
        self.handle_outcome(outcome, &head.options).await
    }

    async fn handle_outcome(
        &mut self,
        outcome: AcquireOutcome,
        options: &AcquireOptions,
    ) -> QueueTaskStep {
        match outcome {
            AcquireOutcome::Granted { hold, snapshot, sequence } => {
                self.unavailable_since = None;
                self.holder_lease.warn_if_not_released(&self.store, &self.queue_id.key);
                self.serve_waiters(hold, snapshot, sequence, options).await
            }
            AcquireOutcome::Busy(entry, busy) => {
                self.unavailable_since = None;
                self.holder_lease.record_busy(busy.lease_remaining);
                let delay = busy.lease_remaining.min(MAX_POLL_INTERVAL);
                self.local_queues.record_busy(&self.queue_id, busy);
                QueueTaskStep::Sleep(entry, delay)
            }
            AcquireOutcome::Overdue(entry, error) | AcquireOutcome::Failed(entry, error) => {
                // A release in the outage announces no offer.
                self.holder_lease.forget();
                let since = *self.unavailable_since.get_or_insert_with(Instant::now);
                if error.kind() == ErrorKind::Config || since.elapsed() > OUTAGE_TOLERANCE {
                    self.is_deregistered = true;
                    // Dropping the entry leaves the store's queue.
                    self.local_queues.fail_waiters(&self.queue_id, error.kind());
                    return QueueTaskStep::Stop;
                }
                QueueTaskStep::Sleep(entry, Duration::from_millis(50))
            }
        }
    }

    /// Delivers a grant to the first waiter. Further waiters get an exclusive lock by handover. In
    /// the other modes further grants may be available, so the store is polled again.
    async fn serve_waiters(
        &mut self,
        hold: OwnedHold,
        snapshot: QueueSnapshot,
        sequence: u64,
        options: &AcquireOptions,
    ) -> QueueTaskStep {
        self.local_queues.record_reader_snapshot(&self.queue_id, snapshot);
        let guard = self.local_queues.register_grant(hold, options, snapshot);
        let is_exclusive = options.terms.mode == LockMode::Exclusive;
        if is_exclusive {
            self.is_deregistered = true;
            // Before the guard is delivered: when it ends, it checks for a registered acquirer.
            self.local_queues.deregister_queue_task(&self.queue_id);
        }
        self.local_queues.deliver_grant(&self.queue_id, options, guard);
        if is_exclusive {
            return QueueTaskStep::Stop;
        }
        if options.terms.mode == LockMode::Shared && !self.admit_readers(sequence).await {
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
    async fn admit_readers(&self, sequence: u64) -> bool {
        let Some(head) = self.local_queues.head_or_deregister(&self.queue_id) else {
            return false;
        };
        let acquire_for_reader = || async {
            let mut entry = self.new_entry();
            entry.resume_sequence = sequence;
            match entry.try_acquire(&head).await {
                AcquireOutcome::Granted { hold, snapshot, .. } => {
                    Some(self.local_queues.register_grant(hold, &head.options, snapshot))
                }
                AcquireOutcome::Busy(entry, _) => {
                    entry.attempt.mark_refused();
                    None
                }
                AcquireOutcome::Overdue(..) | AcquireOutcome::Failed(..) => None,
            }
        };
        let guards =
            join_all((0..head.waiter_count.min(MAX_READER_BATCH)).map(|_| acquire_for_reader()))
                .await;
        for guard in guards.into_iter().flatten() {
            self.local_queues.deliver_grant(&self.queue_id, &head.options, guard);
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
