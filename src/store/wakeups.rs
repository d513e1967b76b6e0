//! Messages from other processes, and who in this one wants them.
//!
//! A hint says "look again", never "it is yours": truth is read from the store by the step that
//! follows. Every wait has a timer beside its hint, so a lost message costs time and nothing else.

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

/// What a message can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WakeupMessage {
    /// A lock was offered to this place of the process.
    Offer(LockToken),
    /// Somebody joined the line of a lock that this process holds.
    QueueJoin(Key, Contenders),
    /// The lock is offered to its first job.
    JobOffer(Key, JobId),
    /// A shard's due index has an earlier entry now.
    ShardDue(u16),
    /// Something happened to a job.
    JobChanged(JobId),
    /// A worker of a queue of tasks has something to do.
    TasksReady(Arc<str>),
    /// Workers have come or gone, or have given shards up.
    WorkersChanged,
    /// Messages may have been missed: everybody looks again.
    Resync,
}

impl WakeupMessage {
    /// Reads a message of the process's own channel.
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

    /// What a process tells another one; `None`: none of that.
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

    /// Reads a message of the namespace's channels of events: a word, or all jobs that one call has changed.
    pub(crate) fn parse_events(text: &str) -> impl Iterator<Item = Self> {
        let event = |word| match word {
            "workers" => Some(Self::WorkersChanged),
            id => JobId::parse(id).map(Self::JobChanged),
        };
        text.split(' ').filter_map(event)
    }
}

/// Who wants to know of those that join the line of a lock this process holds.
pub(crate) trait JoinListener: Send + Sync {
    fn on_join(&self, key: &Key, who: Contenders);
    /// The store is shut down: what is kept for later is given back now. False while the place of a
    /// waiter who left has still to be given up.
    fn drain(&self) -> bool;
}

/// The listeners of one store handle.
#[derive(Default)]
pub(crate) struct Wakeups {
    offers: Mutex<HashMap<LockToken, Weak<Notify>>>,
    join_listener: Mutex<Option<Weak<dyn JoinListener>>>,
    job_watches: Mutex<HashMap<JobId, Weak<JobWatch>>>,
    task_workers: Mutex<HashMap<Arc<str>, Weak<Notify>>>,
    job_workers: Mutex<Vec<mpsc::UnboundedSender<WakeupMessage>>>,
    subscription: Mutex<Option<SubscriptionState>>,
    lifetime: watch::Sender<()>,
    /// Somebody has waited for a job.
    jobs_wanted: watch::Sender<bool>,
}

impl Wakeups {
    /// Makes sure that somebody listens: `listen` is called the first time, and again if what it has run was
    /// dropped, or if it could not listen (`None`).
    pub(crate) fn ensure_subscribed(&self, listen: impl FnOnce() -> Option<SubscriptionState>) {
        let mut listening = self.subscription.lock();
        if !listening.as_ref().is_some_and(SubscriptionState::is_active) {
            *listening = listen();
        }
    }

    /// Closes when these listeners are gone.
    #[cfg(feature = "redis")]
    pub(crate) fn lifetime(&self) -> watch::Receiver<()> {
        self.lifetime.subscribe()
    }

    /// A bell that rings when a lock is offered to this place.
    pub(crate) fn subscribe_offers(&self, me: &LockToken) -> Arc<Notify> {
        get_or_create_notifier(&self.offers, me)
    }

    /// Tells this one from now on of those that join lines.
    pub(crate) fn set_join_listener(&self, told: Weak<dyn JoinListener>) {
        *self.join_listener.lock() = Some(told);
    }

    /// Announces changes of the job. With the first of them this process begins to hear of jobs,
    /// after which all are announced once: it may have begun only after the first poll.
    pub(crate) fn subscribe_job(&self, id: &JobId) -> Arc<JobWatch> {
        let watch = get_or_create_notifier(&self.job_watches, id);
        self.jobs_wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
        watch
    }

    /// Whether jobs are to be heard of, and when that changes.
    #[cfg(feature = "redis")]
    pub(crate) fn jobs_wanted(&self) -> watch::Receiver<bool> {
        self.jobs_wanted.subscribe()
    }

    /// A bell that rings when this worker of a queue should look.
    pub(crate) fn subscribe_tasks(&self, worker: &Arc<str>) -> Arc<Notify> {
        get_or_create_notifier(&self.task_workers, worker)
    }

    /// All hints about work, for a worker of this store handle. Each has all of them: what one has no room for
    /// another one may have, and a claim is refused to all but one.
    pub(crate) fn subscribe_work(&self) -> mpsc::UnboundedReceiver<WakeupMessage> {
        let (tx, rx) = mpsc::unbounded_channel();
        let mut workers = self.job_workers.lock();
        workers.retain(|worker| !worker.is_closed());
        workers.push(tx);
        rx
    }

    /// How many workers of this store handle hear of work, and have not closed their ears.
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
                wake(&self.task_workers, &worker, Notify::notify_one)
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
        // To send wakes, which may run anything: not under the lock. Those that have closed go with the next that comes.
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

/// What listens.
#[derive(Debug)]
pub(crate) enum SubscriptionState {
    /// Messages come by themselves.
    BuiltIn,
    /// What was sent to run somewhere, and lives until it is dropped there.
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
    // Bells whose listeners have gone are swept when the map would grow, so it stays as large as the
    // number of waiters.
    if bells.len() == bells.capacity() {
        bells.retain(|_, bell| bell.strong_count() > 0);
        // Mostly in use: room for as many again, or the next ones would sweep again.
        if bells.len() > bells.capacity() / 2 {
            let more = bells.capacity();
            bells.reserve(more);
        }
    }
    let bell = Arc::new(B::default());
    bells.insert(key.clone(), Arc::downgrade(&bell));
    bell
}

/// Bells of places have one listener, the keeper: a permit is kept for it if it is between two looks.
fn wake<K: Eq + std::hash::Hash, B>(bells: &NotifierMap<K, B>, key: &K, how: fn(&B)) {
    // Not under the lock: who is woken may run anything.
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
