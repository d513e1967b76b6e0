//! Wake-ups: messages from other processes, and their listeners in this one.
//!
//! A wake-up asks its receiver to poll and grants nothing: the poll that follows reads the store.
//! Every wait has a timer besides, so a lost message costs only time.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use super::{
    backend::{Contenders, JobId, LockToken},
    job_watch::JobWatch,
};
use crate::key::Key;

/// Message of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WakeupMessage {
    /// A lock was offered to this queue entry of the process.
    Offer(LockToken),
    /// A process or a job joined the wait queue of a lock that this process holds.
    QueueJoin(Key, Contenders),
    /// The lock is offered to its first job.
    JobOffer(Key, JobId),
    /// The due index of a shard has an earlier entry.
    ShardDue(u16),
    /// A job has changed.
    JobChanged(JobId),
    /// A worker of a task queue has work.
    TasksReady(Arc<str>),
    /// Workers have come or gone, or have given up shards.
    WorkersChanged,
    /// Messages may have been missed, so every listener polls.
    Resync,
}

impl WakeupMessage {
    /// Parses a message of the process's own channel.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let kind = words.next()?;
        let key = Key::from_store(words.next()?);
        match kind {
            "o" => LockToken::parse(words.next()?).map(Self::Offer),
            "q" => Some(Self::QueueJoin(key, Contenders::from_waiter(words.next()?.parse().ok()?))),
            "g" => Some(Self::QueueJoin(key, Contenders::from_job(words.next()?.parse().ok()?))),
            "j" => Some(Self::JobOffer(key, JobId::parse(words.next()?)?)),
            "d" => Some(Self::ShardDue(key.shard())),
            "t" => Some(Self::TasksReady(key.as_str().into())),
            _ => None,
        }
    }

    /// Encodes a message that one process sends to another. Returns `None` for the other kinds.
    pub(crate) fn encode(&self) -> Option<String> {
        match self {
            Self::JobOffer(key, id) => Some(format!("j {key} {id}")),
            Self::QueueJoin(..)
            | Self::Offer(_)
            | Self::ShardDue(_)
            | Self::JobChanged(_)
            | Self::TasksReady(_)
            | Self::WorkersChanged
            | Self::Resync => None,
        }
    }

    /// Parses a message of the event channels: a keyword, or the ids of all jobs that one call has
    /// changed.
    pub(crate) fn parse_events(text: &str) -> impl Iterator<Item = Self> {
        let event = |word| match word {
            "workers" => Some(Self::WorkersChanged),
            id => JobId::parse(id).map(Self::JobChanged),
        };
        text.split(' ').filter_map(event)
    }
}

/// Listener for entries that join the wait queue of a lock held by this process.
pub(crate) trait JoinListener: Send + Sync {
    fn on_join(&self, key: &Key, who: Contenders);
    /// Releases everything that is kept for later, because the store is shut down. Returns false
    /// while the queue entry of a departed waiter has still to be removed.
    fn drain(&self) -> bool;
}

/// Listeners of one store handle.
#[derive(Default)]
pub(crate) struct Wakeups {
    offers: Mutex<HashMap<LockToken, Weak<Notify>>>,
    join_listener: Mutex<Option<Weak<dyn JoinListener>>>,
    job_watches: Mutex<HashMap<JobId, Weak<JobWatch>>>,
    task_workers: Mutex<HashMap<Arc<str>, Weak<Notify>>>,
    job_workers: Mutex<Vec<mpsc::UnboundedSender<WakeupMessage>>>,
    subscription: Mutex<Option<SubscriptionState>>,
    lifetime: watch::Sender<()>,
    /// A caller has waited for a job.
    jobs_wanted: watch::Sender<bool>,
}

impl Wakeups {
    /// Ensures that there is a subscription. Calls `listen` the first time, and again if it has
    /// returned `None` or if the task that it started was dropped.
    pub(crate) fn ensure_subscribed(&self, listen: impl FnOnce() -> Option<SubscriptionState>) {
        let mut listening = self.subscription.lock();
        if !listening.as_ref().is_some_and(SubscriptionState::is_active) {
            *listening = listen();
        }
    }

    /// Returns a receiver that closes when these listeners are dropped.
    #[cfg(feature = "redis")]
    pub(crate) fn lifetime(&self) -> watch::Receiver<()> {
        self.lifetime.subscribe()
    }

    /// Returns the notifier of offers to this queue entry.
    pub(crate) fn subscribe_offers(&self, me: &LockToken) -> Arc<Notify> {
        get_or_create_notifier(&self.offers, me)
    }

