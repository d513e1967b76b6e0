//! Records of a test run with deferred requests: acceptances, exchanges, runs, observed statuses
//! and disturbances.

use crate::ProcessIncarnation;

/// Terms under which a request was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedTerms {
    /// True if it may run again after a crash (PUT, DELETE).
    pub retry_after_crash: bool,
    /// Most runs that are charged.
    pub max_runs: u32,
    /// True if later requests may overtake it while it waits for a retry.
    pub allows_overtaking: bool,
    /// True if its order is not checked, since it was delayed or redriven.
    pub is_unordered: bool,
}

impl AcceptedTerms {
    /// Terms of a POST: one run, in order.
    pub const SINGLE_RUN: Self = Self {
        retry_after_crash: false,
        max_runs: 1,
        allows_overtaking: false,
        is_unordered: false,
    };

    /// Terms of a PUT or DELETE: several runs, for which later requests wait.
    #[must_use]
    pub fn retryable(max_runs: u32) -> Self {
        Self { retry_after_crash: true, max_runs, ..Self::SINGLE_RUN }
    }
}

/// A 202 in the client's log.
#[derive(Debug, Clone)]
pub struct AcceptedJob {
    /// The id in its `Location`.
    pub id: String,
    /// Resource of the request.
    pub resource: String,
    /// Time in ns at which the client began to send the request.
    pub sent_at: u64,
    /// Time in ns at which the client had the response.
    pub answered_at: u64,
    /// Terms of the request.
    pub terms: AcceptedTerms,
    /// False for a 503 with a `Location`, after which the request may have been stored or not.
    pub is_certain: bool,
}

/// A request and its response in the client's log.
#[derive(Debug, Clone)]
pub struct ClientExchange {
    /// Resource of the request.
    pub resource: String,
    /// Process that received the request; `None` if it is unknown.
    pub incarnation: Option<ProcessIncarnation>,
    /// Time in ns at which the client began to send the request.
    pub sent_at: u64,
    /// Time in ns at which the client had the response, or knew that there will be none.
    pub answered_at: u64,
    /// Response to the client.
    pub answer: ClientAnswer,
}

/// Response to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAnswer {
    /// 202; the details are in [`AcceptedJob`].
    Accepted,
    /// 503 with a `Location`: the request may have been stored.
    PossiblyAccepted,
    /// Any other response.
    Response {
        /// Status of the response.
        status: u16,
        /// Body of the response.
        body: String,
    },
    /// The connection ended without a response.
    NoResponse,
}

/// A run in its handler's log.
#[derive(Debug, Clone)]
pub struct RecordedRun {
    /// Process of the run.
    pub incarnation: ProcessIncarnation,
    /// Resource of the lock that it ran under.
    pub resource: String,
    /// Job of the run; `None` for a request that ran directly.
    pub job_id: Option<String>,
    /// Number of the attempt, from 1; 0 for a request that ran directly.
    pub attempt: u32,
    /// Fence of its lock.
    pub fence: u64,
    /// Start in ns.
    pub started_at: u64,
    /// Last known end of the validity time of its lock in ns.
    pub valid_until: u64,
    /// End of the run, if it ended.
    pub end: Option<RunEnd>,
    /// Time at which it aborted its own process.
    pub aborted_at: Option<u64>,
    /// Time at which it was dropped, because its lock was lost or its worker was stopped.
    pub dropped_at: Option<u64>,
}

/// End of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// Time of the end in ns.
    pub ended_at: u64,
    /// Status of the response.
    pub status: u16,
    /// Body of the response, one word.
    pub body: String,
}

impl RunEnd {
    /// Returns true if the worker classifies the response as a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !matches!(self.status, 401 | 403 | 408 | 425 | 429 | 500..=599)
    }
}

/// One response of the status resource about a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedStatus {
    /// `done`, `dead`, `cancelled` or `expired`, or a pending state. Empty if there is no such job.
    pub state: String,
    /// Reason of the state.
    pub reason: String,
    /// Status and body of the stored response.
    pub response: Option<(u16, String)>,
}

impl ObservedStatus {
    /// Returns true if the state does not change any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(&*self.state, "done" | "dead" | "cancelled" | "expired")
    }
}

/// Period in which a process, or all of them, were disturbed.
#[derive(Debug, Clone, Copy)]
pub struct ProcessDisturbance {
    /// Disturbed process; `None` for all of them.
    pub incarnation: Option<ProcessIncarnation>,
    /// Start in ns.
    pub from: u64,
    /// End in ns, including the time for the recovery.
    pub to: u64,
}
