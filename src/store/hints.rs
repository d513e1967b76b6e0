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
    backend::{JobId, Others, Token},
    job_watch::JobWatch,
};
use crate::key::Key;

/// What a message can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hint {
    /// A lock was offered to this place of the process.
    Offer(Token),
    /// Somebody joined the line of a lock that this process holds.
    Line(Key, Others),
    /// The lock is offered to its first job.
    Work(Key, JobId),
    /// A shard's due index has an earlier entry now.
    Due(u16),
    /// Something happened to a job.
    Job(JobId),
    /// A worker of a queue of tasks has something to do.
    Tasks(Arc<str>),
    /// Workers have come or gone, or have given shards up.
    Workers,
    /// Messages may have been missed: everybody looks again.
    Resync,
}

impl Hint {
    /// Reads a message of the process's own channel.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let kind = words.next()?;
        let key = Key::from_store(words.next()?);
        match kind {
            "o" => Token::parse(words.next()?).map(Self::Offer),
            "q" => Some(Self::Line(key, Others::place(words.next()?.parse().ok()?))),
            "g" => Some(Self::Line(key, Others::job(words.next()?.parse().ok()?))),
            "j" => Some(Self::Work(key, JobId::parse(words.next()?)?)),
            "d" => Some(Self::Due(key.shard())),
            "t" => Some(Self::Tasks(key.as_str().into())),
            _ => None,
        }
    }

    /// What a process tells another one; `None`: none of that.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Work(key, id) => Some(format!("j {key} {id}")),
            Self::Line(..)
            | Self::Offer(_)
            | Self::Due(_)
            | Self::Job(_)
            | Self::Tasks(_)
            | Self::Workers
            | Self::Resync => None,
        }
    }

    /// Reads a message of the namespace's channels of events: a word, or all jobs that one call has changed.
    pub(crate) fn parse_events(text: &str) -> impl Iterator<Item = Self> {
        let event = |word| match word {
            "workers" => Some(Self::Workers),
            id => JobId::parse(id).map(Self::Job),
        };
        text.split(' ').filter_map(event)
    }
}

/// Who wants to know of those that join the line of a lock this process holds.
pub(crate) trait Joined: Send + Sync {
    fn joined(&self, key: &Key, who: Others);
    /// The store is shut down: what is kept for later is given back now. False while the place of a
    /// waiter who left has still to be given up.
    fn drain(&self) -> bool;
}

/// The listeners of one store handle.
#[derive(Default)]
pub(crate) struct Hints {
    places: Mutex<HashMap<Token, Weak<Notify>>>,
    lines: Mutex<Option<Weak<dyn Joined>>>,
    jobs: Mutex<HashMap<JobId, Weak<JobWatch>>>,
    tasks: Mutex<HashMap<Arc<str>, Weak<Notify>>>,
    workers: Mutex<Vec<mpsc::UnboundedSender<Hint>>>,
    listening: Mutex<Option<Listening>>,
    life: watch::Sender<()>,
    /// Somebody has waited for a job.
    jobs_wanted: watch::Sender<bool>,
}

impl Hints {
    /// Makes sure that somebody listens: `listen` is called the first time, and again if what it has run was
    /// dropped, or if it could not listen (`None`).
    pub(crate) fn ensure(&self, listen: impl FnOnce() -> Option<Listening>) {
        let mut listening = self.listening.lock();
        if !listening.as_ref().is_some_and(Listening::goes_on) {
            *listening = listen();
        }
    }

    /// Closes when these listeners are gone.
    #[cfg(feature = "redis")]
    pub(crate) fn life(&self) -> watch::Receiver<()> {
        self.life.subscribe()
    }

    /// A bell that rings when a lock is offered to this place.
    pub(crate) fn place(&self, me: &Token) -> Arc<Notify> {
        bell(&self.places, me)
    }

    /// Tells this one from now on of those that join lines.
    pub(crate) fn tell_of_lines(&self, told: Weak<dyn Joined>) {
        *self.lines.lock() = Some(told);
    }

