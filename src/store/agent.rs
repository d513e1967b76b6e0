//! The agent: renews leases, and gives back what was dropped.
//!
//! It is one task per store handle, started by the first acquisition on that caller's runtime (and
//! started again if that runtime has ended). Everything it is told goes through one unbounded mailbox,
//! so a `Drop` can talk to it without waiting, and without a runtime of its own.
//!
//! - **Renewal** comes at a third of each lease, in batches. A failed one is tried again until the
//!   lease is no longer sure; then the hold is lost. "Not yours" loses it at once.
//! - **Giving back** is the undo of whatever a nonce may have done. It is sent again until the store
//!   has answered, or until the lease must have ended by itself.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
    time::Instant,
};

use super::{
    backend::{Backend, GaveBack, JobId, Renewal, Settle, Token, Verdict},
    hold::{Facts, Loss},
};
use crate::{error::Error, key::Key};

/// Leases renewed in one call: bounded as `renew.lua` is.
const BATCH: usize = 25;

/// Renewals that are due within this of each other go together.
const SLACK: Duration = Duration::from_millis(20);

pub(crate) struct Agent {
    shared: Arc<Shared>,
    /// The runtime on which the store was made, if there was one.
    home: Option<Handle>,
    mailbox: Mutex<Option<mpsc::UnboundedSender<GiveBack>>>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    /// Where the agent runs.
    runtime: Mutex<Option<Handle>>,
    /// Where the latest hold was taken that was not taken there: where the agent goes if that runtime ends.
    elsewhere: Mutex<Option<Handle>>,
    /// When to look at which hold next; the number only makes the keys distinct.
    rounds: Mutex<BTreeMap<(Instant, usize), Weak<Facts>>>,
    numbers: AtomicUsize,
    sooner: Notify,
    /// Messages that are not dealt with yet.
    pending: AtomicUsize,
    idle: Notify,
}

/// What is to be given back.
pub(super) struct GiveBack {
    pub(super) key: Key,
    pub(super) me: Token,
    /// The undo of a claim: the job goes back in line, together with its lock.
    pub(super) job: Option<JobId>,
    /// When it has ended by itself.
    pub(super) until: Instant,
    /// The call to be undone may still lie in a broken socket: "nothing there" is not the last word.
    pub(super) doubtful: bool,
}

impl Agent {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        let shared = Shared {
            backend,
            runtime: Mutex::new(None),
            elsewhere: Mutex::new(None),
            rounds: Mutex::default(),
            numbers: AtomicUsize::new(0),
            sooner: Notify::new(),
            pending: AtomicUsize::new(0),
            idle: Notify::new(),
        };
        let home = Handle::try_current().ok();
        Self {
            shared: Arc::new(shared),
            home,
            mailbox: Mutex::new(None),
        }
    }

    /// Takes care of a new hold: renewal, and its end.
    pub(super) fn watch_over(&self, facts: &Arc<Facts>) {
        self.running();
        self.shared.note_where();
        let until = facts.valid_until();
        let first = if facts.terms.renew {
            soon(until)
        } else {
            until
        };
        self.shared.schedule(first, facts);
    }

    /// A hold that is over leaves the rounds at once: they are as long as the number of holds.
    pub(super) fn look_away(&self, facts: &Facts) {
        if let Some(round) = facts.round.lock().take() {
            self.shared.rounds.lock().remove(&round);
        }
    }

    /// Has something given back, ordered after the call that may have taken it (calls about one lock
    /// share a connection). Never waits; if there is no runtime left to do it, the lease ends by itself.
    pub(super) fn give_back(&self, message: GiveBack) {
        let Some(mailbox) = self.running() else {
            return;
        };
        self.shared.pending.fetch_add(1, Ordering::AcqRel);
        if mailbox.send(message).is_err() {
            self.shared.settled_one();
        }
    }

    /// Resolves when nothing is left to give back.
    pub(super) async fn drained(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.shared.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Where work in the background should run: a runtime that lives as long as the store, if there is
    /// one, rather than that of the request that happens to ask.
    pub(super) fn runtime(&self) -> Option<Handle> {
        self.running()?;
        self.shared.runtime.lock().clone()
    }

    /// The running agent; starts one if there is none: at home, or else where the caller runs.
    fn running(&self) -> Option<mpsc::UnboundedSender<GiveBack>> {
        let mut mailbox = self.mailbox.lock();
        if let Some(running) = mailbox.as_ref().filter(|running| !running.is_closed()) {
            return Some(running.clone());
        }
        // An agent whose runtime has ended took its messages with it.
        self.shared.pending.store(0, Ordering::Release);
        self.shared.idle.notify_waiters();
        let here = Handle::try_current().ok();
        for runtime in self.home.iter().chain(&here) {
            let (tx, rx) = mpsc::unbounded_channel();
            Duty::new(&self.shared, rx).begin(runtime);
            // A runtime that has ended drops what is spawned on it at once.
            if !tx.is_closed() {
                *mailbox = Some(tx);
                return mailbox.clone();
            }
        }
        None
    }
}

