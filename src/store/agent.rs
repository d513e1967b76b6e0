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
    backend::{Backend, GaveBack, Renewal, Token},
    hold::{Facts, Loss, sure},
};
use crate::key::Key;

/// Leases renewed in one call: bounded as `renew.lua` is.
const BATCH: usize = 25;

/// Renewals that are due within this of each other go together.
const SLACK: Duration = Duration::from_millis(20);

pub(crate) struct Agent {
    shared: Arc<Shared>,
    mailbox: Mutex<Option<mpsc::UnboundedSender<GiveBack>>>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    /// When to look at which hold next; the number only makes the keys distinct.
    rounds: Mutex<BTreeMap<(Instant, usize), Weak<Facts>>>,
    numbers: AtomicUsize,
    sooner: Notify,
    /// Messages that are not dealt with yet.
    pending: AtomicUsize,
    idle: Notify,
}

struct GiveBack {
    key: Key,
    me: Token,
    until: Instant,
    /// The call to be undone may still lie in a broken socket: "nothing there" is not the last word.
    doubtful: bool,
}

impl Agent {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let shared = Shared {
            backend,
            rounds: Mutex::default(),
            numbers: AtomicUsize::new(0),
            sooner: Notify::new(),
            pending: AtomicUsize::new(0),
            idle: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
            mailbox: Mutex::new(None),
        }
    }

    /// Takes care of a new hold: renewal, or the end of its fixed lease.
    pub(crate) fn watch_over(&self, facts: &Arc<Facts>, sent: Instant) {
        self.running();
        let terms = &facts.terms;
        let first = if terms.renew {
            sent + terms.lease / 3
        } else {
            sent + sure(terms.lease)
        };
        self.shared.schedule(first, Arc::downgrade(facts));
    }

    /// Has the nonce's hold, offer or place given back, ordered after the call that may have made it
    /// (calls about one lock share a connection). Never waits; if there is no runtime left to do it,
    /// the lease ends by itself.
    pub(crate) fn give_back(&self, key: Key, me: Token, until: Instant, doubtful: bool) {
        let Some(mailbox) = self.running() else {
            return;
        };
        self.shared.pending.fetch_add(1, Ordering::AcqRel);
        if mailbox
            .send(GiveBack {
                key,
                me,
                until,
                doubtful,
            })
            .is_err()
        {
            self.shared.settled_one();
        }
    }

    /// Resolves when nothing is left to give back.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.shared.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// The mailbox of the running agent; starts one if there is none and this thread has a runtime.
    fn running(&self) -> Option<mpsc::UnboundedSender<GiveBack>> {
        let mut mailbox = self.mailbox.lock();
        if let Some(tx) = mailbox.as_ref().filter(|tx| !tx.is_closed()) {
            return Some(tx.clone());
        }
        let runtime = Handle::try_current().ok()?;
        let (tx, rx) = mpsc::unbounded_channel();
        // An agent whose runtime has ended took its messages with it.
        self.shared.pending.store(0, Ordering::Release);
        self.shared.idle.notify_waiters();
        runtime.spawn(run(Arc::clone(&self.shared), rx));
        *mailbox = Some(tx.clone());
        Some(tx)
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("held", &self.shared.rounds.lock().len())
            .finish()
    }
}

impl Shared {
    fn schedule(&self, at: Instant, facts: Weak<Facts>) {
        let mut rounds = self.rounds.lock();
        let first = rounds
            .first_key_value()
            .is_none_or(|((first, _), _)| at < *first);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        rounds.insert((at, number), facts);
        drop(rounds);
        if first {
            self.sooner.notify_one();
        }
    }

    fn next_round(&self) -> Option<Instant> {
        self.rounds.lock().first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes out what is due; holds that are over fall away here.
    fn due(&self) -> Vec<Arc<Facts>> {
        let end = Instant::now() + SLACK;
        let mut rounds = self.rounds.lock();
        let later = rounds.split_off(&(end, 0));
        let due = std::mem::replace(&mut *rounds, later);
        due.into_values()
            .filter_map(|f| f.upgrade())
            .filter(|f| !f.is_over())
            .collect()
    }

    fn settled_one(&self) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }
}

/// Ends when the store handle is gone and its mailbox is empty.
async fn run(shared: Arc<Shared>, mut mailbox: mpsc::UnboundedReceiver<GiveBack>) {
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
                Some(message) => drop(tokio::spawn(give_back(Arc::clone(&shared), message))),
                None => return,
            },
            () = round => {
                for batch in shared.due().chunks(BATCH) {
                    tokio::spawn(renew(Arc::clone(&shared), batch.to_vec()));
                }
            }
            () = shared.sooner.notified() => {}
        }
    }
}

async fn give_back(shared: Arc<Shared>, message: GiveBack) {
    let GiveBack {
        key,
        me,
        until,
        mut doubtful,
    } = message;
    let mut pause = Duration::from_millis(20);
    loop {
        match shared.backend.release(key.clone(), me.clone()).await {
            Ok(GaveBack::Nothing) if doubtful => {}
            Ok(outcome) => {
                tracing::debug!(
                    node = me.node(), lock = %key.hashed(), ?outcome, "given back after a drop"
                );
                break;
            }
            Err(_) => doubtful = true,
        }
        if Instant::now() + pause > until {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
    shared.settled_one();
}

async fn renew(shared: Arc<Shared>, holds: Vec<Arc<Facts>>) {
    let now = Instant::now();
    let (ended, holds): (Vec<_>, Vec<_>) = holds.into_iter().partition(|h| is_past_its_end(h, now));
    for hold in ended {
        // Past max_hold the lease is left to end by itself; it is lost when it is no longer sure.
        match hold.valid_until() {
            until if until > now => shared.schedule(until, Arc::downgrade(&hold)),
            _ => hold.lose(Loss::TooLong),
        }
    }
    if holds.is_empty() {
        return;
    }
    let items = holds.iter().map(|hold| Renewal {
        key: hold.key.clone(),
        me: hold.me.clone(),
        lease: hold.terms.lease,
        job: hold.terms.job.clone(),
    });
    let answer = shared.backend.renew(items.collect()).await;
    for (i, hold) in holds.iter().enumerate() {
        let lease = hold.terms.lease;
        match answer
            .as_ref()
            .map(|extended| extended.get(i).copied().unwrap_or(false))
        {
            Ok(true) => {
                hold.extended(now);
                shared.schedule(now + lease / 3, Arc::downgrade(hold));
            }
            // Given back while the renewal was under way: "not yours" is right, and no loss.
            Ok(false) if hold.is_over() => {}
            Ok(false) => hold.lose(Loss::Taken),
            Err(_) if hold.valid_until() <= Instant::now() => hold.lose(Loss::Lapsed),
            Err(_) => {
                let again = (Instant::now() + lease / 10).min(hold.valid_until());
                shared.schedule(again, Arc::downgrade(hold));
            }
        }
    }
}

fn is_past_its_end(hold: &Facts, now: Instant) -> bool {
    !hold.terms.renew || now >= hold.since + hold.terms.max_hold
}
