//! Coming in: behind those of this process, or by asking the store on behalf of all who come meanwhile.

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

/// How a newcomer goes on.
enum EnterOutcome {
    /// Ask the store, on behalf of all who come meanwhile.
    Lead(LeaderAcquire),
    Wait(WaiterHandle),
    Done(WaitOutcome),
}

/// A place in the local line.
struct WaiterHandle {
    outcome_receiver: oneshot::Receiver<WaitOutcome>,
    /// Who asks for it, if that is another one who came, in his own future.
    leader_notify: Option<Arc<Notify>>,
    local_queues: Arc<LocalQueues>,
    queue_id: LocalQueueId,
    /// It has the lock, or nobody is to hear of its leaving.
    is_served: bool,
    _permit: OwnedSemaphorePermit,
}

/// Rings the keeper when the waiter leaves without the lock, so that its place is not kept for nobody: whoever keeps it
/// now, which need not be who did when this one came.
impl Drop for WaiterHandle {
    fn drop(&mut self) {
        // Before the bell: whoever hears it must not count this one any more.
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
    /// Acquires, or waits in line. Dropping the future leaves it.
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
                        reason = "an opening that has asked opens nothing"
                    )]
                    EnterOutcome::Lead(_) => unreachable!("it has asked"),
                },
            };
            match self.await_lock(waiting, &name, asking, until).await {
                // It has ended before this future was polled: nobody is let in by it, and who may still wait does.
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
            // Those who left are mostly dropped when their turn comes; here they would keep others out.
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

    /// How the wait has ended, by then.
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
            // Perhaps not by the keeper, whose place may be kept for nobody now.
            Ok(Ok(waited @ WaitOutcome::TimedOut(_))) => waited,
            Ok(Ok(waited)) => {
                waiting.is_served = true;
                waited
            }
            // Whoever takes it out of the line tells it: somebody has panicked.
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

/// The first who asks: it does so itself, and whoever comes meanwhile stands behind it.
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
        // Who may not wait takes no place that it would have to leave.
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
            // It waits, so it is asked for again: by the keeper, which gives up when that has been so for a while.
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

    /// From here on a keeper looks after the place, if anybody waits for it: those who came while this one asked may have
    /// left it no room.
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
            // There may be another one by now, or none.
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

/// It has been answered, or its future was dropped: those who came meanwhile go on.
impl Drop for LeaderAcquire {
    fn drop(&mut self) {
        if !self.is_finished {
            self.local_queues.deregister_leader(&self.queue_id, &self.leader_notify);
        }
    }
}
