//! Acquire through a local queue: as a waiter behind others of this process, or as the leader that
//! asks the store for all later arrivals too.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, oneshot},
    time::{Instant, error::Elapsed, timeout_at},
};

use super::{
    local_queue::{LocalQueueId, LocalQueueMap},
    local_queues::{LocalQueues, QueueHead},
    queue_entry::{AcquireOutcome, QueueEntry},
    queue_task::{QueueTask, QueueTaskStart},
    waiter::{DepartedWaiters, WaitOutcome, Waiter, assumed_busy},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{acquire_options::AcquireOptions, outcome::LockBusy},
    store::{OFFER_TIMEOUT, Store},
};

/// Next step of a newcomer.
enum EnterOutcome {
    /// Ask the store, also for those that arrive during the call.
    Lead(LeaderAcquire),
    Wait(WaiterHandle),
    Done(WaitOutcome),
}

/// Position in a local queue.
struct WaiterHandle {
    outcome_receiver: oneshot::Receiver<WaitOutcome>,
    /// The acquirer, if it is a leader that asks in its own future.
    leader_notify: Option<Arc<Notify>>,
    local_queues: Arc<LocalQueues>,
    queue_id: LocalQueueId,
    /// True once the waiter has the lock, or if its departure needs no notification.
    is_served: bool,
    _permit: OwnedSemaphorePermit,
}

/// Notifies the acquirer when a waiter leaves without the lock, so that no entry is kept in vain.
/// The acquirer may have changed since the waiter arrived.
impl Drop for WaiterHandle {
    fn drop(&mut self) {
        // Before the notification: its receiver must not count this waiter any more.
        self.outcome_receiver.close();
        if !self.is_served {
            let keeper = self
                .local_queues
                .queues
                .lock()
                .get_mut(&self.queue_id)
                .and_then(|line| line.acquirer.clone());
            if let Some(bell) = keeper {
                bell.notify_one();
            }
        }
    }
}