    /// Sets the listener that is notified of joins.
    pub(crate) fn set_join_listener(&self, told: Weak<dyn JoinListener>) {
        *self.join_listener.lock() = Some(told);
    }

    /// Returns the watch of a job. The first call subscribes this process to job changes; once
    /// subscribed, all jobs are announced as changed, because the subscription may have begun after
    /// the first poll.
    pub(crate) fn subscribe_job(&self, id: &JobId) -> Arc<JobWatch> {
        let watch = get_or_create_notifier(&self.job_watches, id);
        self.jobs_wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
        watch
    }

    /// Returns a receiver of the flag that job changes are wanted.
    #[cfg(feature = "redis")]
    pub(crate) fn jobs_wanted(&self) -> watch::Receiver<bool> {
        self.jobs_wanted.subscribe()
    }

    /// Returns the notifier of a worker of a task queue.
    pub(crate) fn subscribe_tasks(&self, worker: &Arc<str>) -> Arc<Notify> {
        get_or_create_notifier(&self.task_workers, worker)
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

    pub(crate) fn drain(&self) -> bool {
        let told = self.join_listener.lock().as_ref().and_then(Weak::upgrade);
        told.is_none_or(|told| told.drain())
    }

    pub(crate) fn deliver(&self, hint: WakeupMessage) {
        match hint {
            WakeupMessage::Offer(me) => wake(&self.offers, &me, Notify::notify_one),
            WakeupMessage::JobChanged(id) => wake(&self.job_watches, &id, JobWatch::notify_changed),
            WakeupMessage::TasksReady(worker) => {
                wake(&self.task_workers, &worker, Notify::notify_one);
            }
            WakeupMessage::QueueJoin(key, who) => {
                let told = self.join_listener.lock().as_ref().and_then(Weak::upgrade);
                if let Some(told) = told {
                    told.on_join(&key, who);
                }
            }
            WakeupMessage::JobOffer(..)
            | WakeupMessage::ShardDue(_)
            | WakeupMessage::WorkersChanged => self.notify_workers(&hint),
            WakeupMessage::Resync => {
                wake_all(&self.offers, Notify::notify_one);
                wake_all(&self.job_watches, JobWatch::notify_changed);
                wake_all(&self.task_workers, Notify::notify_one);
                self.notify_workers(&WakeupMessage::Resync);
            }
        }
    }

    fn notify_workers(&self, hint: &WakeupMessage) {
        // Sending wakes a task, which may run any code, so the mutex is not held. Closed senders
        // are removed when the next worker subscribes.
        let workers = self.job_workers.lock().clone();
        for worker in workers {
            let _ = worker.send(hint.clone());
        }
    }
}

impl fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeups").field("places", &self.offers.lock().len()).finish_non_exhaustive()
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
            Self::Task(life) => life.strong_count() > 0,
        }
    }
}

type NotifierMap<K, B> = Mutex<HashMap<K, Weak<B>>>;

fn get_or_create_notifier<K: Clone + Eq + std::hash::Hash, B: Default>(
    bells: &NotifierMap<K, B>,
    key: &K,
) -> Arc<B> {
    let mut bells = bells.lock();
    if let Some(bell) = bells.get(key).and_then(Weak::upgrade) {
        return bell;
    }
    // Notifiers without listeners are removed when the map is about to grow, so it stays as large
    // as the number of waiters.
    if bells.len() == bells.capacity() {
        bells.retain(|_, bell| bell.strong_count() > 0);
        // Most are in use: room for as many again avoids another sweep at the next inserts.
        if bells.len() > bells.capacity() / 2 {
            let more = bells.capacity();
            bells.reserve(more);
        }
    }
    let bell = Arc::new(B::default());
    bells.insert(key.clone(), Arc::downgrade(&bell));
    bell
}

/// Wakes the listener of a key. A queue entry has one listener, its queue task; `notify_one` stores
/// a permit if the task is between two polls.
fn wake<K: Eq + std::hash::Hash, B>(bells: &NotifierMap<K, B>, key: &K, how: fn(&B)) {
    // The mutex is not held: the task that is woken may run any code.
    let bell = bells.lock().get(key).and_then(Weak::upgrade);
    if let Some(bell) = bell {
        how(&bell);
    }
}

fn wake_all<K, B>(bells: &NotifierMap<K, B>, how: fn(&B)) {
    let bells: Vec<_> = bells.lock().values().filter_map(Weak::upgrade).collect();
    for bell in bells {
        how(&bell);
    }
}
