//! Guarantees and their violations.

use std::fmt;

/// A guarantee that a history can violate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Guarantee {
    /// Mutual exclusion: validity times of incompatible holders of a lock never overlap, nor do
    /// runs for one resource.
    M1,
    /// Fences are unique, and each is larger than the fences granted before its request.
    M2,
    /// A register that checks fences never goes back, and loses no increment.
    M3,
    /// No more permits are held than exist.
    P1,
    /// A writer never holds a lock together with readers.
    R1,
    /// A waiter is overtaken by at most one series of handovers of each other process.
    F1,
    /// After the faults each living client is served or refused within the time limit.
    L1,
    /// An idle store has no leftovers: keys, subscriptions, renewals or queues.
    N1,
    /// The operations took no more commands than allowed.
    N2,
    /// Each accepted request ends in exactly one state, which its runs confirm.
    D1,
    /// Requests for a resource start in the order of their acceptance.
    D2,
    /// A request runs again only after a failure or a fault that affected it, and no more often
    /// than allowed. Each run belongs to a request that a client has sent.
    D3,
    /// The stored response is the response of the handler.
    D4,
    /// Admissions never exceed the quota.
    RL1,
    /// Nothing is charged twice or refunded twice.
    RL2,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A violated guarantee, with the shortest part of the history that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The violated guarantee.
    pub guarantee: Guarantee,
    /// Cause as a sentence, and lines of the history.
    pub description: String,
}

impl Violation {
    pub(super) fn new(guarantee: Guarantee, description: impl Into<String>) -> Self {
        Self { guarantee, description: description.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.guarantee, self.description)
    }
}