impl LocalQueues {
    /// Acquires the lock, or waits in the local queue. Dropping the future leaves the queue.
    pub(in crate::lock) async fn acquire(
        self: &Arc<Self>,
        store: &Store,
        key: &Key,
        asking: &AcquireOptions,
        until: Instant,
    ) -> WaitOutcome {
        let name = (key.clone(), asking.terms.mode);
        loop {
            let waiting = match self.enter_queue(store, &name, asking, until) {
                EnterOutcome::Done(waited) => return waited,
                EnterOutcome::Wait(waiting) => waiting,
                EnterOutcome::Lead(opening) => match opening.acquire_as_leader(asking, until).await
                {
                    EnterOutcome::Done(waited) => return waited,
                    EnterOutcome::Wait(waiting) => waiting,
                    #[expect(
                        clippy::unreachable,
                        reason = "a leader that has asked becomes a waiter"
                    )]
                    EnterOutcome::Lead(_) => unreachable!("the leader has already asked the store"),
                },
            };
            match self.await_lock(waiting, &name, asking, until).await {
                // The grant ended before this future was polled, so it is not returned. The wait
                // continues until the deadline.
                WaitOutcome::Granted(guard) if !guard.mark_received() => {}
                waited => return waited,
            }
            if Instant::now() >= until {
                return WaitOutcome::TimedOut(assumed_busy(asking.terms.lease));
            }
        }
    }

    fn enter_queue(
        self: &Arc<Self>,
        store: &Store,
        name: &LocalQueueId,
        asking: &AcquireOptions,
        until: Instant,
    ) -> EnterOutcome {
        let mut gone = DepartedWaiters::default();
        let mut lines = self.queues.lock();
        let line = lines.get_or_create(name);
        if !line.is_occupied(name.1) {
            let bell = Arc::new(Notify::new());
            (line.acquirer, line.has_leader) = (Some(Arc::clone(&bell)), true);
            drop(lines);
            let lines = Arc::clone(self);
            let (store, name) = (store.clone(), name.clone());
            return EnterOutcome::Lead(LeaderAcquire {
                local_queues: lines,
                store,
                queue_id: name,
                leader_notify: bell,
                is_finished: false,
            });
        }
        let way = self.join_queue(
            &mut lines,
            (store, name),
            asking,
            until,
            VecDeque::push_back,
            &mut gone,
        );
        let question = lines.get_or_create(name).plan_prefetch();
        drop(lines);
        self.schedule_prefetch(store, name, question);
        way
    }

    fn join_queue(
        self: &Arc<Self>,
        lines: &mut LocalQueueMap,
        (store, name): (&Store, &LocalQueueId),
        asking: &AcquireOptions,
        until: Instant,
        push: fn(&mut VecDeque<Waiter>, Waiter),
        gone: &mut DepartedWaiters,
    ) -> EnterOutcome {
        let has_room = |lines: &mut LocalQueueMap| lines.waiter_count(&name.0) < asking.max_waiters;
        if !has_room(lines) {
            // Departed waiters are usually removed when they reach the front; here they would keep
            // others out.
            lines.remove_departed(&name.0, gone);
        }
        let room = has_room(lines).then(|| Arc::clone(&self.waiter_permits).try_acquire_owned());
        let line = lines.get_or_create(name);
        let Some(Ok(room)) = room else {
            let known = line.last_busy.clone();
            return EnterOutcome::Done(WaitOutcome::QueueFull(
                known.unwrap_or_else(|| assumed_busy(asking.terms.lease)),
            ));
        };
        self.subscribe_to_joins(store);
        let (waiter, told) = Waiter::new(store, asking, until);
        push(&mut line.waiters, waiter);
        let opening = line.acquirer.clone().filter(|_| line.has_leader);
        let (lines, name) = (Arc::clone(self), name.clone());
        EnterOutcome::Wait(WaiterHandle {
            outcome_receiver: told,
            leader_notify: opening,
            local_queues: lines,
            queue_id: name,
            is_served: false,
            _permit: room,
        })
    }

    /// Waits for the outcome until the deadline. Replaces a leader that has not returned within
    /// `OFFER_TIMEOUT`.
    async fn receive_outcome(
        self: &Arc<Self>,
        waiting: &mut WaiterHandle,
        until: Instant,
    ) -> Result<Result<WaitOutcome, oneshot::error::RecvError>, Elapsed> {
        let soon = Instant::now() + OFFER_TIMEOUT;
        if let Some(opening) = waiting.leader_notify.take().filter(|_| soon < until) {
            if let Ok(told) = timeout_at(soon, &mut waiting.outcome_receiver).await {
                return Ok(told);
            }
            self.replace_leader(&waiting.queue_id, &opening);
        }
        timeout_at(until, &mut waiting.outcome_receiver).await
    }

    async fn await_lock(
        self: &Arc<Self>,
        mut waiting: WaiterHandle,
        name: &LocalQueueId,
        asking: &AcquireOptions,
        until: Instant,
    ) -> WaitOutcome {
        match self.receive_outcome(&mut waiting, until).await {
            // Possibly not sent by the acquirer, which is notified: it may keep an entry in vain.
            Ok(Ok(waited @ WaitOutcome::TimedOut(_))) => waited,
            Ok(Ok(waited)) => {
                waiting.is_served = true;
                waited
            }
            // A removed waiter always gets an outcome, except after a panic.
            Ok(Err(_)) if Instant::now() < until => {
                WaitOutcome::Fault(Error::new(ErrorKind::Unavailable, "wait"))
            }
            Ok(Err(_)) | Err(_) => {
                let mut lines = self.queues.lock();
                let line = lines.get_mut(name);
                let length = line.as_ref().map_or(0, |line| line.waiters.len());
                let known = line.and_then(|line| line.last_busy.clone());
                let mut busy = known.unwrap_or_else(|| assumed_busy(asking.terms.lease));
                busy.queue_length = busy.queue_length.max(length as u64);
                WaitOutcome::TimedOut(busy)
            }
        }
    }
}

