//! Choice of the tokio runtime that the lease agent runs on.
//!
//! The agent starts on the home runtime, on which the store was created. If there is none, or it
//! has ended, the agent starts on the runtime of the first caller that needs it.
//!
//! A runtime can exist without being driven: a program may create its store on one runtime and
//! continue on another. If the agent has not started on its runtime after `STANDBY_DELAY`, it
//! starts on the runtime of a caller instead.

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

/// Lease agent's state, and the runtime that it runs on or will run on.
pub(super) struct AgentRuntime {
    pub(super) shared: Arc<AgentState>,
    /// Runtime on which the store was created, if there was one.
    home_runtime: Option<Handle>,
    mailbox: Mutex<Option<AgentMailbox>>,
}

/// Handle on a spawned agent: its channel and its runtime.
#[derive(Clone)]
pub(super) struct AgentMailbox {
    pub(super) tx: mpsc::UnboundedSender<AgentMessage>,
    runtime: Handle,
    /// Task that starts the agent on `runtime`.
    task: AbortHandle,
    start: Arc<AgentStart>,
}

/// Time for which a caller waits for the agent to start on its first runtime. If that runtime is
/// not driven, a lease shorter than a few of these delays is lost.
const STANDBY_DELAY: Duration = Duration::from_millis(250);

/// Start of one agent, for which the task on the first runtime and the standby tasks compete.
struct AgentStart {
    has_started: AtomicBool,
    /// Receiver for the task that starts first: the one on the first runtime, or a standby task.
    rx: Mutex<Option<mpsc::UnboundedReceiver<AgentMessage>>>,
    /// Standby tasks, one for each runtime that has asked: such a runtime may stop being driven,
    /// too.
    standby_tasks: Mutex<Vec<(Id, JoinHandle<()>)>>,
}

impl AgentStart {
    fn new(rx: mpsc::UnboundedReceiver<AgentMessage>) -> Arc<Self> {
        Arc::new(Self {
            has_started: AtomicBool::new(false),
            rx: Mutex::new(Some(rx)),
            standby_tasks: Mutex::default(),
        })
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
    /// Returns the runtime for background work: the agent's, or the caller's until the agent has
    /// started and has thus shown that its runtime is driven.
    pub(super) fn runtime_handle(self) -> Handle {
        let Self { runtime, start, .. } = self;
        if start.has_started() { runtime } else { Handle::try_current().unwrap_or(runtime) }
    }

    /// Returns true if the agent's runtime has ended. A runtime that ends drops the tasks spawned
    /// on it.
    fn has_ended(&self) -> bool {
        if self.start.has_started() { self.tx.is_closed() } else { self.task.is_finished() }
    }
}

impl AgentRuntime {
    pub(super) fn new(shared: AgentState) -> Self {
        let home_runtime = Handle::try_current().ok();
        Self { shared: Arc::new(shared), home_runtime, mailbox: Mutex::new(None) }
    }

    /// Checks all leases at once. Restarts the agent if the runtime that it ran on has ended.
    pub(super) fn recheck_all(self: &Arc<Self>) {
        self.shared.renewals.recheck_all();
        if self.shared.renewals.len() > 0 {
            self.ensure_running();
        }
    }

    /// Returns the running agent. Starts one if there is none: on the home runtime, or else on the
    /// caller's.
    pub(super) fn ensure_running(self: &Arc<Self>) -> Option<AgentMailbox> {
        let mut mailbox = self.mailbox.lock();
        if let Some(running) = mailbox.as_ref().filter(|running| !running.has_ended()) {
            if !running.start.has_started() {
                self.spawn_standby(running);
            }
            return Some(running.clone());
        }
        let current_runtime = Handle::try_current().ok();
        for runtime in self.home_runtime.iter().chain(&current_runtime) {
            let (tx, rx) = mpsc::unbounded_channel();
            let (start, shared) = (AgentStart::new(rx), Arc::clone(&self.shared));
            let first_start = Arc::clone(&start);
            let task = runtime.spawn(async move {
                if let Some(rx) = first_start.take_receiver() {
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

    /// Spawns a standby task on the current runtime. It starts the agent there if the agent has not
    /// started within `STANDBY_DELAY`.
    fn spawn_standby(self: &Arc<Self>, running: &AgentMailbox) {
        let Ok(current_runtime) = Handle::try_current() else { return };
        let current_id = current_runtime.id();
        let mut standby_tasks = running.start.standby_tasks.lock();
        standby_tasks.retain(|(_, task)| !task.is_finished());
        if current_id == running.runtime.id()
            || standby_tasks.iter().any(|(runtime_id, _)| *runtime_id == current_id)
        {
            return;
        }
        let (agent_runtime, start) = (Arc::downgrade(self), Arc::clone(&running.start));
        // Queued messages are handled even after the last handle is gone.
        let shared = Arc::clone(&self.shared);
        let work = async move {
            tokio::time::sleep(STANDBY_DELAY).await;
            if let Some(rx) = take_over_start(&agent_runtime, &start) {
                tracing::warn!(
                    "the store's runtime is not driven; leases are renewed on another runtime"
                );
                run_agent(shared, rx).await;
            }
        };
        standby_tasks.push((current_id, current_runtime.spawn(work)));
    }
}

/// Takes the receiver for a standby task, unless the agent has started.
fn take_over_start(
    agent_runtime: &Weak<AgentRuntime>,
    start: &Arc<AgentStart>,
) -> Option<mpsc::UnboundedReceiver<AgentMessage>> {
    if start.has_started() {
        return None;
    }
    let agent_runtime = agent_runtime.upgrade();
    let mut mailbox = agent_runtime.as_ref().map(|runtime| runtime.mailbox.lock());
    let rx = start.take_receiver()?;
    // A newer agent may have replaced this one.
    let running = mailbox.as_mut().and_then(|mailbox| mailbox.as_mut());
    if let Some(running) = running.filter(|running| Arc::ptr_eq(&running.start, start)) {
        running.runtime = Handle::current();
    }
    Some(rx)
}