/// When to renew for the first time: at a third of what it has, which may be less than the lease that is
/// wanted, if somebody else had asked for it.
fn soon(until: Instant) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / 3
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("held", &self.shared.rounds.lock().len())
            .finish()
    }
}

impl Shared {
    /// Looks at the hold at this time, and not at the one that was set before.
    fn schedule(&self, at: Instant, facts: &Arc<Facts>) {
        let round = (at, self.numbers.fetch_add(1, Ordering::Relaxed));
        let before = facts.round.lock().replace(round);
        let mut rounds = self.rounds.lock();
        if let Some(before) = before {
            rounds.remove(&before);
        }
        // Given back meanwhile: `look_away` has been here already.
        if facts.is_over() {
            return;
        }
        let first = rounds
            .first_key_value()
            .is_none_or(|((first, _), _)| at < *first);
        rounds.insert(round, Arc::downgrade(facts));
        drop(rounds);
        if first {
            self.sooner.notify_one();
        }
    }

    fn next_round(&self) -> Option<Instant> {
        self.rounds.lock().first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes out what is due.
    fn due(&self) -> Vec<Arc<Facts>> {
        let end = Instant::now() + SLACK;
        let mut rounds = self.rounds.lock();
        let later = rounds.split_off(&(end, 0));
        let due = std::mem::replace(&mut *rounds, later);
        drop(rounds);
        due.into_values()
            .filter_map(|f| f.upgrade())
            .filter(|f| !f.is_over())
            .collect()
    }

    /// Remembers the caller's runtime, if the agent does not run on it.
    fn note_where(&self) {
        let Ok(here) = Handle::try_current() else {
            return;
        };
        let runtime = self.runtime.lock();
        if runtime.as_ref().is_none_or(|r| r.id() != here.id()) {
            *self.elsewhere.lock() = Some(here);
        }
    }

    /// Nobody is left to renew anything.
    fn lose_all(&self) {
        let rounds = std::mem::take(&mut *self.rounds.lock());
        for hold in rounds.into_values().filter_map(|hold| hold.upgrade()) {
            hold.lose(Loss::Lapsed);
        }
    }

    fn settled_one(&self) {
        let one_less = |n: usize| n.checked_sub(1);
        let before = self
            .pending
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        if before == Ok(1) {
            self.idle.notify_waiters();
        }
    }
}

/// A message is dealt with when this is dropped: also if the runtime ends while it is.
struct Settling(Arc<Shared>);

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.settled_one();
    }
}

/// The agent's task. If its runtime ends under it, it goes on where the latest hold was taken, with its
/// mailbox; if there is no such place either, the holders are told.
struct Duty {
    shared: Arc<Shared>,
    /// `None` once the store handle is gone: then the task has ended by itself.
    mailbox: Option<mpsc::UnboundedReceiver<GiveBack>>,
}

impl Duty {
    fn new(shared: &Arc<Shared>, mailbox: mpsc::UnboundedReceiver<GiveBack>) -> Self {
        Self {
            shared: Arc::clone(shared),
            mailbox: Some(mailbox),
        }
    }

    fn begin(self, runtime: &Handle) {
        *self.shared.runtime.lock() = Some(runtime.clone());
        runtime.spawn(self.run());
    }

    async fn run(mut self) {
        if let Some(mailbox) = &mut self.mailbox {
            run(&self.shared, mailbox).await;
        }
        self.mailbox = None;
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        let Some(mailbox) = self.mailbox.take() else {
            return;
        };
        // Taken, so that places that have ended too are tried once.
        let elsewhere = self.shared.elsewhere.lock().take();
        match elsewhere {
            Some(runtime) => Self::new(&self.shared, mailbox).begin(&runtime),
            None => self.shared.lose_all(),
        }
    }
}

