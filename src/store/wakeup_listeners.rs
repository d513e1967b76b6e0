//! `WakeupListeners`: the listeners of this process for messages from other processes.
//!
//! A wake-up asks its receiver to poll and grants nothing: the poll that follows reads the store.
//! Every wait has a timer besides, so a lost message costs only time.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};

use super::{
    inspection::{InquiryListener, WaitReport},
    job_id::JobId,
    lock_commands_and_outcomes::Contenders,
    lock_token::LockToken,
    run_cancellation::RunCancellation,
    shared_job_poll::SharedJobPoll,
    wakeup_message::WakeupMessage,
};
use crate::key::Key;

/// Listener for entries that join the wait queue of a lock held by this process.
pub(crate) trait JoinListener: Send + Sync {
    fn on_join(&self, key: &Key, contenders: Contenders);
    /// Releases everything that is kept for later, because the store is shut down. Returns false
    /// while the queue entry of a departed waiter has still to be removed.
    fn drain(&self) -> bool;
    /// Returns the longest local queues, or that of one lock, the longest wait first.
    fn longest_waits(&self, lock: Option<&Key>) -> Vec<WaitReport>;
}

/// Listeners of one store handle.
#[derive(Default)]
pub(crate) struct WakeupListeners {
    offers: Mutex<HashMap<LockToken, Weak<Notify>>>,
    join_listener: Mutex<Option<Weak<dyn JoinListener>>>,
    inquiry_listener: Mutex<Option<Weak<dyn InquiryListener>>>,
    shared_job_polls: Mutex<HashMap<JobId, Weak<SharedJobPoll>>>,
    task_workers: Mutex<HashMap<Arc<str>, Weak<Notify>>>,
    /// Runs of this process, by the id of their job or task.
    runs: NotifierMap<Arc<str>, watch::Sender<Option<Instant>>>,
    job_workers: Mutex<Vec<mpsc::UnboundedSender<WakeupMessage>>>,
    /// Notified after an operator has changed policies.
    policy_changes: Arc<Notify>,
    subscription: Mutex<Option<SubscriptionState>>,
    lifetime: watch::Sender<()>,
    /// A caller has waited for a job.
    jobs_wanted: watch::Sender<bool>,
    /// An operator has drained the process: its workers start nothing.
    process_drain: watch::Sender<bool>,
}

impl WakeupListeners {
    /// Ensures that there is a subscription. Calls `subscribe` the first time, and again if it has
    /// returned `None` or if the task that it started was dropped.
    pub(crate) fn ensure_subscribed(&self, subscribe: impl FnOnce() -> Option<SubscriptionState>) {
        let mut subscription = self.subscription.lock();
        if !subscription.as_ref().is_some_and(SubscriptionState::is_active) {
            *subscription = subscribe();
        }
    }

    /// Returns a receiver that closes when these listeners are dropped.
    #[cfg(feature = "redis")]
    pub(crate) fn lifetime(&self) -> watch::Receiver<()> {
        self.lifetime.subscribe()
    }

    /// Returns the notifier of offers to this queue entry.
    pub(crate) fn subscribe_offers(&self, token: &LockToken) -> Arc<Notify> {
        get_or_create_notifier(&self.offers, token)
    }

    /// Sets the listener that is notified of joins.
    pub(crate) fn set_join_listener(&self, listener: Weak<dyn JoinListener>) {
        *self.join_listener.lock() = Some(listener);
    }

    /// Sets the listener of operators' messages.
    pub(crate) fn set_inquiry_listener(&self, listener: Weak<dyn InquiryListener>) {
        *self.inquiry_listener.lock() = Some(listener);
    }

