//! Where the agent of a store runs.
//!
//! At home, which is the runtime that the store was made on, and if that has ended, or there was none, where it is first needed
//! then. A home that exists may be driven by nobody: a program may have made its store there, and gone on to another
//! runtime. Where the agent has not begun after a while, it does so on that of who needs it.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, Id},
    sync::mpsc,
    task::{AbortHandle, JoinHandle},
};

use super::lease_agent::{AgentMessage, AgentState, run_agent};

/// Where it runs, or is to run.
pub(super) struct AgentRuntime {
    pub(super) shared: Arc<AgentState>,
    /// The runtime on which the store was made, if there was one.
    home_runtime: Option<Handle>,
    mailbox: Mutex<Option<AgentMailbox>>,
}

/// The running agent: where it hears, and where it runs.
#[derive(Clone)]
pub(super) struct AgentMailbox {
    pub(super) tx: mpsc::UnboundedSender<AgentMessage>,
    runtime: Handle,
    /// What is to begin there.
    task: AbortHandle,
    start: Arc<AgentStart>,
}

/// For how long it is waited for an agent to begin at home. A lease that is shorter than a few of these is lost where nobody
/// drives that runtime.
const STANDBY_DELAY: Duration = Duration::from_millis(250);

/// Whether an agent has begun. A runtime that exists may be driven by nobody: a program may have made its store there, and
/// gone on to another one.
struct AgentStart {
    has_started: AtomicBool,
    /// For whoever begins first: the task at home, or one where it was found that nobody drives that.
    rx: Mutex<Option<mpsc::UnboundedReceiver<AgentMessage>>>,
    /// Who waits to find that out, one on each runtime that asks: it, too, may be driven by nobody.
    standby_tasks: Mutex<Vec<(Id, JoinHandle<()>)>>,
}

impl AgentStart {
    fn new(rx: mpsc::UnboundedReceiver<AgentMessage>) -> Arc<Self> {
        let (begun, rx) = (AtomicBool::new(false), Mutex::new(Some(rx)));
        Arc::new(Self { has_started: begun, rx, standby_tasks: Mutex::default() })
    }

    fn take_receiver(&self) -> Option<mpsc::UnboundedReceiver<AgentMessage>> {
        self.has_started.store(true, Ordering::Release);
        self.rx.lock().take()
    }

    fn has_started(&self) -> bool {
        self.has_started.load(Ordering::Acquire)
    }
}

impl AgentMailbox {
    /// Where work in the background should run. While it is not sure that anybody drives that, it is the caller's.
    pub(super) fn runtime_handle(self) -> Handle {
        let Self { runtime, start, .. } = self;
        if start.has_started() { runtime } else { Handle::try_current().unwrap_or(runtime) }
    }

    /// A runtime that has ended has dropped what was spawned on it.
    fn has_ended(&self) -> bool {
        if self.start.has_started() { self.tx.is_closed() } else { self.task.is_finished() }
    }
}

impl AgentRuntime {
    pub(super) fn new(shared: AgentState) -> Self {
        let home = Handle::try_current().ok();
        Self { shared: Arc::new(shared), home_runtime: home, mailbox: Mutex::new(None) }
    }

    /// All that is held is looked at at once, also where nobody runs any more who would.
    pub(super) fn recheck_all(self: &Arc<Self>) {
        self.shared.renewals.recheck_all();
        if self.shared.renewals.len() > 0 {
            self.ensure_running();
        }
    }

    /// The running agent; starts one if there is none: at home, or else where the caller runs.
    pub(super) fn ensure_running(self: &Arc<Self>) -> Option<AgentMailbox> {
        let mut mailbox = self.mailbox.lock();
        if let Some(running) = mailbox.as_ref().filter(|running| !running.has_ended()) {
            if !running.start.has_started() {
                self.spawn_standby(running);
            }
            return Some(running.clone());
        }
        let here = Handle::try_current().ok();
        for runtime in self.home_runtime.iter().chain(&here) {
            let (tx, rx) = mpsc::unbounded_channel();
            let (start, shared) = (AgentStart::new(rx), Arc::clone(&self.shared));
            let begins = Arc::clone(&start);
            let task = runtime.spawn(async move {
                if let Some(rx) = begins.take_receiver() {
                    run_agent(shared, rx).await;
                }
            });
            let (runtime, task) = (runtime.clone(), task.abort_handle());
            let running = AgentMailbox { tx, runtime, task, start };
            if !running.has_ended() {
                self.spawn_standby(&running);
                *mailbox = Some(running);
                return mailbox.clone();
            }
        }
        None
    }

    /// Has the agent run here if it has not begun where it is to run after a while.
    fn spawn_standby(self: &Arc<Self>, running: &AgentMailbox) {
        let Ok(here) = Handle::try_current() else { return };
        let mut waiting = running.start.standby_tasks.lock();
        waiting.retain(|(_, it)| !it.is_finished());
        if here.id() == running.runtime.id() || waiting.iter().any(|(at, _)| *at == here.id()) {
            return;
        }
        let (seat, start) = (Arc::downgrade(self), Arc::clone(&running.start));
        // What it was told is dealt with also when the last handle has gone.
        let shared = Arc::clone(&self.shared);
        let work = async move {
            tokio::time::sleep(STANDBY_DELAY).await;
            if let Some(rx) = take_over_start(&seat, &start) {
                tracing::warn!(
                    "nobody drives the runtime that a store was made on: its leases are renewed from another one"
                );
                run_agent(shared, rx).await;
            }
        };
        waiting.push((here.id(), here.spawn(work)));
    }
}

/// Begins here, unless it has begun by now.
fn take_over_start(
    seat: &Weak<AgentRuntime>,
    start: &Arc<AgentStart>,
) -> Option<mpsc::UnboundedReceiver<AgentMessage>> {
    if start.has_started() {
        return None;
    }
    let seat = seat.upgrade();
    let mut mailbox = seat.as_ref().map(|seat| seat.mailbox.lock());
    let rx = start.take_receiver()?;
    // There may be another one by now.
    let own = mailbox.as_mut().and_then(|mailbox| mailbox.as_mut());
    if let Some(own) = own.filter(|own| Arc::ptr_eq(&own.start, start)) {
        own.runtime = Handle::current();
    }
    Some(rx)
}
