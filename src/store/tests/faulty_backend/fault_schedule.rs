//! Faults of the backend, and their schedule.

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

/// Fault of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BackendFault {
    /// The call runs; its reply misses the deadline.
    ReplyTimeout,
    /// The call runs; the reply never arrives, and no deadline ends the wait.
    NeverReplies,
    /// The call runs; the reply is delayed by this time.
    SlowReply(Duration),
    /// The call runs after this time, and its reply is delayed as much again.
    SlowCall(Duration),
    /// The reply misses the deadline. The call runs this long after it was sent, independent of
    /// later calls.
    TimeoutThenRun(Duration),
    /// The call runs and is answered. A copy on an abandoned connection runs after this time.
    DuplicateRun(Duration),
    /// The call runs; the reply is a protocol error, as of a script that ends in the middle.
    ProtocolError,
    /// The call does not run: the store is unavailable.
    Unavailable,
    /// The call does not run: the login is refused.
    LoginRefused,
}

const CALL_DEADLINE: Duration = Duration::from_millis(250);

/// Handle of a test on the faults of its store.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultSchedule(
    Arc<Mutex<HashMap<&'static str, (BackendFault, usize)>>>,
    CallCounts,
    Arc<AtomicU64>,
    ServerGeneration,
);

/// Number of calls of each operation.
type CallCounts = Arc<Mutex<HashMap<&'static str, usize>>>;

/// Number of times that the server was replaced.
type ServerGeneration = Arc<AtomicU64>;

impl FaultSchedule {
    /// Applies a fault to the next `calls` calls of an operation.
    pub(crate) fn set(&self, operation: &'static str, fault: BackendFault, calls: usize) {
        self.0.lock().insert(operation, (fault, calls));
    }

    /// Abandons the connection, as after a silence.
    pub(crate) fn abandon_connection(&self) {
        self.2.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the store report that its server was replaced, or has lost its data. The data stay.
    pub(crate) fn replace_server(&self) {
        self.3.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of calls that will still get the fault.
    pub(crate) fn remaining(&self, operation: &'static str) -> usize {
        self.0.lock().get(operation).map_or(0, |(_, remaining)| *remaining)
    }

    /// Returns the number of calls of an operation.
    pub(crate) fn call_count(&self, operation: &'static str) -> usize {
        self.1.lock().get(operation).copied().unwrap_or(0)
    }

    pub(super) fn server_generation(&self) -> u64 {
        self.3.load(Ordering::Acquire)
    }

    pub(super) fn abandoned_connections(&self) -> u64 {
        self.2.load(Ordering::Acquire)
    }

    pub(super) fn next_fault(&self, operation: &'static str) -> Option<BackendFault> {
        *self.1.lock().entry(operation).or_default() += 1;
        let mut faults = self.0.lock();
        let (fault, remaining) = faults.get_mut(operation)?;
        *remaining = remaining.checked_sub(1)?;
        Some(*fault)
    }
}

/// Applies a fault to the reply of an operation that has run.
pub(super) async fn apply_reply_fault<T>(
    fault: Option<BackendFault>,
    operation: &'static str,
    reply: Result<T, Error>,
) -> Result<T, Error> {
    match fault {
        Some(BackendFault::ReplyTimeout | BackendFault::TimeoutThenRun(_)) => {
            tokio::time::sleep(CALL_DEADLINE).await;
            Err(Error::new(ErrorKind::Timeout, operation))
        }
        Some(BackendFault::NeverReplies) => std::future::pending().await,
        Some(BackendFault::SlowReply(time) | BackendFault::SlowCall(time)) => {
            tokio::time::sleep(time).await;
            reply
        }
        Some(BackendFault::ProtocolError) => Err(Error::new(ErrorKind::Protocol, operation)),
        Some(
            BackendFault::Unavailable | BackendFault::LoginRefused | BackendFault::DuplicateRun(_),
        )
        | None => reply,
    }
}