    fn inquiry_listener(&self) -> Option<Arc<dyn InquiryListener>> {
        self.inquiry_listener.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Returns the shared poll of a job. The first call subscribes this process to job changes;
    /// once subscribed, all jobs are announced as changed, because the subscription may have begun
    /// after the first poll.
    pub(crate) fn subscribe_job(&self, id: &JobId) -> Arc<SharedJobPoll> {
        let shared_poll = get_or_create_notifier(&self.shared_job_polls, id);
        self.jobs_wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
        shared_poll
    }

    /// Returns a receiver of the flag that job changes are wanted.
    #[cfg(feature = "redis")]
    pub(crate) fn jobs_wanted(&self) -> watch::Receiver<bool> {
        self.jobs_wanted.subscribe()
    }

    /// Returns true while an operator has drained the process.
    pub(crate) fn is_drained(&self) -> bool {
        *self.process_drain.borrow()
    }

    /// Returns a receiver of the flag that an operator has drained the process.
    pub(crate) fn process_drain(&self) -> watch::Receiver<bool> {
        self.process_drain.subscribe()
    }

    /// Returns the notifier of a worker of a task queue.
    pub(crate) fn subscribe_tasks(&self, worker: &Arc<str>) -> Arc<Notify> {
        get_or_create_notifier(&self.task_workers, worker)
    }

    /// Registers the run of a job or a task, and returns what tells it of a cancellation. An
    /// earlier run of the same job or task is no longer told: it has ended, or is lost.
    pub(crate) fn register_run(&self, id: &str) -> RunCancellation {
        let cancellation = RunCancellation::default();
        insert_notifier(&mut self.runs.lock(), &id.into(), cancellation.signal());
        cancellation
    }

    /// Subscribes a worker of this store handle to all wake-ups about work. Every worker receives
    /// all of them: a job for which one has no free run slot may fit another, and all claims but
    /// one are refused.
    pub(crate) fn subscribe_work(&self) -> mpsc::UnboundedReceiver<WakeupMessage> {
        let (tx, rx) = mpsc::unbounded_channel();
        let mut workers = self.job_workers.lock();
        workers.retain(|worker| !worker.is_closed());
        workers.push(tx);
        rx
    }

    /// Returns the number of workers of this store handle that are subscribed to work.
    pub(crate) fn job_worker_count(&self) -> usize {
        self.job_workers.lock().iter().filter(|worker| !worker.is_closed()).count()
    }

    /// Returns the notifier of changed policies. One task of a store handle waits for it.
    pub(crate) fn policy_changes(&self) -> Arc<Notify> {
        Arc::clone(&self.policy_changes)
    }

    /// Returns the longest local queues, see [`JoinListener::longest_waits`]. None until a request
    /// has waited.
    pub(crate) fn longest_waits(&self, lock: Option<&Key>) -> Vec<WaitReport> {
        let listener = self.join_listener.lock().as_ref().and_then(Weak::upgrade);
        listener.map_or_else(Vec::new, |listener| listener.longest_waits(lock))
    }

    /// Drains the join listener, see [`JoinListener::drain`].
    pub(crate) fn drain(&self) -> bool {
        let listener = self.join_listener.lock().as_ref().and_then(Weak::upgrade);
        listener.is_none_or(|listener| listener.drain())
    }

    /// Wakes the listeners that a message concerns.
    pub(crate) fn deliver(&self, message: WakeupMessage) {
        match message {
            WakeupMessage::Offer(token) => wake(&self.offers, &token, Notify::notify_one),
            WakeupMessage::JobChanged(id) => {
                wake(&self.shared_job_polls, &id, SharedJobPoll::notify_changed);
            }
            WakeupMessage::TasksReady(worker) => {
                wake(&self.task_workers, &worker, Notify::notify_one);
            }
            WakeupMessage::QueueJoin(key, contenders) => {
                let listener = self.join_listener.lock().as_ref().and_then(Weak::upgrade);
                if let Some(listener) = listener {
                    listener.on_join(&key, contenders);
                }
            }
            WakeupMessage::JobOffer(..)
            | WakeupMessage::ShardDue(_)
            | WakeupMessage::WorkersChanged => self.notify_workers(&message),
            WakeupMessage::PoliciesChanged => self.policy_changes.notify_one(),
            WakeupMessage::FleetInquiry(inquiry, lock) => {
                if let Some(listener) = self.inquiry_listener() {
                    listener.on_inquiry(&inquiry, lock.as_ref());
                }
            }
            WakeupMessage::ForcedRelease => {
                if let Some(listener) = self.inquiry_listener() {
                    listener.on_forced_release();
                }
            }
            WakeupMessage::CancelRun(id) => wake(&self.runs, &id, RunCancellation::request),
            WakeupMessage::ProcessDrain(is_drained) => {
                self.process_drain
                    .send_if_modified(|flag| std::mem::replace(flag, is_drained) != is_drained);
            }
            WakeupMessage::Resync => {
                self.policy_changes.notify_one();
                wake_all(&self.offers, Notify::notify_one);
                wake_all(&self.shared_job_polls, SharedJobPoll::notify_changed);
                wake_all(&self.task_workers, Notify::notify_one);
                self.notify_workers(&WakeupMessage::Resync);
            }
        }
    }

    fn notify_workers(&self, message: &WakeupMessage) {
        // Sending wakes a task, which may run any code, so the mutex is not held. Closed senders
        // are removed when the next worker subscribes.
        let workers = self.job_workers.lock().clone();
        for worker in workers {
            let _ = worker.send(message.clone());
        }
    }
}

impl fmt::Debug for WakeupListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeupListeners")
            .field("offers", &self.offers.lock().len())
            .finish_non_exhaustive()
    }
}