/// Ends when the store handle is gone and its mailbox is empty.
async fn run(shared: &Arc<Shared>, mailbox: &mut mpsc::UnboundedReceiver<GiveBack>) {
    loop {
        let next = shared.next_round();
        let round = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => match message {
                Some(message) => drop(tokio::spawn(give_back(Settling(Arc::clone(shared)), message))),
                None => return,
            },
            () = round => round_of(shared),
            () = shared.sooner.notified() => {}
        }
    }
}

/// Renews what can be renewed, and loses what is at its end.
fn round_of(shared: &Arc<Shared>) {
    let now = Instant::now();
    let mut to_renew = Vec::new();
    for hold in shared.due() {
        let until = hold.valid_until();
        let past_end = hold.last.load(Ordering::Acquire) || now >= hold.end;
        if !past_end && !hold.renewing.swap(true, Ordering::AcqRel) {
            // Should its renewal hang, the hold still ends in time.
            shared.schedule(until, &hold);
            to_renew.push(hold);
        } else if until > now + SLACK {
            shared.schedule(until, &hold);
        } else {
            hold.lose(if past_end {
                Loss::TooLong
            } else {
                Loss::Lapsed
            });
        }
    }
    for batch in to_renew.chunks(BATCH) {
        tokio::spawn(renew(Arc::clone(shared), batch.to_vec()));
    }
}

async fn give_back(settling: Settling, message: GiveBack) {
    let shared = &settling.0;
    let GiveBack {
        key,
        me,
        job,
        until,
        mut doubtful,
    } = message;
    let mut pause = Duration::from_millis(20);
    loop {
        let outcome = match &job {
            None => shared.backend.release(key.clone(), me.clone()).await,
            Some(job) => unclaim(&*shared.backend, &key, &me, job).await,
        };
        match outcome {
            Ok(GaveBack::Nothing) if doubtful => {}
            Ok(outcome) => {
                let (node, lock) = (me.node(), key.hashed());
                tracing::debug!(node, %lock, ?outcome, "given back after a drop");
                break;
            }
            Err(error) => doubtful |= error.may_have_run(),
        }
        if Instant::now() + pause > until {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// The undo of a claim: a mere release would leave a job that looks as if its worker had died.
async fn unclaim(
    backend: &dyn Backend,
    key: &Key,
    me: &Token,
    job: &JobId,
) -> Result<GaveBack, Error> {
    let verdict = Verdict::Back {
        delay: Duration::from_millis(1),
        reason: "not started",
    };
    let call = Settle {
        key: key.clone(),
        id: job.clone(),
        me: me.clone(),
        verdict,
    };
    let stood = backend.settle(call).await?;
    Ok(if stood {
        GaveBack::Left
    } else {
        GaveBack::Nothing
    })
}

async fn renew(shared: Arc<Shared>, holds: Vec<Arc<Facts>>) {
    let now = Instant::now();
    // Near its end a hold gets what is left, so that the store ends it when the holder is told.
    let lease = |hold: &Facts| {
        hold.terms
            .lease
            .min(hold.end.saturating_duration_since(now))
    };
    let items = holds.iter().map(|hold| Renewal {
        key: hold.key.clone(),
        me: hold.me.clone(),
        lease: lease(hold),
        job: hold.terms.job.clone(),
    });
    let answer = shared.backend.renew(items.collect()).await;
    for (i, hold) in holds.iter().enumerate() {
        hold.renewing.store(false, Ordering::Release);
        let whole = hold.terms.lease;
        match answer
            .as_ref()
            .map(|extended| extended.get(i).copied().unwrap_or(false))
        {
            // Given back or lost while the renewal was under way: either is final.
            _ if hold.is_over() => {}
            Ok(true) => {
                hold.extended(now, lease(hold));
                let last = lease(hold) < whole;
                hold.last.store(last, Ordering::Release);
                shared.schedule(
                    if last {
                        hold.valid_until()
                    } else {
                        now + whole / 3
                    },
                    hold,
                );
            }
            Ok(false) => hold.lose(Loss::Taken),
            Err(_) => {
                let again = (Instant::now() + whole / 10).min(hold.valid_until());
                shared.schedule(again, hold);
            }
        }
    }
}