/// First caller of a free queue: it asks the store in its own future, and later arrivals queue
/// behind it.
struct LeaderAcquire {
    local_queues: Arc<LocalQueues>,
    store: Store,
    queue_id: LocalQueueId,
    leader_notify: Arc<Notify>,
    is_finished: bool,
}

impl LeaderAcquire {
    async fn acquire_as_leader(mut self, asking: &AcquireOptions, until: Instant) -> EnterOutcome {
        let place = QueueEntry::new(&self.store, &self.queue_id);
        let front = QueueHead {
            options: asking.clone(),
            sequence: 0,
            last_deadline: until,
            waiter_count: 1,
        };
        // A caller that may not wait takes no entry, since it would have to leave the queue at
        // once.
        let may_wait = asking.max_waiters > 0;
        let looked = if may_wait {
            place.acquire_or_enqueue(&front).await
        } else {
            place.try_acquire(&front).await
        };
        match looked {
            AcquireOutcome::Granted(hold, word, _) => {
                self.local_queues.record_reader_snapshot(&self.queue_id, word);
                let guard = self.local_queues.register_grant(hold, asking, word);
                EnterOutcome::Done(WaitOutcome::Granted(guard))
            }
            AcquireOutcome::Busy(place, busy) => self.join_queue_front(place, busy, asking, until),
            // The waiter stays, and a queue task asks again; it gives up after `OUTAGE_TOLERANCE`.
            AcquireOutcome::Overdue(place, _) if may_wait => {
                let busy = LockBusy {
                    lease_remaining: Duration::ZERO,
                    ..assumed_busy(asking.terms.lease)
                };
                self.join_queue_front(place, busy, asking, until)
            }
            AcquireOutcome::Overdue(_, error) | AcquireOutcome::Failed(_, error) => {
                EnterOutcome::Done(WaitOutcome::Fault(error))
            }
        }
    }

    /// Joins the local queue at the front, and passes the entry to a queue task if there are
    /// waiters. Waiters that arrived during the call may have left no room for this one.
    fn join_queue_front(
        &mut self,
        place: QueueEntry,
        busy: LockBusy,
        asking: &AcquireOptions,
        until: Instant,
    ) -> EnterOutcome {
        let has_place = asking.max_waiters > 0;
        let pause = if has_place { busy.lease_remaining } else { Duration::ZERO };
        let (way, asks) = {
            let mut gone = DepartedWaiters::default();
            let mut lines = self.local_queues.queues.lock();
            let line = lines.get_or_create(&self.queue_id);
            line.last_busy = Some(busy);
            let push = VecDeque::push_front;
            let to = (&self.store, &self.queue_id);
            // Another acquirer may be registered by now, or none.
            let keeps = line.promote_leader(&self.leader_notify, self.queue_id.1);
            let way = self.local_queues.join_queue(&mut lines, to, asking, until, push, &mut gone);
            (way, keeps && !lines.get_or_create(&self.queue_id).waiters.is_empty())
        };
        if asks {
            self.is_finished = true;
            let (store, bell) = (&self.store, Arc::clone(&self.leader_notify));
            QueueTask::spawn(
                &self.local_queues,
                store,
                &self.queue_id,
                bell,
                QueueTaskStart::ExistingEntry(place, pause),
            );
        } else if !has_place {
            place.attempt.mark_refused();
        }
        way
    }
}

/// Deregisters the leader after its answer or when its future is dropped, so that later arrivals
/// proceed.
impl Drop for LeaderAcquire {
    fn drop(&mut self) {
        if !self.is_finished {
            self.local_queues.deregister_leader(&self.queue_id, &self.leader_notify);
        }
    }
}
