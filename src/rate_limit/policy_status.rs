//! State of one policy for a request.

use std::time::Duration;

/// State of one policy for a request, as reported in headers and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// Number of units per window.
    pub limit: u64,
    /// The window's length.
    pub window: Duration,
    /// Units that can be spent at once.
    pub remaining: u64,
    /// Time until more units are available.
    pub reset_after: Duration,
    /// Time that this request has to wait for this policy, if no other request spends its units.
    /// Zero if the policy admits it; [`Duration::MAX`] if it never will, since the cost exceeds the
    /// capacity.
    pub retry_after: Duration,
    /// True if this policy refuses the request.
    pub violated: bool,
}

impl PolicyStatus<'_> {
    /// Returns the time until such a request is admitted, if it is refused; otherwise the time
    /// until more units are available.
    pub(super) fn wait_time(&self) -> Duration {
        if self.violated && !self.is_permanent() { self.retry_after } else { self.reset_after }
    }

    /// Returns true if waiting does not help.
    pub(super) fn is_permanent(&self) -> bool {
        self.violated && self.retry_after == Duration::MAX
    }
}
