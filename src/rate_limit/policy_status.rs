//! How one policy stands with a request.

use std::time::Duration;

/// How one policy stands with a request: what is told of it in fields and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// What may be spent in a window.
    pub limit: u64,
    /// The window's length.
    pub window: Duration,
    /// What may still be spent at once.
    pub remaining: u64,
    /// Until there is more than that.
    pub reset_after: Duration,
    /// How long this request has to wait at this policy if nobody else spends: zero if it would be let in,
    /// [`Duration::MAX`] if it never will, since it costs more than the whole quota.
    pub retry_after: Duration,
    /// True if this policy refuses the request.
    pub violated: bool,
}

impl PolicyStatus<'_> {
    /// Until a request like this one is let in, if it is refused; else until there is more quota.
    pub(super) fn wait_time(&self) -> Duration {
        if self.violated && !self.is_permanent() { self.retry_after } else { self.reset_after }
    }

    /// True if no waiting will help.
    pub(super) fn is_permanent(&self) -> bool {
        self.violated && self.retry_after == Duration::MAX
    }
}
