//! The agent: has leases renewed, and gives back what was dropped.
//!
//! It is one task per store handle, started when it is first needed ([`seat`](super::seat) says where). Everything it is told goes through one unbounded mailbox,
//! so a `Drop` can talk to it without waiting, and without a runtime of its own.
//!
//! - **Renewal** is in [`rounds`](super::rounds).
//! - **Giving back** is the undo of whatever a nonce may have done. It is sent again until the store
//!   has answered, or until the lease must have ended by itself.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};

use super::{
    backend::{Backend, GaveBack, JobId, Mode, Step, Token},
    ending::Ending,
    lease::Lease,
    rounds::Rounds,
    seat::{Mailbox, Seat},
};
use crate::{error::Error, key::Key};

pub(crate) struct Agent {
    seat: Arc<Seat>,
    /// Called by the store when it has become another server; it lives as long as this.
    _verify: Arc<dyn Fn() + Send + Sync>,
}

pub(super) struct Shared {
    backend: Arc<dyn Backend>,
    pub(super) rounds: Arc<Rounds>,
    /// Messages that are not dealt with yet.
    pending: AtomicUsize,
    idle: Notify,
    /// An agent of this store has run.
    begun: AtomicBool,
}

pub(super) enum Message {
    /// What is to be given back, and the outcome of the first call if it is on its way.
    GiveBack(GiveBack, Option<Step<'static, GaveBack>>, Pending),
    /// What is to run beside the agent.
    Run(BoxFuture<'static, ()>),
}

/// What is to be given back.
pub(super) struct GiveBack {
    pub(super) key: Key,
    pub(super) me: Token,
    pub(super) mode: Mode,
    pub(super) undo: Undo,
    /// When it has ended by itself.
    pub(super) until: Instant,
    /// How many of its calls may each have done something that is not undone, one after the undo of the other. Those that ran
    /// before it are undone as one.
    pub(super) finds: u32,
    /// The call to be undone may still lie in a broken socket: "nothing there" is not the last word.
    pub(super) doubtful: bool,
    /// How often ways to the store had been left ([`Backend::silences`]) when the call was sent that is to be undone,
    /// if it has not been answered. Left since then, it may come behind its undo.
    pub(super) silences: Option<u64>,
    /// A shutdown waits until it is undone. Not for what may merely come yet, when all that is known is undone.
    pub(super) is_known: bool,
    /// Is told what the first call came to; it goes on without whether anybody listens or not.
    pub(super) tell: Option<Told>,
}

/// Somebody who wants to know how giving back went.
pub(super) type Told = oneshot::Sender<Result<GaveBack, Error>>;

/// What undoes a call.
#[derive(Debug, Clone)]
pub(super) enum Undo {
    Release,
    /// Of a claim: the job goes back in line, together with its lock. Which one it is may not be known.
    Unclaim(Option<JobId>),
    /// Of the record of a request that runs at once; and until when a call for it that is on its way may take it.
    End(Box<Ending>, Instant),
}

impl Agent {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        let rounds = Arc::new(Rounds::new(Arc::clone(&backend)));
        let (pending, begun) = (AtomicUsize::new(0), AtomicBool::new(false));
        let shared = Shared { backend, rounds, pending, idle: Notify::new(), begun };
        let seat = Arc::new(Seat::new(shared));
        let weak = Arc::downgrade(&seat);
        let verify: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            if let Some(seat) = weak.upgrade() {
                seat.verify();
            }
        });
        seat.shared.backend.on_new_server(Arc::downgrade(&verify));
        Self { seat, _verify: verify }
    }

    /// Takes care of a new hold: renewal, and its end.
    pub(super) fn watch_over(&self, lease: &Arc<Lease>) {
        self.seat.running();
        self.seat.shared.rounds.begin(lease);
    }

    /// A hold that is over leaves the rounds at once: they are as long as the number of holds.
    pub(super) fn look_away(&self, lease: &Lease) {
        self.seat.shared.rounds.forget(lease);
    }

    /// Makes the lease last for so long from now; false if it is lost.
    pub(super) async fn extend(&self, lease: &Arc<Lease>, by: Duration) -> Result<bool, Error> {
        self.seat.shared.rounds.extend(lease, by).await
    }

    /// Has something given back, ordered after the call that may have taken it (calls about one lock
    /// share a connection). Never waits; if there is no runtime left to do it, the lease ends by itself.
    pub(super) fn give_back(&self, message: GiveBack) {
        let pending = Pending::new(&self.seat.shared, message.is_known);
        // On its way before anything that is asked of this lock from now on. The undo of a claim is another
        // step, and has time: its job is nobody's until then.
        let first = match message.undo {
            Undo::Release => {
                let GiveBack { key, me, mode, .. } = &message;
                self.seat.shared.backend.send_release(key.clone(), me.clone(), *mode)
            }
            Undo::Unclaim(_) | Undo::End(..) => None,
        };
        if let Some(mailbox) = self.seat.running() {
            // A message that is not heard any more is dropped, and with it what counts it.
            let _ = mailbox.tx.send(Message::GiveBack(message, first, pending));
        }
    }

    /// Resolves when nothing is left to give back.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.seat.shared.idle.notified();
            if self.seat.shared.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            // Whoever was told of it may be on a runtime that nobody drives.
            self.seat.running();
            idle.await;
        }
    }

    /// Has this run beside the agent: on a runtime that somebody drives, though it be a while until that is known.
    /// Dead once it has ended, or was dropped with its runtime; `None` if there is none.
    pub(super) fn keep(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<Weak<()>> {
        let life = Arc::new(());
        let alive = Arc::downgrade(&life);
        let work = async move {
            let _life = life;
            work.await;
        };
        self.seat.running()?.tx.send(Message::Run(Box::pin(work))).ok()?;
        Some(alive)
    }

    /// To be called where something is used that was given to [`keep`](Self::keep): whoever gave it may have gone before anybody
    /// was found who drives his runtime or the store's own.
    pub(crate) fn attend(&self) {
        if !self.seat.shared.begun.load(Ordering::Acquire) {
            self.seat.running();
        }
    }

    /// Where work in the background should run: a runtime that lives as long as the store, if there is
    /// one, rather than that of the request that happens to ask. The caller's until something has run there.
    pub(super) fn runtime(&self) -> Option<Handle> {
        self.seat.running().map(Mailbox::runtime)
    }
}