    /// Announces changes of the job. With the first of them this process begins to hear of jobs,
    /// after which all are announced once: it may have begun only after the first poll.
    pub(crate) fn job(&self, id: &JobId) -> Arc<JobWatch> {
        let watch = bell(&self.jobs, id);
        self.jobs_wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
        watch
    }

    /// Whether jobs are to be heard of, and when that changes.
    #[cfg(feature = "redis")]
    pub(crate) fn jobs_wanted(&self) -> watch::Receiver<bool> {
        self.jobs_wanted.subscribe()
    }

    /// A bell that rings when this worker of a queue should look.
    pub(crate) fn tasks(&self, worker: &Arc<str>) -> Arc<Notify> {
        bell(&self.tasks, worker)
    }

    /// All hints about work, for a worker of this store handle. Each has all of them: what one has no room for
    /// another one may have, and a claim is refused to all but one.
    pub(crate) fn work(&self) -> mpsc::UnboundedReceiver<Hint> {
        let (tx, rx) = mpsc::unbounded_channel();
        let mut workers = self.workers.lock();
        workers.retain(|worker| !worker.is_closed());
        workers.push(tx);
        rx
    }

    /// How many workers of this store handle hear of work, and have not closed their ears.
    pub(crate) fn workers(&self) -> usize {
        self.workers.lock().iter().filter(|worker| !worker.is_closed()).count()
    }

    pub(crate) fn drain(&self) -> bool {
        let told = self.lines.lock().as_ref().and_then(Weak::upgrade);
        told.is_none_or(|told| told.drain())
    }

    pub(crate) fn deliver(&self, hint: Hint) {
        match hint {
            Hint::Offer(me) => ring(&self.places, &me, Notify::notify_one),
            Hint::Job(id) => ring(&self.jobs, &id, JobWatch::announce),
            Hint::Tasks(worker) => ring(&self.tasks, &worker, Notify::notify_one),
            Hint::Line(key, who) => {
                let told = self.lines.lock().as_ref().and_then(Weak::upgrade);
                if let Some(told) = told {
                    told.joined(&key, who);
                }
            }
            Hint::Work(..) | Hint::Due(_) | Hint::Workers => self.tell_workers(&hint),
            Hint::Resync => {
                ring_all(&self.places, Notify::notify_one);
                ring_all(&self.jobs, JobWatch::announce);
                ring_all(&self.tasks, Notify::notify_one);
                self.tell_workers(&Hint::Resync);
            }
        }
    }

    fn tell_workers(&self, hint: &Hint) {
        // To send wakes, which may run anything: not under the lock. Those that have closed go with the next that comes.
        let workers = self.workers.lock().clone();
        for worker in workers {
            let _ = worker.send(hint.clone());
        }
    }
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints").field("places", &self.places.lock().len()).finish_non_exhaustive()
    }
}

/// What listens.
#[derive(Debug)]
pub(crate) enum Listening {
    /// Messages come by themselves.
    Always,
    /// What was sent to run somewhere, and lives until it is dropped there.
    Runs(Weak<()>),
}

impl Listening {
    fn goes_on(&self) -> bool {
        match self {
            Self::Always => true,
            Self::Runs(life) => life.strong_count() > 0,
        }
    }
}

type Bells<K, B> = Mutex<HashMap<K, Weak<B>>>;

fn bell<K: Clone + Eq + std::hash::Hash, B: Default>(bells: &Bells<K, B>, key: &K) -> Arc<B> {
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
fn ring<K: Eq + std::hash::Hash, B>(bells: &Bells<K, B>, key: &K, how: fn(&B)) {
    // Not under the lock: who is woken may run anything.
    let bell = bells.lock().get(key).and_then(Weak::upgrade);
    if let Some(bell) = bell {
        how(&bell);
    }
}

fn ring_all<K, B>(bells: &Bells<K, B>, how: fn(&B)) {
    let bells: Vec<_> = bells.lock().values().filter_map(Weak::upgrade).collect();
    for bell in bells {
        how(&bell);
    }
}
