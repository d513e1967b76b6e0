//! What fails, and how.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};

/// What happens to a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BackendFault {
    /// It runs; no answer comes within the deadline.
    ReplyTimeout,
    /// It runs; the answer never comes, and no deadline ends it.
    NeverReplies,
    /// It runs; the answer comes so much later.
    SlowReply(Duration),
    /// It runs after so long, and is answered as much later.
    SlowCall(Duration),
    /// No answer comes within the deadline; it runs so long after it was sent, whatever was called meanwhile.
    TimeoutThenRun(Duration),
    /// It runs and is answered; another copy of it, in a way that was left, runs after so long.
    DuplicateRun(Duration),
    /// It runs; the answer is an error of the store's, as of a script that ends in the middle.
    ProtocolError,
    /// It does not run.
    Unavailable,
    /// It does not run: the login is refused.
    LoginRefused,
}

const CALL_DEADLINE: Duration = Duration::from_millis(250);

/// A handle on what fails, for the test.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultSchedule(
    Arc<Mutex<HashMap<&'static str, (BackendFault, usize)>>>,
    CallCounts,
    Arc<AtomicU64>,
);

/// How often each step was called.
type CallCounts = Arc<Mutex<HashMap<&'static str, usize>>>;

impl FaultSchedule {
    /// The next `calls` calls of this step meet this fault.
    pub(crate) fn set(&self, step: &'static str, fault: BackendFault, calls: usize) {
        self.0.lock().insert(step, (fault, calls));
    }

    /// The way to the store is left because it is silent.
    pub(crate) fn abandon_connection(&self) {
        self.2.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls that still have to meet it.
    pub(crate) fn remaining(&self, step: &'static str) -> usize {
        self.0.lock().get(step).map_or(0, |(_, left)| *left)
    }

    /// How often this step was called.
    pub(crate) fn call_count(&self, step: &'static str) -> usize {
        self.1.lock().get(step).copied().unwrap_or(0)
    }

    pub(super) fn abandoned_connections(&self) -> u64 {
        self.2.load(Ordering::Acquire)
    }

    pub(super) fn next_fault(&self, step: &'static str) -> Option<BackendFault> {
        *self.1.lock().entry(step).or_default() += 1;
        let mut faults = self.0.lock();
        let (fault, left) = faults.get_mut(step)?;
        *left = left.checked_sub(1)?;
        Some(*fault)
    }
}

/// What becomes of the answer to a step that has run.
pub(super) async fn apply_reply_fault<T>(
    fault: Option<BackendFault>,
    step: &'static str,
    answer: Result<T, Error>,
) -> Result<T, Error> {
    match fault {
        Some(BackendFault::ReplyTimeout | BackendFault::TimeoutThenRun(_)) => {
            tokio::time::sleep(CALL_DEADLINE).await;
            Err(Error::new(ErrorKind::Timeout, step))
        }
        Some(BackendFault::NeverReplies) => std::future::pending().await,
        Some(BackendFault::SlowReply(time) | BackendFault::SlowCall(time)) => {
            tokio::time::sleep(time).await;
            answer
        }
        Some(BackendFault::ProtocolError) => Err(Error::new(ErrorKind::Protocol, step)),
        Some(
            BackendFault::Unavailable | BackendFault::LoginRefused | BackendFault::DuplicateRun(_),
        )
        | None => answer,
    }
}
