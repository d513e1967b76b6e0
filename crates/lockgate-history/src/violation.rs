//! What can be wrong.

use std::fmt;

/// A guarantee that a history can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Guarantee {
    /// Holders that exclude each other are never sure of a lock at the same time; runs of one resource neither.
    M1,
    /// Fences are unique, and grow from what was granted to what was asked for after it.
    M2,
    /// A register that looks at fences never goes back, and loses no increment.
    M3,
    /// Not more permits are held than there are.
    P1,
    /// No writer among readers.
    R1,
    /// Who stands in line is passed by a cohort of each other process at most.
    F1,
    /// After the faults everybody who lives is served or refused, in time.
    L1,
    /// Nothing is left when all is quiet: keys, subscriptions, renewals, lines.
    N1,
    /// What was done took no more commands than it may.
    N2,
    /// Each request that was accepted ends in exactly one state, that its runs bear out.
    D1,
    /// Requests of a resource start in the order in which they were accepted.
    D2,
    /// A request runs more than once only after a failure, or a fault that touched it, as often as it may; and
    /// nothing runs that nobody has sent.
    D3,
    /// The stored response is the one that was given.
    D4,
    /// Never more is let in than the quota allows.
    RL1,
    /// Nothing is charged twice, nor given back twice.
    RL2,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A guarantee that was broken, with the shortest part of the history that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub guarantee: Guarantee,
    /// What was seen: a sentence, and lines of the history.
    pub description: String,
}

impl Violation {
    pub(super) fn new(check: Guarantee, told: impl Into<String>) -> Self {
        Self { guarantee: check, description: told.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.guarantee, self.description)
    }
}