/// Subscription of a store handle.
#[derive(Debug)]
pub(crate) enum SubscriptionState {
    /// The store delivers messages without a task.
    BuiltIn,
    /// Alive until the task of the subscription is dropped.
    Task(Weak<()>),
}

impl SubscriptionState {
    fn is_active(&self) -> bool {
        match self {
            Self::BuiltIn => true,
            Self::Task(liveness) => liveness.strong_count() > 0,
        }
    }
}

type NotifierMap<K, B> = Mutex<HashMap<K, Weak<B>>>;

fn get_or_create_notifier<K: Clone + Eq + std::hash::Hash, B: Default>(
    notifiers: &NotifierMap<K, B>,
    key: &K,
) -> Arc<B> {
    let mut notifiers = notifiers.lock();
    if let Some(notifier) = notifiers.get(key).and_then(Weak::upgrade) {
        return notifier;
    }
    let notifier = Arc::new(B::default());
    insert_notifier(&mut notifiers, key, &notifier);
    notifier
}

fn insert_notifier<K: Clone + Eq + std::hash::Hash, B>(
    notifiers: &mut HashMap<K, Weak<B>>,
    key: &K,
    notifier: &Arc<B>,
) {
    // Notifiers without listeners are removed when the map is about to grow, so it stays as large
    // as the number of waiters.
    if notifiers.len() == notifiers.capacity() {
        notifiers.retain(|_, notifier| notifier.strong_count() > 0);
        // Most are in use: room for as many again avoids another sweep at the next inserts.
        if notifiers.len() > notifiers.capacity() / 2 {
            let additional = notifiers.capacity();
            notifiers.reserve(additional);
        }
    }
    notifiers.insert(key.clone(), Arc::downgrade(notifier));
}

/// Wakes the listener of a key. A queue entry has one listener, its queue task; `notify_one` stores
/// a permit if the task is between two polls.
fn wake<K: Eq + std::hash::Hash, B>(notifiers: &NotifierMap<K, B>, key: &K, notify: fn(&B)) {
    // The mutex is not held: the task that is woken may run any code.
    let notifier = notifiers.lock().get(key).and_then(Weak::upgrade);
    if let Some(notifier) = notifier {
        notify(&notifier);
    }
}

fn wake_all<K, B>(notifiers: &NotifierMap<K, B>, notify: fn(&B)) {
    let notifiers: Vec<_> = notifiers.lock().values().filter_map(Weak::upgrade).collect();
    for notifier in notifiers {
        notify(&notifier);
    }
}