#[cfg(test)]
impl Agent {
    /// As if the store had become another server.
    pub(super) fn verify(&self) {
        self.seat.verify();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("held", &self.seat.shared.rounds.len()).finish()
    }
}

/// Counts a message until it is dealt with, or dropped with the runtime that was to deal with it.
pub(super) struct Pending {
    shared: Arc<Shared>,
    counts: bool,
}

impl Pending {
    fn new(shared: &Arc<Shared>, counts: bool) -> Self {
        if counts {
            shared.pending.fetch_add(1, Ordering::AcqRel);
        }
        Self { shared: Arc::clone(shared), counts }
    }

    fn is_over(&mut self) {
        let counted = std::mem::take(&mut self.counts);
        if counted && self.shared.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.idle.notify_waiters();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.is_over();
    }
}

/// Ends when the store handle is gone and its mailbox is empty.
pub(super) async fn run(shared: Arc<Shared>, mut mailbox: mpsc::UnboundedReceiver<Message>) {
    shared.begun.store(true, Ordering::Release);
    loop {
        let next = shared.rounds.next();
        let round = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => match message {
                Some(Message::GiveBack(message, first, pending)) => {
                    drop(tokio::spawn(give_back(message, first, pending)));
                }
                Some(Message::Run(work)) => drop(tokio::spawn(work)),
                None => return,
            },
            () = round => shared.rounds.look(),
            () = shared.rounds.sooner() => {}
        }
    }
}

async fn give_back(
    message: GiveBack,
    mut first: Option<Step<'static, GaveBack>>,
    mut pending: Pending,
) {
    let backend = Arc::clone(&pending.shared.backend);
    let GiveBack {
        key, me, mode, undo, mut until, mut finds, doubtful, silences, mut tell, ..
    } = message;
    let mut pause = Duration::from_millis(20);
    loop {
        let outcome = match (first.take(), &undo) {
            (Some(first), _) => first.await,
            (None, Undo::Release) => backend.release(key.clone(), me.clone(), mode).await,
            (None, Undo::Unclaim(job)) => unclaim(&*backend, &key, &me, job).await,
            (None, Undo::End(ending, _)) => ending.send(&*backend).await,
        };
        if let Some(tell) = tell.take() {
            let _ = tell.send(outcome.clone());
        }
        match outcome {
            Ok(GaveBack::Nothing | GaveBack::NothingOnRetry)
                if doubtful || silences.is_some_and(|before| before != backend.silences()) =>
            {
                if let Undo::End(_, comes) = &undo {
                    until = until.min(*comes);
                }
            }
            Ok(outcome) => {
                let (node, lock) = (me.node(), key.hashed());
                tracing::debug!(node, %lock, ?outcome, "given back after a drop");
                finds = finds.saturating_sub(1);
                if finds == 0 || !doubtful {
                    break;
                }
                pending.is_over();
            }
            // An undo that may have run is no doubt about what it undoes.
            Err(_) => {}
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
    job: &Option<JobId>,
) -> Result<GaveBack, Error> {
    let stood = backend.unclaim(key.clone(), me.clone(), job.clone()).await?;
    Ok(if stood { GaveBack::Left } else { GaveBack::Nothing })
}
